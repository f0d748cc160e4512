/*
 * Pooling windows and their averages.
 *
 * Averages are summed in double (f32) or int32 (u8: sum of q - Z_in, times S_in / (count * S_out),
 * rounded once to a code). The gradient is gathered: each input row collects from the windows that
 * hold it, so that rows are independent tasks.
 */
#include "lib/op_pool.h"

#include <string.h>

const qnn_attr_field qnn_pool2d__fields[] = {
    {"kernel_h", offsetof(qnn_attrs, kh), 0},
    {"kernel_w", offsetof(qnn_attrs, kw), 0},
    {"stride_h", offsetof(qnn_attrs, sh), 0},
    {"stride_w", offsetof(qnn_attrs, sw), 0},
    {"pad_top", offsetof(qnn_attrs, pt), 0},
    {"pad_left", offsetof(qnn_attrs, pl), 0},
    {"pad_bottom", offsetof(qnn_attrs, pb), 0},
    {"pad_right", offsetof(qnn_attrs, pr), 0},
    {"exclude_pad", offsetof(qnn_attrs, exclude_pad), 0},
    {NULL, 0, 0},
};

/* One axis: its attributes, and the number of windows in *out. */
static qnn_status infer_axis(qnn_model *m, const qnn_node_data *n, const char *axis, int64_t size,
                             int32_t kernel, int32_t stride, int32_t before, int32_t after,
                             int64_t *out)
{
    const char *const op = qnn_ops[n->kind]->name;
    const int32_t pad = before > after ? before : after;

    QNN_RETURN_IF(m->ctx, kernel < 1 || stride < 1, QNN_ERR_ARG,
                  "%s \"%s\": kernel %s %d and stride %d must be at least 1", op, n->name, axis,
                  (int)kernel, (int)stride);
    QNN_RETURN_IF(m->ctx, before < 0 || after < 0, QNN_ERR_ARG, "%s \"%s\": pad %d is negative", op,
                  n->name, (int)(before < after ? before : after));
    QNN_RETURN_IF(m->ctx, pad > kernel / 2, QNN_ERR_ARG,
                  "%s \"%s\": pad %d exceeds half of kernel %d", op, n->name, (int)pad,
                  (int)kernel);
    QNN_RETURN_IF(m->ctx, size + before + after < kernel, QNN_ERR_SHAPE,
                  "%s \"%s\": kernel %s %d exceeds the padded input's %lld", op, n->name, axis,
                  (int)kernel, (long long)(size + before + after));
    *out = (size + before + after - kernel) / stride + 1;
    return QNN_OK;
}

qnn_status qnn_pool2d__infer(qnn_model *m, qnn_node_data *n)
{
    const qnn_attrs *const a = &n->a;
    const qnn_shape *const in = &m->node[n->in[0]]->shape;

    QNN_TRY(infer_axis(m, n, "height", in->dim[0], a->kh, a->sh, a->pt, a->pb, &n->shape.dim[0]));
    QNN_TRY(infer_axis(m, n, "width", in->dim[1], a->kw, a->sw, a->pl, a->pr, &n->shape.dim[1]));
    n->shape.dim[2] = in->dim[2];
    n->shape.rank = 3;
    return QNN_OK;
}

qnn_pool2d_geometry qnn_pool2d__geometry(const qnn_step *s)
{
    const qnn_attrs *const a = &s->n->a;
    const int64_t *const in = qnn_step__in(s, 0)->shape.dim, *const out = s->n->shape.dim;

    return (qnn_pool2d_geometry){.ih = in[0],
                                 .iw = in[1],
                                 .oh = out[0],
                                 .ow = out[1],
                                 .kh = a->kh,
                                 .kw = a->kw,
                                 .sh = a->sh,
                                 .sw = a->sw,
                                 .pt = a->pt,
                                 .pl = a->pl,
                                 .c = (size_t)in[2],
                                 .exclude_pad = a->exclude_pad};
}

/* ---- averages -------------------------------------------------------------------------------- */

enum { LANES = 64 }; /* channels summed at a time */

typedef struct average_job {
    const qnn_vec_kernel *vec;
    qnn_pool2d_geometry g;
    const void *src;
    void *dst;
    const float *dout;
    float *din;
    int beta;
    float scale_in, scale_out;
    int32_t zp_in, zp_out;
} average_job;

static size_t n_inside(const qnn_pool2d_span *v, const qnn_pool2d_span *h)
{
    return (size_t)((v->end - v->begin) * (h->end - h->begin));
}

static size_t n_averaged(const qnn_pool2d_geometry *g, const qnn_pool2d_span *v,
                         const qnn_pool2d_span *h)
{
    return g->exclude_pad ? n_inside(v, h) : (size_t)(g->kh * g->kw);
}

static void average_f32(const average_job *j, const float *image, const qnn_pool2d_span *v,
                        const qnn_pool2d_span *h, float *dst)
{
    const qnn_pool2d_geometry *const g = &j->g;
    const double count = (double)n_averaged(g, v, h);

    for (size_t first = 0; first < g->c; first += LANES) {
        const size_t n = g->c - first < LANES ? g->c - first : LANES;
        double sum[LANES] = {0};

        for (int64_t y = v->begin; y < v->end; y++)
            for (int64_t x = h->begin; x < h->end; x++) {
                const float *const cell = image + (size_t)(y * g->iw + x) * g->c + first;

                for (size_t k = 0; k < n; k++)
                    sum[k] += (double)cell[k];
            }
        for (size_t k = 0; k < n; k++)
            dst[first + k] = (float)(sum[k] / count);
    }
}

static void average_u8(const average_job *j, const uint8_t *image, const qnn_pool2d_span *v,
                       const qnn_pool2d_span *h, uint8_t *dst)
{
    const qnn_pool2d_geometry *const g = &j->g;
    const int32_t zero_sum = -(int32_t)n_inside(v, h) * j->zp_in; /* padding counts as zero */
    const float mult = j->scale_in / ((float)n_averaged(g, v, h) * j->scale_out);
    int32_t bias[LANES];
    float mults[LANES];

    for (size_t k = 0; k < LANES; k++) {
        bias[k] = zero_sum;
        mults[k] = mult;
    }
    for (size_t first = 0; first < g->c; first += LANES) {
        const size_t n = g->c - first < LANES ? g->c - first : LANES;
        int32_t sum[LANES] = {0};

        for (int64_t y = v->begin; y < v->end; y++)
            for (int64_t x = h->begin; x < h->end; x++) {
                const uint8_t *const cell = image + (size_t)(y * g->iw + x) * g->c + first;

                for (size_t k = 0; k < n; k++)
                    sum[k] += cell[k];
            }
        j->vec->requantize_u8(1, n, sum, n, bias, mults, j->zp_out, 0, 255, dst + first, n);
    }
}

static void average_row(void *arg, size_t i, int thread)
{
    const average_job *const j = arg;
    const qnn_pool2d_geometry *const g = &j->g;
    const size_t item = i / (size_t)g->oh, image = item * (size_t)(g->ih * g->iw) * g->c;
    const qnn_pool2d_span v =
        qnn_pool2d__span((int64_t)(i % (size_t)g->oh), g->sh, g->pt, g->kh, g->ih);

    (void)thread;
    for (int64_t ox = 0; ox < g->ow; ox++) {
        const qnn_pool2d_span h = qnn_pool2d__span(ox, g->sw, g->pl, g->kw, g->iw);
        const size_t at = (i * (size_t)g->ow + (size_t)ox) * g->c;

        if (j->scale_out > 0.0f)
            average_u8(j, (const uint8_t *)j->src + image, &v, &h, (uint8_t *)j->dst + at);
        else
            average_f32(j, (const float *)j->src + image, &v, &h, (float *)j->dst + at);
    }
}

void qnn_pool2d__average(qnn_exec *x, const qnn_step *s, const qnn_pool2d_geometry *g)
{
    average_job j = {.vec = x->k->vec, .g = *g};

    j.src = qnn_exec__in(x, s, 0);
    j.dst = qnn_exec__out(x, s);
    if (s->n->dtype == QNN_DTYPE_U8) {
        j.scale_in = qnn_step__in(s, 0)->scale;
        j.zp_in = qnn_step__in(s, 0)->zero_point;
        j.scale_out = s->n->scale;
        j.zp_out = s->n->zero_point;
    }
    qnn_ctx__parallel(x->ctx, (size_t)x->n * (size_t)g->oh, average_row, &j);
}

/* Task: one row of d(input). */
static void average_backward_row(void *arg, size_t i, int thread)
{
    const average_job *const j = arg;
    const qnn_pool2d_geometry *const g = &j->g;
    const size_t item = i / (size_t)g->ih;
    const int64_t iy = (int64_t)(i % (size_t)g->ih);
    int64_t y_first, y_last;

    (void)thread;
    qnn_pool2d__windows(iy, g->sh, g->pt, g->kh, g->oh, &y_first, &y_last);
    for (int64_t ix = 0; ix < g->iw; ix++) {
        float *const din = j->din + (i * (size_t)g->iw + (size_t)ix) * g->c;
        int beta = j->beta;
        int64_t x_first, x_last;

        qnn_pool2d__windows(ix, g->sw, g->pl, g->kw, g->ow, &x_first, &x_last);
        for (int64_t oy = y_first; oy <= y_last; oy++) {
            const qnn_pool2d_span v = qnn_pool2d__span(oy, g->sh, g->pt, g->kh, g->ih);
            const size_t row = item * (size_t)g->oh + (size_t)oy;

            for (int64_t ox = x_first; ox <= x_last; ox++) {
                const qnn_pool2d_span h = qnn_pool2d__span(ox, g->sw, g->pl, g->kw, g->iw);

                j->vec->axpby(g->c, 1.0f / (float)n_averaged(g, &v, &h),
                              j->dout + (row * (size_t)g->ow + (size_t)ox) * g->c, beta, din);
                beta = 1;
            }
        }
        if (!beta)
            memset(din, 0, g->c * sizeof *din);
    }
}

void qnn_pool2d__average_backward(qnn_exec *x, const qnn_step *s, const qnn_pool2d_geometry *g)
{
    average_job j = {.vec = x->k->vec, .g = *g, .dout = qnn_exec__dout(x, s)};

    j.din = qnn_exec__din(x, s, 0);
    j.beta = qnn_exec__din_beta(x, s, 0);
    if (j.din != NULL)
        qnn_ctx__parallel(x->ctx, (size_t)x->n * (size_t)g->ih, average_backward_row, &j);
}
