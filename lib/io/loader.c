/*
 * Loader: batches made by background threads, handed out in order. A worker claims whole batches by
 * number, so what a batch holds never depends on how many workers there are.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "lib/io/dataset_impl.h"

typedef struct slot {
    float *x;
    int32_t *y;
    int n;
    int is_ready;
    qnn_status status;
    char err[QNN_ITEM_ERROR_MAX];
} slot;

typedef struct worker {
    qnn_loader *ld;
    pthread_t thread;
    uint8_t *pixels; /* one item */
} worker;

struct qnn_loader {
    qnn_ctx *ctx;
    qnn_dataset *ds;
    int64_t *index, *order; /* [n] as given; as this epoch runs */
    int64_t n, n_batches;
    int batch, shuffle, n_workers, n_slots;
    uint64_t seed;
    float scale[3], shift[3]; /* x = pixel * scale + shift */
    slot *slots;
    worker *workers;
    float *x;
    int32_t *y;
    uint8_t *pixels;
    int n_started;
    pthread_mutex_t mutex;
    pthread_cond_t can_work, can_take, idle;
    /* under the mutex */
    int64_t next_claim, next_take; /* batch numbers; batch b lies in slot b % n_slots */
    int n_busy, quit, is_open;
};

static size_t item_floats(const qnn_loader *ld)
{
    return (size_t)ld->ds->ops.height * (size_t)ld->ds->ops.width * 3;
}

/* The batch that the caller holds, next_take - 1, and those after it may be in slots at once. */
static int may_claim(const qnn_loader *ld)
{
    const int64_t held = ld->next_take > 0 ? ld->next_take - 1 : 0;

    return ld->is_open && ld->next_claim < ld->n_batches && ld->next_claim < held + ld->n_slots;
}

static void fill(const qnn_loader *ld, int64_t b, slot *s, uint8_t *pixels)
{
    const int64_t first = b * ld->batch, rest = ld->n - first;

    s->n = rest < ld->batch ? (int)rest : ld->batch;
    s->status = QNN_OK;
    for (int i = 0; i < s->n; i++) {
        int label = 0;

        s->status =
            qnn_dataset__get(ld->ds, ld->order[first + i], pixels, &label, s->err, sizeof s->err);
        if (s->status != QNN_OK)
            break;
        s->y[i] = label;
        ld->ctx->k.vec->normalize_rgb(item_floats(ld) / 3, pixels, ld->scale, ld->shift,
                                      s->x + (size_t)i * item_floats(ld));
    }
}

static void *worker_main(void *arg)
{
    const worker *const w = arg;
    qnn_loader *const ld = w->ld;

    pthread_mutex_lock(&ld->mutex);
    for (;;) {
        int64_t b;
        slot *s;

        while (!ld->quit && !may_claim(ld))
            pthread_cond_wait(&ld->can_work, &ld->mutex);
        if (ld->quit)
            break;
        b = ld->next_claim++;
        s = &ld->slots[b % ld->n_slots];
        s->is_ready = 0;
        ld->n_busy++;
        pthread_mutex_unlock(&ld->mutex);
        fill(ld, b, s, w->pixels);
        pthread_mutex_lock(&ld->mutex);
        ld->n_busy--;
        s->is_ready = 1;
        pthread_cond_broadcast(&ld->can_take);
        pthread_cond_broadcast(&ld->idle);
    }
    pthread_mutex_unlock(&ld->mutex);
    return NULL;
}

/* ---- life
 * ------------------------------------------------------------------------------------------------------------------------
 */

static void stop(qnn_loader *ld)
{
    pthread_mutex_lock(&ld->mutex);
    ld->quit = 1;
    pthread_cond_broadcast(&ld->can_work);
    pthread_mutex_unlock(&ld->mutex);
    for (int i = 0; i < ld->n_started; i++)
        pthread_join(ld->workers[i].thread, NULL);
}

static void release(qnn_loader *ld)
{
    qnn_ctx__release(ld->ctx, ld->index);
    qnn_ctx__release(ld->ctx, ld->slots);
    qnn_ctx__release(ld->ctx, ld->workers);
    qnn_ctx__release(ld->ctx, ld->x);
    qnn_ctx__release(ld->ctx, ld->y);
    qnn_ctx__release(ld->ctx, ld->pixels);
    qnn_ctx__release(ld->ctx, ld);
}

void qnn_loader_free(qnn_loader *ld)
{
    if (ld == NULL)
        return;
    stop(ld);
    pthread_cond_destroy(&ld->idle);
    pthread_cond_destroy(&ld->can_take);
    pthread_cond_destroy(&ld->can_work);
    pthread_mutex_destroy(&ld->mutex);
    release(ld);
}

static qnn_status allocate(qnn_loader *ld)
{
    const size_t n_slots = (size_t)ld->n_slots, batch = (size_t)ld->batch,
                 n_workers = (size_t)ld->n_workers;
    size_t bytes;
    void *block;

    QNN_RETURN_IF(ld->ctx, !qnn_mul_size(item_floats(ld) * sizeof(float), batch * n_slots, &bytes),
                  QNN_ERR_NOMEM, "a batch of %d images of %dx%d is too large", ld->batch,
                  ld->ds->ops.width, ld->ds->ops.height);
    QNN_TRY(
        qnn_ctx__alloc(ld->ctx, &block, 2 * (size_t)ld->n * sizeof *ld->index, "a loader's items"));
    ld->index = block;
    ld->order = ld->index + ld->n;
    QNN_TRY(qnn_ctx__zalloc(ld->ctx, &block, n_slots * sizeof *ld->slots, "a loader"));
    ld->slots = block;
    QNN_TRY(qnn_ctx__zalloc(ld->ctx, &block, n_workers * sizeof *ld->workers, "a loader"));
    ld->workers = block;
    QNN_TRY(qnn_ctx__alloc(ld->ctx, &block, bytes, "a loader's batches"));
    ld->x = block;
    QNN_TRY(qnn_ctx__alloc(ld->ctx, &block, n_slots * batch * sizeof *ld->y, "a loader's labels"));
    ld->y = block;
    QNN_TRY(qnn_ctx__alloc(ld->ctx, &block, n_workers * item_floats(ld), "a loader's pixels"));
    ld->pixels = block;
    for (size_t i = 0; i < n_slots; i++) {
        ld->slots[i].x = ld->x + i * batch * item_floats(ld);
        ld->slots[i].y = ld->y + i * batch;
    }
    return QNN_OK;
}

static qnn_status start(qnn_loader *ld)
{
    if (pthread_mutex_init(&ld->mutex, NULL) != 0)
        return qnn_ctx__fail(ld->ctx, QNN_ERR_NOMEM, "out of memory: a loader's mutex");
    if (pthread_cond_init(&ld->can_work, NULL) != 0 ||
        pthread_cond_init(&ld->can_take, NULL) != 0 || pthread_cond_init(&ld->idle, NULL) != 0) {
        pthread_mutex_destroy(&ld->mutex);
        return qnn_ctx__fail(ld->ctx, QNN_ERR_NOMEM,
                             "out of memory: a loader's condition variable");
    }
    for (; ld->n_started < ld->n_workers; ld->n_started++) {
        worker *const w = &ld->workers[ld->n_started];

        w->ld = ld;
        w->pixels = ld->pixels + (size_t)ld->n_started * item_floats(ld);
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0)
            break;
    }
    if (ld->n_started == ld->n_workers)
        return QNN_OK;
    stop(ld);
    pthread_cond_destroy(&ld->idle);
    pthread_cond_destroy(&ld->can_take);
    pthread_cond_destroy(&ld->can_work);
    pthread_mutex_destroy(&ld->mutex);
    return qnn_ctx__fail(ld->ctx, QNN_ERR_NOMEM, "cannot start loader thread %d of %d",
                         ld->n_started + 1, ld->n_workers);
}

static qnn_status check(qnn_ctx *ctx, const qnn_dataset *ds, const int64_t *indices, int64_t n,
                        const qnn_loader_opts *o)
{
    QNN_RETURN_IF(ctx, n < 1 || indices == NULL, QNN_ERR_ARG, "a loader of %lld items",
                  (long long)n);
    QNN_RETURN_IF(ctx,
                  o->batch < 0 || o->n_workers < 0 || o->n_workers > 64 || o->n_prefetch < 0 ||
                      o->n_prefetch > 64,
                  QNN_ERR_ARG, "a loader with batch %d, %d workers, %d batches ahead", o->batch,
                  o->n_workers, o->n_prefetch);
    for (int64_t i = 0; i < n; i++)
        QNN_RETURN_IF(ctx, indices[i] < 0 || indices[i] >= ds->n_items, QNN_ERR_ARG,
                      "loader item %lld is %lld, the data set has %lld", (long long)i,
                      (long long)indices[i], (long long)ds->n_items);
    for (int c = 0; c < 3 && o->std_dev != NULL; c++)
        QNN_RETURN_IF(ctx, !(o->std_dev[c] > 0.0f), QNN_ERR_ARG, "standard deviation %d is %g", c,
                      (double)o->std_dev[c]);
    return QNN_OK;
}

qnn_status qnn_loader_create(qnn_loader **out, qnn_ctx *ctx, qnn_dataset *ds,
                             const int64_t *indices, int64_t n, const qnn_loader_opts *opts)
{
    static const float mean[3] = {0.485f, 0.456f, 0.406f}, std_dev[3] = {0.229f, 0.224f, 0.225f};
    const qnn_loader_opts defaults = {0};
    const qnn_loader_opts *const o = opts != NULL ? opts : &defaults;
    qnn_loader *ld;
    void *block;
    qnn_status status;

    if (out == NULL || ctx == NULL || ds == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_TRY(check(ctx, ds, indices, n, o));
    QNN_TRY(qnn_ctx__zalloc(ctx, &block, sizeof *ld, "a loader"));
    ld = block;
    ld->ctx = ctx;
    ld->ds = ds;
    ld->n = n;
    ld->batch = o->batch != 0 ? o->batch : 64;
    ld->shuffle = o->shuffle;
    ld->seed = o->seed;
    ld->n_workers = o->n_workers != 0 ? o->n_workers : 1;
    ld->n_slots = (o->n_prefetch != 0 ? o->n_prefetch : 2) + 1;
    ld->n_batches = o->drop_last ? n / ld->batch : (n + ld->batch - 1) / ld->batch;
    for (int c = 0; c < 3; c++) {
        const float m = o->mean != NULL ? o->mean[c] : mean[c],
                    s = o->std_dev != NULL ? o->std_dev[c] : std_dev[c];

        ld->scale[c] = 1.0f / (255.0f * s);
        ld->shift[c] = -m / s;
    }
    status = allocate(ld);
    if (status == QNN_OK) {
        memcpy(ld->index, indices, (size_t)n * sizeof *indices);
        status = start(ld);
    }
    if (status != QNN_OK) {
        release(ld);
        return status;
    }
    *out = ld;
    return QNN_OK;
}

int64_t qnn_loader_batches(const qnn_loader *ld) { return ld->n_batches; }

int64_t qnn_loader_items(const qnn_loader *ld)
{
    return ld->n_batches * ld->batch < ld->n ? ld->n_batches * ld->batch : ld->n;
}

int qnn_loader_batch(const qnn_loader *ld) { return ld->batch; }

qnn_dataset *qnn_loader_dataset(const qnn_loader *ld) { return ld->ds; }

/* ---- an epoch
 * ----------------------------------------------------------------------------------------------------------------------
 */

static void make_order(qnn_loader *ld, int64_t epoch)
{
    qnn_rng r;

    memcpy(ld->order, ld->index, (size_t)ld->n * sizeof *ld->order);
    if (!ld->shuffle)
        return;
    qnn_rng__init(&r, ld->seed, qnn_hash__text("epoch") + (uint64_t)epoch);
    for (int64_t i = ld->n - 1; i > 0; i--) {
        const int64_t k = (int64_t)qnn_rng__below(&r, (uint64_t)i + 1), swapped = ld->order[i];

        ld->order[i] = ld->order[k];
        ld->order[k] = swapped;
    }
}

qnn_status qnn_loader_begin(qnn_loader *ld, int64_t epoch)
{
    if (ld == NULL)
        return QNN_ERR_ARG;
    pthread_mutex_lock(&ld->mutex);
    ld->is_open = 0;
    while (ld->n_busy > 0) /* batches of an epoch that was not finished */
        pthread_cond_wait(&ld->idle, &ld->mutex);
    make_order(ld, epoch);
    for (int i = 0; i < ld->n_slots; i++)
        ld->slots[i].is_ready = 0;
    ld->next_claim = 0;
    ld->next_take = 0;
    ld->is_open = 1;
    pthread_cond_broadcast(&ld->can_work);
    pthread_mutex_unlock(&ld->mutex);
    return QNN_OK;
}

qnn_status qnn_loader_next(qnn_loader *ld, const float **x, const int32_t **y, int *n)
{
    const slot *s;

    if (ld == NULL || x == NULL || y == NULL || n == NULL)
        return QNN_ERR_ARG;
    *n = 0;
    *x = NULL;
    *y = NULL;
    pthread_mutex_lock(&ld->mutex);
    if (!ld->is_open || ld->next_take == ld->n_batches) {
        const int is_open = ld->is_open;

        pthread_mutex_unlock(&ld->mutex);
        return is_open ? QNN_OK
                       : qnn_ctx__fail(ld->ctx, QNN_ERR_STATE, "the loader has not begun an epoch");
    }
    s = &ld->slots[ld->next_take % ld->n_slots];
    ld->next_take++; /* the batch before this one is given back */
    pthread_cond_broadcast(&ld->can_work);
    while (ld->next_claim < ld->next_take || !s->is_ready)
        pthread_cond_wait(&ld->can_take, &ld->mutex);
    pthread_mutex_unlock(&ld->mutex);
    if (s->status != QNN_OK)
        return qnn_ctx__fail(ld->ctx, s->status, "%s", s->err);
    *x = s->x;
    *y = s->y;
    *n = s->n;
    return QNN_OK;
}
