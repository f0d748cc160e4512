/*
 * Runs every unit suite. QNN_ISA caps the instruction set; CK_RUN_SUITE and CK_RUN_CASE choose;
 * CK_FORK=no for debuggers.
 */
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    Suite *(*const suites[])(void) = {core_suite,  gemm_suite,    conv_suite,    ops_suite,
                                      quant_suite, convert_suite, qat_suite,     p3_suite,
                                      image_suite, dataset_suite, metrics_suite, train_suite,
                                      fit_suite,   file_suite};
    const size_t n_suites = sizeof suites / sizeof *suites;
    SRunner *const runner = srunner_create(suites[0]());
    int n_failed;

    for (size_t i = 1; i < n_suites; i++)
        srunner_add_suite(runner, suites[i]());
    printf("unit tests, QNN_ISA=%s\n", getenv("QNN_ISA") != NULL ? getenv("QNN_ISA") : "(best)");
    srunner_run_all(runner, CK_ENV);
    n_failed = srunner_ntests_failed(runner);
    if (srunner_ntests_run(runner) == 0)
        n_failed = 1; /* a run of nothing proves nothing */
    srunner_free(runner);
    return n_failed != 0;
}
