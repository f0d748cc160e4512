/*
 * Training: softmax cross-entropy, Adam or SGD, plateau schedule, gradient clipping, checkpoints,
 * exact resume.
 *
 *     qnn_trainer *t;
 *     qnn_trainer_create(&t, ctx, model, &(qnn_trainer_opts){.batch = 64, .lr = 1e-3f, .clip_norm
 * = 1.0f}); qnn_fit_opts fo = QNN_FIT_OPTS_INIT;  fo.epochs = 10;  fo.train = train_loader;  fo.val
 * = val_loader; qnn_fit(t, &fo, NULL); qnn_trainer_free(t);
 *
 * Numbers: the same seed gives the same bits whatever the number of threads.
 */
#ifndef QNN_TRAIN_H
#define QNN_TRAIN_H

#include <qnn/dataset.h>
#include <qnn/metrics.h>
#include <qnn/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qnn_trainer qnn_trainer;

typedef enum qnn_optimizer {
    QNN_OPTIMIZER_ADAM =
        0, /**< Kingma & Ba 2014, PyTorch's semantics (L2 weight decay added to the gradient) */
    QNN_OPTIMIZER_SGD = 1 /**< momentum as PyTorch's, dampening 0 */
} qnn_optimizer;

/** Zero means the default written here, where zero itself is not a sensible value. */
typedef struct qnn_trainer_opts {
    int batch; /**< largest batch; 0: 64 */
    qnn_optimizer optimizer;
    float lr;                /**< 0: 1e-3 */
    float beta1, beta2, eps; /**< Adam; 0: 0.9, 0.999, 1e-8 */
    float momentum;          /**< SGD; 0 is a value */
    int nesterov;
    float weight_decay;
    float clip_norm; /**< largest L2 norm of all gradients together, as PyTorch's clip_grad_norm_;
                        0: no clipping */
    uint64_t seed;   /**< of dropout */
} qnn_trainer_opts;

/** The model is borrowed and trained in place; it must have one input and one output of class
 * scores (logits). */
QNN_API QNN_NODISCARD qnn_status qnn_trainer_create(qnn_trainer **out, qnn_ctx *ctx, qnn_model *m,
                                                    const qnn_trainer_opts *opts);
QNN_API void qnn_trainer_free(qnn_trainer *t);
/** Bytes held: activations, gradients, optimiser state. */
QNN_API size_t qnn_trainer_bytes(const qnn_trainer *t);

/**
 * One optimiser step on x f32 [n][input shape], labels i32 [n].
 * @param[out] loss  mean cross-entropy of the batch before the step; may be NULL
 * @return QNN_ERR_ARG n outside 1..batch or a label out of range: says which
 *         QNN_ERR_STATE the loss is not finite (parameters are left as they were)
 */
QNN_API QNN_NODISCARD qnn_status qnn_trainer_step(qnn_trainer *t, const float *x,
                                                  const int32_t *labels, int n, float *loss);
/** Forward and backward only: fills qnn_trainer_grad(), updates nothing but batch-norm statistics
 * and observers. */
QNN_API QNN_NODISCARD qnn_status qnn_trainer_gradients(qnn_trainer *t, const float *x,
                                                       const int32_t *labels, int n, float *loss);
/** Gradient of parameter i of the model (index as qnn_model_param), f32, after a step (before
 * clipping). NULL for buffers. */
QNN_API const float *qnn_trainer_grad(const qnn_trainer *t, int i);
/** Scores in evaluation mode: logits f32 [n][classes]. */
QNN_API QNN_NODISCARD qnn_status qnn_trainer_evaluate(qnn_trainer *t, const float *x, int n,
                                                      float *logits);
QNN_API float qnn_trainer_lr(const qnn_trainer *t);
QNN_API void qnn_trainer_set_lr(qnn_trainer *t, float lr);
QNN_API int64_t qnn_trainer_steps(const qnn_trainer *t); /**< optimiser steps done */

/* ---- schedule
 * --------------------------------------------------------------------------------------------------------
 */

/** ReduceLROnPlateau, PyTorch's semantics: mode min, relative threshold. */
typedef struct qnn_plateau_opts {
    float factor; /**< 0: no schedule */
    int patience;
    float threshold;
    int cooldown;
    float min_lr;
    float eps; /**< a smaller change of the rate is not made */
} qnn_plateau_opts;
#define QNN_PLATEAU_OPTS_INIT                                                                      \
    {                                                                                              \
        0.1f, 10, 1e-4f, 0, 0.0f, 1e-8f                                                            \
    }
/** State of one schedule; plain data so that callers with their own loop can use it. */
typedef struct qnn_plateau {
    qnn_plateau_opts opts;
    double best;
    int n_bad, n_cooldown;
    int started;
} qnn_plateau;
QNN_API void qnn_plateau_init(qnn_plateau *p, const qnn_plateau_opts *opts);
/** One epoch's metric (smaller is better) and the present rate; returns the new rate. */
QNN_API float qnn_plateau_step(qnn_plateau *p, double metric, float lr);

/* ---- fit
 * ----------------------------------------------------------------------------------------------------------------
 */

typedef enum qnn_fit_stage { QNN_FIT_TRAIN = 0, QNN_FIT_VALIDATE = 1 } qnn_fit_stage;

typedef struct qnn_fit_progress { /**< after every batch */
    qnn_fit_stage stage;
    int epoch, epochs;   /**< epoch counts from 1 */
    int64_t done, total; /**< images of this stage */
    double images_per_second;
    double eta_seconds; /**< until the whole fit ends; < 0: not known yet */
    double loss;        /**< mean over the stage so far */
} qnn_fit_progress;

typedef struct qnn_epoch { /**< one line of the log */
    int epoch;             /**< from 1 */
    double train_loss, train_accuracy;
    double val_loss;
    qnn_metrics val;
    float lr; /**< used in this epoch */
    double train_seconds, val_seconds;
    int is_best; /**< best validation accuracy so far (first of equals) */
} qnn_epoch;

typedef struct qnn_fit_opts {
    int epochs;        /**< >= 1 */
    qnn_loader *train; /**< shuffling, drop-last are the loader's; its epoch number is epoch - 1 */
    qnn_loader *val;   /**< NULL: no validation; the last epoch is then the best */
    qnn_plateau_opts
        plateau; /**< on validation error 1 - accuracy, in percent points of it; factor 0: none */
    int (*on_progress)(void *user,
                       const qnn_fit_progress *p); /**< optional; non-zero stops after this batch */
    int (*on_epoch)(void *user,
                    const qnn_epoch *e); /**< optional; non-zero stops after this epoch */
    void *user;
    const char *log_csv;    /**< optional path: one line an epoch, appended to when resuming */
    const char *checkpoint; /**< optional path: state after every epoch, written atomically */
    int resume; /**< go on from checkpoint when it exists (QNN_ERR_FORMAT when it is another model's
                   or damaged) */
} qnn_fit_opts;
#define QNN_FIT_OPTS_INIT                                                                          \
    {                                                                                              \
        10, NULL, NULL, {0.1f, 3, 1e-4f, 0, 0.0f, 1e-8f}, NULL, NULL, NULL, NULL, NULL, 0          \
    }

typedef struct qnn_fit_result {
    int epochs_done;
    qnn_epoch best, last;
    double seconds; /**< training and validation, resumed epochs included */
    int stopped;    /**< a callback asked for it */
} qnn_fit_result;

/**
 * Trains. Afterwards the model holds the last epoch's parameters; qnn_trainer_restore_best() puts
 * the best epoch's in. Resume is exact: the same bits as an uninterrupted run (state is kept at
 * epoch ends; an epoch cut short is done again).
 * @return QNN_ERR_STOPPED never: stopping is not an error, see result->stopped. QNN_ERR_STATE: the
 * loss became not finite (says where)
 */
QNN_API QNN_NODISCARD qnn_status qnn_fit(qnn_trainer *t, const qnn_fit_opts *opts,
                                         qnn_fit_result *result);
/** Copies the parameters of the best epoch of the last qnn_fit() into the model. QNN_ERR_STATE:
 * there was none. */
QNN_API QNN_NODISCARD qnn_status qnn_trainer_restore_best(qnn_trainer *t);

#ifdef __cplusplus
}
#endif
#endif
