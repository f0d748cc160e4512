/* dequantize: u8 -> f32, x = S * (q - Z) with the input's scale and zero point. */
#include "lib/op_util.h"

typedef struct job {
    const qnn_vec_kernel *vec;
    const uint8_t *src;
    float *dst;
    size_t total;
    float scale;
    int32_t zero_point;
} job;

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    const qnn_node_data *const in = qnn_node__in(m, n, 0);

    QNN_RETURN_IF(m->ctx, in->dtype != QNN_DTYPE_U8, QNN_ERR_DTYPE,
                  "dequantize \"%s\": input \"%s\" is %s, it must be u8", n->name, in->name,
                  qnn_dtype_name(in->dtype));
    n->dtype = QNN_DTYPE_F32;
    n->shape = in->shape;
    return QNN_OK;
}

static void forward_chunk(void *arg, size_t i, int thread)
{
    const job *const j = arg;
    const size_t at = i * QNN_CHUNK;

    (void)thread;
    j->vec->dequantize_u8(qnn_chunk__size(j->total, i), j->src + at, j->scale, j->zero_point,
                          j->dst + at);
}

static void forward(qnn_exec *x, const qnn_step *s)
{
    const qnn_node_data *const in = qnn_step__in(s, 0);
    job j = {.vec = x->k->vec,
             .src = qnn_exec__in(x, s, 0),
             .dst = qnn_exec__out(x, s),
             .total = qnn_exec__n_out(x, s),
             .scale = in->scale,
             .zero_point = in->zero_point};

    qnn_ctx__parallel(x->ctx, qnn_chunk__count(j.total), forward_chunk, &j);
}

const qnn_op qnn_op_dequantize = {
    .name = "dequantize",
    .n_in_min = 1,
    .n_in_max = 1,
    .infer = infer,
    .forward = forward,
};
