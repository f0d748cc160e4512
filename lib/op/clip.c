/*
 * clip: min(max(x, lo), hi); relu is clip [0, inf]. NaN stays NaN. The gradient passes where lo < y
 * < hi.
 *
 * On u8 the codes are clipped to the codes of lo and hi; scale and zero point stay.
 */
#include "lib/op_util.h"
#include "lib/qmath.h"

#include <string.h>

enum { LANES = 64 }; /* a count the compiler knows is what makes it use vectors */

typedef struct job {
    const qnn_vec_kernel *vec;
    const void *src;
    void *dst;
    const float *dout;
    float *din;
    int beta;
    size_t total;
    float lo, hi;
    uint8_t code_lo, code_hi;
} job;

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    QNN_RETURN_IF(m->ctx, !(n->a.lo < n->a.hi), QNN_ERR_ARG,
                  "clip \"%s\": lower bound %g is not below upper bound %g", n->name,
                  (double)n->a.lo, (double)n->a.hi);
    qnn_node__infer_keep(m, n);
    n->shape = qnn_node__in(m, n, 0)->shape;
    return QNN_OK;
}

static void forward_f32(void *arg, size_t i, int thread)
{
    const job *const j = arg;
    const size_t at = i * QNN_CHUNK;

    (void)thread;
    j->vec->clip(qnn_chunk__size(j->total, i), (const float *)j->src + at, j->lo, j->hi,
                 (float *)j->dst + at);
}

static inline uint8_t clip_code(uint8_t q, uint8_t lo, uint8_t hi)
{
    const uint8_t low = q > lo ? q : lo;

    return low < hi ? low : hi;
}

static void forward_u8(void *arg, size_t i, int thread)
{
    const job *const j = arg;
    const size_t n = qnn_chunk__size(j->total, i);
    const uint8_t *const src = (const uint8_t *)j->src + i * QNN_CHUNK;
    uint8_t *const dst = (uint8_t *)j->dst + i * QNN_CHUNK;
    const uint8_t lo = j->code_lo, hi = j->code_hi;
    size_t k = 0;

    (void)thread;
    for (; k + LANES <= n; k += LANES) {
        uint8_t q[LANES]; /* dst may be src */

        for (size_t l = 0; l < LANES; l++)
            q[l] = clip_code(src[k + l], lo, hi);
        memcpy(dst + k, q, sizeof q);
    }
    for (; k < n; k++)
        dst[k] = clip_code(src[k], lo, hi);
}

static void forward(qnn_exec *x, const qnn_step *s)
{
    const qnn_node_data *const n = s->n;
    job j = {.vec = x->k->vec, .src = qnn_exec__in(x, s, 0), .dst = qnn_exec__out(x, s)};
    const size_t n_chunks = qnn_chunk__count(qnn_exec__n_out(x, s));

    j.total = qnn_exec__n_out(x, s);
    j.lo = n->a.lo;
    j.hi = n->a.hi;
    if (n->dtype == QNN_DTYPE_U8) {
        j.code_lo = (uint8_t)qnn_qmath__code(j.lo, n->scale, n->zero_point, 0, 255);
        j.code_hi = (uint8_t)qnn_qmath__code(j.hi, n->scale, n->zero_point, 0, 255);
        qnn_ctx__parallel(x->ctx, n_chunks, forward_u8, &j);
    } else {
        qnn_ctx__parallel(x->ctx, n_chunks, forward_f32, &j);
    }
}

static void backward_chunk(void *arg, size_t i, int thread)
{
    const job *const j = arg;
    const size_t at = i * QNN_CHUNK;

    (void)thread;
    j->vec->clip_bwd(qnn_chunk__size(j->total, i), (const float *)j->dst + at, j->lo, j->hi,
                     j->dout + at, j->beta, j->din + at);
}

static void backward(qnn_exec *x, const qnn_step *s)
{
    job j = {.vec = x->k->vec, .dst = qnn_exec__out(x, s), .dout = qnn_exec__dout(x, s)};

    j.din = qnn_exec__din(x, s, 0);
    j.beta = qnn_exec__din_beta(x, s, 0);
    j.total = qnn_exec__n_out(x, s);
    j.lo = s->n->a.lo;
    j.hi = s->n->a.hi;
    if (j.din != NULL)
        qnn_ctx__parallel(x->ctx, qnn_chunk__count(j.total), backward_chunk, &j);
}

static const qnn_attr_field fields[] = {
    {"lo", offsetof(qnn_attrs, lo), 1},
    {"hi", offsetof(qnn_attrs, hi), 1},
    {NULL, 0, 0},
};

const qnn_op qnn_op_clip = {
    .name = "clip",
    .n_in_min = 1,
    .n_in_max = 1,
    .flags = QNN_OP_INPLACE | QNN_OP_BWD_DST | QNN_OP_KEEPS_Q,
    .fields = fields,
    .infer = infer,
    .forward = forward,
    .backward = backward,
};
