/* The loader: order, normalisation, leaving it early, failures. */
#define _POSIX_C_SOURCE 200809L
#include <check.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include <qnn.h>

#include "data_fixture.h"
#include "tests/common/testutil.h"

enum { N_LOADED = 23 };
static const float unit_mean[3] = {0, 0, 0}, unit_std[3] = {1.0f / 255, 1.0f / 255, 1.0f / 255};

/* The items of an epoch in their order, read back from the pixels; returns how many. */
static int run_epoch(qnn_ctx *ctx, qnn_loader *ld, int64_t epoch, int *items)
{
    const float *x;
    const int32_t *y;
    int n, total = 0, n_batches = 0;

    TU_OK(ctx, qnn_loader_begin(ld, epoch));
    for (;;) {
        TU_OK(ctx, qnn_loader_next(ld, &x, &y, &n));
        if (n == 0)
            break;
        for (int k = 0; k < n; k++) {
            int i = 0;

            while (i < N_LOADED && fabsf(x[k * DT_BYTES] - dt_value(i)) > 0.01f)
                i++;
            ck_assert_int_lt(i, N_LOADED);
            ck_assert_int_eq(y[k], i % 4);
            ck_assert_float_eq_tol(x[k * DT_BYTES + DT_BYTES - 1], dt_value(i), 0.01f);
            items[total++] = i;
        }
        n_batches++;
    }
    ck_assert_int_eq(n_batches, qnn_loader_batches(ld));
    ck_assert_int_eq(total, qnn_loader_items(ld));
    TU_OK(ctx, qnn_loader_next(ld, &x, &y, &n)); /* still the end */
    ck_assert_int_eq(n, 0);
    return total;
}

static qnn_loader *open_loader(qnn_ctx *ctx, qnn_dataset *ds, qnn_loader_opts opts)
{
    int64_t indices[N_LOADED];
    qnn_loader *ld;

    for (int i = 0; i < N_LOADED; i++)
        indices[i] = N_LOADED - 1 - i;
    opts.mean = unit_mean;
    opts.std_dev = unit_std;
    TU_OK(ctx, qnn_loader_create(&ld, ctx, ds, indices, N_LOADED, &opts));
    return ld;
}

START_TEST(loader_order)
{
    qnn_ctx *const ctx = tu_ctx(1);
    dt_numbers d = {0};
    qnn_dataset *const ds = dt_open_numbers(ctx, &d, N_LOADED);
    qnn_loader *const
        plain = open_loader(ctx, ds, (qnn_loader_opts){.batch = 5}),
        *const one = open_loader(ctx, ds, (qnn_loader_opts){.batch = 5, .shuffle = 1, .seed = 3}),
        *const three =
            open_loader(ctx, ds,
                        (qnn_loader_opts){
                            .batch = 5, .shuffle = 1, .seed = 3, .n_workers = 3, .n_prefetch = 4}),
        *const other = open_loader(ctx, ds, (qnn_loader_opts){.batch = 5, .shuffle = 1, .seed = 4});
    int a[N_LOADED], b[N_LOADED], first[N_LOADED];
    int64_t sorted[N_LOADED];

    ck_assert_int_eq(qnn_loader_batches(plain), 5);
    ck_assert_int_eq(qnn_loader_batch(plain), 5);
    ck_assert_ptr_eq(qnn_loader_dataset(plain), ds);
    ck_assert_int_eq(run_epoch(ctx, plain, 0, a), N_LOADED);
    for (int i = 0; i < N_LOADED; i++)
        ck_assert_int_eq(a[i], N_LOADED - 1 - i); /* as given */
    for (int epoch = 0; epoch < 4; epoch++) {
        ck_assert_int_eq(run_epoch(ctx, one, epoch, a), N_LOADED);
        for (int i = 0; i < N_LOADED; i++)
            sorted[i] = a[i];
        dt_expect_permutation(sorted, N_LOADED);
        ck_assert_int_eq(run_epoch(ctx, three, epoch, b), N_LOADED);
        ck_assert_mem_eq(a, b, sizeof a);
        ck_assert_int_eq(run_epoch(ctx, other, epoch, b), N_LOADED);
        ck_assert_mem_ne(a, b, sizeof a);
        if (epoch == 0)
            memcpy(first, a, sizeof a);
        else
            ck_assert_mem_ne(a, first, sizeof a);
    }
    run_epoch(ctx, three, 0, a); /* a pure function of the epoch's number */
    ck_assert_mem_eq(a, first, sizeof a);
    qnn_loader_free(plain);
    qnn_loader_free(one);
    qnn_loader_free(three);
    qnn_loader_free(other);
    qnn_dataset_free(ds);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(loader_drops_the_last_batch)
{
    qnn_ctx *const ctx = tu_ctx(1);
    dt_numbers d = {0};
    qnn_dataset *const ds = dt_open_numbers(ctx, &d, N_LOADED);
    qnn_loader *ld = open_loader(ctx, ds, (qnn_loader_opts){.batch = 5, .drop_last = 1});
    int items[N_LOADED];

    ck_assert_int_eq(qnn_loader_batches(ld), 4);
    ck_assert_int_eq(qnn_loader_items(ld), 20);
    ck_assert_int_eq(run_epoch(ctx, ld, 0, items), 20);
    qnn_loader_free(ld);
    ld = open_loader(ctx, ds, (qnn_loader_opts){.batch = N_LOADED, .drop_last = 1});
    ck_assert_int_eq(run_epoch(ctx, ld, 0, items), N_LOADED);
    qnn_loader_free(ld);
    ld = open_loader(ctx, ds, (qnn_loader_opts){.drop_last = 1}); /* batches of 64 */
    ck_assert_int_eq(qnn_loader_batches(ld), 0);
    ck_assert_int_eq(run_epoch(ctx, ld, 0, items), 0);
    qnn_loader_free(ld);
    qnn_dataset_free(ds);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(loader_normalises)
{
    static const double mean[3] = {0.485, 0.456, 0.406}, std_dev[3] = {0.229, 0.224, 0.225};
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_dataset *ds;
    qnn_loader *ld;
    const int64_t indices[2] = {5, 1};
    const float *x;
    const int32_t *y;
    int n;

    TU_OK(ctx, qnn_dataset_open_builtin(
                   &ds, ctx, &(qnn_builtin_opts){.n_items = 6, .height = 9, .width = 8}));
    TU_OK(ctx, qnn_loader_create(&ld, ctx, ds, indices, 2, NULL));
    ck_assert_int_eq(qnn_loader_batch(ld), 64);
    TU_OK(ctx, qnn_loader_begin(ld, 0));
    TU_OK(ctx, qnn_loader_next(ld, &x, &y, &n));
    ck_assert_int_eq(n, 2);
    for (int k = 0; k < 2; k++) {
        uint8_t pixels[9 * 8 * 3];
        int label;

        TU_OK(ctx, qnn_dataset_get(ds, ctx, indices[k], pixels, &label));
        ck_assert_int_eq(y[k], label);
        for (int i = 0; i < 9 * 8 * 3; i++)
            ck_assert_float_eq_tol(x[k * 9 * 8 * 3 + i],
                                   (float)((pixels[i] / 255.0 - mean[i % 3]) / std_dev[i % 3]),
                                   1e-5f);
    }
    qnn_loader_free(ld);
    qnn_dataset_free(ds);
    qnn_ctx_free(ctx);
}
END_TEST

/* Freed before, during and after an epoch; begun again in the middle of one. */
START_TEST(loader_may_be_left_at_any_time)
{
    qnn_ctx *const ctx = tu_ctx(1);
    dt_numbers d = {.pause_us = 200};
    qnn_dataset *const ds = dt_open_numbers(ctx, &d, N_LOADED);
    const qnn_loader_opts opts = {.batch = 2, .shuffle = 1, .n_workers = 3};
    qnn_loader *ld = open_loader(ctx, ds, opts);
    const float *x;
    const int32_t *y;
    int n, whole[N_LOADED], items[N_LOADED];

    qnn_loader_free(ld);
    qnn_loader_free(NULL);
    ld = open_loader(ctx, ds, opts);
    TU_OK(ctx, qnn_loader_begin(ld, 0));
    qnn_loader_free(ld);
    ld = open_loader(ctx, ds, opts);
    run_epoch(ctx, ld, 1, whole);
    for (int taken = 0; taken < 12; taken++) {
        TU_OK(ctx, qnn_loader_begin(ld, 9 + taken));
        for (int i = 0; i < taken; i++)
            TU_OK(ctx, qnn_loader_next(ld, &x, &y, &n));
        run_epoch(ctx, ld, 1, items);
        ck_assert_mem_eq(items, whole, sizeof items);
    }
    TU_OK(ctx, qnn_loader_begin(ld, 0));
    TU_OK(ctx, qnn_loader_next(ld, &x, &y, &n));
    qnn_loader_free(ld);
    qnn_dataset_free(ds);
    qnn_ctx_free(ctx);
}
END_TEST

/* A batch stays as it is until the next call, however long the workers have. */
START_TEST(loader_leaves_the_borrowed_batch_alone)
{
    const struct timespec pause = {0, 5 * 1000 * 1000};
    qnn_ctx *const ctx = tu_ctx(1);
    dt_numbers d = {0};
    qnn_dataset *const ds = dt_open_numbers(ctx, &d, N_LOADED);
    qnn_loader *const ld =
        open_loader(ctx, ds, (qnn_loader_opts){.batch = 2, .n_workers = 3, .n_prefetch = 1});
    const float *x;
    const int32_t *y;
    int n, at = N_LOADED;

    TU_OK(ctx, qnn_loader_begin(ld, 0));
    for (;;) {
        TU_OK(ctx, qnn_loader_next(ld, &x, &y, &n));
        if (n == 0)
            break;
        (void)nanosleep(&pause, NULL);
        for (int k = 0; k < n; k++) {
            at--;
            ck_assert_int_eq(y[k], at % 4);
            ck_assert_float_eq_tol(x[k * DT_BYTES], dt_value(at), 0.01f);
        }
    }
    ck_assert_int_eq(at, 0);
    qnn_loader_free(ld);
    qnn_dataset_free(ds);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(loader_reports_a_bad_item)
{
    qnn_ctx *const ctx = tu_ctx(1);
    dt_numbers d = {.bad = 10, .status = QNN_ERR_FORMAT, .message = "number 10 is damaged"};
    qnn_dataset *const ds = dt_open_numbers(ctx, &d, N_LOADED);
    qnn_loader *const ld = open_loader(ctx, ds, (qnn_loader_opts){.batch = 5, .n_workers = 3});
    const float *x;
    const int32_t *y;
    int n, items[N_LOADED];

    TU_OK(ctx, qnn_loader_begin(ld, 0)); /* 22..18, 17..13, then the batch with item 10 */
    for (int i = 0; i < 2; i++)
        TU_OK(ctx, qnn_loader_next(ld, &x, &y, &n));
    ck_assert_int_eq(qnn_loader_next(ld, &x, &y, &n), QNN_ERR_FORMAT);
    ck_assert_str_eq(qnn_ctx_error(ctx), "number 10 is damaged");
    ck_assert_int_eq(n, 0);
    d.status = QNN_OK;
    ck_assert_int_eq(run_epoch(ctx, ld, 1, items), N_LOADED);
    qnn_loader_free(ld);
    qnn_dataset_free(ds);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(loader_arguments)
{
    static const float zero[3] = {0.2f, 0, 0.2f};
    qnn_ctx *const ctx = tu_ctx(1);
    dt_numbers d = {0};
    qnn_dataset *const ds = dt_open_numbers(ctx, &d, 3);
    const int64_t indices[2] = {0, 3};
    const qnn_loader_opts bad[] = {{.batch = -1},
                                   {.n_workers = -1},
                                   {.n_workers = 1000},
                                   {.n_prefetch = -1},
                                   {.std_dev = zero}};
    qnn_loader *ld;
    const float *x;
    const int32_t *y;
    int n;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(qnn_loader_create(&ld, ctx, ds, indices, 1, &bad[i]) == QNN_ERR_ARG,
                      "case %zu", i);
    ck_assert_int_eq(qnn_loader_create(&ld, ctx, ds, indices, 2, NULL), QNN_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "is 3"));
    ck_assert_int_eq(qnn_loader_create(&ld, ctx, ds, indices, 0, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_loader_create(&ld, ctx, ds, NULL, 1, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_loader_create(&ld, ctx, NULL, indices, 1, NULL), QNN_ERR_ARG);
    TU_OK(ctx, qnn_loader_create(&ld, ctx, ds, indices, 1, NULL));
    ck_assert_int_eq(qnn_loader_next(ld, &x, &y, &n), QNN_ERR_STATE);
    ck_assert_int_eq(qnn_loader_next(ld, NULL, &y, &n), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_loader_begin(NULL, 0), QNN_ERR_ARG);
    qnn_loader_free(ld);
    qnn_dataset_free(ds);
    qnn_ctx_free(ctx);
}
END_TEST

TCase *dt_loader_case(void)
{
    TCase *const t = tcase_create("loader");

    tcase_set_timeout(t, 60);
    tcase_add_test(t, loader_order);
    tcase_add_test(t, loader_drops_the_last_batch);
    tcase_add_test(t, loader_normalises);
    tcase_add_test(t, loader_may_be_left_at_any_time);
    tcase_add_test(t, loader_leaves_the_borrowed_batch_alone);
    tcase_add_test(t, loader_reports_a_bad_item);
    tcase_add_test(t, loader_arguments);
    return t;
}
