/* Softmax cross-entropy. */
#include "lib/loss.h"

#include <math.h>

static float largest(const float *x, size_t n)
{
    float max = x[0];

    for (size_t i = 1; i < n; i++)
        if (x[i] > max)
            max = x[i];
    return max;
}

/* -log softmax(x)[label], with the largest score taken out so that no exponential overflows. */
static double row_loss(const float *x, size_t classes, size_t label, double weight, float *dx)
{
    const double max = (double)largest(x, classes);
    double sum = 0.0;

    for (size_t i = 0; i < classes; i++)
        sum += exp((double)x[i] - max);
    for (size_t i = 0; dx != NULL && i < classes; i++)
        dx[i] = (float)((exp((double)x[i] - max) / sum - (i == label ? 1.0 : 0.0)) * weight);
    return log(sum) - ((double)x[label] - max);
}

double qnn_loss__cross_entropy(const float *logits, const int32_t *labels, size_t n, size_t classes,
                               float *dlogits)
{
    double loss = 0.0;

    for (size_t i = 0; i < n; i++)
        loss += row_loss(logits + i * classes, classes, (size_t)labels[i], 1.0 / (double)n,
                         dlogits != NULL ? dlogits + i * classes : NULL);
    return loss / (double)n;
}
