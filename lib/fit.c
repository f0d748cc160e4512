/* The loop over epochs: training, validation, schedule, log, checkpoint, best epoch, progress. */
#define _POSIX_C_SOURCE 200809L
#include "lib/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "lib/io/file_io.h"
#include "lib/loss.h"

#define CSV_LINE 512
/* Validation has no backward pass: until it has been timed it counts as a third of training. */
#define VAL_COST (1.0 / 3.0)

/* What one pass over a loader came to. */
typedef struct stage {
    int64_t n, n_right;
    double loss; /* summed over images */
    double seconds;
} stage;

typedef struct fit {
    qnn_trainer *t;
    const qnn_fit_opts *o;
    int epoch;
    int stopped;
    qnn_confusion *confusion;
    float *logits;  /* [batch][classes] */
    stage total[2]; /* by qnn_fit_stage: all epochs of this call, for the time that is left */
} fit;

static double now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static qnn_status check_loader(const qnn_trainer *t, qnn_loader *ld, const char *what)
{
    const qnn_dataset *const ds = qnn_loader_dataset(ld);
    const qnn_shape *const in = &t->m->node[qnn_model_input(t->m, 0)]->shape;
    const qnn_shape image = {3, {qnn_dataset_height(ds), qnn_dataset_width(ds), 3}};
    char text[96];

    QNN_RETURN_IF(t->ctx, qnn_loader_batch(ld) > t->opts.batch, QNN_ERR_ARG,
                  "the %s loader's batch is %d, the trainer's %d", what, qnn_loader_batch(ld),
                  t->opts.batch);
    QNN_RETURN_IF(t->ctx, qnn_dataset_classes(ds) > t->n_classes, QNN_ERR_SHAPE,
                  "the %s data set has %d classes, the model scores %d", what,
                  qnn_dataset_classes(ds), t->n_classes);
    QNN_RETURN_IF(t->ctx,
                  !qnn_shape__equal(in, &image) &&
                      !(in->rank == 1 && qnn_shape__count(in) == qnn_shape__count(&image)),
                  QNN_ERR_SHAPE, "the %s images are %dx%dx3, the model takes %s", what,
                  qnn_dataset_height(ds), qnn_dataset_width(ds),
                  qnn_shape__text(in, text, sizeof text));
    QNN_RETURN_IF(t->ctx, qnn_loader_items(ld) < 1, QNN_ERR_ARG, "the %s loader gives no batch",
                  what);
    return QNN_OK;
}

static qnn_status check_opts(const qnn_trainer *t, const qnn_fit_opts *o)
{
    QNN_RETURN_IF(t->ctx, o->epochs < 1, QNN_ERR_ARG, "%d epochs", o->epochs);
    QNN_RETURN_IF(t->ctx, o->train == NULL, QNN_ERR_ARG, "there is no training loader");
    QNN_RETURN_IF(t->ctx, o->resume && o->checkpoint == NULL, QNN_ERR_ARG,
                  "resuming needs a checkpoint's path");
    QNN_TRY(check_loader(t, o->train, "training"));
    return o->val == NULL ? QNN_OK : check_loader(t, o->val, "validation");
}

/* ---- progress -------------------------------------------------------------------------------- */

static double per_image(const fit *f, qnn_fit_stage s)
{
    return f->total[s].n > 0 ? f->total[s].seconds / (double)f->total[s].n : -1.0;
}

static double eta(const fit *f, qnn_fit_stage s, int64_t done)
{
    const double train = per_image(f, QNN_FIT_TRAIN);
    const double timed = per_image(f, QNN_FIT_VALIDATE);
    const double val = timed < 0.0 ? train * VAL_COST : timed;
    const double n_train = (double)qnn_loader_items(f->o->train);
    const double n_val = f->o->val != NULL ? (double)qnn_loader_items(f->o->val) : 0.0;
    const double epochs = (double)(f->o->epochs - f->epoch);
    const double here = s == QNN_FIT_TRAIN ? (n_train - (double)done) * train + n_val * val
                                           : (n_val - (double)done) * val;

    return train < 0.0 ? -1.0 : here + epochs * (n_train * train + n_val * val);
}

static void report(fit *f, qnn_fit_stage s, qnn_loader *ld, const stage *r)
{
    const qnn_fit_progress p = {
        .stage = s,
        .epoch = f->epoch,
        .epochs = f->o->epochs,
        .done = r->n,
        .total = qnn_loader_items(ld),
        .images_per_second = r->seconds > 0.0 ? (double)r->n / r->seconds : 0.0,
        .eta_seconds = eta(f, s, r->n),
        .loss = r->loss / (double)r->n,
    };

    if (f->o->on_progress != NULL && f->o->on_progress(f->o->user, &p) != 0)
        f->stopped = 1;
}

/* ---- one epoch ------------------------------------------------------------------------------- */

static qnn_status train_batch(fit *f, const float *x, const int32_t *y, int n, int64_t number,
                              stage *r)
{
    double loss = 0.0;
    int n_right = 0;
    const qnn_status status = qnn_trainer__step(f->t, x, y, n, &loss, &n_right);

    if (status == QNN_ERR_STATE) {
        char text[QNN_ERROR_MAX];

        memcpy(text, f->t->ctx->error, sizeof text);
        return qnn_ctx__fail(f->t->ctx, status, "epoch %d, batch %lld: %.400s", f->epoch,
                             (long long)number, text);
    }
    r->loss += loss * n;
    r->n_right += n_right;
    return status;
}

static qnn_status val_batch(fit *f, const float *x, const int32_t *y, int n, stage *r)
{
    QNN_TRY(qnn_trainer_evaluate(f->t, x, n, f->logits));
    QNN_TRY(qnn_confusion_add_logits(f->confusion, f->logits, y, n));
    r->loss += n * qnn_loss__cross_entropy(f->logits, y, (size_t)n, (size_t)f->t->n_classes, NULL);
    return QNN_OK;
}

static qnn_status run_stage(fit *f, qnn_fit_stage s, qnn_loader *ld, stage *r)
{
    const double start = now(), before = f->total[s].seconds;

    QNN_TRY(qnn_loader_begin(ld, f->epoch - 1));
    for (int64_t number = 1; !f->stopped; number++) {
        const float *x;
        const int32_t *y;
        int n;

        QNN_TRY(qnn_loader_next(ld, &x, &y, &n));
        if (n == 0)
            break;
        if (s == QNN_FIT_TRAIN)
            QNN_TRY(train_batch(f, x, y, n, number, r));
        else
            QNN_TRY(val_batch(f, x, y, n, r));
        r->n += n;
        r->seconds = now() - start;
        f->total[s].n += n;
        f->total[s].seconds = before + r->seconds;
        report(f, s, ld, r);
    }
    r->seconds = now() - start;
    return QNN_OK;
}

static void keep_best(qnn_trainer *t)
{
    for (int i = 0; i < t->n_trained; i++)
        memcpy(t->best + t->trained[i].snapshot, t->trained[i].p->data, t->trained[i].p->bytes);
    t->best_epoch = (int)t->n_history;
}

/* Training, validation, and what follows from them. Nothing is kept of a stopped epoch. */
static qnn_status run_epoch(fit *f)
{
    qnn_trainer *const t = f->t;
    stage train = {0}, val = {0};
    qnn_epoch *const e = &t->history[t->n_history];

    QNN_TRY(run_stage(f, QNN_FIT_TRAIN, f->o->train, &train));
    qnn_confusion_reset(f->confusion);
    if (f->o->val != NULL && !f->stopped)
        QNN_TRY(run_stage(f, QNN_FIT_VALIDATE, f->o->val, &val));
    if (f->stopped)
        return QNN_OK;
    *e = (qnn_epoch){
        .epoch = f->epoch,
        .train_loss = train.loss / (double)train.n,
        .train_accuracy = (double)train.n_right / (double)train.n,
        .val_loss = val.n > 0 ? val.loss / (double)val.n : 0.0,
        .val = qnn_confusion_metrics(f->confusion),
        .lr = t->lr,
        .train_seconds = train.seconds,
        .val_seconds = val.seconds,
    };
    e->is_best = f->o->val == NULL || t->best_epoch == 0 ||
                 e->val.accuracy > t->history[t->best_epoch - 1].val.accuracy;
    t->n_history++;
    if (e->is_best)
        keep_best(t);
    if (f->o->val != NULL)
        t->lr = qnn_plateau_step(&t->plateau, 100.0 * (1.0 - e->val.accuracy), t->lr);
    return QNN_OK;
}

/* ---- the log --------------------------------------------------------------------------------- */

static const char csv_header[] =
    "epoch,train_loss,train_accuracy,val_loss,val_accuracy,val_precision,"
    "val_recall,val_f1,lr,train_seconds,val_seconds,is_best\n";

/* Rewritten whole from the log that the checkpoint keeps too: resuming loses or doubles no line. */
static qnn_status write_csv(const qnn_trainer *t, const char *path)
{
    qnn_file_part parts[2] = {{csv_header, sizeof csv_header - 1}, {NULL, 0}};
    void *text;
    size_t used = 0;
    qnn_status status;

    QNN_TRY(qnn_ctx__alloc(t->ctx, &text, t->n_history * CSV_LINE, "the log of epochs"));
    for (size_t i = 0; i < t->n_history; i++) {
        const qnn_epoch *const e = &t->history[i];

        used += (size_t)snprintf((char *)text + used, CSV_LINE,
                                 "%d,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.6g,%.6g,%d\n",
                                 e->epoch, e->train_loss, e->train_accuracy, e->val_loss,
                                 e->val.accuracy, e->val.precision, e->val.recall, e->val.f1,
                                 (double)e->lr, e->train_seconds, e->val_seconds, e->is_best);
    }
    parts[1] = (qnn_file_part){text, used};
    status = qnn_file__write(t->ctx, path, parts, 2);
    qnn_ctx__release(t->ctx, text);
    return status;
}

/* ---- the fit --------------------------------------------------------------------------------- */

static qnn_status begin(fit *f)
{
    qnn_trainer *const t = f->t;
    void *block;

    t->n_history = 0;
    t->best_epoch = 0;
    qnn_plateau_init(&t->plateau, &f->o->plateau);
    QNN_TRY(qnn_trainer__need_best(t));
    QNN_TRY(qnn_confusion_create(&f->confusion, t->ctx, t->n_classes));
    QNN_TRY(qnn_ctx__alloc(t->ctx, &block,
                           (size_t)t->opts.batch * (size_t)t->n_classes * sizeof *f->logits,
                           "scores"));
    f->logits = block;
    if (f->o->resume && qnn_file__exists(f->o->checkpoint))
        return qnn_checkpoint__read(t, f->o->checkpoint);
    return QNN_OK;
}

static qnn_status end_epoch(fit *f)
{
    const qnn_trainer *const t = f->t;

    if (f->o->checkpoint != NULL)
        QNN_TRY(qnn_checkpoint__write(t, f->o->checkpoint));
    if (f->o->log_csv != NULL)
        QNN_TRY(write_csv(t, f->o->log_csv));
    if (f->o->on_epoch != NULL && f->o->on_epoch(f->o->user, &t->history[t->n_history - 1]) != 0)
        f->stopped = 1;
    return QNN_OK;
}

static qnn_status run(fit *f)
{
    qnn_trainer *const t = f->t;

    QNN_TRY(begin(f));
    while (t->n_history < (size_t)f->o->epochs && !f->stopped) {
        f->epoch = (int)t->n_history + 1;
        QNN_TRY(qnn_trainer__need_history(t, t->n_history + 1));
        QNN_TRY(run_epoch(f));
        if (!f->stopped)
            QNN_TRY(end_epoch(f));
    }
    return QNN_OK;
}

static qnn_fit_result result_of(const fit *f)
{
    const qnn_trainer *const t = f->t;
    qnn_fit_result r = {.epochs_done = (int)t->n_history, .stopped = f->stopped};

    for (size_t i = 0; i < t->n_history; i++)
        r.seconds += t->history[i].train_seconds + t->history[i].val_seconds;
    if (t->n_history > 0) {
        r.best = t->history[t->best_epoch - 1];
        r.last = t->history[t->n_history - 1];
    }
    return r;
}

qnn_status qnn_fit(qnn_trainer *t, const qnn_fit_opts *opts, qnn_fit_result *result)
{
    fit f = {.t = t, .o = opts};
    qnn_status status;

    if (t == NULL || opts == NULL)
        return QNN_ERR_ARG;
    if (result != NULL)
        memset(result, 0, sizeof *result);
    QNN_TRY(check_opts(t, opts));
    status = run(&f);
    if (result != NULL)
        *result = result_of(&f);
    qnn_confusion_free(f.confusion);
    qnn_ctx__release(t->ctx, f.logits);
    return status;
}
