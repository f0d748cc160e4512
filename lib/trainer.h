/* The inside of a trainer: what lib/trainer.c, lib/fit.c and lib/checkpoint.c share. */
#ifndef QNN_LIB_TRAINER_H
#define QNN_LIB_TRAINER_H

#include <qnn/train.h>

#include "lib/exec.h"

/* One parameter or buffer of the model, in the order of qnn_model_param(). */
typedef struct qnn_trained {
    const qnn_param *p;
    size_t grad; /* where its gradient and optimiser state begin in the bucket; trainable only */
    size_t snapshot; /* where its values begin in a snapshot of all */
} qnn_trained;

/* A piece of one trainable parameter: what one task updates. */
typedef struct qnn_piece {
    int trained;
    size_t begin, n;
    double squares; /* of its gradient */
} qnn_piece;

struct qnn_trainer {
    qnn_ctx *ctx;
    qnn_model *m;
    qnn_trainer_opts opts; /* defaults filled in */
    float lr;
    int64_t n_steps;
    qnn_program *program;
    void *ws;
    int n_classes;
    int n_trained;
    qnn_trained *trained;
    float **grad;    /* [n_nodes][QNN_MAX_PARAMS] into the bucket; NULL for buffers */
    size_t n_bucket; /* floats, each parameter's padded to a cache line */
    float *bucket;   /* gradients, in the order in which backward ends them */
    float *state[2]; /* as the bucket: Adam's m and v, SGD's momentum in [0] */
    size_t n_pieces;
    qnn_piece *piece;
    size_t n_snapshot; /* floats of all parameters and buffers */
    size_t n_buffers;
    float *buffers; /* statistics before a step, put back when the loss is not finite */

    /* of the last qnn_fit() */
    float *best;    /* [n_snapshot] parameters and buffers of the best epoch; NULL: none yet */
    int best_epoch; /* from 1; 0: none */
    qnn_epoch *history;
    size_t n_history, cap_history;
    qnn_plateau plateau;
};

/* qnn_trainer_step() that also counts the batch's right answers. */
qnn_status qnn_trainer__step(qnn_trainer *t, const float *x, const int32_t *labels, int n,
                             double *loss, int *n_right);
/* Memory for t->best, once. */
qnn_status qnn_trainer__need_best(qnn_trainer *t);
/* Room for one more epoch in t->history. */
qnn_status qnn_trainer__need_history(qnn_trainer *t, size_t n);

/* lib/checkpoint.c: everything that going on needs. Reading changes nothing unless all of it fits.
 */
qnn_status qnn_checkpoint__write(const qnn_trainer *t, const char *path);
qnn_status qnn_checkpoint__read(qnn_trainer *t, const char *path);

#endif
