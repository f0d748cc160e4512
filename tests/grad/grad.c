/* The harness: see the header. */
#include "tests/grad/grad.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/testutil.h"

/*
 * Bound of |difference - gradient| over the tensor's largest gradient (at least FLOOR). Rounding of
 * the outputs (2^-24 each, some hundred of size 1, added at random) over h = 1/32 gives about 5e-5
 * of a gradient of size 1, and the h^4 term of the smooth operations less; wrong gradients are off
 * by a tenth and more.
 */
#define BOUND 1e-3
#define FLOOR 0.05

enum { N_ITEMS = 3, N_VARIANTS = 3 };
/* Each case runs: on its inputs; with the inputs as outputs too, so that gradients are added to
   what is there; behind a node whose memory may be reused, so that it runs in place where it can.
 */
static const char *const variant_name[N_VARIANTS] = {"plain", "added", "in place"};

typedef struct bench {
    qnn_ctx *ctx;
    qnn_model *m;
    qnn_program *p;
    qnn_exec x;
    const void *src[GRAD_MAX_INPUTS];
    float *input[GRAD_MAX_INPUTS];
    int n_inputs;
    float **grad;   /* [n_nodes][QNN_MAX_PARAMS] */
    float **weight; /* [n_outputs] w of the loss */
} bench;

static size_t count_of(const bench *b, qnn_node i)
{
    return (size_t)b->x.n * (size_t)qnn_shape__count(&b->m->node[i]->shape);
}

/* Compiles the model and gives every input, gradient and weight of the loss memory. */
static void bench_open(bench *b, qnn_ctx *ctx, qnn_model *m, int is_train)
{
    const qnn_compile_opts o = {.max_batch = N_ITEMS + 1, .is_train = 1, .input_grad = 1};
    const size_t n_slots = (size_t)m->n_nodes * QNN_MAX_PARAMS;

    TU_OK(ctx, qnn_model_check(m));
    TU_OK(ctx, qnn_program__compile(&b->p, ctx, m, &o));
    b->ctx = ctx;
    b->m = m;
    b->n_inputs = qnn_model_n_inputs(m);
    b->grad = tu_alloc(n_slots * sizeof *b->grad);
    b->weight = tu_alloc((size_t)m->n_outputs * sizeof *b->weight);
    b->x = (qnn_exec){.ctx = ctx, .p = b->p, .k = b->p->k, .n = N_ITEMS, .is_train = is_train};
    b->x.seed = 77;
    b->x.ws = tu_alloc_aligned(qnn_program_workspace(b->p));
    memset(b->x.ws, 0xff, qnn_program_workspace(b->p)); /* NaN: nothing may be taken to be zero */
    b->x.src = b->src;
    b->x.grad = b->grad;
    for (size_t i = 0; i < n_slots; i++) {
        const qnn_param *const p = &m->node[i / QNN_MAX_PARAMS]->param[i % QNN_MAX_PARAMS];

        b->grad[i] = p->count > 0 && p->is_trainable ? tu_alloc(p->count * sizeof(float)) : NULL;
    }
    for (int i = 0; i < m->n_outputs; i++) {
        const size_t n = count_of(b, m->output[i]);

        b->weight[i] = tu_alloc(n * sizeof(float));
        tu_fill_uniform(b->weight[i], n, -1.0f, 1.0f, 1000u + (uint64_t)i);
    }
    for (int i = 0; i < b->n_inputs; i++)
        b->src[i] = b->input[i] = tu_alloc(count_of(b, qnn_model_input(m, i)) * sizeof(float));
}

static void bench_close(bench *b)
{
    for (int i = 0; i < b->m->n_nodes * QNN_MAX_PARAMS; i++)
        free(b->grad[i]);
    for (int i = 0; i < b->m->n_outputs; i++)
        free(b->weight[i]);
    for (int i = 0; i < b->n_inputs; i++)
        free(b->input[i]);
    free(b->grad);
    free(b->weight);
    free(b->x.ws);
    qnn_program_free(b->p);
    qnn_model_free(b->m);
    qnn_ctx_free(b->ctx);
}

static double loss(bench *b)
{
    double sum = 0.0;

    TU_OK(b->ctx, qnn_exec__forward(&b->x));
    for (int i = 0; i < b->m->n_outputs; i++) {
        const float *const y = qnn_exec__value(&b->x, b->m->output[i]);
        const size_t n = count_of(b, b->m->output[i]);

        for (size_t k = 0; k < n; k++)
            sum += (double)b->weight[i][k] * (double)y[k];
    }
    return sum;
}

/* Parameter gradients are added to 1, which is taken off again. */
static void run_backward(bench *b)
{
    (void)loss(b);
    for (int i = 0; i < b->m->n_nodes * QNN_MAX_PARAMS; i++)
        for (size_t k = 0; b->grad[i] != NULL &&
                           k < b->m->node[i / QNN_MAX_PARAMS]->param[i % QNN_MAX_PARAMS].count;
             k++)
            b->grad[i][k] = 1.0f;
    for (int i = 0; i < b->m->n_outputs; i++)
        memcpy(qnn_exec__dvalue(&b->x, b->m->output[i]), b->weight[i],
               count_of(b, b->m->output[i]) * sizeof(float));
    TU_OK(b->ctx, qnn_exec__backward(&b->x));
    for (int i = 0; i < b->m->n_nodes * QNN_MAX_PARAMS; i++)
        for (size_t k = 0; b->grad[i] != NULL &&
                           k < b->m->node[i / QNN_MAX_PARAMS]->param[i % QNN_MAX_PARAMS].count;
             k++)
            b->grad[i][k] -= 1.0f;
}

/* Fourth-order central difference of the loss along one float. */
static double difference(bench *b, float *at, float step)
{
    static const double factor[4] = {1.0, -8.0, 8.0, -1.0};
    static const float moved[4] = {-2.0f, -1.0f, 1.0f, 2.0f};
    const float old = *at;
    double sum = 0.0;

    for (int i = 0; i < 4; i++) {
        *at = old + moved[i] * step;
        sum += factor[i] * loss(b);
    }
    *at = old;
    return sum / (12.0 * (double)step);
}

/* Largest |difference - gradient| over the tensor, relative to its largest gradient. */
static double compare(bench *b, float *values, const float *gradient, size_t n, size_t first,
                      float step, size_t *where)
{
    double worst = 0.0, largest = FLOOR;

    for (size_t i = first; i < n; i++)
        if (fabs((double)gradient[i]) > largest)
            largest = fabs((double)gradient[i]);
    for (size_t i = first; i < n; i++) {
        const double error = fabs(difference(b, &values[i], step) - (double)gradient[i]) / largest;

        if (!(error <= worst) && !isnan(worst)) { /* not a number is the worst of all, and stays */
            worst = error;
            *where = i;
        }
    }
    return worst;
}

static int report(const char *name, const char *variant, const char *tensor, double error,
                  size_t where)
{
    const int is_bad = !(error <= BOUND);

    printf("%s %-28s %-8s %-14s max relative error %.1e", is_bad ? "FAIL" : "ok  ", name, variant,
           tensor, error);
    if (is_bad)
        printf(" > %.0e at element %zu; repeat with: grad '%s'", BOUND, where, name);
    printf("\n");
    return is_bad;
}

static int check_all(bench *b, const grad_case *c, const char *variant)
{
    const float step = c->step > 0.0f ? c->step : 1.0f / 32.0f;
    float *saved[GRAD_MAX_INPUTS];
    int n_bad = 0;

    run_backward(b);
    for (int i = 0; i < b->n_inputs;
         i++) { /* differences run forward passes, which reuse that memory */
        const size_t n = count_of(b, qnn_model_input(b->m, i));

        saved[i] = tu_alloc(n * sizeof(float));
        memcpy(saved[i], qnn_exec__dvalue(&b->x, qnn_model_input(b->m, i)), n * sizeof(float));
    }
    for (int i = 0; i < b->n_inputs; i++) {
        const qnn_node node = qnn_model_input(b->m, i);
        size_t where = 0;
        const double error = compare(b, b->input[i], saved[i], count_of(b, node), 0, step, &where);

        n_bad += report(c->name, variant, b->m->node[node]->name, error, where);
        free(saved[i]);
    }
    for (int i = 0; i < b->m->n_nodes * QNN_MAX_PARAMS; i++) {
        const qnn_param *const p = &b->m->node[i / QNN_MAX_PARAMS]->param[i % QNN_MAX_PARAMS];
        const size_t first = c->skips_first_weight && i % QNN_MAX_PARAMS == QNN_P_WEIGHT;
        size_t where = 0;

        if (b->grad[i] != NULL)
            n_bad += report(c->name, variant, p->full_name,
                            compare(b, p->data, b->grad[i], p->count, first, step, &where), where);
    }
    return n_bad;
}

static int run_variant(const grad_case *c, int variant, int *seen)
{
    static const char *const input_name[GRAD_MAX_INPUTS] = {"in0", "in1", "in2"};
    static const char *const inner_name[GRAD_MAX_INPUTS] = {"pre0", "pre1", "pre2"};
    qnn_ctx *const ctx = tu_ctx(2);
    qnn_node x[GRAD_MAX_INPUTS], y;
    qnn_model *m;
    bench b;
    int n_bad;

    TU_OK(ctx, qnn_model_create(&m, ctx));
    for (int i = 0; i < GRAD_MAX_INPUTS && c->in[i].rank > 0; i++) {
        const int64_t *const d = c->in[i].dim;

        x[i] = c->in[i].rank == 3 ? qnn_input(m, input_name[i], d[0], d[1], d[2])
                                  : qnn_input_features(m, input_name[i], d[0]);
        if (variant == 2)
            x[i] =
                qnn_dropout(m, x[i], inner_name[i], 0.0f); /* the identity, and it keeps nothing */
    }
    y = c->build(m, x);
    qnn_output(m, "y", y);
    for (int i = 0; variant == 1 && i < qnn_model_n_inputs(m); i++)
        qnn_output(m, input_name[i], qnn_model_input(m, i));
    TU_OK(ctx, qnn_model_check(m));
    if (c->setup != NULL)
        c->setup(m);
    for (int i = 0; i < m->n_nodes; i++)
        seen[m->node[i]->kind] |= variant != 2 || m->node[i]->kind != QNN_OP_DROPOUT;
    bench_open(&b, ctx, m, !c->is_eval);
    for (int i = 0; i < b.n_inputs; i++) {
        const size_t n = count_of(&b, qnn_model_input(m, i));

        if (c->fill != NULL)
            c->fill(b.input[i], n, 1u + (uint64_t)i);
        else
            tu_fill_uniform(b.input[i], n, -1.0f, 1.0f, 1u + (uint64_t)i);
    }
    n_bad = check_all(&b, c, variant_name[variant]);
    bench_close(&b);
    return n_bad;
}

int grad_run(const grad_case *c, int *seen)
{
    int n_bad = 0;

    for (int variant = 0; variant < N_VARIANTS; variant++)
        n_bad += run_variant(c, variant, seen);
    return n_bad;
}

void grad_fill_apart(float *x, size_t n, uint64_t seed)
{
    qnn_rng r;

    qnn_rng__init(&r, seed, 0);
    for (size_t i = 0; i < n; i++)
        x[i] = ((float)i - (float)(n / 2) + 0.5f) / 5.0f;
    for (size_t i = n - 1; i > 0; i--) {
        const size_t k = (size_t)qnn_rng__below(&r, i + 1);
        const float swapped = x[i];

        x[i] = x[k];
        x[k] = swapped;
    }
}

/* ---- a whole network ------------------------------------------------------------------------- */

static qnn_node add_network(qnn_model *m)
{
    const qnn_node x = qnn_input(m, "in", 8, 8, 3);
    const qnn_node a = qnn_batchnorm2d(
        m, qnn_conv2d(m, x, "conv1", &(qnn_conv2d_opts){.filters = 6, .kernel = 3, .pad = 1}),
        "bn1", NULL);
    const qnn_node b = qnn_conv2d(m, x, "conv2", &(qnn_conv2d_opts){.filters = 6, .kernel = 1});
    const qnn_node sum = qnn_add(m, a, b, "sum");
    const qnn_node both[2] = {sum, qnn_dropout(m, a, "drop", 0.3f)};
    const qnn_node wide = qnn_clip(m, qnn_concat(m, both, 2, "both"), "clip", -1e6f, 1e6f);
    const qnn_node small = qnn_avgpool2d(m, wide, "pool", 2, 2);
    const qnn_node c = qnn_conv2d(
        m, small, "conv3", &(qnn_conv2d_opts){.filters = 8, .kernel = 3, .pad = 1, .groups = 2});
    const qnn_node row =
        qnn_flatten(m, qnn_global_avgpool(m, qnn_batchnorm2d(m, c, "bn2", NULL), "mean"), "flat");
    const qnn_node logits = qnn_linear(
        m, qnn_concat(m, (qnn_node[2]){row, qnn_flatten(m, c, "flat2")}, 2, "tail"), "fc", 5);

    return qnn_softmax(m, logits, "softmax");
}

/* All parameters and inputs move along direction delta, in all by t. */
static void move(bench *b, double t)
{
    for (int i = 0; i < b->m->n_nodes * QNN_MAX_PARAMS; i++) {
        const qnn_param *const p = &b->m->node[i / QNN_MAX_PARAMS]->param[i % QNN_MAX_PARAMS];
        qnn_rng r;

        qnn_rng__init(&r, 5, (uint64_t)i);
        for (size_t k = 0; b->grad[i] != NULL && k < p->count; k++)
            ((float *)p->data)[k] += (float)(t * (2.0 * qnn_rng__uniform(&r) - 1.0));
    }
    for (int i = 0; i < b->n_inputs; i++) {
        const size_t n = count_of(b, qnn_model_input(b->m, i));
        qnn_rng r;

        qnn_rng__init(&r, 6, (uint64_t)i);
        for (size_t k = 0; k < n; k++)
            b->input[i][k] += (float)(t * (2.0 * qnn_rng__uniform(&r) - 1.0));
    }
}

/* sum(gradient * delta) over everything that move() moves. */
static double along(bench *b)
{
    double sum = 0.0;

    for (int i = 0; i < b->m->n_nodes * QNN_MAX_PARAMS; i++) {
        const size_t count = b->m->node[i / QNN_MAX_PARAMS]->param[i % QNN_MAX_PARAMS].count;
        qnn_rng r;

        qnn_rng__init(&r, 5, (uint64_t)i);
        for (size_t k = 0; b->grad[i] != NULL && k < count; k++)
            sum += (double)b->grad[i][k] * (2.0 * qnn_rng__uniform(&r) - 1.0);
    }
    for (int i = 0; i < b->n_inputs; i++) {
        const float *const g = qnn_exec__dvalue(&b->x, qnn_model_input(b->m, i));
        const size_t n = count_of(b, qnn_model_input(b->m, i));
        qnn_rng r;

        qnn_rng__init(&r, 6, (uint64_t)i);
        for (size_t k = 0; k < n; k++)
            sum += (double)g[k] * (2.0 * qnn_rng__uniform(&r) - 1.0);
    }
    return sum;
}

int grad_run_network(void)
{
    static const double factor[4] = {1.0, -8.0, 8.0, -1.0}, moved[4] = {-2.0, -1.0, 1.0, 2.0};
    const double t = 1.0 / 256.0;
    qnn_ctx *const ctx = tu_ctx(2);
    double want, sum = 0.0;
    qnn_model *m;
    bench b;
    int n_bad;

    TU_OK(ctx, qnn_model_create(&m, ctx));
    qnn_output(m, "y", add_network(m));
    bench_open(&b, ctx, m, 1);
    tu_fill_uniform(b.input[0], count_of(&b, qnn_model_input(m, 0)), -1.0f, 1.0f, 3);
    tu_fill_uniform(b.weight[0], count_of(&b, m->output[0]), -10.0f, 10.0f, 4);
    run_backward(&b);
    want = along(&b);
    for (int i = 0; i < 4; i++) {
        move(&b, moved[i] * t);
        sum += factor[i] * loss(&b);
        move(&b, -moved[i] * t);
    }
    n_bad = report("network", "plain", "one direction",
                   fabs(sum / (12.0 * t) - want) / fmax(fabs(want), FLOOR), 0);
    bench_close(&b);
    return n_bad;
}
