/*
 * fake_quant: quantise and dequantise to u8 codes, so that training sees what int8 execution will
 * do.
 *
 * The range is a moving average of each batch's finite minimum and maximum: the first batch sets
 * it, then m += average (batch - m). Evaluation freezes it. A node that has never seen a batch lets
 * values pass. The gradient is straight-through: it passes where the value lay inside the codes.
 */
#include "lib/op_util.h"
#include "lib/qmath.h"

#include <math.h>
#include <string.h>

/* Parameter "range"; the count of batches is a float so that one type holds all. */
enum { MIN, MAX, COUNT, N_RANGE, QMAX = 255 };

/* What one run quantises with; kept for its backward. */
typedef struct grid {
    float scale, inv_scale;
    int32_t zero_point;
    int32_t is_on;
} grid;

typedef struct job {
    const qnn_vec_kernel *vec;
    const float *src, *dout;
    float *dst, *din;
    float (*range)[2]; /* [chunks] */
    size_t total;
    grid g;
    int beta;
} job;

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    const int64_t dim = N_RANGE;

    QNN_RETURN_IF(m->ctx, !(n->a.average > 0.0f && n->a.average <= 1.0f), QNN_ERR_ARG,
                  "fake_quant \"%s\": average %g is outside (0, 1]", n->name, (double)n->a.average);
    QNN_TRY(qnn_node__infer_f32(m, n));
    n->shape = qnn_node__in(m, n, 0)->shape;
    return qnn_node__declare(m, n, QNN_P_RANGE, "range", QNN_DTYPE_F32, 1, &dim, 0);
}

static grid make_grid(const float *range)
{
    /* A range from a file may be anything. */
    const int is_on = range[COUNT] > 0.0f && isfinite(range[MIN]) && isfinite(range[MAX]);
    grid g = {1.0f, 1.0f, 0, is_on};

    if (g.is_on)
        qnn_qparams__affine(range[MIN], range[MAX], 0, QMAX, &g.scale, &g.zero_point);
    g.inv_scale = 1.0f / g.scale;
    return g;
}

static qnn_status prepare(qnn_step *s)
{
    grid g;
    void *block;

    s->kernel = s->p->k->vec->name;
    if (s->p->is_train) {
        s->saved_bytes = sizeof g;
        s->scratch_bytes = qnn_chunk__count(s->out_bytes / sizeof(float)) * sizeof(float[2]);
        return QNN_OK;
    }
    g = make_grid(s->n->param[QNN_P_RANGE].data);
    QNN_TRY(qnn_step__pack(s, &block, sizeof g));
    memcpy(block, &g, sizeof g);
    return QNN_OK;
}

/* ---- forward --------------------------------------------------------------------------------- */

static void observe_chunk(void *arg, size_t i, int thread)
{
    const job *const j = arg;

    (void)thread;
    j->vec->min_max(qnn_chunk__size(j->total, i), j->src + i * QNN_CHUNK, &j->range[i][MIN],
                    &j->range[i][MAX]);
}

static void observe(qnn_exec *x, const qnn_step *s, job *j)
{
    const size_t n_chunks = qnn_chunk__count(j->total);
    float *const range = s->n->param[QNN_P_RANGE].data;
    float lo = INFINITY, hi = -INFINITY;

    j->range = qnn_exec__scratch(x, s);
    qnn_ctx__parallel(x->ctx, n_chunks, observe_chunk, j);
    for (size_t i = 0; i < n_chunks; i++) {
        lo = j->range[i][MIN] < lo ? j->range[i][MIN] : lo;
        hi = j->range[i][MAX] > hi ? j->range[i][MAX] : hi;
    }
    if (lo > hi) /* the batch has no finite value */
        return;
    if (range[COUNT] > 0.0f) {
        range[MIN] += s->n->a.average * (lo - range[MIN]);
        range[MAX] += s->n->a.average * (hi - range[MAX]);
    } else {
        range[MIN] = lo;
        range[MAX] = hi;
    }
    range[COUNT] += 1.0f;
}

static void forward_chunk(void *arg, size_t i, int thread)
{
    const job *const j = arg;
    const size_t at = i * QNN_CHUNK;

    (void)thread;
    j->vec->fake_quant(qnn_chunk__size(j->total, i), j->src + at, j->g.scale, j->g.inv_scale,
                       j->g.zero_point, 0, QMAX, j->dst + at);
}

static void forward(qnn_exec *x, const qnn_step *s)
{
    job j = {.vec = x->k->vec, .src = qnn_exec__in(x, s, 0), .dst = qnn_exec__out(x, s)};

    j.total = qnn_exec__n_out(x, s);
    if (s->p->is_train) {
        if (x->is_train)
            observe(x, s, &j);
        j.g = make_grid(s->n->param[QNN_P_RANGE].data);
        memcpy(qnn_exec__saved(x, s), &j.g, sizeof j.g);
    } else {
        memcpy(&j.g, s->packed, sizeof j.g);
    }
    if (j.g.is_on)
        qnn_ctx__parallel(x->ctx, qnn_chunk__count(j.total), forward_chunk, &j);
    else if (j.dst != j.src)
        memcpy(j.dst, j.src, j.total * sizeof *j.dst);
}

/* ---- backward -------------------------------------------------------------------------------- */

static void backward_chunk(void *arg, size_t i, int thread)
{
    const job *const j = arg;
    const size_t at = i * QNN_CHUNK;

    (void)thread;
    j->vec->fake_quant_bwd(qnn_chunk__size(j->total, i), j->src + at, j->g.inv_scale,
                           j->g.zero_point, 0, QMAX, j->dout + at, j->beta, j->din + at);
}

static void backward(qnn_exec *x, const qnn_step *s)
{
    job j = {.vec = x->k->vec, .src = qnn_exec__in(x, s, 0), .dout = qnn_exec__dout(x, s)};

    j.din = qnn_exec__din(x, s, 0);
    j.beta = qnn_exec__din_beta(x, s, 0);
    j.total = qnn_exec__n_out(x, s);
    memcpy(&j.g, qnn_exec__saved(x, s), sizeof j.g);
    if (!j.g.is_on)
        qnn_exec__pass_gradient(x, s, 0);
    else if (j.din != NULL)
        qnn_ctx__parallel(x->ctx, qnn_chunk__count(j.total), backward_chunk, &j);
}

static const qnn_attr_field fields[] = {
    {"average", offsetof(qnn_attrs, average), 1},
    {NULL, 0, 0},
};

const qnn_op qnn_op_fake_quant = {
    .name = "fake_quant",
    .n_in_min = 1,
    .n_in_max = 1,
    .flags = QNN_OP_INPLACE | QNN_OP_BWD_SRC,
    .fields = fields,
    .infer = infer,
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
};
