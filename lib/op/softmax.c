/* softmax over the last axis: y = exp(x - max) / sum; dx = y (dy - sum(y dy)). */
#include "lib/op_util.h"

#include <math.h>

typedef struct job {
    const float *src; /* forward: x; backward: y */
    const float *dout;
    float *dst;
    size_t rows, n, rows_per_task;
    int beta;
} job;

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    n->shape = qnn_node__in(m, n, 0)->shape;
    return qnn_node__infer_f32(m, n);
}

static void forward_row(size_t n, const float *x, float *y)
{
    float largest = x[0];
    double sum = 0.0;

    for (size_t i = 1; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (size_t i = 0; i < n; i++) {
        y[i] = expf(x[i] - largest);
        sum += (double)y[i];
    }
    for (size_t i = 0; i < n; i++)
        y[i] = (float)((double)y[i] / sum);
}

static void backward_row(size_t n, const float *y, const float *dy, int beta, float *dx)
{
    double dot = 0.0;

    for (size_t i = 0; i < n; i++)
        dot += (double)y[i] * (double)dy[i];
    for (size_t i = 0; i < n; i++) {
        const float d = y[i] * (float)((double)dy[i] - dot);

        dx[i] = beta ? dx[i] + d : d;
    }
}

static size_t first_row(const job *j, size_t task)
{
    const size_t row = task * j->rows_per_task;

    return row < j->rows ? row : j->rows;
}

static void forward_rows(void *arg, size_t i, int thread)
{
    const job *const j = arg;

    (void)thread;
    for (size_t row = first_row(j, i); row < first_row(j, i + 1); row++)
        forward_row(j->n, j->src + row * j->n, j->dst + row * j->n);
}

static void backward_rows(void *arg, size_t i, int thread)
{
    const job *const j = arg;

    (void)thread;
    for (size_t row = first_row(j, i); row < first_row(j, i + 1); row++)
        backward_row(j->n, j->src + row * j->n, j->dout + row * j->n, j->beta, j->dst + row * j->n);
}

static void run(qnn_exec *x, const qnn_step *s, job *j, qnn_task_fn *fn)
{
    j->n = (size_t)s->n->shape.dim[s->n->shape.rank - 1];
    j->rows = qnn_exec__n_out(x, s) / j->n;
    j->rows_per_task = qnn_chunk__rows(8 * j->n); /* an exponential costs as much as many copies */
    qnn_ctx__parallel(x->ctx, (j->rows + j->rows_per_task - 1) / j->rows_per_task, fn, j);
}

static void forward(qnn_exec *x, const qnn_step *s)
{
    job j = {.src = qnn_exec__in(x, s, 0), .dst = qnn_exec__out(x, s)};

    run(x, s, &j, forward_rows);
}

static void backward(qnn_exec *x, const qnn_step *s)
{
    job j = {.src = qnn_exec__out(x, s),
             .dout = qnn_exec__dout(x, s),
             .dst = qnn_exec__din(x, s, 0),
             .beta = qnn_exec__din_beta(x, s, 0)};

    if (j.dst != NULL)
        run(x, s, &j, backward_rows);
}

const qnn_op qnn_op_softmax = {
    .name = "softmax",
    .n_in_min = 1,
    .n_in_max = 1,
    .flags = QNN_OP_INPLACE | QNN_OP_BWD_DST,
    .infer = infer,
    .forward = forward,
    .backward = backward,
};
