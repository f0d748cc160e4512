/*
 * concat along the last axis (channels).
 *
 * On u8 each input is requantised once, q' = clamp(rne(S_in (q - Z_in) / S) + Z), by a table of 256
 * codes made when the program is compiled; where scale and zero point agree the codes are copied.
 */
#include "lib/op_util.h"

#include <string.h>

typedef struct job {
    const qnn_vec_kernel *vec;
    int n_in;
    size_t c[QNN_MAX_INPUTS]; /* channels of each input */
    const void *src[QNN_MAX_INPUTS];
    const uint8_t *table[QNN_MAX_INPUTS]; /* NULL: copy */
    float *din[QNN_MAX_INPUTS];
    int beta[QNN_MAX_INPUTS];
    void *dst;
    const float *dout;
    size_t c_out, element, rows, rows_per_task;
} job;

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    qnn_shape shape = qnn_node__in(m, n, 0)->shape;
    const int last = shape.rank - 1;
    char text_a[96], text_b[96];

    shape.dim[last] = 0;
    for (int i = 0; i < n->n_in; i++) {
        const qnn_shape *const in = &qnn_node__in(m, n, i)->shape;
        int fits = in->rank == shape.rank;

        for (int d = 0; d < last && fits; d++)
            fits = in->dim[d] == shape.dim[d];
        QNN_RETURN_IF(m->ctx, !fits, QNN_ERR_SHAPE,
                      "concat \"%s\": input 0 is %s, input %d is %s: only the last may differ",
                      n->name,
                      qnn_shape__text(&qnn_node__in(m, n, 0)->shape, text_a, sizeof text_a), i,
                      qnn_shape__text(in, text_b, sizeof text_b));
        shape.dim[last] += in->dim[last];
    }
    n->shape = shape;
    return qnn_node__infer_f32_or_u8(m, n);
}

static int keeps_codes(const qnn_node_data *in, const qnn_node_data *out)
{
    return in->scale == out->scale && in->zero_point == out->zero_point;
}

/* s->packed: [n_in][256] codes. */
static qnn_status prepare(qnn_step *s)
{
    const qnn_vec_kernel *const vec = s->p->k->vec;
    uint8_t code[256];
    float real[256];
    void *block;

    if (s->n->dtype != QNN_DTYPE_U8)
        return QNN_OK;
    for (int q = 0; q < 256; q++)
        code[q] = (uint8_t)q;
    QNN_TRY(qnn_step__pack(s, &block, (size_t)s->n->n_in * sizeof code));
    for (int i = 0; i < s->n->n_in; i++) {
        const qnn_node_data *const in = qnn_step__in(s, i);

        vec->dequantize_u8(256, code, in->scale, in->zero_point, real);
        vec->quantize_u8(256, real, 1.0f / s->n->scale, s->n->zero_point, 0, 255,
                         (uint8_t *)block + (size_t)i * sizeof code);
    }
    return QNN_OK;
}

static job make_job(const qnn_exec *x, const qnn_step *s)
{
    job j = {.vec = x->k->vec, .n_in = s->n->n_in};

    j.c_out = (size_t)s->n->shape.dim[s->n->shape.rank - 1];
    j.element = qnn_dtype__bytes(s->n->dtype, 1);
    j.rows = qnn_exec__n_out(x, s) / j.c_out;
    j.rows_per_task = qnn_chunk__rows(j.c_out);
    for (int i = 0; i < j.n_in; i++)
        j.c[i] = (size_t)qnn_step__in(s, i)->shape.dim[s->n->shape.rank - 1];
    return j;
}

static size_t first_row(const job *j, size_t task)
{
    const size_t row = task * j->rows_per_task;

    return row < j->rows ? row : j->rows;
}

static void run(qnn_exec *x, job *j, qnn_task_fn *fn)
{
    qnn_ctx__parallel(x->ctx, (j->rows + j->rows_per_task - 1) / j->rows_per_task, fn, j);
}

static void forward_rows(void *arg, size_t task, int thread)
{
    const job *const j = arg;
    size_t before = 0; /* channels of the inputs before this one */

    (void)thread;
    for (int i = 0; i < j->n_in; before += j->c[i], i++)
        for (size_t row = first_row(j, task); row < first_row(j, task + 1); row++) {
            const uint8_t *const src = (const uint8_t *)j->src[i] + row * j->c[i] * j->element;
            uint8_t *const dst = (uint8_t *)j->dst + (row * j->c_out + before) * j->element;

            if (j->table[i] == NULL)
                memcpy(dst, src, j->c[i] * j->element);
            else
                for (size_t k = 0; k < j->c[i]; k++)
                    dst[k] = j->table[i][src[k]];
        }
}

static void forward(qnn_exec *x, const qnn_step *s)
{
    job j = make_job(x, s);

    j.dst = qnn_exec__out(x, s);
    for (int i = 0; i < j.n_in; i++) {
        j.src[i] = qnn_exec__in(x, s, i);
        if (s->n->dtype == QNN_DTYPE_U8 && !keeps_codes(qnn_step__in(s, i), s->n))
            j.table[i] = (const uint8_t *)s->packed + (size_t)i * 256;
    }
    run(x, &j, forward_rows);
}

static void backward_rows(void *arg, size_t task, int thread)
{
    const job *const j = arg;
    size_t before = 0;

    (void)thread;
    for (int i = 0; i < j->n_in; before += j->c[i], i++)
        for (size_t row = first_row(j, task); j->din[i] != NULL && row < first_row(j, task + 1);
             row++)
            j->vec->axpby(j->c[i], 1.0f, j->dout + row * j->c_out + before, j->beta[i],
                          j->din[i] + row * j->c[i]);
}

static void backward(qnn_exec *x, const qnn_step *s)
{
    job j = make_job(x, s);

    j.dout = qnn_exec__dout(x, s);
    for (int i = 0; i < j.n_in; i++) {
        j.din[i] = qnn_exec__din(x, s, i);
        j.beta[i] = qnn_exec__din_beta(x, s, i);
    }
    run(x, &j, backward_rows);
}

const qnn_op qnn_op_concat = {
    .name = "concat",
    .n_in_min = 2,
    .n_in_max = QNN_MAX_INPUTS,
    .infer = infer,
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
};
