/*
 * Checkpoints: a safetensors file with everything that exact resuming needs. docs/file-format.md
 * lists the tensors. Floating-point values are kept as bits, never as text.
 */
#include "lib/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/io/safetensors.h"
#include "lib/optim.h"

#define VERSION_KEY "qnn.checkpoint"
#define VERSION     "1"
#define MAX_EPOCHS  (1 << 24)

/* Places in tensor "counters". */
enum { EPOCH, STEP, OPTIMIZER, SEED, BEST_EPOCH, N_BAD, N_COOLDOWN, STARTED, N_COUNTERS };
/* Places in tensor "values". */
enum { RATE, PLATEAU_BEST, N_VALUES };
/* Columns of tensor "history". */
enum {
    H_TRAIN_LOSS,
    H_TRAIN_ACCURACY,
    H_VAL_LOSS,
    H_N,
    H_ACCURACY,
    H_LO,
    H_HI,
    H_PRECISION,
    H_RECALL,
    H_F1,
    H_RATE,
    H_TRAIN_SECONDS,
    H_VAL_SECONDS,
    H_IS_BEST,
    N_COLUMNS
};

static void epoch_to_row(const qnn_epoch *e, double *row)
{
    row[H_TRAIN_LOSS] = e->train_loss;
    row[H_TRAIN_ACCURACY] = e->train_accuracy;
    row[H_VAL_LOSS] = e->val_loss;
    row[H_N] = (double)e->val.n;
    row[H_ACCURACY] = e->val.accuracy;
    row[H_LO] = e->val.accuracy_lo;
    row[H_HI] = e->val.accuracy_hi;
    row[H_PRECISION] = e->val.precision;
    row[H_RECALL] = e->val.recall;
    row[H_F1] = e->val.f1;
    row[H_RATE] = (double)e->lr;
    row[H_TRAIN_SECONDS] = e->train_seconds;
    row[H_VAL_SECONDS] = e->val_seconds;
    row[H_IS_BEST] = (double)e->is_best;
}

static qnn_epoch row_to_epoch(const double *row, int number)
{
    return (qnn_epoch){
        .epoch = number,
        .train_loss = row[H_TRAIN_LOSS],
        .train_accuracy = row[H_TRAIN_ACCURACY],
        .val_loss = row[H_VAL_LOSS],
        .val = {(int64_t)row[H_N], row[H_ACCURACY], row[H_LO], row[H_HI], row[H_PRECISION],
                row[H_RECALL], row[H_F1]},
        .lr = (float)row[H_RATE],
        .train_seconds = row[H_TRAIN_SECONDS],
        .val_seconds = row[H_VAL_SECONDS],
        .is_best = row[H_IS_BEST] != 0.0,
    };
}

/* "model/conv1.weight": node names may hold anything, so what a tensor is stands in front. */
static void tensor_name(char *name, size_t size, const char *kind, const qnn_param *p)
{
    snprintf(name, size, "%s/%s", kind, p->full_name);
}

/* ---- writing --------------------------------------------------------------------------------- */

static qnn_status add_params(qnn_st *st, const qnn_trainer *t)
{
    char name[2 * QNN_NAME_MAX + 16];

    for (int i = 0; i < t->n_trained; i++) {
        const qnn_param *const p = t->trained[i].p;

        tensor_name(name, sizeof name, "model", p);
        QNN_TRY(qnn_st__add(st, name, QNN_ST_F32, p->rank, p->dim, p->data));
        tensor_name(name, sizeof name, "best", p);
        QNN_TRY(
            qnn_st__add(st, name, QNN_ST_F32, p->rank, p->dim, t->best + t->trained[i].snapshot));
    }
    return QNN_OK;
}

static qnn_status add_all(qnn_st *st, const qnn_trainer *t, const int64_t *counters,
                          const double *values, double *history)
{
    const int64_t n_counters = N_COUNTERS, n_values = N_VALUES, n_bucket = (int64_t)t->n_bucket;
    const int64_t history_dim[2] = {(int64_t)t->n_history, N_COLUMNS};
    static const char *const state_name[2] = {"optimizer/m", "optimizer/v"};

    for (size_t i = 0; i < t->n_history; i++)
        epoch_to_row(&t->history[i], history + i * N_COLUMNS);
    QNN_TRY(qnn_st__add_meta(st, VERSION_KEY, VERSION));
    QNN_TRY(qnn_st__add(st, "counters", QNN_ST_I64, 1, &n_counters, counters));
    QNN_TRY(qnn_st__add(st, "values", QNN_ST_F64, 1, &n_values, values));
    QNN_TRY(qnn_st__add(st, "history", QNN_ST_F64, 2, history_dim, history));
    for (size_t i = 0; i < qnn_optim__n_state(&t->opts); i++)
        QNN_TRY(qnn_st__add(st, state_name[i], QNN_ST_F32, 1, &n_bucket, t->state[i]));
    return add_params(st, t);
}

qnn_status qnn_checkpoint__write(const qnn_trainer *t, const char *path)
{
    const int64_t counters[N_COUNTERS] = {
        [EPOCH] = (int64_t)t->n_history,      [STEP] = t->n_steps,
        [OPTIMIZER] = t->opts.optimizer,      [SEED] = (int64_t)t->opts.seed,
        [BEST_EPOCH] = t->best_epoch,         [N_BAD] = t->plateau.n_bad,
        [N_COOLDOWN] = t->plateau.n_cooldown, [STARTED] = t->plateau.started,
    };
    const double values[N_VALUES] = {[RATE] = (double)t->lr, [PLATEAU_BEST] = t->plateau.best};
    void *history;
    qnn_st st;
    qnn_status status;

    QNN_TRY(qnn_ctx__alloc(t->ctx, &history, t->n_history * N_COLUMNS * sizeof(double),
                           "the log of epochs"));
    qnn_st__init(&st, t->ctx);
    status = add_all(&st, t, counters, values, history);
    if (status == QNN_OK)
        status = qnn_st__write(&st, path);
    qnn_st__free(&st);
    qnn_ctx__release(t->ctx, history);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

static qnn_status find(const qnn_st *st, const char *name, qnn_st_dtype dtype, int rank,
                       const int64_t *dim, const void **data)
{
    const qnn_st_tensor *const tensor = qnn_st__find(st, name);

    QNN_RETURN_IF(st->ctx, tensor == NULL, QNN_ERR_FORMAT, "checkpoint: no tensor \"%s\"", name);
    QNN_RETURN_IF(st->ctx, tensor->dtype != dtype || tensor->rank != rank, QNN_ERR_FORMAT,
                  "checkpoint: tensor \"%s\" has another type or rank", name);
    for (int i = 0; i < rank; i++)
        QNN_RETURN_IF(st->ctx, tensor->dim[i] != dim[i], QNN_ERR_FORMAT,
                      "checkpoint: dimension %d of tensor \"%s\" is %lld, the trainer has %lld", i,
                      name, (long long)tensor->dim[i], (long long)dim[i]);
    *data = tensor->data;
    return QNN_OK;
}

static qnn_status check_counters(const qnn_trainer *t, const int64_t *c, const double *values)
{
    QNN_RETURN_IF(t->ctx,
                  c[EPOCH] < 1 || c[EPOCH] > MAX_EPOCHS || c[BEST_EPOCH] < 1 ||
                      c[BEST_EPOCH] > c[EPOCH] || c[STEP] < 0 || c[N_BAD] < 0 ||
                      c[N_BAD] > INT32_MAX || c[N_COOLDOWN] < 0 || c[N_COOLDOWN] > INT32_MAX,
                  QNN_ERR_FORMAT, "checkpoint: counters are out of range");
    QNN_RETURN_IF(t->ctx, c[OPTIMIZER] != (int64_t)t->opts.optimizer, QNN_ERR_FORMAT,
                  "checkpoint: made with optimiser %lld, the trainer has %d",
                  (long long)c[OPTIMIZER], (int)t->opts.optimizer);
    QNN_RETURN_IF(t->ctx, (uint64_t)c[SEED] != t->opts.seed, QNN_ERR_FORMAT,
                  "checkpoint: made with seed %llu, the trainer has %llu",
                  (unsigned long long)c[SEED], (unsigned long long)t->opts.seed);
    QNN_RETURN_IF(t->ctx,
                  !(values[RATE] >= 0.0) || !isfinite((float)values[RATE]) ||
                      isnan(values[PLATEAU_BEST]),
                  QNN_ERR_FORMAT, "checkpoint: learning rate %g, best metric %g", values[RATE],
                  values[PLATEAU_BEST]);
    return QNN_OK;
}

static qnn_status check_history(const qnn_trainer *t, const double *history, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        QNN_RETURN_IF(
            t->ctx,
            !(history[i * N_COLUMNS + H_N] >= 0.0 && history[i * N_COLUMNS + H_N] <= 0x1p53),
            QNN_ERR_FORMAT, "checkpoint: %g images validated in epoch %lld",
            history[i * N_COLUMNS + H_N], (long long)i + 1);
    return QNN_OK;
}

/* With is_dry only looks whether everything is there and fits. */
static qnn_status read_params(qnn_trainer *t, const qnn_st *st, int is_dry)
{
    char name[2 * QNN_NAME_MAX + 16];
    const void *data;

    for (int i = 0; i < t->n_trained; i++) {
        const qnn_param *const p = t->trained[i].p;

        tensor_name(name, sizeof name, "model", p);
        QNN_TRY(find(st, name, QNN_ST_F32, p->rank, p->dim, &data));
        if (!is_dry)
            memcpy(p->data, data, p->bytes);
        tensor_name(name, sizeof name, "best", p);
        QNN_TRY(find(st, name, QNN_ST_F32, p->rank, p->dim, &data));
        if (!is_dry)
            memcpy(t->best + t->trained[i].snapshot, data, p->bytes);
    }
    return QNN_OK;
}

static qnn_status read_all(qnn_trainer *t, const qnn_st *st)
{
    const int64_t n_counters = N_COUNTERS, n_values = N_VALUES, n_bucket = (int64_t)t->n_bucket;
    const size_t n_state = qnn_optim__n_state(&t->opts);
    const char *const version = qnn_st__meta(st, VERSION_KEY);
    const void *block, *state[2] = {NULL, NULL};
    const int64_t *c;
    const double *values, *history;
    int64_t history_dim[2] = {0, N_COLUMNS};

    QNN_RETURN_IF(t->ctx, version == NULL || strcmp(version, VERSION) != 0, QNN_ERR_FORMAT,
                  "checkpoint: \"" VERSION_KEY "\" is \"%.20s\", not \"" VERSION "\"",
                  version != NULL ? version : "");
    QNN_TRY(find(st, "counters", QNN_ST_I64, 1, &n_counters, &block));
    c = block;
    QNN_TRY(find(st, "values", QNN_ST_F64, 1, &n_values, &block));
    values = block;
    QNN_TRY(check_counters(t, c, values));
    history_dim[0] = c[EPOCH];
    QNN_TRY(find(st, "history", QNN_ST_F64, 2, history_dim, &block));
    history = block;
    QNN_TRY(check_history(t, history, c[EPOCH]));
    QNN_TRY(find(st, "optimizer/m", QNN_ST_F32, 1, &n_bucket, &state[0]));
    if (n_state > 1)
        QNN_TRY(find(st, "optimizer/v", QNN_ST_F32, 1, &n_bucket, &state[1]));
    QNN_TRY(read_params(t, st, 1));
    QNN_RETURN_IF(t->ctx, st->n_tensors != 3 + n_state + 2 * (size_t)t->n_trained, QNN_ERR_FORMAT,
                  "checkpoint: %zu tensors, the trainer has %zu", st->n_tensors,
                  3 + n_state + 2 * (size_t)t->n_trained);
    QNN_TRY(qnn_trainer__need_history(t, (size_t)c[EPOCH]));

    for (size_t i = 0; i < n_state; i++)
        memcpy(t->state[i], state[i], t->n_bucket * sizeof(float));
    for (size_t i = 0; i < (size_t)c[EPOCH]; i++)
        t->history[i] = row_to_epoch(history + i * N_COLUMNS, (int)i + 1);
    t->n_history = (size_t)c[EPOCH];
    t->n_steps = c[STEP];
    t->best_epoch = (int)c[BEST_EPOCH];
    t->lr = (float)values[RATE];
    t->plateau.best = values[PLATEAU_BEST];
    t->plateau.n_bad = (int)c[N_BAD];
    t->plateau.n_cooldown = (int)c[N_COOLDOWN];
    t->plateau.started = c[STARTED] != 0;
    return read_params(t, st, 0);
}

qnn_status qnn_checkpoint__read(qnn_trainer *t, const char *path)
{
    qnn_st st;
    qnn_status status;

    QNN_TRY(qnn_st__read(&st, t->ctx, path));
    status = read_all(t, &st);
    qnn_st__free(&st);
    return status;
}
