/* Losses: value and gradient with respect to the network's scores. */
#ifndef QNN_LIB_LOSS_H
#define QNN_LIB_LOSS_H

#include "lib/internal.h"

/*
 * Softmax cross-entropy, mean over n rows of logits f32 [n][classes]; labels 0..classes-1.
 * dlogits [n][classes] = (softmax - one-hot) / n; NULL: not wanted. Not finite when a score is not.
 */
double qnn_loss__cross_entropy(const float *logits, const int32_t *labels, size_t n, size_t classes,
                               float *dlogits);

#endif
