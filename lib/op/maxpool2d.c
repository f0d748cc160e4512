/*
 * maxpool2d: the largest value of each window; padding is never chosen.
 *
 * The first maximum of a window wins and NaN propagates, as in PyTorch. Training programs keep one
 * byte per output, the number of the chosen cell in its window, and backward reads nothing else. u8
 * works on codes: scale and zero point stay.
 *
 * The inner loops run over LANES channels at a time: a count known to the compiler is what makes it
 * use vectors at every level of optimisation, and 2x2 windows are bound by memory then.
 */
#include "lib/op_pool.h"
#include "lib/op_util.h"

#include <string.h>

enum { LANES = 16, MAX_CELLS = 256 };

typedef struct job {
    const qnn_vec_kernel *vec;
    qnn_pool2d_geometry g;
    const void *src;
    void *dst;
    uint8_t *which; /* [n][oh][ow][c] the chosen cell; NULL: not wanted */
    const float *dout;
    float *din;
    int beta;
    int is_2x2; /* every window is 2 x 2 and inside the image */
} job;

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    QNN_TRY(qnn_node__check_image(m, n));
    qnn_node__infer_keep(m, n);
    return qnn_pool2d__infer(m, n);
}

static qnn_status prepare(qnn_step *s)
{
    const qnn_attrs *const a = &s->n->a;

    if (!s->p->is_train || !s->needs_grad)
        return QNN_OK;
    QNN_RETURN_IF(s->p->ctx, (int64_t)a->kh * a->kw > MAX_CELLS, QNN_ERR_UNSUPPORTED,
                  "maxpool2d \"%s\": %dx%d cells are too many to train, the limit is %d",
                  s->n->name, (int)a->kh, (int)a->kw, MAX_CELLS);
    s->saved_bytes = s->out_bytes / sizeof(float);
    return QNN_OK;
}

static job make_job(const qnn_exec *x, const qnn_step *s)
{
    job j = {.vec = x->k->vec, .g = qnn_pool2d__geometry(s), .which = qnn_exec__saved(x, s)};
    const qnn_attrs *const a = &s->n->a;

    j.is_2x2 = a->kh == 2 && a->kw == 2 && a->pt == 0 && a->pl == 0 && a->pb == 0 && a->pr == 0;
    return j;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* The running maximum of one channel and the cell that holds it. */
typedef struct best {
    float value;
    int32_t cell;
} best;

static inline best take(best b, float value, int32_t cell)
{
    const int is_taken = (value > b.value) | (value != value);

    b.value = is_taken ? value : b.value;
    b.cell = is_taken ? cell : b.cell;
    return b;
}

/* A 2 x 2 window: a b above c d. */
static inline best take_2x2(float a, float b, float c, float d)
{
    const best first = {a, 0};

    return take(take(take(first, b, 1), c, 2), d, 3);
}

static void window_2x2(size_t c, const float *restrict top, const float *restrict bottom,
                       float *restrict dst, uint8_t *restrict which)
{
    size_t k = 0;

    for (; k + LANES <= c; k += LANES)
        for (size_t l = k; l < k + LANES; l++) {
            const best b = take_2x2(top[l], top[c + l], bottom[l], bottom[c + l]);

            dst[l] = b.value;
            which[l] = (uint8_t)b.cell;
        }
    for (; k < c; k++) {
        const best b = take_2x2(top[k], top[c + k], bottom[k], bottom[c + k]);

        dst[k] = b.value;
        which[k] = (uint8_t)b.cell;
    }
}

static void window_2x2_value(size_t c, const float *restrict top, const float *restrict bottom,
                             float *restrict dst)
{
    size_t k = 0;

    for (; k + LANES <= c; k += LANES)
        for (size_t l = k; l < k + LANES; l++)
            dst[l] = take_2x2(top[l], top[c + l], bottom[l], bottom[c + l]).value;
    for (; k < c; k++)
        dst[k] = take_2x2(top[k], top[c + k], bottom[k], bottom[c + k]).value;
}

/* A cell joins a window whose best so far is in dst and which. */
static void join(size_t c, const float *restrict x, int32_t cell, float *restrict dst,
                 uint8_t *restrict which)
{
    size_t k = 0;

    for (; k + LANES <= c; k += LANES)
        for (size_t l = k; l < k + LANES; l++) {
            const best b = take((best){dst[l], which[l]}, x[l], cell);

            dst[l] = b.value;
            which[l] = (uint8_t)b.cell;
        }
    for (; k < c; k++) {
        const best b = take((best){dst[k], which[k]}, x[k], cell);

        dst[k] = b.value;
        which[k] = (uint8_t)b.cell;
    }
}

static void window_f32(const job *j, const float *image, const qnn_pool2d_span *v,
                       const qnn_pool2d_span *h, float *dst, uint8_t *which)
{
    const qnn_pool2d_geometry *const g = &j->g;
    const int64_t first = (v->begin - v->origin) * g->kw + h->begin - h->origin;

    memcpy(dst, image + (size_t)(v->begin * g->iw + h->begin) * g->c, g->c * sizeof *dst);
    if (which != NULL)
        memset(which, (int)first, g->c);
    for (int64_t y = v->begin; y < v->end; y++)
        for (int64_t x = h->begin; x < h->end; x++) {
            const float *const value = image + (size_t)(y * g->iw + x) * g->c;
            const int64_t cell = (y - v->origin) * g->kw + x - h->origin;

            if (cell == first)
                continue;
            if (which != NULL)
                join(g->c, value, (int32_t)cell, dst, which);
            else
                j->vec->max_f32(g->c, value, dst);
        }
}

static void forward_row_f32(void *arg, size_t i, int thread)
{
    const job *const j = arg;
    const qnn_pool2d_geometry *const g = &j->g;
    const float *const image =
        (const float *)j->src + i / (size_t)g->oh * (size_t)(g->ih * g->iw) * g->c;
    const qnn_pool2d_span v =
        qnn_pool2d__span((int64_t)(i % (size_t)g->oh), g->sh, g->pt, g->kh, g->ih);

    (void)thread;
    for (int64_t ox = 0; ox < g->ow; ox++) {
        const size_t at = (i * (size_t)g->ow + (size_t)ox) * g->c;
        const qnn_pool2d_span h = qnn_pool2d__span(ox, g->sw, g->pl, g->kw, g->iw);
        const float *const top = image + (size_t)(v.begin * g->iw + h.begin) * g->c;
        const float *const bottom = top + (size_t)g->iw * g->c;
        float *const dst = (float *)j->dst + at;

        if (!j->is_2x2)
            window_f32(j, image, &v, &h, dst, j->which != NULL ? j->which + at : NULL);
        else if (j->which != NULL)
            window_2x2(g->c, top, bottom, dst, j->which + at);
        else
            window_2x2_value(g->c, top, bottom, dst);
    }
}

static void forward_row_u8(void *arg, size_t i, int thread)
{
    const job *const j = arg;
    const qnn_pool2d_geometry *const g = &j->g;
    const uint8_t *const image =
        (const uint8_t *)j->src + i / (size_t)g->oh * (size_t)(g->ih * g->iw) * g->c;
    const qnn_pool2d_span v =
        qnn_pool2d__span((int64_t)(i % (size_t)g->oh), g->sh, g->pt, g->kh, g->ih);

    (void)thread;
    for (int64_t ox = 0; ox < g->ow; ox++) {
        uint8_t *const dst = (uint8_t *)j->dst + (i * (size_t)g->ow + (size_t)ox) * g->c;
        const qnn_pool2d_span h = qnn_pool2d__span(ox, g->sw, g->pl, g->kw, g->iw);

        memcpy(dst, image + (size_t)(v.begin * g->iw + h.begin) * g->c, g->c);
        for (int64_t y = v.begin; y < v.end; y++)
            for (int64_t x = h.begin; x < h.end; x++)
                j->vec->max_u8(g->c, image + (size_t)(y * g->iw + x) * g->c, dst);
    }
}

static void forward(qnn_exec *x, const qnn_step *s)
{
    job j = make_job(x, s);

    j.src = qnn_exec__in(x, s, 0);
    j.dst = qnn_exec__out(x, s);
    qnn_ctx__parallel(x->ctx, (size_t)x->n * (size_t)j.g.oh,
                      s->n->dtype == QNN_DTYPE_U8 ? forward_row_u8 : forward_row_f32, &j);
}

/* ---- backward -------------------------------------------------------------------------------- */

static inline float pass_if(int32_t chosen, int32_t cell, float dy)
{
    return chosen == cell ? dy : 0.0f;
}

/* dx (+)= dy in the channels that chose this cell. */
static void spread(size_t c, const uint8_t *restrict which, int32_t cell, const float *restrict dy,
                   int beta, float *restrict dx)
{
    size_t k = 0;

    for (; k + LANES <= c; k += LANES) {
        int32_t chosen[LANES];

        for (size_t l = 0; l < LANES; l++)
            chosen[l] = which[k + l];
        if (beta)
            for (size_t l = 0; l < LANES; l++)
                dx[k + l] += pass_if(chosen[l], cell, dy[k + l]);
        else
            for (size_t l = 0; l < LANES; l++)
                dx[k + l] = pass_if(chosen[l], cell, dy[k + l]);
    }
    for (; k < c; k++)
        dx[k] = (beta ? dx[k] : 0.0f) + pass_if(which[k], cell, dy[k]);
}

/* Task: one row of d(input), gathered from the windows that hold it. */
static void backward_row(void *arg, size_t i, int thread)
{
    const job *const j = arg;
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
        for (int64_t oy = y_first; oy <= y_last; oy++)
            for (int64_t ox = x_first; ox <= x_last; ox++) {
                const size_t row = item * (size_t)g->oh + (size_t)oy;
                const size_t at = (row * (size_t)g->ow + (size_t)ox) * g->c;
                const int64_t cell = (iy - oy * g->sh + g->pt) * g->kw + ix - ox * g->sw + g->pl;

                spread(g->c, j->which + at, (int32_t)cell, j->dout + at, beta, din);
                beta = 1;
            }
        if (!beta)
            memset(din, 0, g->c * sizeof *din);
    }
}

/* Task: one row of 2 x 2 windows side by side; each cell belongs to one window. */
static void backward_row_2x2(void *arg, size_t i, int thread)
{
    const job *const j = arg;
    const qnn_pool2d_geometry *const g = &j->g;
    const size_t row_size = (size_t)g->iw * g->c, oy = i % (size_t)g->oh;
    const size_t top_row = i / (size_t)g->oh * (size_t)g->ih + 2 * oy;
    const size_t covered = (size_t)g->ow * 2 * g->c;
    float *const top = j->din + top_row * row_size, *const bottom = top + row_size;

    (void)thread;
    for (int64_t ox = 0; ox < g->ow; ox++) {
        const size_t at = (i * (size_t)g->ow + (size_t)ox) * g->c, left = (size_t)ox * 2 * g->c;
        const uint8_t *const which = j->which + at;
        const float *const dy = j->dout + at;

        spread(g->c, which, 0, dy, j->beta, top + left);
        spread(g->c, which, 1, dy, j->beta, top + left + g->c);
        spread(g->c, which, 2, dy, j->beta, bottom + left);
        spread(g->c, which, 3, dy, j->beta, bottom + left + g->c);
    }
    if (j->beta)
        return;
    memset(top + covered, 0, (row_size - covered) * sizeof *top); /* an odd last column */
    memset(bottom + covered, 0, (row_size - covered) * sizeof *bottom);
    if (oy + 1 == (size_t)g->oh && g->ih % 2 != 0)
        memset(bottom + row_size, 0, row_size * sizeof *bottom); /* an odd last row */
}

static void backward(qnn_exec *x, const qnn_step *s)
{
    job j = make_job(x, s);

    j.dout = qnn_exec__dout(x, s);
    j.din = qnn_exec__din(x, s, 0);
    j.beta = qnn_exec__din_beta(x, s, 0);
    if (j.din == NULL)
        return;
    if (j.is_2x2 && j.g.sh == 2 && j.g.sw == 2)
        qnn_ctx__parallel(x->ctx, (size_t)x->n * (size_t)j.g.oh, backward_row_2x2, &j);
    else
        qnn_ctx__parallel(x->ctx, (size_t)x->n * (size_t)j.g.ih, backward_row, &j);
}

const qnn_op qnn_op_maxpool2d = {
    .name = "maxpool2d",
    .n_in_min = 1,
    .n_in_max = 1,
    .flags = QNN_OP_KEEPS_Q,
    .fields = qnn_pool2d__fields,
    .infer = infer,
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
};
