/* Passes that change only how conv2d and linear weights are stored: dynamic int8, simulated int4,
 * FP16 and BF16. */
#include <math.h>
#include <string.h>

#include "lib/qmath.h"
#include "lib/quant/rewrite.h"

typedef struct pass {
    const char *method;
    const char *granularity; /* of the weights' scales; NULL: they have none */
    const qnn_quant_opts *opts;
    qnn_dtype dtype; /* of the half pass */
    /* Node made is the copy of from. */
    qnn_status (*weights)(const struct pass *p, qnn_model *dst, qnn_node_data *made,
                          const qnn_node_data *from);
    int32_t wq; /* of the nodes that change */
    int linear_only;
} pass;

static qnn_status dynamic_weights(const pass *p, qnn_model *dst, qnn_node_data *made,
                                  const qnn_node_data *from)
{
    const qnn_param *const w = &from->param[QNN_P_WEIGHT];
    const size_t channels = (size_t)w->dim[0], per = w->count / channels;
    qnn_param *const to = &made->param[QNN_P_WEIGHT];

    QNN_TRY(qnn_node__retype(dst, made, QNN_P_WEIGHT, QNN_DTYPE_I8,
                             p->opts->per_tensor ? 1 : channels));
    qnn_qmath__weight_scales(dst->ctx, w->data, channels, per, 127, !p->opts->per_tensor,
                             to->scale);
    qnn_qmath__weight_codes(dst->ctx, w->data, channels, per, 127, !p->opts->per_tensor, to->scale,
                            to->data);
    return QNN_OK;
}

static qnn_status int4_weights(const pass *p, qnn_model *dst, qnn_node_data *made,
                               const qnn_node_data *from)
{
    const qnn_param *const w = &from->param[QNN_P_WEIGHT];
    void *codes;

    (void)p;
    QNN_TRY(qnn_node__retype(dst, made, QNN_P_WEIGHT, QNN_DTYPE_S4, 1));
    QNN_TRY(qnn_ctx__alloc(dst->ctx, &codes, w->count, "4-bit codes"));
    qnn_qmath__weight_scales(dst->ctx, w->data, 1, w->count, 7, 0, made->param[QNN_P_WEIGHT].scale);
    qnn_qmath__weight_codes(dst->ctx, w->data, 1, w->count, 7, 0, made->param[QNN_P_WEIGHT].scale,
                            codes);
    qnn_qmath__pack_s4(codes, w->count, made->param[QNN_P_WEIGHT].data);
    qnn_ctx__release(dst->ctx, codes);
    return QNN_OK;
}

static qnn_status half_param(const pass *p, qnn_model *dst, qnn_node_data *made, int slot,
                             const qnn_param *from)
{
    const qnn_vec_kernel *const vec = dst->ctx->k.vec;
    const float *const x = from->data;
    /* Where rounding to the largest value, 65504 or 0x1.fep127, ends. */
    const float limit = p->dtype == QNN_DTYPE_F16 ? 65520.0f : 0x1.ffp127f;
    float lo, hi;

    if (from->count == 0)
        return QNN_OK;
    (void)vec->min_max(from->count, x, &lo, &hi);
    QNN_RETURN_IF(dst->ctx, lo <= -limit || hi >= limit, QNN_ERR_ARG,
                  "parameter \"%s\" reaches %g, past the range of %s", from->full_name,
                  (double)(-lo > hi ? lo : hi), qnn_dtype_name(p->dtype));
    QNN_TRY(qnn_node__retype(dst, made, slot, p->dtype, 0));
    if (p->dtype == QNN_DTYPE_F16)
        vec->f32_to_f16(from->count, x, made->param[slot].data);
    else
        vec->f32_to_bf16(from->count, x, made->param[slot].data);
    return QNN_OK;
}

static qnn_status half_weights(const pass *p, qnn_model *dst, qnn_node_data *made,
                               const qnn_node_data *from)
{
    QNN_TRY(half_param(p, dst, made, QNN_P_WEIGHT, &from->param[QNN_P_WEIGHT]));
    return half_param(p, dst, made, QNN_P_BIAS, &from->param[QNN_P_BIAS]);
}

/* Why node n is left as it is; NULL when it is not. */
static const char *reason(const pass *p, const qnn_node_data *n)
{
    if (n->kind != QNN_OP_LINEAR && (p->linear_only || n->kind != QNN_OP_CONV2D))
        return n->kind == QNN_OP_CONV2D ? "stays f32: dynamic quantisation is for linear layers"
                                        : "has no weights that this pass changes";
    if (n->param[QNN_P_WEIGHT].dtype != QNN_DTYPE_F32)
        return "its weights are not f32";
    if (p->wq == QNN_WQ_DYNAMIC &&
        n->param[QNN_P_WEIGHT].count / (size_t)n->param[QNN_P_WEIGHT].dim[0] > QNN_GEMM_MAX_K)
        return "stays f32: its sums are too long for int32";
    return qnn_rewrite__in_list(p->opts->skip, n->name) ? "stays f32: listed in skip" : NULL;
}

static qnn_status run_nodes(const pass *p, qnn_model *dst, const qnn_model *m, qnn_node *map)
{
    for (int i = 0; i < m->n_nodes; i++) {
        const qnn_node_data *const n = m->node[i];
        const char *const why = reason(p, n);
        qnn_attrs a = n->a;

        if (why != NULL) {
            QNN_TRY(qnn_rewrite__copy_mapped(dst, m, i, map));
            if (n->kind != QNN_OP_INPUT)
                QNN_TRY(qnn_node__set_note(dst, dst->node[map[i]], "%s", why));
            continue;
        }
        a.wq = p->wq;
        map[i] = qnn_model__add(dst, n->kind, n->name, &map[n->in[0]], 1, &a, 0);
        if (map[i] == QNN_NODE_NONE)
            return dst->status;
        if (n->param[QNN_P_BIAS].count > 0)
            QNN_TRY(
                qnn_node__copy_param(dst, dst->node[map[i]], QNN_P_BIAS, &n->param[QNN_P_BIAS]));
        QNN_TRY(p->weights(p, dst, dst->node[map[i]], n));
    }
    QNN_TRY(qnn_model__finish_rewrite(dst, m, map));
    if (p->granularity != NULL)
        QNN_TRY(qnn_model_set_meta(dst, "quant.weights", p->granularity));
    return qnn_model_set_meta(dst, "quant.method", p->method);
}

static qnn_status run(const pass *p, qnn_model **out, qnn_ctx *ctx, const qnn_model *m)
{
    qnn_model *dst;
    qnn_node *map;
    qnn_status status;

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_TRY(qnn_model__usable(m, ctx));
    QNN_TRY(qnn_rewrite__check_names(ctx, m, p->opts->skip));
    QNN_TRY(qnn_rewrite__check_finite(ctx, m));
    QNN_TRY(qnn_rewrite__map(ctx, m, &map));
    status = qnn_model_create(&dst, ctx);
    if (status == QNN_OK) {
        status = run_nodes(p, dst, m, map);
        if (status != QNN_OK)
            qnn_model_free(dst);
        else
            *out = dst;
    }
    qnn_ctx__release(ctx, map);
    return status;
}

static const qnn_quant_opts no_opts = {0};

qnn_status qnn_quantize_dynamic(qnn_model **out, qnn_ctx *ctx, const qnn_model *m,
                                const qnn_quant_opts *opts)
{
    const pass p = {.method = "dynamic",
                    .granularity = opts != NULL && opts->per_tensor ? "per-tensor" : "per-channel",
                    .opts = opts != NULL ? opts : &no_opts,
                    .weights = dynamic_weights,
                    .wq = QNN_WQ_DYNAMIC,
                    .linear_only = 1};

    return run(&p, out, ctx, m);
}

qnn_status qnn_quantize_int4_sim(qnn_model **out, qnn_ctx *ctx, const qnn_model *m)
{
    const pass p = {.method = "int4-sim",
                    .granularity = "per-tensor",
                    .opts = &no_opts,
                    .weights = int4_weights,
                    .wq = QNN_WQ_NONE};

    return run(&p, out, ctx, m);
}

qnn_status qnn_lower_half(qnn_model **out, qnn_ctx *ctx, const qnn_model *m, qnn_dtype dtype)
{
    const pass p = {.method = dtype == QNN_DTYPE_F16 ? "f16" : "bf16",
                    .opts = &no_opts,
                    .dtype = dtype,
                    .weights = half_weights,
                    .wq = QNN_WQ_NONE};

    if (ctx == NULL)
        return QNN_ERR_ARG;
    QNN_RETURN_IF(ctx, dtype != QNN_DTYPE_F16 && dtype != QNN_DTYPE_BF16, QNN_ERR_ARG,
                  "%s is not a 16-bit float type", qnn_dtype_name(dtype));
    return run(&p, out, ctx, m);
}
