/* What the tests of data sets and of the loader share. */
#ifndef QNN_TESTS_DATA_FIXTURE_H
#define QNN_TESTS_DATA_FIXTURE_H

#include <check.h>
#include <stdatomic.h>

#include <qnn.h>

enum { DT_SIDE = 4, DT_BYTES = DT_SIDE * DT_SIDE * 3 };

/* A data set of numbers: all bytes of item i are dt_value(i), its label is i % 4. Counts calls;
 * fails, waits and mislabels on request. */
typedef struct dt_numbers {
    atomic_int n_gets, n_freed;
    int64_t bad; /* item that fails unless status is QNN_OK */
    qnn_status status;
    const char *message;
    int bad_label; /* item 0 gets this label, where not 0 */
    long pause_us; /* each item takes this long */
} dt_numbers;

uint8_t dt_value(int64_t i);
qnn_status dt_numbers_get(void *user, int64_t i, uint8_t *pixels, int *label, char *err,
                          size_t err_size);
qnn_dataset *dt_open_numbers(qnn_ctx *ctx, dt_numbers *d, int64_t n);

/* Each of 0..n-1 once. */
void dt_expect_permutation(const int64_t *indices, int64_t n);

/* Memory counted, and allocation number fail_at failing. */
typedef struct dt_counted {
    atomic_long n_bytes, n_calls, fail_at;
} dt_counted;
qnn_ctx *dt_counted_ctx(dt_counted *c, int threads);

/* The tests of the loader, part of the data set's suite. */
TCase *dt_loader_case(void);

#endif
