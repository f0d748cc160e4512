/* Confusion matrix and what is read from it. */
#include <qnn/metrics.h>

#include <math.h>
#include <string.h>

#include "lib/argmax.h"
#include "lib/internal.h"

struct qnn_confusion {
    qnn_ctx *ctx;
    int n_classes;
    int64_t count[]; /* [label][predicted] */
};

static size_t matrix_bytes(int n_classes)
{
    return (size_t)n_classes * (size_t)n_classes * sizeof(int64_t);
}

qnn_status qnn_confusion_create(qnn_confusion **out, qnn_ctx *ctx, int n_classes)
{
    void *block;

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_RETURN_IF(ctx, n_classes < 1 || n_classes > 1 << 15, QNN_ERR_ARG,
                  "%d classes are outside 1..%d", n_classes, 1 << 15);
    QNN_TRY(
        qnn_ctx__zalloc(ctx, &block, sizeof **out + matrix_bytes(n_classes), "a confusion matrix"));
    *out = block;
    (*out)->ctx = ctx;
    (*out)->n_classes = n_classes;
    return QNN_OK;
}

void qnn_confusion_free(qnn_confusion *c)
{
    if (c != NULL)
        qnn_ctx__release(c->ctx, c);
}

void qnn_confusion_reset(qnn_confusion *c) { memset(c->count, 0, matrix_bytes(c->n_classes)); }

static qnn_status check_classes(const qnn_confusion *c, const char *what, const int32_t *class,
                                int n)
{
    QNN_RETURN_IF(c->ctx, n < 0 || (n > 0 && class == NULL), QNN_ERR_ARG, "%d %ss at %s", n, what,
                  class == NULL ? "NULL" : "an address");
    for (int i = 0; i < n; i++)
        QNN_RETURN_IF(c->ctx, class[i] < 0 || class[i] >= c->n_classes, QNN_ERR_ARG,
                      "%s %d of item %d is outside 0..%d", what, (int)class[i], i,
                      c -> n_classes - 1);
    return QNN_OK;
}

static int64_t *cell(qnn_confusion *c, int label, int predicted)
{
    return &c->count[(size_t)label * (size_t)c->n_classes + (size_t)predicted];
}

qnn_status qnn_confusion_add(qnn_confusion *c, const int32_t *predicted, const int32_t *labels,
                             int n)
{
    if (c == NULL)
        return QNN_ERR_ARG;
    QNN_TRY(check_classes(c, "label", labels, n));
    QNN_TRY(check_classes(c, "prediction", predicted, n));
    for (int i = 0; i < n; i++)
        ++*cell(c, labels[i], predicted[i]);
    return QNN_OK;
}

qnn_status qnn_confusion_add_logits(qnn_confusion *c, const float *logits, const int32_t *labels,
                                    int n)
{
    if (c == NULL)
        return QNN_ERR_ARG;
    QNN_TRY(check_classes(c, "label", labels, n));
    QNN_RETURN_IF(c->ctx, n > 0 && logits == NULL, QNN_ERR_ARG, "the scores are NULL");
    for (int i = 0; i < n; i++)
        ++*cell(c, labels[i], qnn_arg_max(logits + (size_t)i * (size_t)c->n_classes, c->n_classes));
    return QNN_OK;
}

int64_t qnn_confusion_count(const qnn_confusion *c, int label, int predicted)
{
    if (label < 0 || label >= c->n_classes || predicted < 0 || predicted >= c->n_classes)
        return 0;
    return c->count[(size_t)label * (size_t)c->n_classes + (size_t)predicted];
}

int qnn_confusion_classes(const qnn_confusion *c) { return c->n_classes; }

void qnn_wilson_interval(int64_t k, int64_t n, double z, double *lo, double *hi)
{
    const double count = (double)n, p = (double)k / count, zz = z * z;
    const double centre = (p + zz / (2.0 * count)) / (1.0 + zz / count);
    const double half =
        z / (1.0 + zz / count) * sqrt(p * (1.0 - p) / count + zz / (4.0 * count * count));

    *lo = n <= 0 || k <= 0 ? 0.0 : fmax(0.0, centre - half);
    *hi = n <= 0 || k >= n ? 1.0 : fmin(1.0, centre + half);
}

static double ratio(int64_t a, int64_t b) { return b == 0 ? 0.0 : (double)a / (double)b; }

/* Counts of one class: right, as label, as prediction. */
static void class_counts(const qnn_confusion *c, int k, int64_t *right, int64_t *labels,
                         int64_t *predictions)
{
    *right = qnn_confusion_count(c, k, k);
    *labels = *predictions = 0;
    for (int i = 0; i < c->n_classes; i++) {
        *labels += qnn_confusion_count(c, k, i);
        *predictions += qnn_confusion_count(c, i, k);
    }
}

qnn_metrics qnn_confusion_metrics(const qnn_confusion *c)
{
    qnn_metrics m = {0};
    int64_t n_right = 0, n_present = 0;

    for (int k = 0; k < c->n_classes; k++) {
        int64_t right, labels, predictions;

        class_counts(c, k, &right, &labels, &predictions);
        n_right += right;
        m.n += labels;
        if (labels + predictions == 0)
            continue;
        n_present++;
        m.precision += ratio(right, predictions);
        m.recall += ratio(right, labels);
        m.f1 += ratio(2 * right, labels + predictions); /* = 2 p r / (p + r) */
    }
    m.accuracy = ratio(n_right, m.n);
    qnn_wilson_interval(n_right, m.n, 1.959964, &m.accuracy_lo, &m.accuracy_hi);
    if (n_present > 0) {
        m.precision /= (double)n_present;
        m.recall /= (double)n_present;
        m.f1 /= (double)n_present;
    }
    return m;
}
