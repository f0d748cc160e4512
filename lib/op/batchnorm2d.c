/*
 * batchnorm2d: y = (x - mean) / sqrt(var + eps) * weight + bias per channel, over n, h and w.
 *
 * Training uses the batch's statistics (biased variance) and moves the running ones (unbiased
 * variance) by momentum; otherwise the running ones count as constants, forward and backward. Sums
 * are made in double per shard of images, at most MAX_SHARDS, and added in order.
 *
 *     training    dx = k (dy - mean(dy) - (x - mean) inv_std^2 mean(dy (x - mean))),  k = weight
 * inv_std
 *     evaluation  dx = k dy
 *     both        dweight += inv_std sum(dy (x - mean)),  dbias += sum(dy)
 */
#include "lib/op_util.h"

#include <math.h>
#include <string.h>

/* Inner loops run over LANES channels: a count the compiler knows is what makes it use vectors. */
enum { MAX_SHARDS = 16, LANES = 16 };

typedef struct job {
    size_t c, n, pixels; /* channels, items, pixels of one item */
    size_t n_shards;
    const float *src, *dout;
    float *dst;                         /* y or d(x) */
    double *sums;                       /* [n_shards][2][c] */
    const float *mean, *factor, *shift; /* [c] y = (x - mean) factor + shift */
    const float *mean_dy, *slope;       /* [c] what training subtracts from dy; 0 otherwise */
    int beta;
    size_t rows, rows_per_task;
} job;

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    static const char *const suffix[4] = {"weight", "bias", "running_mean", "running_var"};
    const qnn_attrs *const a = &n->a;
    int64_t c;

    QNN_TRY(qnn_node__check_image(m, n));
    QNN_TRY(qnn_node__infer_f32(m, n));
    QNN_RETURN_IF(m->ctx, !(a->eps >= 0.0f) || !isfinite(a->eps), QNN_ERR_ARG,
                  "batchnorm2d \"%s\": eps %g is negative or not finite", n->name, (double)a->eps);
    QNN_RETURN_IF(m->ctx, !(a->momentum >= 0.0f && a->momentum <= 1.0f), QNN_ERR_ARG,
                  "batchnorm2d \"%s\": momentum %g is outside [0, 1]", n->name,
                  (double)a->momentum);
    n->shape = qnn_node__in(m, n, 0)->shape;
    c = n->shape.dim[2];
    for (int slot = QNN_P_WEIGHT; slot <= QNN_P_VAR; slot++)
        QNN_TRY(
            qnn_node__declare(m, n, slot, suffix[slot], QNN_DTYPE_F32, 1, &c, slot <= QNN_P_BIAS));
    return QNN_OK;
}

static size_t n_channels(const qnn_step *s) { return (size_t)s->n->shape.dim[2]; }

/*
 * What the map needs: [mean][factor][shift], from statistics and parameters. Training programs
 * rebuild it in every run, in s->saved, followed by [inv_std].
 */
static void make_map(const qnn_node_data *n, size_t c, const float *mean, const float *inv_std,
                     float *map)
{
    const float *const weight = n->param[QNN_P_WEIGHT].data;
    const float *const bias = n->param[QNN_P_BIAS].data;

    for (size_t k = 0; k < c; k++) {
        map[k] = mean[k];
        map[c + k] = weight[k] * inv_std[k];
        map[2 * c + k] = bias[k];
    }
}

static float inverse_std(double var, float eps) { return (float)(1.0 / sqrt(var + (double)eps)); }

static void running_inv_std(const qnn_node_data *n, size_t c, float *inv_std)
{
    const float *const var = n->param[QNN_P_VAR].data;

    for (size_t k = 0; k < c; k++)
        inv_std[k] = inverse_std((double)var[k], n->a.eps);
}

static qnn_status prepare(qnn_step *s)
{
    const size_t c = n_channels(s), map_bytes = 4 * c * sizeof(float);
    void *map;

    if (s->p->is_train) {
        s->saved_bytes = map_bytes;
        s->scratch_bytes = (MAX_SHARDS * 2 + 1) * c * sizeof(double);
        return QNN_OK;
    }
    QNN_TRY(qnn_step__pack(s, &map, map_bytes));
    running_inv_std(s->n, c, (float *)map + 3 * c);
    make_map(s->n, c, s->n->param[QNN_P_MEAN].data, (float *)map + 3 * c, map);
    return QNN_OK;
}

static job make_job(const qnn_exec *x, const qnn_step *s)
{
    job j = {.c = n_channels(s), .n = (size_t)x->n, .src = qnn_exec__in(x, s, 0)};
    const float *const map = s->p->is_train ? qnn_exec__saved(x, s) : s->packed;

    j.pixels = (size_t)(s->n->shape.dim[0] * s->n->shape.dim[1]);
    j.n_shards = j.n < MAX_SHARDS ? j.n : MAX_SHARDS;
    j.rows = j.n * j.pixels;
    j.rows_per_task = qnn_chunk__rows(j.c);
    j.mean = map;
    j.factor = map + j.c;
    j.shift = map + 2 * j.c;
    if (s->p->is_train)
        j.sums = qnn_exec__scratch(x, s);
    return j;
}

static void run_rows(qnn_exec *x, job *j, qnn_task_fn *fn)
{
    qnn_ctx__parallel(x->ctx, (j->rows + j->rows_per_task - 1) / j->rows_per_task, fn, j);
}

static size_t task_row(const job *j, size_t task)
{
    const size_t row = task * j->rows_per_task;

    return row < j->rows ? row : j->rows;
}

static size_t shard_row(const job *j, size_t shard)
{
    return shard * j->n / j->n_shards * j->pixels;
}

/* Shards added in order: the totals end in shard 0's place. */
static void add_shards(job *j)
{
    for (size_t shard = 1; shard < j->n_shards; shard++)
        for (size_t k = 0; k < 2 * j->c; k++)
            j->sums[k] += j->sums[shard * 2 * j->c + k];
}

/* ---- forward --------------------------------------------------------------------------------- */

static void accumulate(size_t c, const float *restrict x, double *restrict sum,
                       double *restrict square)
{
    size_t k = 0;

    for (; k + LANES <= c; k += LANES)
        for (size_t l = k; l < k + LANES; l++) {
            sum[l] += (double)x[l];
            square[l] += (double)x[l] * (double)x[l];
        }
    for (; k < c; k++) {
        sum[k] += (double)x[k];
        square[k] += (double)x[k] * (double)x[k];
    }
}

static void sum_shard(void *arg, size_t shard, int thread)
{
    const job *const j = arg;
    const size_t c = j->c;
    double *const sum = j->sums + shard * 2 * c, *const square = sum + c;

    (void)thread;
    memset(sum, 0, 2 * c * sizeof *sum);
    for (size_t row = shard_row(j, shard); row < shard_row(j, shard + 1); row++)
        accumulate(c, j->src + row * c, sum, square);
}

/* The batch's mean and inv_std; the running statistics follow. */
static void batch_statistics(qnn_exec *x, const qnn_step *s, job *j, float *mean, float *inv_std)
{
    const double count = (double)j->rows, momentum = (double)s->n->a.momentum;
    float *const running_mean = s->n->param[QNN_P_MEAN].data;
    float *const running_var = s->n->param[QNN_P_VAR].data;

    qnn_ctx__parallel(x->ctx, j->n_shards, sum_shard, j);
    add_shards(j);
    for (size_t k = 0; k < j->c; k++) {
        const double m = j->sums[k] / count, raw = j->sums[j->c + k] / count - m * m;
        const double var = raw < 0.0 ? 0.0 : raw; /* NaN stays NaN */
        const double unbiased = count > 1.0 ? var * count / (count - 1.0) : var;

        mean[k] = (float)m;
        inv_std[k] = inverse_std(var, s->n->a.eps);
        running_mean[k] = (float)((1.0 - momentum) * (double)running_mean[k] + momentum * m);
        running_var[k] = (float)((1.0 - momentum) * (double)running_var[k] + momentum * unbiased);
    }
}

/* y may be x. */
static void normalise(size_t c, const float *x, const float *mean, const float *factor,
                      const float *shift, float *y)
{
    size_t k = 0;

    for (; k + LANES <= c; k += LANES) {
        float v[LANES];

        for (size_t l = 0; l < LANES; l++)
            v[l] = (x[k + l] - mean[k + l]) * factor[k + l] + shift[k + l];
        memcpy(y + k, v, sizeof v);
    }
    for (; k < c; k++)
        y[k] = (x[k] - mean[k]) * factor[k] + shift[k];
}

static void forward_rows(void *arg, size_t task, int thread)
{
    const job *const j = arg;

    (void)thread;
    for (size_t row = task_row(j, task); row < task_row(j, task + 1); row++) {
        const size_t at = row * j->c;

        normalise(j->c, j->src + at, j->mean, j->factor, j->shift, j->dst + at);
    }
}

static void forward(qnn_exec *x, const qnn_step *s)
{
    job j = make_job(x, s);

    j.dst = qnn_exec__out(x, s);
    if (s->p->is_train) {
        float *const map = qnn_exec__saved(x, s), *const inv_std = map + 3 * j.c;

        if (x->is_train) {
            batch_statistics(x, s, &j, map, inv_std);
        } else {
            memcpy(map, s->n->param[QNN_P_MEAN].data, j.c * sizeof *map);
            running_inv_std(s->n, j.c, inv_std);
        }
        make_map(s->n, j.c, map, inv_std, map);
    }
    run_rows(x, &j, forward_rows);
}

/* ---- backward -------------------------------------------------------------------------------- */

static void accumulate_backward(size_t c, const float *restrict x, const float *restrict mean,
                                const float *restrict dy, double *restrict sum,
                                double *restrict product)
{
    size_t k = 0;

    for (; k + LANES <= c; k += LANES)
        for (size_t l = k; l < k + LANES; l++) {
            sum[l] += (double)dy[l];
            product[l] += (double)dy[l] * (double)(x[l] - mean[l]);
        }
    for (; k < c; k++) {
        sum[k] += (double)dy[k];
        product[k] += (double)dy[k] * (double)(x[k] - mean[k]);
    }
}

static void sum_shard_backward(void *arg, size_t shard, int thread)
{
    const job *const j = arg;
    const size_t c = j->c;
    double *const sum = j->sums + shard * 2 * c, *const product = sum + c;

    (void)thread;
    memset(sum, 0, 2 * c * sizeof *sum);
    for (size_t row = shard_row(j, shard); row < shard_row(j, shard + 1); row++)
        accumulate_backward(c, j->src + row * c, j->mean, j->dout + row * c, sum, product);
}

static void backward_rows(void *arg, size_t task, int thread)
{
    const job *const j = arg;

    (void)thread;
    for (size_t row = task_row(j, task); row < task_row(j, task + 1); row++) {
        const float *const x = j->src + row * j->c, *const dy = j->dout + row * j->c;
        float *const dx = j->dst + row * j->c;

        for (size_t k = 0; k < j->c; k++) {
            const float d =
                (dy[k] - j->mean_dy[k] - (x[k] - j->mean[k]) * j->slope[k]) * j->factor[k];

            dx[k] = j->beta ? dx[k] + d : d;
        }
    }
}

static void backward(qnn_exec *x, const qnn_step *s)
{
    job j = make_job(x, s);
    const float *const inv_std = j.mean + 3 * j.c;
    float *const dweight = qnn_exec__dparam(x, s, QNN_P_WEIGHT);
    float *const dbias = qnn_exec__dparam(x, s, QNN_P_BIAS);
    float *const mean_dy = (float *)(void *)(j.sums + MAX_SHARDS * 2 * j.c);
    float *const slope = mean_dy + j.c;

    j.dout = qnn_exec__dout(x, s);
    j.dst = qnn_exec__din(x, s, 0);
    j.beta = qnn_exec__din_beta(x, s, 0);
    qnn_ctx__parallel(x->ctx, j.n_shards, sum_shard_backward, &j);
    add_shards(&j);
    for (size_t k = 0; k < j.c; k++) {
        const double inv = (double)inv_std[k], count = (double)j.rows;

        if (dbias != NULL)
            dbias[k] += (float)j.sums[k];
        if (dweight != NULL)
            dweight[k] += (float)(inv * j.sums[j.c + k]);
        mean_dy[k] = x->is_train ? (float)(j.sums[k] / count) : 0.0f;
        slope[k] = x->is_train ? (float)(inv * inv * j.sums[j.c + k] / count) : 0.0f;
    }
    j.mean_dy = mean_dy;
    j.slope = slope;
    if (j.dst != NULL)
        run_rows(x, &j, backward_rows);
}

static const qnn_attr_field fields[] = {
    {"eps", offsetof(qnn_attrs, eps), 1},
    {"momentum", offsetof(qnn_attrs, momentum), 1},
    {NULL, 0, 0},
};

const qnn_op qnn_op_batchnorm2d = {
    .name = "batchnorm2d",
    .n_in_min = 1,
    .n_in_max = 1,
    .flags = QNN_OP_INPLACE | QNN_OP_BWD_SRC,
    .fields = fields,
    .infer = infer,
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
};
