/* The unit suites, one per test file. */
#ifndef QNN_TESTS_SUITES_H
#define QNN_TESTS_SUITES_H

#include <check.h>

Suite *core_suite(void);
Suite *gemm_suite(void);
Suite *conv_suite(void);
Suite *ops_suite(void);
Suite *quant_suite(void);
Suite *convert_suite(void);
Suite *qat_suite(void);
Suite *p3_suite(void);
Suite *image_suite(void);
Suite *dataset_suite(void);
Suite *metrics_suite(void);
Suite *train_suite(void);
Suite *fit_suite(void);
Suite *file_suite(void);

#endif
