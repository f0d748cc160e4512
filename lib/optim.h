/* Optimisers: the constants of one step, and their update of one run of parameters. */
#ifndef QNN_LIB_OPTIM_H
#define QNN_LIB_OPTIM_H

#include <qnn/train.h>

#include "lib/internal.h"

typedef struct qnn_optim_step {
    const qnn_trainer_opts *opts;
    float lr;
    float g_scale;             /* gradients times this: clipping */
    float step_size, sqrt_bc2; /* Adam */
    int is_first;              /* SGD: the momentum buffer holds nothing yet */
} qnn_optim_step;

/* number: of the step, from 1. */
qnn_optim_step qnn_optim__begin(const qnn_trainer_opts *opts, float lr, float g_scale,
                                int64_t number);
/* m: first moment, or SGD's momentum buffer; v: second moment, not used by SGD. All [n]. */
void qnn_optim__update(const qnn_optim_step *s, const qnn_vec_kernel *vec, size_t n, float *w,
                       float *m, float *v, const float *grad);
/* Floats of state for each parameter: 2 for Adam (m, then v), 1 for SGD. */
size_t qnn_optim__n_state(const qnn_trainer_opts *opts);

#endif
