/* Quantisation-aware training: fake-quant in, and a trained model out to the same int8 execution as
 * static quantisation. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/quant/rewrite.h"

#define AVERAGE 0.01f

static qnn_status insert_nodes(qnn_model *dst, const qnn_model *m, const qnn_quant_opts *o,
                               const uint8_t *needed, qnn_node *map, qnn_node *plain)
{
    for (int i = 0; i < m->n_nodes; i++) {
        const qnn_node_data *const n = m->node[i];
        char name[QNN_NAME_MAX];

        QNN_TRY(qnn_rewrite__copy_mapped(dst, m, i, map));
        plain[i] = map[i];
        if ((n->kind == QNN_OP_CONV2D || n->kind == QNN_OP_LINEAR) &&
            qnn_sites__why_float(m, o, i) == NULL) {
            dst->node[map[i]]->a.wq = QNN_WQ_FAKE;
            dst->node[map[i]]->a.w_bits = 8;
            dst->node[map[i]]->a.w_per_channel = !o->per_tensor;
        }
        if (needed[i]) {
            qnn_attrs a = qnn_attrs__default();

            a.average = AVERAGE;
            snprintf(name, sizeof name, "%.*s.fq", QNN_NAME_MAX - 4, n->name);
            map[i] = qnn_model__add(dst, QNN_OP_FAKE_QUANT, name, &map[i], 1, &a, 1);
            if (map[i] == QNN_NODE_NONE)
                return dst->status;
            if (qnn_sites__has_codes(m, o, i)) /* then so does an output that it is */
                plain[i] = map[i];
        }
    }
    QNN_TRY(qnn_model__finish_rewrite(dst, m, plain));
    return qnn_model_set_meta(dst, "quant.method", "qat-training");
}

static qnn_status prepare_fused(qnn_model **out, qnn_ctx *ctx, const qnn_model *m,
                                const qnn_quant_opts *o)
{
    qnn_node *site, *map = NULL, *plain = NULL;
    void *needed = NULL;
    qnn_model *dst;
    qnn_status status;

    QNN_TRY(qnn_rewrite__check_float(ctx, m));
    QNN_TRY(qnn_rewrite__check_names(ctx, m, o->skip));
    QNN_TRY(qnn_rewrite__check_finite(ctx, m));
    QNN_TRY(qnn_rewrite__map(ctx, m, &site));
    status = qnn_rewrite__map(ctx, m, &map);
    if (status == QNN_OK)
        status = qnn_rewrite__map(ctx, m, &plain);
    if (status == QNN_OK)
        status = qnn_ctx__alloc(ctx, &needed, (size_t)m->n_nodes, "a pass's map");
    if (status == QNN_OK)
        status = qnn_model_create(&dst, ctx);
    if (status == QNN_OK) {
        qnn_sites__find(m, o, site, needed);
        status = insert_nodes(dst, m, o, needed, map, plain);
        if (status != QNN_OK)
            qnn_model_free(dst);
        else
            *out = dst;
    }
    qnn_ctx__release(ctx, needed);
    qnn_ctx__release(ctx, plain);
    qnn_ctx__release(ctx, map);
    qnn_ctx__release(ctx, site);
    return status;
}

qnn_status qnn_qat_prepare(qnn_model **out, qnn_ctx *ctx, const qnn_model *m,
                           const qnn_quant_opts *opts)
{
    const qnn_quant_opts defaults = {0};
    qnn_model *fused;
    qnn_status status;

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_TRY(qnn_fuse(&fused, ctx, m));
    status = prepare_fused(out, ctx, fused, opts != NULL ? opts : &defaults);
    qnn_model_free(fused);
    return status;
}

/* The float model without its fake-quant nodes; range [n_nodes of m] gets what their observers
 * hold, by node of the float model. */
static qnn_status strip_nodes(qnn_model *dst, const qnn_model *m, qnn_node *map, qnn_range *range)
{
    for (int i = 0; i < m->n_nodes; i++) {
        const qnn_node_data *const n = m->node[i];

        if (n->kind == QNN_OP_FAKE_QUANT) {
            const float *const seen = n->param[QNN_P_RANGE].data;

            QNN_RETURN_IF(dst->ctx, !(seen[2] > 0.0f), QNN_ERR_STATE,
                          "fake_quant \"%s\" has seen no batch: train the model first", n->name);
            QNN_RETURN_IF(dst->ctx, !isfinite(seen[0]) || !isfinite(seen[1]), QNN_ERR_ARG,
                          "fake_quant \"%s\": its range is %g to %g", n->name, (double)seen[0],
                          (double)seen[1]);
            map[i] = map[n->in[0]];
            range[map[i]] = (qnn_range){seen[0], seen[1], 1};
            continue;
        }
        QNN_TRY(qnn_rewrite__copy_mapped(dst, m, i, map));
        dst->node[map[i]]->a.wq = QNN_WQ_NONE;
    }
    return qnn_model__finish_rewrite(dst, m, map);
}

qnn_status qnn_qat_convert(qnn_model **out, qnn_ctx *ctx, const qnn_model *m,
                           const qnn_quant_opts *opts)
{
    qnn_node *map;
    qnn_model *stripped = NULL;
    void *range = NULL;
    qnn_status status;

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_TRY(qnn_model__usable(m, ctx));
    QNN_TRY(qnn_rewrite__map(ctx, m, &map));
    status = qnn_ctx__zalloc(ctx, &range, (size_t)m->n_nodes * sizeof(qnn_range), "ranges");
    if (status == QNN_OK)
        status = qnn_model_create(&stripped, ctx);
    if (status == QNN_OK)
        status = strip_nodes(stripped, m, map, range);
    if (status == QNN_OK)
        status = qnn_convert__static(out, ctx, stripped, range, opts, "qat");
    qnn_model_free(stripped);
    qnn_ctx__release(ctx, range);
    qnn_ctx__release(ctx, map);
    return status;
}
