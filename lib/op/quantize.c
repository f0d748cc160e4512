/*
 * quantize: f32 -> u8 by the node's scale and zero point, q = clamp(rne(x / S) + Z, 0, 255). No
 * gradient: training uses fake_quant.
 */
#include "lib/op_util.h"

typedef struct job {
    const qnn_vec_kernel *vec;
    const float *src;
    uint8_t *dst;
    size_t total;
    float inv_scale;
    int32_t zero_point;
} job;

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    const qnn_node_data *const in = qnn_node__in(m, n, 0);

    QNN_RETURN_IF(m->ctx, in->dtype != QNN_DTYPE_F32, QNN_ERR_DTYPE,
                  "quantize \"%s\": input \"%s\" is %s, it must be f32", n->name, in->name,
                  qnn_dtype_name(in->dtype));
    QNN_RETURN_IF(m->ctx, n->dtype != QNN_DTYPE_U8, QNN_ERR_ARG,
                  "quantize \"%s\": the output has no scale and zero point", n->name);
    n->shape = in->shape;
    return QNN_OK;
}

static void forward_chunk(void *arg, size_t i, int thread)
{
    const job *const j = arg;
    const size_t at = i * QNN_CHUNK;

    (void)thread;
    j->vec->quantize_u8(qnn_chunk__size(j->total, i), j->src + at, j->inv_scale, j->zero_point, 0,
                        255, j->dst + at);
}

static void forward(qnn_exec *x, const qnn_step *s)
{
    job j = {.vec = x->k->vec,
             .src = qnn_exec__in(x, s, 0),
             .dst = qnn_exec__out(x, s),
             .total = qnn_exec__n_out(x, s),
             .inv_scale = 1.0f / s->n->scale,
             .zero_point = s->n->zero_point};

    qnn_ctx__parallel(x->ctx, qnn_chunk__count(j.total), forward_chunk, &j);
}

const qnn_op qnn_op_quantize = {
    .name = "quantize",
    .n_in_min = 1,
    .n_in_max = 1,
    .infer = infer,
    .forward = forward,
};
