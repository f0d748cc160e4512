/* Training: loss, optimisers, schedule, steps, and fits with their logs, checkpoints and resuming. */
#define _POSIX_C_SOURCE 200809L
#include "suites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <qnn.h>

#include "lib/loss.h"
#include "tests/common/testutil.h"

enum { SIDE = 8, PIXELS = SIDE * SIDE * 3, CLASSES = 3, ITEMS = 42, N_VAL = 12, BATCH = 8 };

/* ---- a small model, a small data set --------------------------------------------------------------------------------- */

/* Convolution, batch norm and dropout: statistics and random numbers have to survive resuming. */
static qnn_model *make_model(qnn_ctx *ctx)
{
    qnn_model *m;
    qnn_node x;

    TU_OK(ctx, qnn_model_create(&m, ctx));
    x = qnn_input(m, "image", SIDE, SIDE, 3);
    x = qnn_conv2d(m, x, "conv", &(qnn_conv2d_opts){.filters = 8, .kernel = 3, .pad = 1});
    x = qnn_relu(m, qnn_batchnorm2d(m, x, "bn", NULL), "relu");
    x = qnn_flatten(m, qnn_maxpool2d(m, x, "pool", 2, 2), "flat");
    x = qnn_dropout(m, qnn_relu(m, qnn_linear(m, x, "fc1", 16), "relu1"), "drop", 0.25f);
    qnn_output(m, "logits", qnn_linear(m, x, "fc2", CLASSES));
    TU_OK(ctx, qnn_model_check(m));
    return m;
}

/* Stripes whose period is the class, under noise. */
static qnn_status get_item(void *user, int64_t i, uint8_t *pixels, int *label, char *err, size_t err_size)
{
    const int period = 2 + (int)(i % CLASSES);

    (void)user;
    (void)err;
    (void)err_size;
    *label = (int)(i % CLASSES);
    tu_fill_u8(pixels, PIXELS, (uint64_t)i);
    for (int k = 0; k < PIXELS; k++)
        pixels[k] = (uint8_t)(pixels[k] / 4 + (k / 3 % SIDE % period == 0 ? 180 : 0));
    return QNN_OK;
}

typedef struct data {
    qnn_dataset *ds;
    qnn_loader *train, *val;
} data;

static data make_data(qnn_ctx *ctx)
{
    const qnn_dataset_ops ops = {
        .description = "stripes", .n_items = ITEMS, .n_classes = CLASSES, .height = SIDE, .width = SIDE, .get = get_item};
    int64_t index[ITEMS];
    data d;

    for (int i = 0; i < ITEMS; i++)
        index[i] = i;
    TU_OK(ctx, qnn_dataset_create(&d.ds, ctx, &ops, NULL));
    TU_OK(ctx, qnn_loader_create(&d.train, ctx, d.ds, index, ITEMS - N_VAL,
                                 &(qnn_loader_opts){.batch = BATCH, .shuffle = 1, .seed = 5}));
    TU_OK(ctx, qnn_loader_create(&d.val, ctx, d.ds, index + ITEMS - N_VAL, N_VAL, &(qnn_loader_opts){.batch = BATCH}));
    return d;
}

static void free_data(data *d)
{
    qnn_loader_free(d->train);
    qnn_loader_free(d->val);
    qnn_dataset_free(d->ds);
}

static void temporary(char *path, size_t size, const char *name)
{
    const char *const folder = getenv("TMPDIR");

    snprintf(path, size, "%s/qnn-train-%ld-%s", folder != NULL ? folder : "/tmp", (long)getpid(), name);
}

/* All parameters and buffers, one after the other; the caller frees. */
static float *all_params(const qnn_model *m, size_t *n)
{
    float *all;
    qnn_param_info p;

    *n = 0;
    for (int i = 0; i < qnn_model_n_params(m); i++) {
        TU_OK(NULL, qnn_model_param(m, i, &p));
        *n += p.count;
    }
    all = tu_alloc(*n * sizeof *all);
    *n = 0;
    for (int i = 0; i < qnn_model_n_params(m); i++) {
        TU_OK(NULL, qnn_model_param(m, i, &p));
        memcpy(all + *n, p.data, p.bytes);
        *n += p.count;
    }
    return all;
}

static void assert_same_params(const qnn_model *a, const qnn_model *b)
{
    size_t n, n_b;
    float *const x = all_params(a, &n), *const y = all_params(b, &n_b);

    ck_assert_uint_eq(n, n_b);
    ck_assert_mem_eq(x, y, n * sizeof *x);
    free(x);
    free(y);
}

/* ---- loss -------------------------------------------------------------------------------------------------------------- */

START_TEST(loss_values)
{
    const float even[] = {0, 0}, apart[] = {1000, 0}, three[] = {1, 2, 3, 3, 1, 2};
    const float nan_row[] = {0, NAN}, inf_row[] = {INFINITY, 0};
    const int32_t zero = 0, one = 1, two_labels[] = {2, 2};
    float dx[6];
    double want;

    ck_assert_double_eq_tol(qnn_loss__cross_entropy(even, &zero, 1, 2, dx), log(2.0), 1e-12);
    ck_assert_float_eq(dx[0], -0.5f);
    ck_assert_float_eq(dx[1], 0.5f);
    ck_assert_double_eq_tol(qnn_loss__cross_entropy(apart, &zero, 1, 2, dx), 0.0, 1e-12);
    ck_assert_double_eq_tol(qnn_loss__cross_entropy(apart, &one, 1, 2, dx), 1000.0, 1e-9);
    ck_assert_float_eq(dx[0], 1.0f);
    ck_assert_float_eq(dx[1], -1.0f);
    /* softmax of (1, 2, 3) is (.0900306, .2447285, .6652410) */
    want = -(log(0.66524095577) + log(0.24472847105)) / 2.0;
    ck_assert_double_eq_tol(qnn_loss__cross_entropy(three, two_labels, 2, 3, dx), want, 1e-9);
    ck_assert_float_eq_tol(dx[0], 0.09003057f / 2, 1e-7);
    ck_assert_float_eq_tol(dx[2], (0.66524096f - 1) / 2, 1e-7);
    ck_assert_float_eq_tol(dx[3], 0.66524096f / 2, 1e-7);
    ck_assert_float_eq_tol(dx[5], (0.24472847f - 1) / 2, 1e-7);
    ck_assert_double_nan(qnn_loss__cross_entropy(nan_row, &zero, 1, 2, NULL));
    ck_assert(!isfinite(qnn_loss__cross_entropy(inf_row, &one, 1, 2, NULL)));
}
END_TEST

/* ---- optimisers: the textbook in double, on a linear model with one input ------------------------------------------------- */

typedef struct book {
    double w[2], m[2], v[2];
} book;

static void book_step(book *b, const qnn_trainer_opts *o, double x, int label, int number)
{
    const double e0 = exp(b->w[0] * x), e1 = exp(b->w[1] * x);
    double g[2] = {x * (e0 / (e0 + e1) - (label == 0)), x * (e1 / (e0 + e1) - (label == 1))};
    const double norm = sqrt(g[0] * g[0] + g[1] * g[1]);
    const double scale = o->clip_norm > 0 ? fmin(1.0, (double)o->clip_norm / (norm + 1e-6)) : 1.0;

    for (int i = 0; i < 2; i++) {
        g[i] = g[i] * scale + (double)o->weight_decay * b->w[i];
        if (o->optimizer == QNN_OPTIMIZER_SGD) {
            b->m[i] = number == 1 ? g[i] : (double)o->momentum * b->m[i] + g[i];
            b->w[i] -= (double)o->lr * (o->nesterov ? g[i] + (double)o->momentum * b->m[i] : b->m[i]);
        } else {
            b->m[i] = 0.9 * b->m[i] + 0.1 * g[i];
            b->v[i] = 0.999 * b->v[i] + 0.001 * g[i] * g[i];
            b->w[i] -= (double)o->lr * (b->m[i] / (1 - pow(0.9, number))) /
                       (sqrt(b->v[i] / (1 - pow(0.999, number))) + 1e-8);
        }
    }
}

START_TEST(optimiser_steps)
{
    static const qnn_trainer_opts cases[] = {
        {.batch = 1, .lr = 0.1f},
        {.batch = 1, .lr = 0.1f, .weight_decay = 0.5f, .clip_norm = 0.25f},
        {.batch = 1, .optimizer = QNN_OPTIMIZER_SGD, .lr = 0.5f},
        {.batch = 1, .optimizer = QNN_OPTIMIZER_SGD, .lr = 0.5f, .momentum = 0.9f, .weight_decay = 0.25f},
        {.batch = 1, .optimizer = QNN_OPTIMIZER_SGD, .lr = 0.5f, .momentum = 0.5f, .nesterov = 1, .clip_norm = 0.1f},
    };
    const float x = 1.5f;

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        qnn_ctx *const ctx = tu_ctx(1);
        book b = {.w = {0.25, -0.5}};
        qnn_model *m;
        qnn_trainer *t;
        qnn_param_info p;

        TU_OK(ctx, qnn_model_create(&m, ctx));
        qnn_output(m, "y", qnn_linear_ex(m, qnn_input_features(m, "x", 1), "fc", &(qnn_linear_opts){.units = 2, .no_bias = 1}));
        TU_OK(ctx, qnn_model_check(m));
        TU_OK(ctx, qnn_model_param(m, 0, &p));
        ((float *)p.data)[0] = 0.25f;
        ((float *)p.data)[1] = -0.5f;
        TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &cases[k]));
        for (int step = 1; step <= 5; step++) {
            const int32_t label = step % 2;

            TU_OK(ctx, qnn_trainer_step(t, &x, &label, 1, NULL));
            book_step(&b, &cases[k], (double)x, label, step);
            for (int i = 0; i < 2; i++)
                ck_assert_msg(fabs((double)((float *)p.data)[i] - b.w[i]) < 2e-6, "case %zu, step %d, w[%d]: %.9g, by hand %.9g", k,
                              step, i, (double)((float *)p.data)[i], b.w[i]);
        }
        ck_assert_int_eq(qnn_trainer_steps(t), 5);
        qnn_trainer_free(t);
        qnn_model_free(m);
        qnn_ctx_free(ctx);
    }
}
END_TEST

/* Rates that PyTorch 1.13's ReduceLROnPlateau gives for these metrics. */
START_TEST(plateau)
{
    static const double metric[] = {10, 9, 9.5, 9.3, 8.95, 8.85, 8.85, 8.8, 9, 8, 8, 8, 8, 7.5, 8, 8, 8, 8, 8, 8, 8, 8};
    static const float rate[] = {0.8f, 0.8f, 0.8f, 0.4f, 0.4f, 0.4f, 0.2f, 0.2f, 0.2f, 0.2f, 0.2f,
                                 0.1f, 0.1f, 0.1f, 0.1f, 0.05f, 0.05f, 0.05f, 0.05f, 0.05f, 0.05f, 0.05f};
    const qnn_plateau_opts opts = {.factor = 0.5f, .patience = 1, .threshold = 0.02f, .cooldown = 1, .min_lr = 0.05f, .eps = 1e-8f};
    qnn_plateau_opts off = QNN_PLATEAU_OPTS_INIT, coarse = opts;
    qnn_plateau p;
    float lr = 0.8f;

    qnn_plateau_init(&p, &opts);
    for (size_t i = 0; i < sizeof metric / sizeof *metric; i++) {
        lr = qnn_plateau_step(&p, metric[i], lr);
        ck_assert_msg(fabsf(lr - rate[i]) < 1e-7f, "epoch %zu: rate %g, PyTorch's %g", i, (double)lr, (double)rate[i]);
    }
    off.factor = 0.0f;
    qnn_plateau_init(&p, &off);
    for (int i = 0; i < 30; i++)
        ck_assert_float_eq(qnn_plateau_step(&p, 1.0, 0.5f), 0.5f);
    coarse.eps = 0.3f; /* a change of 0.25 is not made */
    qnn_plateau_init(&p, &coarse);
    for (int i = 0; i < 9; i++)
        ck_assert_float_eq(qnn_plateau_step(&p, 1.0, 0.5f), 0.5f);
}
END_TEST

/* ---- steps -------------------------------------------------------------------------------------------------------------- */

START_TEST(overfits_a_few_items)
{
    qnn_ctx *const ctx = tu_ctx(2);
    qnn_model *const m = make_model(ctx);
    float x[6 * PIXELS], logits[6 * CLASSES], first, loss = 0;
    const int32_t labels[6] = {0, 1, 2, 0, 1, 2};
    qnn_trainer *t;

    tu_fill_uniform(x, 6 * PIXELS, -1, 1, 3);
    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = 6, .lr = 1e-2f, .clip_norm = 1.0f}));
    TU_OK(ctx, qnn_trainer_step(t, x, labels, 6, &first));
    for (int i = 0; i < 150; i++)
        TU_OK(ctx, qnn_trainer_step(t, x, labels, 6, &loss));
    ck_assert_msg(first > 0.5f && loss < 0.02f, "loss from %g to %g", (double)first, (double)loss);
    TU_OK(ctx, qnn_trainer_evaluate(t, x, 6, logits));
    ck_assert_double_lt(qnn_loss__cross_entropy(logits, labels, 6, CLASSES, NULL), 0.05);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

/* Five steps on whole and partial batches. */
static qnn_model *train_a_little(int threads, int batch)
{
    qnn_ctx *const ctx = tu_ctx(threads);
    qnn_model *const m = make_model(ctx);
    float x[BATCH * PIXELS];
    int32_t labels[BATCH];
    qnn_trainer *t;

    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = batch, .clip_norm = 0.5f, .seed = 9}));
    for (int i = 0; i < 5; i++) {
        tu_fill_uniform(x, BATCH * PIXELS, -2, 2, (uint64_t)i);
        for (int k = 0; k < BATCH; k++)
            labels[k] = (i + k) % CLASSES;
        TU_OK(ctx, qnn_trainer_step(t, x, labels, i == 3 ? 5 : BATCH, NULL));
    }
    qnn_trainer_free(t);
    return m; /* its context lives on with it, to the end of the test's process */
}

START_TEST(threads_and_room_change_no_bit)
{
    qnn_model *const one = train_a_little(1, BATCH);

    assert_same_params(one, train_a_little(2, BATCH));
    assert_same_params(one, train_a_little(5, BATCH));
    assert_same_params(one, train_a_little(2, 3 * BATCH));
}
END_TEST

START_TEST(evaluation_is_inference)
{
    qnn_model *const m = train_a_little(1, BATCH);
    qnn_ctx *const ctx = tu_ctx(2);
    float x[BATCH * PIXELS], a[BATCH * CLASSES], b[BATCH * CLASSES];
    size_t n;
    float *const before = all_params(m, &n);
    float *after;
    qnn_trainer *t;
    qnn_program *p;

    tu_fill_uniform(x, BATCH * PIXELS, -2, 2, 77);
    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = BATCH}));
    TU_OK(ctx, qnn_program_compile(&p, ctx, m, &(qnn_program_opts){.max_batch = BATCH}));
    TU_OK(ctx, qnn_trainer_evaluate(t, x, BATCH - 1, a));
    TU_OK(ctx, qnn_run(p, ctx, x, BATCH - 1, b));
    for (int i = 0; i < (BATCH - 1) * CLASSES; i++)
        ck_assert_float_eq_tol(a[i], b[i], 1e-4f);
    after = all_params(m, &n);
    ck_assert_mem_eq(before, after, n * sizeof *after);
    free(before);
    free(after);
    qnn_trainer_free(t);
    qnn_program_free(p);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(gradients_change_no_parameter)
{
    qnn_ctx *const ctx = tu_ctx(2);
    qnn_model *const m = make_model(ctx);
    float x[BATCH * PIXELS], loss, again;
    const int32_t labels[BATCH] = {0, 1, 2, 0, 1, 2, 0, 1};
    const int weight = qnn_model_find_param(m, "fc1.weight"), mean = qnn_model_find_param(m, "bn.running_mean");
    qnn_param_info p;
    qnn_trainer *t;
    float *before;
    double squares = 0;

    TU_OK(ctx, qnn_model_param(m, weight, &p));
    before = tu_alloc(p.bytes);
    memcpy(before, p.data, p.bytes);
    tu_fill_uniform(x, BATCH * PIXELS, -2, 2, 1);
    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = BATCH, .seed = 4}));
    TU_OK(ctx, qnn_trainer_gradients(t, x, labels, BATCH, &loss));
    TU_OK(ctx, qnn_trainer_gradients(t, x, labels, BATCH, &again));
    ck_assert_float_eq(loss, again); /* dropout follows the step, which has not moved */
    ck_assert_mem_eq(before, p.data, p.bytes);
    ck_assert_int_eq(qnn_trainer_steps(t), 0);
    for (size_t i = 0; i < p.count; i++)
        squares += (double)qnn_trainer_grad(t, weight)[i] * (double)qnn_trainer_grad(t, weight)[i];
    ck_assert_double_gt(squares, 1e-8);
    ck_assert_ptr_null(qnn_trainer_grad(t, mean));
    ck_assert_ptr_null(qnn_trainer_grad(t, -1));
    ck_assert_ptr_null(qnn_trainer_grad(t, 1000));
    ck_assert_uint_gt(qnn_trainer_bytes(t), 3 * p.bytes);
    free(before);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(non_finite_loss_changes_nothing)
{
    qnn_ctx *const ctx = tu_ctx(2);
    qnn_model *const m = make_model(ctx);
    float x[BATCH * PIXELS], loss;
    const int32_t labels[BATCH] = {0};
    size_t n;
    float *before, *after;
    qnn_trainer *t;

    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = BATCH}));
    tu_fill_uniform(x, BATCH * PIXELS, -2, 2, 1);
    TU_OK(ctx, qnn_trainer_step(t, x, labels, BATCH, &loss));
    before = all_params(m, &n);
    x[17] = NAN;
    ck_assert_int_eq(qnn_trainer_step(t, x, labels, BATCH, &loss), QNN_ERR_STATE);
    ck_assert(!isfinite(loss));
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "the loss is"));
    after = all_params(m, &n);
    ck_assert_mem_eq(before, after, n * sizeof *after); /* running statistics too */
    ck_assert_int_eq(qnn_trainer_steps(t), 1);
    free(before);
    free(after);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(bad_arguments)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *const m = make_model(ctx);
    static const qnn_trainer_opts bad[] = {
        {.batch = -1},       {.lr = -1},        {.lr = NAN},           {.beta1 = 1},     {.beta2 = -0.5f}, {.eps = -1},
        {.momentum = -1},    {.nesterov = 1},   {.weight_decay = NAN}, {.clip_norm = -1}, {.optimizer = (qnn_optimizer)7},
    };
    float x[BATCH * PIXELS] = {0}, logits[BATCH * CLASSES];
    const int32_t labels[BATCH] = {0, 1, 2, 3};
    qnn_trainer *t;
    qnn_model *two;
    qnn_node in;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_eq(qnn_trainer_create(&t, ctx, m, &bad[i]), QNN_ERR_ARG);
        ck_assert_ptr_null(t);
    }
    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = BATCH}));
    ck_assert_int_eq(qnn_trainer_step(t, x, labels, 0, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_trainer_step(t, x, labels, BATCH + 1, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_trainer_step(t, NULL, labels, 1, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_trainer_step(t, x, NULL, 1, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_trainer_evaluate(t, x, BATCH + 1, logits), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_trainer_step(t, x, labels, 4, NULL), QNN_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "label 3 of item 3"));
    ck_assert_int_eq(qnn_trainer_restore_best(t), QNN_ERR_STATE);
    ck_assert_int_eq(qnn_trainer_step(NULL, x, labels, 1, NULL), QNN_ERR_ARG);
    qnn_trainer_free(t);
    qnn_trainer_free(NULL);
    qnn_model_free(m);

    TU_OK(ctx, qnn_model_create(&two, ctx));
    in = qnn_input(two, "image", 4, 4, 3);
    qnn_output(two, "a", qnn_relu(two, in, "relu"));
    ck_assert_int_eq(qnn_trainer_create(&t, ctx, two, NULL), QNN_ERR_SHAPE); /* a score for each pixel */
    qnn_output(two, "b", qnn_flatten(two, in, "flat"));
    ck_assert_int_eq(qnn_trainer_create(&t, ctx, two, NULL), QNN_ERR_ARG); /* two outputs */
    qnn_model_free(two);
    TU_OK(ctx, qnn_model_create(&two, ctx));
    qnn_output(two, "a", qnn_flatten(two, qnn_input(two, "image", 4, 4, 3), "flat"));
    ck_assert_int_eq(qnn_trainer_create(&t, ctx, two, NULL), QNN_ERR_ARG); /* nothing to train */
    qnn_model_free(two);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- fits --------------------------------------------------------------------------------------------------------------- */

typedef struct watch {
    int n_progress, n_epochs;
    int stop_at_batch, stop_at_epoch; /* 0: never */
    double last_eta;
    qnn_model *m;
    float *best;                      /* parameters when an epoch was the best */
    size_t n_best;
    qnn_epoch epoch[16];
} watch;

static int on_progress(void *user, const qnn_fit_progress *p)
{
    watch *const w = user;

    ck_assert_int_ge(p->done, 1);
    ck_assert_int_le(p->done, p->total);
    ck_assert(p->eta_seconds >= 0 && isfinite(p->eta_seconds) && isfinite(p->loss));
    w->last_eta = p->eta_seconds;
    return ++w->n_progress == w->stop_at_batch;
}

static int on_epoch(void *user, const qnn_epoch *e)
{
    watch *const w = user;

    ck_assert_int_lt(w->n_epochs, 16);
    w->epoch[w->n_epochs++] = *e;
    if (e->is_best && w->m != NULL) {
        free(w->best);
        w->best = all_params(w->m, &w->n_best);
    }
    return e->epoch == w->stop_at_epoch;
}

static qnn_fit_opts fit_opts(const data *d, watch *w, int epochs)
{
    qnn_fit_opts o = QNN_FIT_OPTS_INIT;

    o.epochs = epochs;
    o.train = d->train;
    o.val = d->val;
    o.plateau.patience = 0; /* so that the rate moves within a few epochs */
    o.plateau.factor = 0.5f;
    o.on_progress = on_progress;
    o.on_epoch = on_epoch;
    o.user = w;
    return o;
}

static qnn_trainer *make_trainer(qnn_ctx *ctx, qnn_model *m)
{
    qnn_trainer *t;

    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = BATCH, .lr = 5e-3f, .clip_norm = 1.0f, .seed = 11}));
    return t;
}

START_TEST(fit_learns_and_restores_best)
{
    qnn_ctx *const ctx = tu_ctx(2);
    qnn_model *const m = make_model(ctx);
    qnn_trainer *const t = make_trainer(ctx, m);
    data d = make_data(ctx);
    watch w = {.m = m};
    qnn_fit_opts o = fit_opts(&d, &w, 8);
    qnn_fit_result r;
    float *restored;
    size_t n;
    double seconds = 0, best = -1;
    int best_epoch = 0;

    TU_OK(ctx, qnn_fit(t, &o, &r));
    ck_assert_int_eq(r.epochs_done, 8);
    ck_assert_int_eq(r.stopped, 0);
    ck_assert_int_eq(w.n_epochs, 8);
    ck_assert_int_eq(w.n_progress, 8 * (4 + 2)); /* batches of 30 and 12 items by 8 */
    ck_assert_double_lt(w.last_eta, 1e-9);
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(w.epoch[i].epoch, i + 1);
        ck_assert_int_eq(w.epoch[i].val.n, N_VAL);
        ck_assert_int_eq(w.epoch[i].is_best, w.epoch[i].val.accuracy > best);
        seconds += w.epoch[i].train_seconds + w.epoch[i].val_seconds;
        if (w.epoch[i].val.accuracy > best) {
            best = w.epoch[i].val.accuracy;
            best_epoch = i + 1;
        }
    }
    ck_assert_double_lt(w.epoch[7].train_loss, w.epoch[0].train_loss);
    ck_assert_int_eq(r.best.epoch, best_epoch);
    ck_assert_int_eq(r.last.epoch, 8);
    ck_assert_double_eq_tol(r.seconds, seconds, 1e-9);
    ck_assert_float_eq(w.epoch[0].lr, 5e-3f);
    TU_OK(ctx, qnn_trainer_restore_best(t));
    restored = all_params(m, &n);
    ck_assert_mem_eq(restored, w.best, n * sizeof *restored);
    free(restored);
    free(w.best);
    free_data(&d);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(fit_without_validation)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *const m = make_model(ctx);
    qnn_trainer *const t = make_trainer(ctx, m);
    data d = make_data(ctx);
    qnn_fit_opts o = QNN_FIT_OPTS_INIT;
    qnn_fit_result r;

    o.epochs = 3;
    o.train = d.train;
    TU_OK(ctx, qnn_fit(t, &o, &r));
    ck_assert_int_eq(r.best.epoch, 3); /* the last is the best */
    ck_assert_int_eq(r.last.val.n, 0);
    ck_assert_float_eq(qnn_trainer_lr(t), 5e-3f); /* no schedule without a metric */
    TU_OK(ctx, qnn_fit(t, &o, NULL));
    free_data(&d);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

/* Trains to the end in one go, or stopped (after an epoch, or inside one) and resumed by other objects. */
static qnn_model *fit_in_parts(int stop_epoch, int stop_batch, int threads, const char *path, float *next_loss)
{
    qnn_ctx *const ctx = tu_ctx(threads);
    data d = make_data(ctx);
    watch w = {.stop_at_epoch = stop_epoch, .stop_at_batch = stop_batch};
    qnn_fit_opts o = fit_opts(&d, &w, 5);
    qnn_fit_result r;
    qnn_model *m = make_model(ctx);
    qnn_trainer *t = make_trainer(ctx, m);
    float x[BATCH * PIXELS];
    const int32_t labels[BATCH] = {0, 1, 2};

    o.checkpoint = path;
    o.resume = 1; /* there is no checkpoint yet: begins anew */
    TU_OK(ctx, qnn_fit(t, &o, &r));
    if (stop_epoch + stop_batch > 0) {
        qnn_param_info p;

        ck_assert_int_eq(r.stopped, 1);
        qnn_trainer_free(t);
        qnn_model_free(m);
        m = make_model(ctx);
        for (int i = 0; i < qnn_model_n_params(m); i++) { /* whatever it holds must not matter */
            TU_OK(ctx, qnn_model_param(m, i, &p));
            tu_fill_uniform(p.data, p.count, 0, 1, 99);
        }
        t = make_trainer(ctx, m);
        memset(&w, 0, sizeof w);
        TU_OK(ctx, qnn_fit(t, &o, &r));
    }
    ck_assert_int_eq(r.epochs_done, 5);
    ck_assert_int_eq(r.stopped, 0);
    /* one more step: the optimiser's state and the step's number count too */
    tu_fill_uniform(x, BATCH * PIXELS, -1, 1, 2);
    TU_OK(ctx, qnn_trainer_step(t, x, labels, BATCH, next_loss));
    free_data(&d);
    qnn_trainer_free(t);
    unlink(path);
    return m;
}

START_TEST(resume_is_exact)
{
    char path[256];
    float loss, other;
    qnn_model *whole;

    temporary(path, sizeof path, "resume.safetensors");
    whole = fit_in_parts(0, 0, 2, path, &loss);
    assert_same_params(whole, fit_in_parts(2, 0, 2, path, &other));
    ck_assert_float_eq(loss, other);
    assert_same_params(whole, fit_in_parts(0, 3 * 6 + 2, 2, path, &other)); /* second batch of epoch 4 */
    ck_assert_float_eq(loss, other);
    assert_same_params(whole, fit_in_parts(0, 3 * 6 + 5, 1, path, &other)); /* while validating it */
    ck_assert_float_eq(loss, other);
    assert_same_params(whole, fit_in_parts(0, 2, 5, path, &other)); /* before any checkpoint */
    ck_assert_float_eq(loss, other);
}
END_TEST

START_TEST(resume_of_a_finished_fit)
{
    qnn_ctx *const ctx = tu_ctx(1);
    data d = make_data(ctx);
    watch w = {0};
    qnn_fit_opts o = fit_opts(&d, &w, 3);
    qnn_fit_result first, second;
    qnn_model *a = make_model(ctx), *b = make_model(ctx);
    qnn_trainer *t = make_trainer(ctx, a);
    char path[256];

    temporary(path, sizeof path, "finished.safetensors");
    o.checkpoint = path;
    TU_OK(ctx, qnn_fit(t, &o, &first));
    qnn_trainer_free(t);
    t = make_trainer(ctx, b);
    o.resume = 1;
    TU_OK(ctx, qnn_fit(t, &o, &second));
    ck_assert_int_eq(w.n_epochs, 3);
    assert_same_params(a, b);
    ck_assert_int_eq(second.epochs_done, 3);
    ck_assert_int_eq(second.best.epoch, first.best.epoch);
    ck_assert_double_eq(second.seconds, first.seconds);
    ck_assert_double_eq(second.last.val.f1, first.last.val.f1);
    ck_assert_float_eq(second.last.lr, first.last.lr);
    TU_OK(ctx, qnn_trainer_restore_best(t));
    unlink(path);
    free_data(&d);
    qnn_trainer_free(t);
    qnn_model_free(a);
    qnn_model_free(b);
    qnn_ctx_free(ctx);
}
END_TEST

static void truncate_file(const char *path, long bytes)
{
    ck_assert_int_eq(truncate(path, bytes), 0);
}

START_TEST(resume_refuses_what_does_not_fit)
{
    qnn_ctx *const ctx = tu_ctx(1);
    data d = make_data(ctx);
    watch w = {.stop_at_epoch = 1};
    qnn_fit_opts o = fit_opts(&d, &w, 3);
    qnn_model *const m = make_model(ctx), *other;
    qnn_trainer *t = make_trainer(ctx, m);
    qnn_node x;
    char path[256];
    size_t n;
    float *before, *after;

    temporary(path, sizeof path, "refused.safetensors");
    o.resume = 1;
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_ARG); /* no path */
    o.checkpoint = path;
    TU_OK(ctx, qnn_fit(t, &o, NULL));
    qnn_trainer_free(t);

    /* another model */
    TU_OK(ctx, qnn_model_create(&other, ctx));
    x = qnn_flatten(other, qnn_input(other, "image", SIDE, SIDE, 3), "flat");
    qnn_output(other, "y", qnn_linear(other, x, "fc", CLASSES));
    t = make_trainer(ctx, other);
    before = all_params(other, &n);
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_FORMAT);
    after = all_params(other, &n);
    ck_assert_mem_eq(before, after, n * sizeof *after);
    free(before);
    free(after);
    qnn_trainer_free(t);
    qnn_model_free(other);

    /* another seed, another optimiser */
    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = BATCH, .seed = 12}));
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "seed 11"));
    qnn_trainer_free(t);
    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = BATCH, .seed = 11, .optimizer = QNN_OPTIMIZER_SGD}));
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "optimiser"));
    qnn_trainer_free(t);

    /* damaged */
    t = make_trainer(ctx, m);
    truncate_file(path, 1000);
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_FORMAT);
    truncate_file(path, 0);
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_FORMAT);
    unlink(path);
    free_data(&d);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(callbacks_stop)
{
    qnn_ctx *const ctx = tu_ctx(2);
    data d = make_data(ctx);
    qnn_fit_result r;
    qnn_model *const m = make_model(ctx);
    qnn_trainer *const t = make_trainer(ctx, m);
    watch in_epoch = {.stop_at_batch = 3}, after_epoch = {.stop_at_epoch = 2};
    qnn_fit_opts o = fit_opts(&d, &in_epoch, 5);

    TU_OK(ctx, qnn_fit(t, &o, &r));
    ck_assert_int_eq(r.stopped, 1);
    ck_assert_int_eq(r.epochs_done, 0);
    ck_assert_int_eq(in_epoch.n_progress, 3);
    ck_assert_int_eq(in_epoch.n_epochs, 0);
    ck_assert_int_eq(qnn_trainer_steps(t), 3);
    ck_assert_int_eq(qnn_trainer_restore_best(t), QNN_ERR_STATE);
    o = fit_opts(&d, &after_epoch, 5);
    TU_OK(ctx, qnn_fit(t, &o, &r));
    ck_assert_int_eq(r.stopped, 1);
    ck_assert_int_eq(r.epochs_done, 2);
    TU_OK(ctx, qnn_trainer_restore_best(t));
    free_data(&d);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(fit_says_where_the_loss_broke)
{
    qnn_ctx *const ctx = tu_ctx(1);
    data d = make_data(ctx);
    watch w = {0};
    qnn_fit_opts o = fit_opts(&d, &w, 2);
    qnn_model *const m = make_model(ctx);
    qnn_trainer *const t = make_trainer(ctx, m);
    qnn_param_info p;

    TU_OK(ctx, qnn_model_param(m, qnn_model_find_param(m, "fc2.bias"), &p));
    ((float *)p.data)[1] = NAN;
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_STATE);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "epoch 1, batch 1: the loss is"));
    free_data(&d);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(fit_refuses_loaders_that_do_not_fit)
{
    qnn_ctx *const ctx = tu_ctx(1);
    data d = make_data(ctx);
    watch w = {0};
    qnn_fit_opts o = fit_opts(&d, &w, 0);
    qnn_model *const m = make_model(ctx);
    qnn_model *wide;
    qnn_trainer *t = make_trainer(ctx, m);

    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_ARG); /* no epoch */
    o.epochs = 1;
    o.train = NULL;
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_fit(t, NULL, NULL), QNN_ERR_ARG);
    qnn_trainer_free(t);
    o.train = d.train;
    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = BATCH - 1}));
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_ARG); /* the loader's batches are larger */
    qnn_trainer_free(t);
    TU_OK(ctx, qnn_model_create(&wide, ctx));
    qnn_output(wide, "y", qnn_linear(wide, qnn_flatten(wide, qnn_input(wide, "image", SIDE, SIDE + 1, 3), "flat"), "fc", CLASSES));
    t = make_trainer(ctx, wide);
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_SHAPE);
    qnn_trainer_free(t);
    qnn_model_free(wide);
    TU_OK(ctx, qnn_model_create(&wide, ctx));
    qnn_output(wide, "y", qnn_linear(wide, qnn_flatten(wide, qnn_input(wide, "image", SIDE, SIDE, 3), "flat"), "fc", CLASSES - 1));
    t = make_trainer(ctx, wide);
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_SHAPE); /* more classes than scores */
    qnn_trainer_free(t);
    qnn_model_free(wide);
    free_data(&d);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

/* Header, then epochs 1..n, each once and with the values that the callback saw. */
static void check_csv(const char *path, const qnn_epoch *want, int n)
{
    FILE *const f = fopen(path, "r");
    char line[512];

    ck_assert_ptr_nonnull(f);
    ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
    ck_assert_str_eq(line, "epoch,train_loss,train_accuracy,val_loss,val_accuracy,val_precision,val_recall,val_f1,lr,"
                           "train_seconds,val_seconds,is_best\n");
    for (int i = 0; i < n; i++) {
        double v[10];
        int epoch, is_best;

        ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
        ck_assert_int_eq(sscanf(line, "%d,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%d", &epoch, &v[0], &v[1], &v[2], &v[3], &v[4],
                                &v[5], &v[6], &v[7], &v[8], &v[9], &is_best), 12);
        ck_assert_int_eq(epoch, i + 1);
        ck_assert_double_eq_tol(v[0], want[i].train_loss, 1e-7);
        ck_assert_double_eq_tol(v[1], want[i].train_accuracy, 1e-7);
        ck_assert_double_eq_tol(v[2], want[i].val_loss, 1e-7);
        ck_assert_double_eq_tol(v[3], want[i].val.accuracy, 1e-7);
        ck_assert_double_eq_tol(v[4], want[i].val.precision, 1e-7);
        ck_assert_double_eq_tol(v[5], want[i].val.recall, 1e-7);
        ck_assert_double_eq_tol(v[6], want[i].val.f1, 1e-7);
        ck_assert_double_eq_tol(v[7], (double)want[i].lr, 1e-7);
        ck_assert_int_eq(is_best, want[i].is_best);
    }
    ck_assert_ptr_null(fgets(line, sizeof line, f));
    fclose(f);
}

START_TEST(csv_log)
{
    qnn_ctx *const ctx = tu_ctx(1);
    data d = make_data(ctx);
    watch w = {.stop_at_epoch = 2};
    qnn_fit_opts o = fit_opts(&d, &w, 4);
    qnn_model *const m = make_model(ctx);
    qnn_trainer *t = make_trainer(ctx, m);
    char csv[256], checkpoint[256];

    temporary(csv, sizeof csv, "log.csv");
    temporary(checkpoint, sizeof checkpoint, "log.safetensors");
    o.log_csv = csv;
    o.checkpoint = checkpoint;
    TU_OK(ctx, qnn_fit(t, &o, NULL));
    check_csv(csv, w.epoch, 2);
    qnn_trainer_free(t);
    t = make_trainer(ctx, m);
    w.stop_at_epoch = 0;
    o.resume = 1;
    TU_OK(ctx, qnn_fit(t, &o, NULL));
    check_csv(csv, w.epoch, 4);
    o.log_csv = "/nonexistent-folder/log.csv";
    o.epochs = 5;
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_IO);
    unlink(csv);
    unlink(checkpoint);
    free_data(&d);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

Suite *train_suite(void)
{
    Suite *const s = suite_create("train");
    TCase *const steps = tcase_create("steps"), *const fits = tcase_create("fits");

    tcase_add_test(steps, loss_values);
    tcase_add_test(steps, optimiser_steps);
    tcase_add_test(steps, plateau);
    tcase_add_test(steps, overfits_a_few_items);
    tcase_add_test(steps, threads_and_room_change_no_bit);
    tcase_add_test(steps, evaluation_is_inference);
    tcase_add_test(steps, gradients_change_no_parameter);
    tcase_add_test(steps, non_finite_loss_changes_nothing);
    tcase_add_test(steps, bad_arguments);
    suite_add_tcase(s, steps);
    tcase_set_timeout(steps, 120);
    tcase_add_test(fits, fit_learns_and_restores_best);
    tcase_add_test(fits, fit_without_validation);
    tcase_add_test(fits, resume_is_exact);
    tcase_add_test(fits, resume_of_a_finished_fit);
    tcase_add_test(fits, resume_refuses_what_does_not_fit);
    tcase_add_test(fits, callbacks_stop);
    tcase_add_test(fits, fit_says_where_the_loss_broke);
    tcase_add_test(fits, fit_refuses_loaders_that_do_not_fit);
    tcase_add_test(fits, csv_log);
    tcase_set_timeout(fits, 120);
    suite_add_tcase(s, fits);
    return s;
}
