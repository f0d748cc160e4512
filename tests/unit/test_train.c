/* Training step by step: loss, optimisers, schedule, batches. */
#include "suites.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/loss.h"
#include "tests/common/testutil.h"
#include "train_fixture.h"

/* ---- loss ------------------------------------------------------------------------------------ */

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

/* ---- optimisers: the textbook in double, on a linear model with one input
 * ------------------------------------------------- */

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
            b->w[i] -=
                (double)o->lr * (o->nesterov ? g[i] + (double)o->momentum * b->m[i] : b->m[i]);
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
        {.batch = 1,
         .optimizer = QNN_OPTIMIZER_SGD,
         .lr = 0.5f,
         .momentum = 0.9f,
         .weight_decay = 0.25f},
        {.batch = 1,
         .optimizer = QNN_OPTIMIZER_SGD,
         .lr = 0.5f,
         .momentum = 0.5f,
         .nesterov = 1,
         .clip_norm = 0.1f},
    };
    const float x = 1.5f;

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        qnn_ctx *const ctx = tu_ctx(1);
        book b = {.w = {0.25, -0.5}};
        qnn_model *m;
        qnn_trainer *t;
        qnn_param_info p;

        TU_OK(ctx, qnn_model_create(&m, ctx));
        qnn_output(m, "y",
                   qnn_linear_ex(m, qnn_input_features(m, "x", 1), "fc",
                                 &(qnn_linear_opts){.units = 2, .no_bias = 1}));
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
                ck_assert_msg(fabs((double)((float *)p.data)[i] - b.w[i]) < 2e-6,
                              "case %zu, step %d, w[%d]: %.9g, by hand %.9g", k, step, i,
                              (double)((float *)p.data)[i], b.w[i]);
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
    static const double metric[] = {10, 9, 9.5, 9.3, 8.95, 8.85, 8.85, 8.8, 9, 8, 8,
                                    8,  8, 7.5, 8,   8,    8,    8,    8,   8, 8, 8};
    static const float rate[] = {0.8f,  0.8f,  0.8f,  0.4f,  0.4f,  0.4f, 0.2f, 0.2f,
                                 0.2f,  0.2f,  0.2f,  0.1f,  0.1f,  0.1f, 0.1f, 0.05f,
                                 0.05f, 0.05f, 0.05f, 0.05f, 0.05f, 0.05f};
    const qnn_plateau_opts opts = {.factor = 0.5f,
                                   .patience = 1,
                                   .threshold = 0.02f,
                                   .cooldown = 1,
                                   .min_lr = 0.05f,
                                   .eps = 1e-8f};
    qnn_plateau_opts off = QNN_PLATEAU_OPTS_INIT, coarse = opts;
    qnn_plateau p;
    float lr = 0.8f;

    qnn_plateau_init(&p, &opts);
    for (size_t i = 0; i < sizeof metric / sizeof *metric; i++) {
        lr = qnn_plateau_step(&p, metric[i], lr);
        ck_assert_msg(fabsf(lr - rate[i]) < 1e-7f, "epoch %zu: rate %g, PyTorch's %g", i,
                      (double)lr, (double)rate[i]);
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

/* ---- steps ----------------------------------------------------------------------------------- */

START_TEST(overfits_a_few_items)
{
    qnn_ctx *const ctx = tu_ctx(2);
    qnn_model *const m = tt_model(ctx);
    float x[6 * TT_PIXELS], logits[6 * TT_CLASSES], first, loss = 0;
    const int32_t labels[6] = {0, 1, 2, 0, 1, 2};
    qnn_trainer *t;

    tu_fill_uniform(x, 6 * TT_PIXELS, -1, 1, 3);
    TU_OK(ctx, qnn_trainer_create(&t, ctx, m,
                                  &(qnn_trainer_opts){.batch = 6, .lr = 1e-2f, .clip_norm = 1.0f}));
    TU_OK(ctx, qnn_trainer_step(t, x, labels, 6, &first));
    for (int i = 0; i < 150; i++)
        TU_OK(ctx, qnn_trainer_step(t, x, labels, 6, &loss));
    ck_assert_msg(first > 0.5f && loss < 0.02f, "loss from %g to %g", (double)first, (double)loss);
    TU_OK(ctx, qnn_trainer_evaluate(t, x, 6, logits));
    ck_assert_double_lt(qnn_loss__cross_entropy(logits, labels, 6, TT_CLASSES, NULL), 0.05);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

/* Five steps on whole and partial batches. */
static void train_a_little(qnn_ctx *ctx, qnn_model *m, int batch)
{
    float x[TT_BATCH * TT_PIXELS];
    int32_t labels[TT_BATCH];
    qnn_trainer *t;

    TU_OK(ctx, qnn_trainer_create(
                   &t, ctx, m, &(qnn_trainer_opts){.batch = batch, .clip_norm = 0.5f, .seed = 9}));
    for (int i = 0; i < 5; i++) {
        tu_fill_uniform(x, TT_BATCH * TT_PIXELS, -2, 2, (uint64_t)i);
        for (int k = 0; k < TT_BATCH; k++)
            labels[k] = (i + k) % TT_CLASSES;
        TU_OK(ctx, qnn_trainer_step(t, x, labels, i == 3 ? 5 : TT_BATCH, NULL));
    }
    qnn_trainer_free(t);
}

static float *trained_params(int threads, int batch, size_t *n)
{
    qnn_ctx *const ctx = tu_ctx(threads);
    qnn_model *const m = tt_model(ctx);
    float *params;

    train_a_little(ctx, m, batch);
    params = tt_params(m, n);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
    return params;
}

START_TEST(threads_and_room_change_no_bit)
{
    size_t n;
    float *const one = trained_params(1, TT_BATCH, &n);

    tt_assert_same(one, n, trained_params(2, TT_BATCH, &n));
    tt_assert_same(one, n, trained_params(5, TT_BATCH, &n));
    tt_assert_same(one, n, trained_params(2, 3 * TT_BATCH, &n));
    free(one);
}
END_TEST

START_TEST(evaluation_is_inference)
{
    qnn_ctx *const ctx = tu_ctx(2);
    qnn_model *const m = tt_model(ctx);
    float x[TT_BATCH * TT_PIXELS], a[TT_BATCH * TT_CLASSES], b[TT_BATCH * TT_CLASSES];
    size_t n;
    float *before;
    qnn_trainer *t;
    qnn_program *p;

    train_a_little(ctx, m, TT_BATCH);
    before = tt_params(m, &n);
    tu_fill_uniform(x, TT_BATCH * TT_PIXELS, -2, 2, 77);
    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = TT_BATCH}));
    TU_OK(ctx, qnn_program_compile(&p, ctx, m, &(qnn_program_opts){.max_batch = TT_BATCH}));
    TU_OK(ctx, qnn_trainer_evaluate(t, x, TT_BATCH - 1, a));
    TU_OK(ctx, qnn_run(p, ctx, x, TT_BATCH - 1, b));
    for (int i = 0; i < (TT_BATCH - 1) * TT_CLASSES; i++)
        ck_assert_float_eq_tol(a[i], b[i], 1e-4f);
    tt_assert_same(before, n, tt_params(m, &n));
    free(before);
    qnn_trainer_free(t);
    qnn_program_free(p);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(gradients_change_no_parameter)
{
    qnn_ctx *const ctx = tu_ctx(2);
    qnn_model *const m = tt_model(ctx);
    float x[TT_BATCH * TT_PIXELS], loss, again;
    const int32_t labels[TT_BATCH] = {0, 1, 2, 0, 1, 2, 0, 1};
    const int weight = qnn_model_find_param(m, "fc1.weight"),
              mean = qnn_model_find_param(m, "bn.running_mean");
    qnn_param_info p;
    qnn_trainer *t;
    float *before;
    double squares = 0;

    TU_OK(ctx, qnn_model_param(m, weight, &p));
    before = tu_alloc(p.bytes);
    memcpy(before, p.data, p.bytes);
    tu_fill_uniform(x, TT_BATCH * TT_PIXELS, -2, 2, 1);
    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = TT_BATCH, .seed = 4}));
    TU_OK(ctx, qnn_trainer_gradients(t, x, labels, TT_BATCH, &loss));
    TU_OK(ctx, qnn_trainer_gradients(t, x, labels, TT_BATCH, &again));
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
    qnn_model *const m = tt_model(ctx);
    float x[TT_BATCH * TT_PIXELS], loss;
    const int32_t labels[TT_BATCH] = {0};
    size_t n;
    float *before;
    qnn_trainer *t;

    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = TT_BATCH}));
    tu_fill_uniform(x, TT_BATCH * TT_PIXELS, -2, 2, 1);
    TU_OK(ctx, qnn_trainer_step(t, x, labels, TT_BATCH, &loss));
    before = tt_params(m, &n);
    x[17] = NAN;
    ck_assert_int_eq(qnn_trainer_step(t, x, labels, TT_BATCH, &loss), QNN_ERR_STATE);
    ck_assert(!isfinite(loss));
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "the loss is"));
    tt_assert_same(before, n, tt_params(m, &n)); /* running statistics too */
    ck_assert_int_eq(qnn_trainer_steps(t), 1);
    free(before);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(bad_arguments)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *const m = tt_model(ctx);
    static const qnn_trainer_opts bad[] = {
        {.batch = -1},
        {.lr = -1},
        {.lr = NAN},
        {.beta1 = 1},
        {.beta2 = -0.5f},
        {.eps = -1},
        {.momentum = -1},
        {.nesterov = 1},
        {.weight_decay = NAN},
        {.clip_norm = -1},
        {.optimizer = (qnn_optimizer)7},
    };
    float x[TT_BATCH * TT_PIXELS] = {0}, logits[TT_BATCH * TT_CLASSES];
    const int32_t labels[TT_BATCH] = {0, 1, 2, 3};
    qnn_trainer *t;
    qnn_model *two;
    qnn_node in;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_eq(qnn_trainer_create(&t, ctx, m, &bad[i]), QNN_ERR_ARG);
        ck_assert_ptr_null(t);
    }
    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = TT_BATCH}));
    ck_assert_int_eq(qnn_trainer_step(t, x, labels, 0, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_trainer_step(t, x, labels, TT_BATCH + 1, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_trainer_step(t, NULL, labels, 1, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_trainer_step(t, x, NULL, 1, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_trainer_evaluate(t, x, TT_BATCH + 1, logits), QNN_ERR_ARG);
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
    ck_assert_int_eq(qnn_trainer_create(&t, ctx, two, NULL),
                     QNN_ERR_SHAPE); /* a score for each pixel */
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

Suite *train_suite(void)
{
    Suite *const s = suite_create("train");
    TCase *const tc = tcase_create("steps");

    tcase_add_test(tc, loss_values);
    tcase_add_test(tc, optimiser_steps);
    tcase_add_test(tc, plateau);
    tcase_add_test(tc, overfits_a_few_items);
    tcase_add_test(tc, threads_and_room_change_no_bit);
    tcase_add_test(tc, evaluation_is_inference);
    tcase_add_test(tc, gradients_change_no_parameter);
    tcase_add_test(tc, non_finite_loss_changes_nothing);
    tcase_add_test(tc, bad_arguments);
    tcase_set_timeout(tc, 120);
    suite_add_tcase(s, tc);
    return s;
}
