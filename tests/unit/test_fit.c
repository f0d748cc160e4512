/* Fits over epochs: the best epoch, logs, checkpoints, stopping, and resuming bit for bit. */
#define _POSIX_C_SOURCE 200809L
#include "suites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/common/testutil.h"
#include "train_fixture.h"

static void temporary(char *path, size_t size, const char *name)
{
    const char *const folder = getenv("TMPDIR");

    snprintf(path, size, "%s/qnn-train-%ld-%s", folder != NULL ? folder : "/tmp", (long)getpid(),
             name);
}

typedef struct watch {
    int n_progress, n_epochs;
    int stop_at_batch, stop_at_epoch; /* 0: never */
    double last_eta;
    qnn_model *m;
    float *best; /* parameters when an epoch was the best */
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
        w->best = tt_params(w->m, &w->n_best);
    }
    return e->epoch == w->stop_at_epoch;
}

static qnn_fit_opts fit_opts(const tt_data *d, watch *w, int epochs)
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

    TU_OK(ctx,
          qnn_trainer_create(
              &t, ctx, m,
              &(qnn_trainer_opts){.batch = TT_BATCH, .lr = 5e-3f, .clip_norm = 1.0f, .seed = 11}));
    return t;
}

START_TEST(fit_learns_and_restores_best)
{
    qnn_ctx *const ctx = tu_ctx(2);
    qnn_model *const m = tt_model(ctx);
    qnn_trainer *const t = make_trainer(ctx, m);
    tt_data d = tt_make_data(ctx);
    watch w = {.m = m};
    qnn_fit_opts o = fit_opts(&d, &w, 8);
    qnn_fit_result r;
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
        ck_assert_int_eq(w.epoch[i].val.n, TT_N_VAL);
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
    tt_assert_same(w.best, w.n_best, tt_params(m, &n));
    free(w.best);
    tt_free_data(&d);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(fit_without_validation)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *const m = tt_model(ctx);
    qnn_trainer *const t = make_trainer(ctx, m);
    tt_data d = tt_make_data(ctx);
    qnn_fit_opts o = QNN_FIT_OPTS_INIT;
    qnn_fit_result r;

    o.epochs = 3;
    o.train = d.train;
    TU_OK(ctx, qnn_fit(t, &o, &r));
    ck_assert_int_eq(r.best.epoch, 3); /* the last is the best */
    ck_assert_int_eq(r.last.val.n, 0);
    ck_assert_float_eq(qnn_trainer_lr(t), 5e-3f); /* no schedule without a metric */
    TU_OK(ctx, qnn_fit(t, &o, NULL));
    tt_free_data(&d);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

/* Trains to the end in one go, or stopped (after an epoch, or inside one) and resumed by other
 * objects. */
static float *fit_in_parts(int stop_epoch, int stop_batch, int threads, const char *path,
                           float *next_loss, size_t *n)
{
    qnn_ctx *const ctx = tu_ctx(threads);
    tt_data d = tt_make_data(ctx);
    watch w = {.stop_at_epoch = stop_epoch, .stop_at_batch = stop_batch};
    qnn_fit_opts o = fit_opts(&d, &w, 5);
    qnn_fit_result r;
    qnn_model *m = tt_model(ctx);
    qnn_trainer *t = make_trainer(ctx, m);
    float x[TT_BATCH * TT_PIXELS], *params;
    const int32_t labels[TT_BATCH] = {0, 1, 2};

    o.checkpoint = path;
    o.resume = 1; /* there is no checkpoint yet: begins anew */
    TU_OK(ctx, qnn_fit(t, &o, &r));
    if (stop_epoch + stop_batch > 0) {
        qnn_param_info p;

        ck_assert_int_eq(r.stopped, 1);
        qnn_trainer_free(t);
        qnn_model_free(m);
        m = tt_model(ctx);
        for (int i = 0; access(path, R_OK) == 0 && i < qnn_model_n_params(m);
             i++) { /* what it holds must not matter */
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
    tu_fill_uniform(x, TT_BATCH * TT_PIXELS, -1, 1, 2);
    TU_OK(ctx, qnn_trainer_step(t, x, labels, TT_BATCH, next_loss));
    params = tt_params(m, n);
    tt_free_data(&d);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
    unlink(path);
    return params;
}

START_TEST(resume_is_exact)
{
    /* after epoch 2; in the second batch of epoch 4; while validating it; before there is a
     * checkpoint */
    static const struct {
        int stop_epoch, stop_batch, threads;
    } cases[] = {{2, 0, 2}, {0, 3 * 6 + 2, 2}, {0, 3 * 6 + 5, 1}, {0, 2, 5}};
    char path[256];
    float loss, other, *whole;
    size_t n;

    temporary(path, sizeof path, "resume.safetensors");
    whole = fit_in_parts(0, 0, 2, path, &loss, &n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tt_assert_same(whole, n,
                       fit_in_parts(cases[i].stop_epoch, cases[i].stop_batch, cases[i].threads,
                                    path, &other, &n));
        ck_assert_float_eq(loss, other);
    }
    free(whole);
}
END_TEST

START_TEST(resume_of_a_finished_fit)
{
    qnn_ctx *const ctx = tu_ctx(1);
    tt_data d = tt_make_data(ctx);
    watch w = {0};
    qnn_fit_opts o = fit_opts(&d, &w, 3);
    qnn_fit_result first, second;
    qnn_model *a = tt_model(ctx), *b = tt_model(ctx);
    qnn_trainer *t = make_trainer(ctx, a);
    char path[256];
    float *params;
    size_t n;

    temporary(path, sizeof path, "finished.safetensors");
    o.checkpoint = path;
    TU_OK(ctx, qnn_fit(t, &o, &first));
    qnn_trainer_free(t);
    t = make_trainer(ctx, b);
    o.resume = 1;
    TU_OK(ctx, qnn_fit(t, &o, &second));
    ck_assert_int_eq(w.n_epochs, 3);
    params = tt_params(a, &n);
    tt_assert_same(params, n, tt_params(b, &n));
    free(params);
    ck_assert_int_eq(second.epochs_done, 3);
    ck_assert_int_eq(second.best.epoch, first.best.epoch);
    ck_assert_double_eq(second.seconds, first.seconds);
    ck_assert_double_eq(second.last.val.f1, first.last.val.f1);
    ck_assert_float_eq(second.last.lr, first.last.lr);
    TU_OK(ctx, qnn_trainer_restore_best(t));
    unlink(path);
    tt_free_data(&d);
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
    tt_data d = tt_make_data(ctx);
    watch w = {.stop_at_epoch = 1};
    qnn_fit_opts o = fit_opts(&d, &w, 3);
    qnn_model *const m = tt_model(ctx), *other;
    qnn_trainer *t = make_trainer(ctx, m);
    qnn_node x;
    char path[256];
    size_t n;
    float *before;

    temporary(path, sizeof path, "refused.safetensors");
    o.resume = 1;
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_ARG); /* no path */
    o.checkpoint = path;
    TU_OK(ctx, qnn_fit(t, &o, NULL));
    qnn_trainer_free(t);

    /* another model */
    TU_OK(ctx, qnn_model_create(&other, ctx));
    x = qnn_flatten(other, qnn_input(other, "image", TT_SIDE, TT_SIDE, 3), "flat");
    qnn_output(other, "y", qnn_linear(other, x, "fc", TT_CLASSES));
    t = make_trainer(ctx, other);
    before = tt_params(other, &n);
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_FORMAT);
    tt_assert_same(before, n, tt_params(other, &n));
    free(before);
    qnn_trainer_free(t);
    qnn_model_free(other);

    /* another seed, another optimiser */
    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = TT_BATCH, .seed = 12}));
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "seed 11"));
    qnn_trainer_free(t);
    TU_OK(ctx,
          qnn_trainer_create(
              &t, ctx, m,
              &(qnn_trainer_opts){.batch = TT_BATCH, .seed = 11, .optimizer = QNN_OPTIMIZER_SGD}));
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
    tt_free_data(&d);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(callbacks_stop)
{
    qnn_ctx *const ctx = tu_ctx(2);
    tt_data d = tt_make_data(ctx);
    qnn_fit_result r;
    qnn_model *const m = tt_model(ctx);
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
    tt_free_data(&d);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(fit_says_where_the_loss_broke)
{
    qnn_ctx *const ctx = tu_ctx(1);
    tt_data d = tt_make_data(ctx);
    watch w = {0};
    qnn_fit_opts o = fit_opts(&d, &w, 2);
    qnn_model *const m = tt_model(ctx);
    qnn_trainer *const t = make_trainer(ctx, m);
    qnn_param_info p;

    TU_OK(ctx, qnn_model_param(m, qnn_model_find_param(m, "fc2.bias"), &p));
    ((float *)p.data)[1] = NAN;
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_STATE);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "epoch 1, batch 1: the loss is"));
    tt_free_data(&d);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(fit_refuses_loaders_that_do_not_fit)
{
    qnn_ctx *const ctx = tu_ctx(1);
    tt_data d = tt_make_data(ctx);
    watch w = {0};
    qnn_fit_opts o = fit_opts(&d, &w, 0);
    qnn_model *const m = tt_model(ctx);
    qnn_model *wide;
    qnn_trainer *t = make_trainer(ctx, m);

    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_ARG); /* no epoch */
    o.epochs = 1;
    o.train = NULL;
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_fit(t, NULL, NULL), QNN_ERR_ARG);
    qnn_trainer_free(t);
    o.train = d.train;
    TU_OK(ctx, qnn_trainer_create(&t, ctx, m, &(qnn_trainer_opts){.batch = TT_BATCH - 1}));
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_ARG); /* the loader's batches are larger */
    qnn_trainer_free(t);
    TU_OK(ctx, qnn_model_create(&wide, ctx));
    qnn_output(
        wide, "y",
        qnn_linear(wide,
                   qnn_flatten(wide, qnn_input(wide, "image", TT_SIDE, TT_SIDE + 1, 3), "flat"),
                   "fc", TT_CLASSES));
    t = make_trainer(ctx, wide);
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_SHAPE);
    qnn_trainer_free(t);
    qnn_model_free(wide);
    TU_OK(ctx, qnn_model_create(&wide, ctx));
    qnn_output(wide, "y",
               qnn_linear(wide,
                          qnn_flatten(wide, qnn_input(wide, "image", TT_SIDE, TT_SIDE, 3), "flat"),
                          "fc", TT_CLASSES - 1));
    t = make_trainer(ctx, wide);
    ck_assert_int_eq(qnn_fit(t, &o, NULL), QNN_ERR_SHAPE); /* more classes than scores */
    qnn_trainer_free(t);
    qnn_model_free(wide);
    tt_free_data(&d);
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
    ck_assert_str_eq(
        line,
        "epoch,train_loss,train_accuracy,val_loss,val_accuracy,val_precision,val_recall,val_f1,lr,"
        "train_seconds,val_seconds,is_best\n");
    for (int i = 0; i < n; i++) {
        double v[10];
        int epoch, is_best;

        ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
        ck_assert_int_eq(sscanf(line, "%d,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%d", &epoch,
                                &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7], &v[8],
                                &v[9], &is_best),
                         12);
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
    tt_data d = tt_make_data(ctx);
    watch w = {.stop_at_epoch = 2};
    qnn_fit_opts o = fit_opts(&d, &w, 4);
    qnn_model *const m = tt_model(ctx);
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
    tt_free_data(&d);
    qnn_trainer_free(t);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

Suite *fit_suite(void)
{
    Suite *const s = suite_create("fit");
    TCase *const tc = tcase_create("fits");

    tcase_add_test(tc, fit_learns_and_restores_best);
    tcase_add_test(tc, fit_without_validation);
    tcase_add_test(tc, resume_is_exact);
    tcase_add_test(tc, resume_of_a_finished_fit);
    tcase_add_test(tc, resume_refuses_what_does_not_fit);
    tcase_add_test(tc, callbacks_stop);
    tcase_add_test(tc, fit_says_where_the_loss_broke);
    tcase_add_test(tc, fit_refuses_loaders_that_do_not_fit);
    tcase_add_test(tc, csv_log);
    tcase_set_timeout(tc, 120);
    suite_add_tcase(s, tc);
    return s;
}
