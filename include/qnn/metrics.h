/*
 * Classification metrics from a confusion matrix.
 *
 *     qnn_confusion *c;  qnn_confusion_create(&c, ctx, 101);
 *     qnn_confusion_add_logits(c, logits, labels, n);
 *     qnn_metrics r = qnn_confusion_metrics(c);
 */
#ifndef QNN_METRICS_H
#define QNN_METRICS_H

#include <qnn/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Fractions in 0..1. Macro figures average over the classes present in labels or predictions; 0
 * where undefined. */
typedef struct qnn_metrics {
    int64_t n; /**< items scored */
    double accuracy;
    double accuracy_lo, accuracy_hi; /**< Wilson score interval, 95% (z = 1.959964) */
    double precision, recall, f1;    /**< macro */
} qnn_metrics;

typedef struct qnn_confusion qnn_confusion;
QNN_API QNN_NODISCARD qnn_status qnn_confusion_create(qnn_confusion **out, qnn_ctx *ctx,
                                                      int n_classes);
QNN_API void qnn_confusion_free(qnn_confusion *c);
QNN_API void qnn_confusion_reset(qnn_confusion *c);
/** Counts predictions: arg-max of each row of logits f32 [n][n_classes] (first largest wins; a row
 * with NaN counts as class 0) against labels i32 [n] in 0..n_classes-1. QNN_ERR_ARG names a label
 * outside. */
QNN_API QNN_NODISCARD qnn_status qnn_confusion_add_logits(qnn_confusion *c, const float *logits,
                                                          const int32_t *labels, int n);
QNN_API QNN_NODISCARD qnn_status qnn_confusion_add(qnn_confusion *c, const int32_t *predicted,
                                                   const int32_t *labels, int n);
/** Count of items of class label predicted as predicted. */
QNN_API int64_t qnn_confusion_count(const qnn_confusion *c, int label, int predicted);
QNN_API int qnn_confusion_classes(const qnn_confusion *c);
QNN_API qnn_metrics qnn_confusion_metrics(const qnn_confusion *c);
/** Wilson score interval of k successes in n trials at z standard deviations; [0, 1] for n = 0. */
QNN_API void qnn_wilson_interval(int64_t k, int64_t n, double z, double *lo, double *hi);

#ifdef __cplusplus
}
#endif
#endif
