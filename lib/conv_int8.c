/* Convolution and linear layers in int8: static (u8 in, exact sums, requantised or float out) and
 * dynamic (rows quantised at run time). */
#include "lib/conv.h"

#include <stdlib.h>
#include <string.h>

#include "lib/qmath.h"

/* A program's constants: this, then (by offsets in bytes from the block's start) what it points at.
 */
typedef struct int8_packed {
    size_t weights, group_stride; /* packed s8 of each group; depthwise: s16, all as one */
    size_t bias;                  /* s32 [oc]: bias - zp_in * sum of weights; dynamic: zeros */
    size_t mult;                  /* f32 [oc] */
    size_t col_sum, fbias;        /* dynamic: s32 [oc]; f32 [oc], 0 when there is none */
    int32_t zp, qmin, qmax;       /* u8 output */
} int8_packed;

static void *at(const qnn_step *s, size_t offset) { return (unsigned char *)s->packed + offset; }

/* Sums of each output channel's weights. */
static void sum_weights(const qnn_conv *c, const int8_t *w, int32_t *sums)
{
    const size_t k = qnn_conv__k(c);

    for (size_t oc = 0; oc < c->oc; oc++) {
        int32_t sum = 0;

        for (size_t i = 0; i < k; i++)
            sum += w[oc * k + i];
        sums[oc] = sum;
    }
}

/* The contract: 255 * sum|w| + |bias| of every channel fits int32. */
static qnn_status check_range(const qnn_step *s, const qnn_conv *c, const int8_t *w,
                              const int32_t *bias)
{
    const size_t k = qnn_conv__k(c);

    for (size_t oc = 0; oc < c->oc; oc++) {
        int64_t sum = 0;

        for (size_t i = 0; i < k; i++)
            sum += w[oc * k + i] < 0 ? -w[oc * k + i] : w[oc * k + i];
        sum = 255 * sum + (bias != NULL ? llabs((long long)bias[oc]) : 0);
        QNN_RETURN_IF(s->p->ctx, sum > INT32_MAX, QNN_ERR_ARG,
                      "%s \"%s\": sums of channel %zu can reach %lld, past int32", s->op->name,
                      s->n->name, oc, (long long)sum);
    }
    return QNN_OK;
}

qnn_status qnn_conv__prepare_int8(qnn_step *s, const qnn_conv *c)
{
    const qnn_param *const w = &s->n->param[QNN_P_WEIGHT], *const bias = &s->n->param[QNN_P_BIAS];
    const qnn_gemm_u8s8_kernel *const ker = s->p->k->gemm_u8s8;
    const qnn_node_data *const in = qnn_step__in(s, 0);
    const size_t k = qnn_conv__k(c), ocg = qnn_conv__ocg(c),
                 vector = qnn_round_up(c->oc * 4, QNN_ALIGN);
    const int is_dynamic = s->n->a.wq == QNN_WQ_DYNAMIC, is_depthwise = qnn_conv__is_depthwise(c);
    int8_packed p = {.weights = qnn_round_up(sizeof p, QNN_ALIGN)};
    int32_t *sums, *ibias;
    float *mult;
    void *block;

    QNN_RETURN_IF(s->p->ctx, w->n_scale != 1 && w->n_scale != c->oc, QNN_ERR_ARG,
                  "%s \"%s\": %zu weight scales for %zu channels", s->op->name, s->n->name,
                  w->n_scale, c->oc);
    QNN_TRY(check_range(s, c, w->data, is_dynamic ? NULL : bias->data));
    p.group_stride = qnn_round_up(
        is_depthwise ? k * c->oc * sizeof(int16_t) : qnn_gemm__packed_u8s8(ker, k, ocg), QNN_ALIGN);
    p.bias = p.weights + (is_depthwise ? 1 : c->groups) * p.group_stride;
    p.mult = p.bias + vector;
    p.col_sum = p.mult + vector;
    p.fbias = p.col_sum + vector;
    p.zp = s->n->zero_point;
    QNN_TRY(qnn_step__pack(s, &block, p.fbias + vector));
    ibias = at(s, p.bias);
    mult = at(s, p.mult);
    sums = at(s, p.col_sum);
    sum_weights(c, w->data, sums);
    for (size_t oc = 0; oc < c->oc; oc++) {
        const float w_scale = w->scale[w->n_scale > 1 ? oc : 0];

        ibias[oc] = is_dynamic ? 0
                               : (bias->count > 0 ? ((const int32_t *)bias->data)[oc] : 0) -
                                     in->zero_point * sums[oc];
        mult[oc] = is_dynamic ? w_scale : in->scale * w_scale;
        if (s->n->dtype == QNN_DTYPE_U8)
            mult[oc] /= s->n->scale;
    }
    if (s->n->dtype == QNN_DTYPE_U8) {
        p.qmin = qnn_qmath__code(s->n->a.lo, s->n->scale, p.zp, 0, 255);
        p.qmax = qnn_qmath__code(s->n->a.hi, s->n->scale, p.zp, 0, 255);
    }
    if (is_dynamic && bias->count > 0)
        memcpy(at(s, p.fbias), bias->data, bias->bytes);
    else
        p.fbias = 0;
    if (is_depthwise)
        qnn_depthwise__pack_s8(c, w->data, at(s, p.weights));
    for (size_t g = 0; g < c->groups && !is_depthwise; g++)
        qnn_gemm__pack_u8s8(s->p->ctx, ker, k, ocg, (const int8_t *)w->data + g * ocg * k, 1, k,
                            at(s, p.weights + g * p.group_stride));
    memcpy(s->packed, &p, sizeof p);
    if (is_dynamic) /* codes, scale and zero point of each row */
        s->scratch_bytes = (size_t)s->p->max_batch *
                           (qnn_round_up(k, QNN_ALIGN) + sizeof(float) + sizeof(int32_t));
    return QNN_OK;
}

static void forward_static(qnn_exec *x, const qnn_step *s, const qnn_conv *c)
{
    const int8_packed *const p = s->packed;
    const qnn_node_data *const in = qnn_step__in(s, 0);
    const uint8_t *const src = qnn_exec__in(x, s, 0);
    const size_t ocg = qnn_conv__ocg(c);

    for (size_t g = 0; g < c->groups; g++) {
        const qnn_conv_view view = qnn_conv__view(c, src, 1, (int)in->zero_point, g);
        qnn_gemm_u8s8_args a = {
            .m = (size_t)x->n * c->oh * c->ow,
            .n = ocg,
            .k = qnn_conv__k(c),
            .gather = qnn_conv__gather_u8,
            .arg = &view,
            .b = at(s, p->weights + g * p->group_stride),
            .bias = (int32_t *)at(s, p->bias) + g * ocg,
            .mult = (float *)at(s, p->mult) + g * ocg,
            .zp = p->zp,
            .qmin = p->qmin,
            .qmax = p->qmax,
            .lo = s->n->a.lo,
            .hi = s->n->a.hi,
            .ldd = c->oc,
        };

        if (s->n->dtype == QNN_DTYPE_U8)
            a.dst_u8 = (uint8_t *)qnn_exec__out(x, s) + g * ocg;
        else
            a.dst_f32 = (float *)qnn_exec__out(x, s) + g * ocg;
        if (qnn_conv__is_depthwise(c)) {
            qnn_depthwise__u8s8(x->ctx, x->k->vec, &view, (size_t)x->n, at(s, p->weights), &a);
            return;
        }
        if (qnn_conv__is_plain(c)) {
            a.gather = NULL;
            a.a = src + g * qnn_conv__icg(c);
            a.lda = c->ic;
        }
        qnn_gemm__u8s8(x->ctx, x->k->gemm_u8s8, x->k->vec, &a);
    }
}

typedef struct row_job {
    const qnn_vec_kernel *vec;
    const float *src;
    size_t k, ld;
    uint8_t *codes;
    float *scale;
    int32_t *zp;
} row_job;

/* Each row has a range of its own, so that an answer never depends on the other rows of the batch.
 */
static void row_task(void *arg, size_t i, int thread)
{
    const row_job *const j = arg;
    const float *const row = j->src + i * j->k;
    float lo, hi;

    (void)thread;
    (void)j->vec->min_max(j->k, row, &lo, &hi);
    qnn_qparams__affine(lo, hi, 0, 255, &j->scale[i], &j->zp[i]);
    j->vec->quantize_u8(j->k, row, 1.0f / j->scale[i], j->zp[i], 0, 255, j->codes + i * j->ld);
}

static void forward_dynamic(qnn_exec *x, const qnn_step *s, const qnn_conv *c)
{
    const int8_packed *const p = s->packed;
    const size_t ld = qnn_round_up(c->ic, QNN_ALIGN), max_batch = (size_t)s->p->max_batch;
    uint8_t *const codes = qnn_exec__scratch(x, s);
    float *const scale = (float *)(void *)(codes + max_batch * ld);
    row_job j = {x->k->vec,
                 qnn_exec__in(x, s, 0),
                 c->ic,
                 ld,
                 codes,
                 scale,
                 (int32_t *)(void *)(scale + max_batch)};
    qnn_gemm_u8s8_args a = {
        .m = (size_t)x->n,
        .n = c->oc,
        .k = c->ic,
        .a = codes,
        .lda = ld,
        .b = at(s, p->weights),
        .bias = at(s, p->bias),
        .mult = at(s, p->mult),
        .dst_f32 = qnn_exec__out(x, s),
        .fbias = p->fbias != 0 ? at(s, p->fbias) : NULL,
        .lo = s->n->a.lo,
        .hi = s->n->a.hi,
        .row_scale = j.scale,
        .row_zp = j.zp,
        .col_sum = at(s, p->col_sum),
        .ldd = c->oc,
    };

    qnn_ctx__parallel(x->ctx, (size_t)x->n, row_task, &j);
    qnn_gemm__u8s8(x->ctx, x->k->gemm_u8s8, x->k->vec, &a);
}

void qnn_conv__forward_int8(qnn_exec *x, const qnn_step *s, const qnn_conv *c)
{
    if (s->n->a.wq == QNN_WQ_DYNAMIC)
        forward_dynamic(x, s, c);
    else
        forward_static(x, s, c);
}
