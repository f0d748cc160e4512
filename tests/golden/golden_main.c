/*
 * Golden tests: forward, backward, losses, optimisers and the study's whole network against values
 * that PyTorch computed in double precision (make_golden.py made the files). Prints the largest
 * difference of each tensor, relative to the tensor's largest value.
 *
 * usage: golden [FILTER]     runs the cases whose name begins with FILTER; QNN_ISA caps the
 * instruction set
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <qnn.h>

#include "lib/io/safetensors.h"
#include "lib/loss.h"
#include "lib/exec.h"

#define FORWARD_BOUND  1e-5
#define GRADIENT_BOUND 1e-4
#define ADAM_BOUND     1e-4

/*
 * Parameters after ten Adam steps on the whole network are compared by their absolute difference.
 * Adam divides by the gradient's own size, so an element whose gradient is near zero moves by the
 * rate times a sign that rounding decides: PyTorch's float32 run of this very case is up to 1.6e-3
 * (absolute) away from its double run; ten steps at 1e-3 move a parameter by at most 1e-2.
 */
typedef enum measure { RELATIVE, ABSOLUTE } measure;

static const char *filter = "";
static int n_run, n_failed;

static void die(qnn_ctx *ctx, const char *what)
{
    fprintf(stderr, "golden: %s: %s\n", what, ctx != NULL ? qnn_ctx_error(ctx) : "");
    exit(1);
}
#define OK(ctx, expr)                                                                              \
    do {                                                                                           \
        if ((expr) != QNN_OK)                                                                      \
            die((ctx), #expr);                                                                     \
    } while (0)

static const float *tensor(const qnn_st *st, const char *group, const char *name, size_t *count)
{
    char full[160];
    const qnn_st_tensor *t;

    snprintf(full, sizeof full, "%s/%s", group, name);
    t = qnn_st__find(st, full);
    if (count != NULL)
        *count = t == NULL ? 0 : t->bytes / 4;
    return t == NULL ? NULL : t->data;
}

static const float *need(const qnn_st *st, const char *group, const char *name, size_t *count)
{
    const float *const data = tensor(st, group, name, count);

    if (data == NULL) {
        fprintf(stderr, "golden: the file has no %s/%s\n", group, name);
        exit(1);
    }
    return data;
}

/* stride: got is read at every stride-th element (the network's tensors are sampled). */
static void compare_by(measure how, const char *group, const char *name, const float *got,
                       size_t stride, const float *want, size_t n, double bound)
{
    double largest = 0, worst = 0, rel;
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        const double diff = fabs((double)got[i * stride] - (double)want[i]);

        if (fabs((double)want[i]) > largest)
            largest = fabs((double)want[i]);
        if (!(diff <= worst)) {
            worst = diff;
            at = i;
        }
    }
    rel = how == RELATIVE && largest > 0 ? worst / largest : worst;
    n_run++;
    if (!(rel <= bound)) {
        n_failed++;
        printf("FAIL %-30s %-14s max difference %.2e > %.0e at %zu: got %.9g, PyTorch %.9g; repeat "
               "with: golden %s\n",
               group, name, rel, bound, at, (double)got[at * stride], (double)want[at], group);
    } else {
        printf("ok   %-30s %-14s max difference %.2e (bound %.0e)\n", group, name, rel, bound);
    }
}

static void compare(const char *group, const char *name, const float *got, size_t stride,
                    const float *want, size_t n, double bound)
{
    compare_by(RELATIVE, group, name, got, stride, want, n, bound);
}

/* ---- ops
 * --------------------------------------------------------------------------------------------------------------------
 */

typedef qnn_node build_fn(qnn_model *m, const qnn_node *x);

static qnn_node conv2d_3x3(qnn_model *m, const qnn_node *x)
{
    return qnn_conv2d(m, x[0], "op", &(qnn_conv2d_opts){.filters = 8, .kernel = 3, .pad = 1});
}
static qnn_node conv2d_wide(qnn_model *m, const qnn_node *x)
{
    return qnn_conv2d(m, x[0], "op", &(qnn_conv2d_opts){.filters = 40, .kernel = 3, .pad = 1});
}
static qnn_node conv2d_odd(qnn_model *m, const qnn_node *x)
{
    return qnn_conv2d(m, x[0], "op",
                      &(qnn_conv2d_opts){.filters = 6,
                                         .kernel = 3,
                                         .kernel_w = 2,
                                         .stride = 2,
                                         .stride_w = 1,
                                         .dilation = 2,
                                         .dilation_w = 3,
                                         .groups = 2,
                                         .pads = {1, 2, 3, 0}});
}
static qnn_node conv2d_depthwise(qnn_model *m, const qnn_node *x)
{
    return qnn_conv2d(m, x[0], "op",
                      &(qnn_conv2d_opts){.filters = 16, .kernel = 3, .groups = 16, .pad = 1});
}
static qnn_node conv2d_1x1(qnn_model *m, const qnn_node *x)
{
    return qnn_conv2d(m, x[0], "op", &(qnn_conv2d_opts){.filters = 9, .kernel = 1, .no_bias = 1});
}
static qnn_node conv2d_stride_3(qnn_model *m, const qnn_node *x)
{
    return qnn_conv2d(
        m, x[0], "op",
        &(qnn_conv2d_opts){.filters = 4, .kernel = 3, .stride = 3, .pads = {0, 1, 2, 1}});
}
static qnn_node linear(qnn_model *m, const qnn_node *x) { return qnn_linear(m, x[0], "op", 19); }
static qnn_node linear_no_bias(qnn_model *m, const qnn_node *x)
{
    return qnn_linear_ex(m, x[0], "op", &(qnn_linear_opts){.units = 19, .no_bias = 1});
}
static qnn_node batchnorm2d(qnn_model *m, const qnn_node *x)
{
    return qnn_batchnorm2d(m, x[0], "op", NULL);
}
static qnn_node relu(qnn_model *m, const qnn_node *x) { return qnn_relu(m, x[0], "op"); }
static qnn_node relu6(qnn_model *m, const qnn_node *x) { return qnn_relu6(m, x[0], "op"); }
static qnn_node clip(qnn_model *m, const qnn_node *x)
{
    return qnn_clip(m, x[0], "op", -0.5f, 0.75f);
}
static qnn_node maxpool2d_2(qnn_model *m, const qnn_node *x)
{
    return qnn_maxpool2d(m, x[0], "op", 2, 2);
}
static qnn_node maxpool2d_overlap(qnn_model *m, const qnn_node *x)
{
    return qnn_maxpool2d_ex(m, x[0], "op", &(qnn_pool2d_opts){.kernel = 3, .stride = 2, .pad = 1});
}
static qnn_node avgpool2d_2(qnn_model *m, const qnn_node *x)
{
    return qnn_avgpool2d(m, x[0], "op", 2, 2);
}
static qnn_node avgpool2d_pad(qnn_model *m, const qnn_node *x)
{
    return qnn_avgpool2d_ex(m, x[0], "op", &(qnn_pool2d_opts){.kernel = 3, .stride = 2, .pad = 1});
}
static qnn_node avgpool2d_exclude_pad(qnn_model *m, const qnn_node *x)
{
    return qnn_avgpool2d_ex(
        m, x[0], "op", &(qnn_pool2d_opts){.kernel = 3, .stride = 2, .pad = 1, .exclude_pad = 1});
}
static qnn_node global_avgpool(qnn_model *m, const qnn_node *x)
{
    return qnn_global_avgpool(m, x[0], "op");
}
static qnn_node add(qnn_model *m, const qnn_node *x) { return qnn_add(m, x[0], x[1], "op"); }
static qnn_node concat(qnn_model *m, const qnn_node *x) { return qnn_concat(m, x, 3, "op"); }
static qnn_node flatten(qnn_model *m, const qnn_node *x) { return qnn_flatten(m, x[0], "op"); }
static qnn_node softmax(qnn_model *m, const qnn_node *x) { return qnn_softmax(m, x[0], "op"); }
static qnn_node dropout(qnn_model *m, const qnn_node *x)
{
    return qnn_dropout(m, x[0], "op", 0.0f);
}

static const struct op_case {
    const char *name;
    build_fn *build;
    int n_inputs, is_train;
} op_cases[] = {
    {"conv2d_3x3", conv2d_3x3, 1, 1},
    {"conv2d_wide", conv2d_wide, 1, 1},
    {"conv2d_stride_dilation_groups", conv2d_odd, 1, 1},
    {"conv2d_depthwise", conv2d_depthwise, 1, 1},
    {"conv2d_1x1_no_bias", conv2d_1x1, 1, 1},
    {"conv2d_stride_3", conv2d_stride_3, 1, 1},
    {"linear", linear, 1, 1},
    {"linear_no_bias", linear_no_bias, 1, 1},
    {"batchnorm2d_train", batchnorm2d, 1, 1},
    {"batchnorm2d_eval", batchnorm2d, 1, 0},
    {"relu", relu, 1, 1},
    {"relu6", relu6, 1, 1},
    {"clip", clip, 1, 1},
    {"maxpool2d_2", maxpool2d_2, 1, 1},
    {"maxpool2d_overlap", maxpool2d_overlap, 1, 1},
    {"avgpool2d_2", avgpool2d_2, 1, 1},
    {"avgpool2d_pad", avgpool2d_pad, 1, 1},
    {"avgpool2d_exclude_pad", avgpool2d_exclude_pad, 1, 1},
    {"global_avgpool", global_avgpool, 1, 1},
    {"add", add, 2, 1},
    {"concat", concat, 3, 1},
    {"flatten", flatten, 1, 1},
    {"softmax", softmax, 1, 1},
    {"dropout_p0", dropout, 1, 1},
};

static void run_op(qnn_ctx *ctx, const qnn_st *st, const struct op_case *c)
{
    float *grad[8 * QNN_MAX_PARAMS] = {NULL};
    const void *src[3];
    qnn_node x[3];
    qnn_model *m;
    qnn_program *p;
    void *ws;
    size_t n, n_dy;
    int batch = 0;
    const float *const y = need(st, c->name, "y", &n);
    const float *const dy = need(st, c->name, "dy", &n_dy);
    qnn_node op;

    OK(ctx, qnn_model_create(&m, ctx));
    for (int i = 0; i < c->n_inputs; i++) {
        char key[160];
        const qnn_st_tensor *t;

        snprintf(key, sizeof key, "%s/x%d", c->name, i);
        t = qnn_st__find(st, key);
        if (t == NULL)
            die(NULL, key);
        batch = (int)t->dim[0];
        snprintf(key, sizeof key, "x%d", i);
        x[i] = t->rank == 4 ? qnn_input(m, key, t->dim[1], t->dim[2], t->dim[3])
                            : qnn_input_features(m, key, t->dim[1]);
        src[i] = t->data;
    }
    op = c->build(m, x);
    qnn_output(m, "y", op);
    OK(ctx, qnn_model_check(m));
    for (int k = 0; k < m->node[op]->n_param; k++) {
        const qnn_param *const par = &m->node[op]->param[k];
        size_t count;

        if (par->count == 0)
            continue;
        memcpy(par->data, need(st, c->name, par->suffix, &count), par->bytes);
        grad[op * QNN_MAX_PARAMS + k] =
            par->is_trainable ? calloc(par->count, sizeof(float)) : NULL;
    }
    OK(ctx, qnn_program__compile(
                &p, ctx, m,
                &(qnn_compile_opts){.max_batch = batch + 1, .is_train = 1, .input_grad = 1}));
    OK(ctx, qnn_ctx__alloc(ctx, &ws, qnn_program_workspace(p), "workspace"));
    memset(ws, 0x7f, qnn_program_workspace(p)); /* nothing may rest on zeroed memory */

    qnn_exec e = {.ctx = ctx,
                  .p = p,
                  .k = p->k,
                  .n = batch,
                  .is_train = c->is_train,
                  .ws = ws,
                  .src = src,
                  .grad = grad};

    OK(ctx, qnn_exec__forward(&e));
    compare(c->name, "y", qnn_exec__value(&e, op), 1, y, n, FORWARD_BOUND);
    memcpy(qnn_exec__dvalue(&e, op), dy, n_dy * sizeof *dy);
    OK(ctx, qnn_exec__backward(&e));
    for (int i = 0; i < c->n_inputs; i++) {
        char key[8];
        size_t count;
        const float *want;

        snprintf(key, sizeof key, "dx%d", i);
        want = need(st, c->name, key, &count);
        compare(c->name, key, qnn_exec__dvalue(&e, x[i]), 1, want, count, GRADIENT_BOUND);
    }
    for (int k = 0; k < m->node[op]->n_param; k++) {
        const qnn_param *const par = &m->node[op]->param[k];
        char key[40];
        size_t count;
        const float *want;

        if (par->count == 0)
            continue;
        if (par->is_trainable) {
            snprintf(key, sizeof key, "d%s", par->suffix);
            want = need(st, c->name, key, &count);
            compare(c->name, key, grad[op * QNN_MAX_PARAMS + k], 1, want, count, GRADIENT_BOUND);
        } else {
            snprintf(key, sizeof key, "%s_after", par->suffix);
            want = need(st, c->name, key, &count);
            compare(c->name, key, par->data, 1, want, count, FORWARD_BOUND);
        }
        free(grad[op * QNN_MAX_PARAMS + k]);
    }
    qnn_ctx__release(ctx, ws);
    qnn_program_free(p);
    qnn_model_free(m);
}

/* ---- loss, optimisers, schedule
 * ------------------------------------------------------------------------------------------------
 */

static void run_loss(qnn_ctx *ctx, const qnn_st *st)
{
    size_t n;
    const float *const x = need(st, "loss", "x", &n);
    float dx[7 * 13], loss;

    (void)ctx;
    loss = (float)qnn_loss__cross_entropy(
        x, (const int32_t *)(const void *)need(st, "loss", "labels", NULL), 7, 13, dx);
    compare("loss", "loss", &loss, 1, need(st, "loss", "loss", NULL), 1, FORWARD_BOUND);
    compare("loss", "dx", dx, 1, need(st, "loss", "dx", NULL), n, GRADIENT_BOUND);
}

static void run_optimiser(qnn_ctx *ctx, const qnn_st *st, const char *name, qnn_trainer_opts opts)
{
    size_t n_x, n_w, n_b;
    const float *const x = need(st, "optim", "x", &n_x);
    const int32_t *const labels = (const int32_t *)(const void *)need(st, "optim", "labels", NULL);
    char group[80];
    const float *want;
    qnn_model *m;
    qnn_trainer *t;
    qnn_node in;

    OK(ctx, qnn_model_create(&m, ctx));
    in = qnn_input_features(m, "x", 12);
    qnn_output(m, "y", qnn_linear(m, in, "fc", 5));
    OK(ctx, qnn_model_check(m));
    memcpy(m->node[1]->param[0].data, need(st, "optim", "weight", &n_w),
           m->node[1]->param[0].bytes);
    memcpy(m->node[1]->param[1].data, need(st, "optim", "bias", &n_b), m->node[1]->param[1].bytes);
    opts.batch = 8;
    OK(ctx, qnn_trainer_create(&t, ctx, m, &opts));
    for (int i = 0; i < 10; i++)
        OK(ctx, qnn_trainer_step(t, x + i * 8 * 12, labels + i * 8, 8, NULL));
    snprintf(group, sizeof group, "optim/%s%s", name, opts.clip_norm > 0 ? "_clip" : "");
    want = need(st, group, "weight", &n_w);
    compare(group, "weight", m->node[1]->param[0].data, 1, want, n_w, ADAM_BOUND);
    want = need(st, group, "bias", &n_b);
    compare(group, "bias", m->node[1]->param[1].data, 1, want, n_b, ADAM_BOUND);
    qnn_trainer_free(t);
    qnn_model_free(m);
}

static void run_optimisers(qnn_ctx *ctx, const qnn_st *st)
{
    for (int clipped = 0; clipped < 2; clipped++) {
        const float clip_norm = clipped ? 0.25f : 0.0f;

        run_optimiser(ctx, st, "adam", (qnn_trainer_opts){.lr = 1e-2f, .clip_norm = clip_norm});
        run_optimiser(ctx, st, "adam_decay",
                      (qnn_trainer_opts){.lr = 3e-3f,
                                         .beta1 = 0.8f,
                                         .beta2 = 0.99f,
                                         .eps = 1e-6f,
                                         .weight_decay = 0.05f,
                                         .clip_norm = clip_norm});
        run_optimiser(
            ctx, st, "sgd",
            (qnn_trainer_opts){.optimizer = QNN_OPTIMIZER_SGD, .lr = 0.1f, .clip_norm = clip_norm});
        run_optimiser(ctx, st, "sgd_momentum",
                      (qnn_trainer_opts){.optimizer = QNN_OPTIMIZER_SGD,
                                         .lr = 0.05f,
                                         .momentum = 0.9f,
                                         .weight_decay = 0.01f,
                                         .clip_norm = clip_norm});
        run_optimiser(ctx, st, "sgd_nesterov",
                      (qnn_trainer_opts){.optimizer = QNN_OPTIMIZER_SGD,
                                         .lr = 0.05f,
                                         .momentum = 0.9f,
                                         .nesterov = 1,
                                         .clip_norm = clip_norm});
    }
}

static void run_plateau(qnn_ctx *ctx, const qnn_st *st)
{
    size_t n;
    const float *const metric = need(st, "plateau", "metric", &n);
    qnn_plateau_opts opts = QNN_PLATEAU_OPTS_INIT;
    qnn_plateau p;
    float lr = 1e-3f, rates[64];

    (void)ctx;
    opts.factor = 0.1f;
    opts.patience = 3;
    qnn_plateau_init(&p, &opts);
    for (size_t i = 0; i < n; i++)
        rates[i] = lr = qnn_plateau_step(&p, (double)metric[i], lr);
    compare("plateau", "lr", rates, 1, need(st, "plateau", "lr", NULL), n, FORWARD_BOUND);
}

/* ---- the study's network
 * ------------------------------------------------------------------------------------------------------------
 */

/* As make_golden.py's draw(). */
static void draw(float *x, size_t n, uint64_t stream, double scale)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t h = (i + stream * 1000003u) * 0x9E3779B97F4A7C15u;

        h ^= h >> 29;
        h *= 0xBF58476D1CE4E5B9u;
        x[i] = (float)((2.0 * ((double)(h >> 40) / 16777216.0) - 1.0) * scale);
    }
}

#define BATCH   4
#define SAMPLES 400

static size_t sample_stride(size_t count) { return count / SAMPLES > 1 ? count / SAMPLES : 1; }

static void run_network(qnn_ctx *ctx, const qnn_st *st)
{
    static const char *const layers[] = {"conv1", "conv2", "conv3", "fc1", "fc2"};
    const size_t n_pixels = BATCH * 128 * 128 * 3;
    float *const x = malloc(n_pixels * sizeof *x);
    float logits[BATCH * 101], losses[10];
    const qnn_st_tensor *const labels = qnn_st__find(st, "labels"),
                               *const loss = qnn_st__find(st, "loss"),
                               *const want_logits = qnn_st__find(st, "logits");
    qnn_model *m;
    qnn_trainer *t;
    qnn_node h;
    char name[40];

    if (x == NULL || labels == NULL || loss == NULL || want_logits == NULL)
        die(NULL, "network.safetensors is incomplete");
    OK(ctx, qnn_model_create(&m, ctx));
    h = qnn_input(m, "image", 128, 128, 3);
    for (int i = 0; i < 3; i++) {
        h = qnn_conv2d(m, h, layers[i],
                       &(qnn_conv2d_opts){.filters = 32 << i, .kernel = 3, .pad = 1});
        snprintf(name, sizeof name, "relu%d", i + 1);
        h = qnn_relu(m, h, name);
        snprintf(name, sizeof name, "pool%d", i + 1);
        h = qnn_maxpool2d(m, h, name, 2, 2);
    }
    h = qnn_linear(m, qnn_flatten(m, h, "flat"), "fc1", 256);
    qnn_output(m, "logits", qnn_linear(m, qnn_relu(m, h, "relu4"), "fc2", 101));
    OK(ctx, qnn_model_check(m));
    for (int i = 0; i < 5; i++) {
        const qnn_node_data *const n = m->node[qnn_model_find(m, layers[i])];
        const double scale = 1.0 / sqrt((double)(n->param[0].count / (size_t)n->param[0].dim[0]));

        draw(n->param[0].data, n->param[0].count, (uint64_t)(1 + 2 * i), scale);
        draw(n->param[1].data, n->param[1].count, (uint64_t)(2 + 2 * i), scale);
    }
    OK(ctx, qnn_trainer_create(
                &t, ctx, m, &(qnn_trainer_opts){.batch = BATCH, .lr = 1e-3f, .clip_norm = 1.0f}));
    for (int step = 0; step < 10; step++) {
        const int32_t *const y = (const int32_t *)labels->data + step * BATCH;

        draw(x, n_pixels, (uint64_t)(100 + step), 2.0);
        if (step == 0) {
            OK(ctx, qnn_trainer_evaluate(t, x, BATCH, logits));
            compare("network", "logits", logits, 1, want_logits->data, BATCH * 101, FORWARD_BOUND);
        }
        OK(ctx, qnn_trainer_step(t, x, y, BATCH, &losses[step]));
        for (int i = 0; step == 0 && i < 5 * 2; i++) {
            qnn_param_info info;
            size_t count;
            const float *want;

            snprintf(name, sizeof name, "%s.%s", layers[i / 2], i % 2 == 0 ? "weight" : "bias");
            OK(ctx, qnn_model_param(m, qnn_model_find_param(m, name), &info));
            want = need(st, "grad", name, &count);
            compare("network", name, qnn_trainer_grad(t, qnn_model_find_param(m, name)),
                    sample_stride(info.count), want, count, GRADIENT_BOUND);
        }
    }
    compare("network", "ten losses", losses, 1, loss->data, 10, GRADIENT_BOUND);
    for (int i = 0; i < 5 * 2; i++) {
        qnn_param_info info;
        size_t count;
        const float *want;

        snprintf(name, sizeof name, "%s.%s", layers[i / 2], i % 2 == 0 ? "weight" : "bias");
        OK(ctx, qnn_model_param(m, qnn_model_find_param(m, name), &info));
        want = need(st, "after", name, &count);
        compare_by(ABSOLUTE, "network-after-ten-steps", name, info.data, sample_stride(info.count),
                   want, count, ADAM_BOUND);
    }
    qnn_trainer_free(t);
    qnn_model_free(m);
    free(x);
}

/* ---- main
 * ----------------------------------------------------------------------------------------------------------------------------
 */

static int wanted(const char *name)
{
    return strncmp(name, filter, strlen(filter)) == 0 || strncmp(filter, name, strlen(name)) == 0;
}

int main(int argc, char **argv)
{
    const char *const dir =
        getenv("QNN_GOLDEN_DIR") != NULL ? getenv("QNN_GOLDEN_DIR") : "tests/golden";
    qnn_ctx *ctx;
    qnn_st ops, network;
    char path[512];

    if (argc > 1)
        filter = argv[1];
    if (qnn_ctx_create(&ctx, &(qnn_ctx_opts){.isa = getenv("QNN_ISA")}) != QNN_OK)
        die(NULL, "cannot create a context (QNN_ISA?)");
    snprintf(path, sizeof path, "%s/ops.safetensors", dir);
    OK(ctx, qnn_st__read(&ops, ctx, path));
    snprintf(path, sizeof path, "%s/network.safetensors", dir);
    OK(ctx, qnn_st__read(&network, ctx, path));
    for (size_t i = 0; i < sizeof op_cases / sizeof *op_cases; i++)
        if (wanted(op_cases[i].name))
            run_op(ctx, &ops, &op_cases[i]);
    if (wanted("loss"))
        run_loss(ctx, &ops);
    if (wanted("optim"))
        run_optimisers(ctx, &ops);
    if (wanted("plateau"))
        run_plateau(ctx, &ops);
    if (wanted("network"))
        run_network(ctx, &network);
    qnn_st__free(&ops);
    qnn_st__free(&network);
    printf("golden (%s): %d passed, %d failed\n", qnn_ctx_isa(ctx), n_run - n_failed, n_failed);
    qnn_ctx_free(ctx);
    return n_failed != 0 || n_run == 0;
}
