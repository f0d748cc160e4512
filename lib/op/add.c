/*
 * add: the sum of two tensors of one shape.
 *
 * On u8: q = clamp(rne((Sa (qa - Za) + Sb (qb - Zb)) / S) + Z): both inputs in float32, one
 * rounding to a code.
 */
#include "lib/op_util.h"

#include <string.h>

typedef struct job {
    const qnn_vec_kernel *vec;
    const qnn_node_data *out, *in[2];
    const void *src[2];
    void *dst;
    size_t total;
} job;

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    const qnn_shape *const a = &qnn_node__in(m, n, 0)->shape;
    const qnn_shape *const b = &qnn_node__in(m, n, 1)->shape;
    char text_a[96], text_b[96];

    QNN_RETURN_IF(m->ctx, !qnn_shape__equal(a, b), QNN_ERR_SHAPE,
                  "add \"%s\": inputs have shapes %s and %s", n->name,
                  qnn_shape__text(a, text_a, sizeof text_a),
                  qnn_shape__text(b, text_b, sizeof text_b));
    n->shape = *a;
    return qnn_node__infer_f32_or_u8(m, n);
}

static void forward_f32(void *arg, size_t i, int thread)
{
    const job *const j = arg;
    const size_t at = i * QNN_CHUNK, n = qnn_chunk__size(j->total, i);
    float *const dst = (float *)j->dst + at;

    (void)thread;
    if (j->dst != j->src[0])
        memcpy(dst, (const float *)j->src[0] + at, n * sizeof *dst);
    j->vec->axpby(n, 1.0f, (const float *)j->src[1] + at, 1, dst);
}

static void forward_u8(void *arg, size_t i, int thread)
{
    enum { BLOCK = 1024 }; /* both blocks of floats stay in the first cache */
    const job *const j = arg;
    const size_t end = i * QNN_CHUNK + qnn_chunk__size(j->total, i);
    const float inv_scale = 1.0f / j->out->scale;
    float a[BLOCK], b[BLOCK];

    (void)thread;
    for (size_t at = i * QNN_CHUNK; at < end; at += BLOCK) {
        const size_t n = end - at < BLOCK ? end - at : BLOCK;

        j->vec->dequantize_u8(n, (const uint8_t *)j->src[0] + at, j->in[0]->scale,
                              j->in[0]->zero_point, a);
        j->vec->dequantize_u8(n, (const uint8_t *)j->src[1] + at, j->in[1]->scale,
                              j->in[1]->zero_point, b);
        j->vec->axpby(n, 1.0f, b, 1, a);
        j->vec->quantize_u8(n, a, inv_scale, j->out->zero_point, 0, 255, (uint8_t *)j->dst + at);
    }
}

static void forward(qnn_exec *x, const qnn_step *s)
{
    job j = {.vec = x->k->vec, .out = s->n, .dst = qnn_exec__out(x, s)};

    j.total = qnn_exec__n_out(x, s);
    for (int i = 0; i < 2; i++) {
        j.in[i] = qnn_step__in(s, i);
        j.src[i] = qnn_exec__in(x, s, i);
    }
    qnn_ctx__parallel(x->ctx, qnn_chunk__count(j.total),
                      s->n->dtype == QNN_DTYPE_U8 ? forward_u8 : forward_f32, &j);
}

static void backward(qnn_exec *x, const qnn_step *s)
{
    qnn_exec__pass_gradient(x, s, 0);
    qnn_exec__pass_gradient(x, s, 1);
}

const qnn_op qnn_op_add = {
    .name = "add",
    .n_in_min = 2,
    .n_in_max = 2,
    .flags = QNN_OP_INPLACE,
    .infer = infer,
    .forward = forward,
    .backward = backward,
};
