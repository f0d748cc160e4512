/* What the tests of data sets and of the loader share: see the header. */
#define _POSIX_C_SOURCE 200809L
#include "data_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/common/testutil.h"

uint8_t dt_value(int64_t i) { return (uint8_t)(i * 37 + 1); }

qnn_status dt_numbers_get(void *user, int64_t i, uint8_t *pixels, int *label, char *err,
                          size_t err_size)
{
    dt_numbers *const d = user;
    const struct timespec pause = {0, d->pause_us * 1000};

    atomic_fetch_add(&d->n_gets, 1);
    if (d->pause_us != 0)
        (void)nanosleep(&pause, NULL);
    if (i == d->bad && d->status != QNN_OK) {
        snprintf(err, err_size, "%s", d->message);
        return d->status;
    }
    memset(pixels, dt_value(i), DT_BYTES);
    *label = i == 0 && d->bad_label != 0 ? d->bad_label : (int)(i % 4);
    return QNN_OK;
}

static void numbers_free(void *user)
{
    dt_numbers *const d = user;

    atomic_fetch_add(&d->n_freed, 1);
}

qnn_dataset *dt_open_numbers(qnn_ctx *ctx, dt_numbers *d, int64_t n)
{
    const qnn_dataset_ops ops = {.description = "numbers",
                                 .n_items = n,
                                 .n_classes = 4,
                                 .height = DT_SIDE,
                                 .width = DT_SIDE,
                                 .get = dt_numbers_get,
                                 .free = numbers_free};
    qnn_dataset *ds;

    TU_OK(ctx, qnn_dataset_create(&ds, ctx, &ops, d));
    return ds;
}

void dt_expect_permutation(const int64_t *indices, int64_t n)
{
    unsigned char *const seen = tu_alloc((size_t)n);

    memset(seen, 0, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        ck_assert(indices[i] >= 0 && indices[i] < n);
        ck_assert_int_eq(seen[indices[i]]++, 0);
    }
    free(seen);
}

static void *counted_alloc(void *user, size_t bytes, size_t align)
{
    dt_counted *const c = user;
    void *p;

    if (atomic_fetch_add(&c->n_calls, 1) == atomic_load(&c->fail_at) ||
        posix_memalign(&p, align, bytes) != 0)
        return NULL;
    atomic_fetch_add(&c->n_bytes, (long)bytes);
    return p;
}

static void counted_release(void *user, void *p, size_t bytes)
{
    dt_counted *const c = user;

    atomic_fetch_sub(&c->n_bytes, (long)bytes);
    free(p);
}

qnn_ctx *dt_counted_ctx(dt_counted *c, int threads)
{
    const qnn_ctx_opts opts = {
        .n_threads = threads, .isa = "ref", .allocator = {counted_alloc, counted_release, c}};
    qnn_ctx *ctx;

    ck_assert_int_eq(qnn_ctx_create(&ctx, &opts), QNN_OK);
    return ctx;
}
