/* Adam and SGD with PyTorch's semantics; the arithmetic over parameters is the kernels'. */
#include "lib/optim.h"

#include <math.h>

qnn_optim_step qnn_optim__begin(const qnn_trainer_opts *opts, float lr, float g_scale,
                                int64_t number)
{
    const double bc1 = 1.0 - pow((double)opts->beta1, (double)number);
    const double bc2 = 1.0 - pow((double)opts->beta2, (double)number);

    return (qnn_optim_step){
        .opts = opts,
        .lr = lr,
        .g_scale = g_scale,
        .step_size = (float)((double)lr / bc1),
        .sqrt_bc2 = (float)sqrt(bc2),
        .is_first = number == 1 || opts->momentum == 0.0f,
    };
}

void qnn_optim__update(const qnn_optim_step *s, const qnn_vec_kernel *vec, size_t n, float *w,
                       float *m, float *v, const float *grad)
{
    const qnn_trainer_opts *const o = s->opts;

    if (o->optimizer == QNN_OPTIMIZER_SGD)
        vec->sgd(n, w, m, grad, s->g_scale, o->momentum, o->weight_decay, s->lr, s->is_first,
                 o->nesterov);
    else
        vec->adam(n, w, m, v, grad, s->g_scale, o->beta1, o->beta2, o->eps, o->weight_decay,
                  s->step_size, s->sqrt_bc2);
}

size_t qnn_optim__n_state(const qnn_trainer_opts *opts)
{
    return opts->optimizer == QNN_OPTIMIZER_SGD ? 1 : 2;
}
