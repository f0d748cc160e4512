/* Calibration statistics: the range of every site, streamed; constant memory. And static
 * quantisation from them. */
#include <math.h>
#include <string.h>

#include "lib/exec.h"
#include "lib/quant/rewrite.h"

#define MOVING_AVERAGE 0.01f

typedef struct site_stats {
    float lo, hi;
    int64_t non_finite;
    int seen;     /* some finite value was */
    int observed; /* this node is a site */
} site_stats;

struct qnn_stats {
    qnn_ctx *ctx;
    const qnn_model *m;
    qnn_observer observer;
    qnn_program *p;
    void *ws;
    int64_t n_images;
    site_stats *node; /* [n_nodes] */
};

void qnn_stats_free(qnn_stats *st)
{
    if (st == NULL)
        return;
    qnn_program_free(st->p);
    qnn_ctx__release(st->ctx, st->ws);
    qnn_ctx__release(st->ctx, st->node);
    qnn_ctx__release(st->ctx, st);
}

/* The sites that any options may ask for: nothing skipped, outputs quantised. */
static qnn_status mark_sites(qnn_stats *st)
{
    const qnn_quant_opts most = {.quantize_output = 1};
    qnn_node *site;
    void *needed;
    qnn_status status;

    QNN_TRY(qnn_rewrite__map(st->ctx, st->m, &site));
    status = qnn_ctx__alloc(st->ctx, &needed, (size_t)st->m->n_nodes, "calibration sites");
    if (status == QNN_OK) {
        qnn_sites__find(st->m, &most, site, needed);
        for (int i = 0; i < st->m->n_nodes; i++)
            st->node[i].observed = ((uint8_t *)needed)[i];
        qnn_ctx__release(st->ctx, needed);
    }
    qnn_ctx__release(st->ctx, site);
    return status;
}

static qnn_status open_stats(qnn_stats *st, int max_batch)
{
    void *block;

    QNN_TRY(qnn_ctx__zalloc(st->ctx, &block, (size_t)st->m->n_nodes * sizeof *st->node,
                            "calibration statistics"));
    st->node = block;
    for (int i = 0; i < st->m->n_nodes; i++) {
        st->node[i].lo = INFINITY;
        st->node[i].hi = -INFINITY;
    }
    QNN_TRY(mark_sites(st));
    QNN_TRY(qnn_program__compile(&st->p, st->ctx, st->m,
                                 &(qnn_compile_opts){.max_batch = max_batch, .keep_all = 1}));
    return qnn_ctx__alloc(st->ctx, &st->ws, qnn_program_workspace(st->p),
                          "calibration's workspace");
}

qnn_status qnn_stats_create(qnn_stats **out, qnn_ctx *ctx, const qnn_model *m,
                            const qnn_stats_opts *opts)
{
    qnn_stats *st;
    qnn_status status;
    void *block;

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_TRY(qnn_model__usable(m, ctx));
    QNN_TRY(qnn_rewrite__check_float(ctx, m));
    QNN_RETURN_IF(ctx, qnn_model_n_inputs(m) != 1, QNN_ERR_UNSUPPORTED,
                  "the model has %d inputs, calibration takes one", qnn_model_n_inputs(m));
    QNN_RETURN_IF(ctx,
                  opts != NULL && opts->observer != QNN_OBSERVER_MINMAX &&
                      opts->observer != QNN_OBSERVER_MOVING_AVERAGE,
                  QNN_ERR_ARG, "observer %d is unknown", (int)opts->observer);
    QNN_TRY(qnn_ctx__zalloc(ctx, &block, sizeof *st, "calibration statistics"));
    st = block;
    st->ctx = ctx;
    st->m = m;
    st->observer = opts != NULL ? opts->observer : QNN_OBSERVER_MINMAX;
    status = open_stats(st, opts != NULL && opts->max_batch != 0 ? opts->max_batch : 32);
    if (status != QNN_OK) {
        qnn_stats_free(st);
        return status;
    }
    *out = st;
    return QNN_OK;
}

static void record(qnn_stats *st, site_stats *s, float lo, float hi)
{
    if (!(lo <= hi)) /* not one finite value */
        return;
    if (!s->seen) {
        s->lo = lo;
        s->hi = hi;
    } else if (st->observer == QNN_OBSERVER_MOVING_AVERAGE) {
        s->lo += MOVING_AVERAGE * (lo - s->lo);
        s->hi += MOVING_AVERAGE * (hi - s->hi);
    } else {
        s->lo = lo < s->lo ? lo : s->lo;
        s->hi = hi > s->hi ? hi : s->hi;
    }
    s->seen = 1;
}

qnn_status qnn_stats_observe(qnn_stats *st, qnn_ctx *ctx, const float *x, int n)
{
    const void *src[1] = {x};
    qnn_exec e;

    if (st == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    QNN_RETURN_IF(ctx, x == NULL || n < 1 || n > st->p->max_batch, QNN_ERR_ARG,
                  "a calibration batch of %d items is outside 1..%d", n, st->p->max_batch);
    e = (qnn_exec){.ctx = ctx, .p = st->p, .k = st->p->k, .n = n, .ws = st->ws, .src = src};
    QNN_TRY(qnn_exec__forward(&e));
    for (int i = 0; i < st->m->n_nodes; i++) {
        const size_t count = (size_t)n * (size_t)qnn_shape__count(&st->m->node[i]->shape);
        float lo, hi;

        if (!st->node[i].observed)
            continue;
        st->node[i].non_finite +=
            (int64_t)st->p->k->vec->min_max(count, qnn_exec__value(&e, i), &lo, &hi);
        record(st, &st->node[i], lo, hi);
    }
    st->n_images += n;
    return QNN_OK;
}

int64_t qnn_stats_images(const qnn_stats *st) { return st->n_images; }

qnn_status qnn_stats_range(const qnn_stats *st, qnn_ctx *ctx, qnn_node i, float *lo, float *hi,
                           int64_t *non_finite)
{
    if (st == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    QNN_RETURN_IF(ctx, i < 0 || i >= st->m->n_nodes, QNN_ERR_ARG,
                  "node %d does not exist, the model has %d", (int)i, st->m->n_nodes);
    QNN_RETURN_IF(ctx, !st->node[i].seen, QNN_ERR_STATE, "nothing was recorded of \"%s\"",
                  st->m->node[i]->name);
    if (lo != NULL)
        *lo = st->node[i].lo;
    if (hi != NULL)
        *hi = st->node[i].hi;
    if (non_finite != NULL)
        *non_finite = st->node[i].non_finite;
    return QNN_OK;
}

qnn_status qnn_quantize_static(qnn_model **out, qnn_ctx *ctx, const qnn_model *m,
                               const qnn_stats *st, const qnn_quant_opts *opts)
{
    qnn_range *range;
    void *block;
    qnn_status status;

    if (out == NULL || ctx == NULL || st == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_TRY(qnn_model__usable(m, ctx));
    QNN_RETURN_IF(ctx, m != st->m, QNN_ERR_ARG, "the statistics are of another model");
    QNN_RETURN_IF(ctx, st->n_images == 0, QNN_ERR_STATE, "calibration saw no image");
    QNN_TRY(qnn_ctx__alloc(ctx, &block, (size_t)m->n_nodes * sizeof *range, "ranges"));
    range = block;
    for (int i = 0; i < m->n_nodes; i++)
        range[i] =
            (qnn_range){st->node[i].lo, st->node[i].hi, st->node[i].observed && st->node[i].seen};
    status = qnn_convert__static(out, ctx, m, range, opts, "static");
    qnn_ctx__release(ctx, range);
    return status;
}
