/* Data sets: the common part, the byte cache, the scan, the split. */
#define _POSIX_C_SOURCE 200809L
#include "lib/io/dataset_impl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define MAX_SIDE    4096
#define MAX_CLASSES 32768
#define NUMBER_SIZE 12

static size_t item_bytes(const qnn_dataset *ds)
{
    return (size_t)ds->ops.height * (size_t)ds->ops.width * 3;
}

static qnn_status check_ops(qnn_ctx *ctx, const qnn_dataset_ops *ops)
{
    QNN_RETURN_IF(ctx, ops == NULL || ops->get == NULL || ops->description == NULL, QNN_ERR_ARG,
                  "a data set needs get and a description");
    QNN_RETURN_IF(ctx, ops->n_items < 0 || ops->n_items > INT32_MAX, QNN_ERR_ARG,
                  "a data set of %lld items", (long long)ops->n_items);
    QNN_RETURN_IF(ctx, ops->n_classes < 1 || ops->n_classes > MAX_CLASSES, QNN_ERR_ARG,
                  "a data set of %d classes, expected 1..%d", ops->n_classes, MAX_CLASSES);
    QNN_RETURN_IF(
        ctx, ops->height < 1 || ops->width < 1 || ops->height > MAX_SIDE || ops->width > MAX_SIDE,
        QNN_ERR_ARG, "a data set of %dx%d images, sides must be 1..%d", ops->width, ops->height,
        MAX_SIDE);
    return QNN_OK;
}

qnn_status qnn_dataset_create(qnn_dataset **out, qnn_ctx *ctx, const qnn_dataset_ops *ops,
                              void *user)
{
    qnn_dataset *ds;
    void *block;
    char *text;
    qnn_status status;

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_TRY(check_ops(ctx, ops));
    QNN_TRY(qnn_ctx__zalloc(ctx, &block, sizeof *ds, "a data set"));
    ds = block;
    status = qnn_ctx__strdup(ctx, &text, ops->description);
    if (status != QNN_OK) {
        qnn_ctx__release(ctx, ds);
        return status;
    }
    ds->ctx = ctx;
    ds->ops = *ops;
    ds->ops.description = text;
    ds->user = user;
    ds->n_items = ops->n_items;
    if (ops->class_name == NULL) {
        status = qnn_ctx__alloc(ctx, &block, (size_t)ops->n_classes * NUMBER_SIZE, "class names");
        if (status != QNN_OK) {
            qnn_ctx__release(ctx, text);
            qnn_ctx__release(ctx, ds);
            return status;
        }
        ds->numbers = block;
        for (int c = 0; c < ops->n_classes; c++)
            snprintf(ds->numbers + (size_t)c * NUMBER_SIZE, NUMBER_SIZE, "%d", c);
    }
    *out = ds;
    return QNN_OK;
}

void qnn_dataset_free(qnn_dataset *ds)
{
    union {
        const char *in;
        char *out;
    } description;

    if (ds == NULL)
        return;
    if (ds->ops.free != NULL)
        ds->ops.free(ds->user);
    for (int64_t i = 0; i < ds->n_skipped; i++)
        qnn_ctx__release(ds->ctx, ds->skipped[i]);
    description.in = ds->ops.description;
    qnn_ctx__release(ds->ctx, description.out);
    qnn_ctx__release(ds->ctx, ds->numbers);
    qnn_ctx__release(ds->ctx, ds->skipped);
    qnn_ctx__release(ds->ctx, ds->index);
    qnn_ctx__release(ds->ctx, ds);
}

int64_t qnn_dataset_size(const qnn_dataset *ds) { return ds->n_items; }

int qnn_dataset_classes(const qnn_dataset *ds) { return ds->ops.n_classes; }

int qnn_dataset_height(const qnn_dataset *ds) { return ds->ops.height; }

int qnn_dataset_width(const qnn_dataset *ds) { return ds->ops.width; }

const char *qnn_dataset_class_name(const qnn_dataset *ds, int c)
{
    if (c < 0 || c >= ds->ops.n_classes)
        return NULL;
    return ds->ops.class_name != NULL ? ds->ops.class_name(ds->user, c)
                                      : ds->numbers + (size_t)c * NUMBER_SIZE;
}

const char *qnn_dataset_description(const qnn_dataset *ds) { return ds->ops.description; }

qnn_status qnn_dataset__get(const qnn_dataset *ds, int64_t i, uint8_t *pixels, int *label,
                            char *err, size_t err_size)
{
    qnn_status status;

    if (i < 0 || i >= ds->n_items) {
        snprintf(err, err_size, "item %lld does not exist, the data set has %lld", (long long)i,
                 (long long)ds->n_items);
        return QNN_ERR_ARG;
    }
    err[0] = '\0';
    status =
        ds->ops.get(ds->user, ds->index != NULL ? ds->index[i] : i, pixels, label, err, err_size);
    if (status == QNN_OK && (*label < 0 || *label >= ds->ops.n_classes)) {
        snprintf(err, err_size, "item %lld has label %d, outside 0..%d", (long long)i, *label,
                 ds->ops.n_classes - 1);
        return QNN_ERR_ARG;
    }
    if (status != QNN_OK && err[0] == '\0')
        snprintf(err, err_size, "item %lld: %s", (long long)i, qnn_status_name(status));
    return status;
}

qnn_status qnn_dataset_get(qnn_dataset *ds, qnn_ctx *ctx, int64_t i, uint8_t *pixels, int *label)
{
    char err[QNN_ITEM_ERROR_MAX];
    qnn_status status;

    if (ds == NULL || ctx == NULL || pixels == NULL || label == NULL)
        return QNN_ERR_ARG;
    status = qnn_dataset__get(ds, i, pixels, label, err, sizeof err);
    return status == QNN_OK ? QNN_OK : qnn_ctx__fail(ctx, status, "%s", err);
}

/* ---- cache
 * ---------------------------------------------------------------------------------------------------------------------
 */

typedef struct cached_item {
    int label; /* pixels follow */
} cached_item;

typedef struct cache {
    qnn_ctx *ctx;
    qnn_dataset *inner;
    size_t max_bytes;
    atomic_size_t bytes;
    _Atomic(cached_item *) *item;
} cache;

static qnn_status cache_get(void *user, int64_t i, uint8_t *pixels, int *label, char *err,
                            size_t err_size)
{
    cache *const c = user;
    const size_t bytes = item_bytes(c->inner), block_bytes = sizeof(cached_item) + bytes,
                 /* as qnn_ctx__alloc() makes of it */
        held = QNN_ALIGN + qnn_round_up(block_bytes, QNN_ALIGN);
    cached_item *item = atomic_load_explicit(&c->item[i], memory_order_acquire), *none = NULL;
    qnn_ctx local = {.allocator = c->ctx->allocator}; /* this thread's own error text */
    void *block;

    if (item != NULL) {
        memcpy(pixels, item + 1, bytes);
        *label = item->label;
        return QNN_OK;
    }
    QNN_TRY(qnn_dataset__get(c->inner, i, pixels, label, err, err_size));
    if (atomic_fetch_add(&c->bytes, held) + held > c->max_bytes ||
        qnn_ctx__alloc(&local, &block, block_bytes, "cached pixels") != QNN_OK) {
        atomic_fetch_sub(&c->bytes, held);
        return QNN_OK; /* decoded again next time */
    }
    item = block;
    item->label = *label;
    memcpy(item + 1, pixels, bytes);
    if (!atomic_compare_exchange_strong_explicit(&c->item[i], &none, item, memory_order_release,
                                                 memory_order_relaxed)) {
        qnn_ctx__release(&local, item); /* another thread was faster */
        atomic_fetch_sub(&c->bytes, held);
    }
    return QNN_OK;
}

static const char *cache_class_name(void *user, int k)
{
    const cache *const c = user;

    return qnn_dataset_class_name(c->inner, k);
}

static void cache_free(void *user)
{
    cache *const c = user;

    for (int64_t i = 0; i < c->inner->n_items; i++)
        qnn_ctx__release(c->ctx, atomic_load_explicit(&c->item[i], memory_order_relaxed));
    qnn_dataset_free(c->inner);
    qnn_ctx__release(c->ctx, c->item);
    qnn_ctx__release(c->ctx, c);
}

qnn_status qnn_dataset_cache(qnn_dataset **out, qnn_ctx *ctx, qnn_dataset *inner, size_t max_bytes)
{
    qnn_dataset_ops ops;
    cache *c;
    void *block, *items;
    qnn_status status;

    if (out == NULL || ctx == NULL || inner == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_TRY(qnn_ctx__zalloc(ctx, &block, sizeof *c, "a cache"));
    c = block;
    status =
        qnn_ctx__zalloc(ctx, &items, (size_t)inner->n_items * sizeof *c->item, "a cache's items");
    if (status == QNN_OK) {
        *c = (cache){.ctx = ctx, .inner = inner, .max_bytes = max_bytes, .item = items};
        ops = inner->ops;
        ops.n_items = inner->n_items;
        ops.get = cache_get;
        ops.class_name = cache_class_name;
        ops.free = cache_free;
        status = qnn_dataset_create(out, ctx, &ops, c);
        if (status != QNN_OK)
            qnn_ctx__release(ctx, items);
    }
    if (status != QNN_OK)
        qnn_ctx__release(ctx, c);
    return status;
}

/* ---- scan
 * ------------------------------------------------------------------------------------------------------------------------
 */

typedef struct scan {
    const qnn_dataset *ds;
    int skip_bad;
    atomic_int stop;
    atomic_llong next, done;
    char **error;       /* [n_items] what was said of item i, or NULL */
    qnn_status *status; /* [n_items] */
    uint8_t *pixels;    /* [n_threads][item] */
} scan;

typedef struct scan_worker {
    scan *s;
    pthread_t thread;
    uint8_t *pixels;
} scan_worker;

static void scan_item(scan *s, int64_t i, uint8_t *pixels)
{
    qnn_ctx local = {.allocator = s->ds->ctx->allocator};
    char err[QNN_ITEM_ERROR_MAX];
    int label;

    s->status[i] = qnn_dataset__get(s->ds, i, pixels, &label, err, sizeof err);
    if (s->status[i] == QNN_OK)
        return;
    if (qnn_ctx__strdup(&local, &s->error[i], err) != QNN_OK)
        s->status[i] = QNN_ERR_NOMEM;
    if (!s->skip_bad || s->status[i] == QNN_ERR_NOMEM)
        atomic_store(&s->stop, 1);
}

static void *scan_main(void *arg)
{
    const scan_worker *const w = arg;
    scan *const s = w->s;
    long long i;

    while (!atomic_load(&s->stop) && (i = atomic_fetch_add(&s->next, 1)) < s->ds->n_items) {
        scan_item(s, i, w->pixels);
        atomic_fetch_add(&s->done, 1);
    }
    return NULL;
}

/* The calling thread watches, so that progress is always called from it. */
static void watch(scan *s, const qnn_scan_opts *o)
{
    const struct timespec pause = {0, 20 * 1000 * 1000};

    while (!atomic_load(&s->stop) && atomic_load(&s->done) < s->ds->n_items) {
        if (o->progress != NULL && o->progress(o->user, atomic_load(&s->done), s->ds->n_items) != 0)
            atomic_store(&s->stop, 2);
        (void)nanosleep(&pause, NULL);
    }
}

static qnn_status run_workers(scan *s, qnn_ctx *ctx, const qnn_scan_opts *o, scan_worker *workers,
                              int n_threads)
{
    int n_started = 0;

    for (; n_started < n_threads; n_started++) {
        workers[n_started].s = s;
        workers[n_started].pixels = s->pixels + (size_t)n_started * item_bytes(s->ds);
        if (pthread_create(&workers[n_started].thread, NULL, scan_main, &workers[n_started]) != 0)
            break;
    }
    if (n_started > 0)
        watch(s, o);
    for (int i = 0; i < n_started; i++)
        pthread_join(workers[i].thread, NULL);
    QNN_RETURN_IF(ctx, n_started == 0, QNN_ERR_NOMEM, "cannot start a thread to scan the data set");
    if (atomic_load(&s->stop) != 2 && o->progress != NULL)
        (void)o->progress(o->user, atomic_load(&s->done), s->ds->n_items);
    return QNN_OK;
}

/* Takes the n_bad bad items out. home: the context whose allocator the data set was made with. */
static qnn_status leave_out(qnn_dataset *ds, scan *s, qnn_ctx *home, int64_t n_bad)
{
    int64_t n_kept = 0;
    void *block = ds->skipped;
    int64_t *index;

    QNN_TRY(qnn_ctx__grow(home, &block, &ds->cap_skipped, (size_t)(ds->n_skipped + n_bad),
                          sizeof *ds->skipped, "skipped items"));
    ds->skipped = block;
    QNN_TRY(
        qnn_ctx__alloc(home, &block, (size_t)ds->n_items * sizeof *index, "a data set's items"));
    index = block;
    for (int64_t i = 0; i < ds->n_items; i++) {
        if (s->status[i] == QNN_OK) {
            index[n_kept++] = ds->index != NULL ? ds->index[i] : i;
        } else {
            ds->skipped[ds->n_skipped++] = s->error[i];
            s->error[i] = NULL;
        }
    }
    qnn_ctx__release(home, ds->index);
    ds->index = index;
    ds->n_items = n_kept;
    return QNN_OK;
}

/* The first bad item's failure, or, with skip_bad, the data set without the bad ones. */
static qnn_status conclude(qnn_dataset *ds, scan *s, qnn_ctx *ctx)
{
    qnn_ctx home = {.allocator = ds->ctx->allocator};
    int64_t n_bad = 0, first_bad = -1;
    qnn_status status;

    for (int64_t i = 0; i < ds->n_items; i++)
        if (s->status[i] != QNN_OK) {
            n_bad++;
            if (first_bad < 0 || s->status[i] == QNN_ERR_NOMEM)
                first_bad = i;
        }
    if (first_bad >= 0 && (!s->skip_bad || s->status[first_bad] == QNN_ERR_NOMEM))
        return qnn_ctx__fail(ctx, s->status[first_bad], "%s",
                             s->error[first_bad] != NULL ? s->error[first_bad] : "out of memory");
    QNN_RETURN_IF(ctx, atomic_load(&s->stop) == 2, QNN_ERR_STOPPED, "the scan was stopped");
    if (n_bad == 0)
        return QNN_OK;
    status = leave_out(ds, s, &home, n_bad);
    return status == QNN_OK ? QNN_OK : qnn_ctx__fail(ctx, status, "%s", home.error);
}

qnn_status qnn_dataset_scan(qnn_dataset *ds, qnn_ctx *ctx, const qnn_scan_opts *opts)
{
    const qnn_scan_opts defaults = {0};
    const qnn_scan_opts *const o = opts != NULL ? opts : &defaults;
    scan s = {.ds = ds, .skip_bad = o->skip_bad};
    scan_worker workers[64];
    int n_threads = o->n_threads != 0 ? o->n_threads : ctx != NULL ? ctx->n_threads : 1;
    int64_t n_items;
    void *errors, *statuses, *pixels;
    qnn_status status;

    if (ds == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    QNN_RETURN_IF(ctx, n_threads < 1, QNN_ERR_ARG, "a scan on %d threads", n_threads);
    n_items = ds->n_items;
    n_threads = n_threads > 64 ? 64 : n_threads;
    QNN_TRY(qnn_ctx__zalloc(ctx, &errors, (size_t)n_items * sizeof *s.error, "a scan"));
    s.error = errors;
    status = qnn_ctx__zalloc(ctx, &statuses, (size_t)n_items * sizeof *s.status, "a scan");
    s.status = statuses;
    if (status == QNN_OK) {
        status =
            qnn_ctx__alloc(ctx, &pixels, (size_t)n_threads * item_bytes(ds), "a scan's pixels");
        if (status == QNN_OK) {
            s.pixels = pixels;
            status = run_workers(&s, ctx, o, workers, n_threads);
            if (status == QNN_OK)
                status = conclude(ds, &s, ctx);
            qnn_ctx__release(ctx, pixels);
        }
        qnn_ctx__release(ctx, statuses);
    }
    for (int64_t i = 0; i < n_items; i++)
        qnn_ctx__release(ds->ctx, s.error[i]);
    qnn_ctx__release(ctx, s.error);
    return status;
}

int64_t qnn_dataset_n_skipped(const qnn_dataset *ds) { return ds->n_skipped; }

const char *qnn_dataset_skipped(const qnn_dataset *ds, int64_t k)
{
    return k < 0 || k >= ds->n_skipped ? NULL : ds->skipped[k];
}

/* ---- split
 * --------------------------------------------------------------------------------------------------------------------------
 */

qnn_status qnn_split(int64_t *indices, int64_t *n_val, int64_t *n_train, qnn_ctx *ctx,
                     int64_t n_items, int64_t limit, double val_fraction, uint64_t seed)
{
    qnn_rng r;
    int64_t n;

    if (ctx == NULL)
        return QNN_ERR_ARG;
    QNN_RETURN_IF(ctx, indices == NULL || n_val == NULL || n_train == NULL || n_items < 1,
                  QNN_ERR_ARG, "a split of %lld items", (long long)n_items);
    QNN_RETURN_IF(ctx, limit < 0, QNN_ERR_ARG, "a split limited to %lld items", (long long)limit);
    QNN_RETURN_IF(ctx, !(val_fraction >= 0.0 && val_fraction < 1.0), QNN_ERR_ARG,
                  "validation fraction %g is outside [0, 1)", val_fraction);
    for (int64_t i = 0; i < n_items; i++)
        indices[i] = i;
    qnn_rng__init(&r, seed, qnn_hash__text("split"));
    for (int64_t i = n_items - 1; i > 0; i--) {
        const int64_t k = (int64_t)qnn_rng__below(&r, (uint64_t)i + 1), swapped = indices[i];

        indices[i] = indices[k];
        indices[k] = swapped;
    }
    n = limit > 0 && limit < n_items ? limit : n_items;
    *n_val = (int64_t)(val_fraction * (double)n);
    *n_train = n - *n_val;
    return QNN_OK;
}
