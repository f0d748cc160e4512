/* Learning-rate schedule: ReduceLROnPlateau, mode min with a relative threshold, as PyTorch's. */
#include <qnn/train.h>

#include <math.h>

void qnn_plateau_init(qnn_plateau *p, const qnn_plateau_opts *opts)
{
    const qnn_plateau_opts defaults = QNN_PLATEAU_OPTS_INIT;

    p->opts = opts != NULL ? *opts : defaults;
    p->best = INFINITY;
    p->n_bad = 0;
    p->n_cooldown = 0;
    p->started = 0;
}

static float reduced(const qnn_plateau_opts *o, float lr)
{
    const double smaller = fmax((double)lr * (double)o->factor, (double)o->min_lr);

    return (double)lr - smaller > (double)o->eps ? (float)smaller : lr;
}

float qnn_plateau_step(qnn_plateau *p, double metric, float lr)
{
    const qnn_plateau_opts *const o = &p->opts;

    if (o->factor == 0.0f)
        return lr;
    if (!p->started)
        p->best = INFINITY; /* a structure that its owner only cleared works too */
    p->started = 1;
    if (metric < p->best * (1.0 - (double)o->threshold)) {
        p->best = metric;
        p->n_bad = 0;
    } else {
        p->n_bad++;
    }
    if (p->n_cooldown > 0) {
        p->n_cooldown--;
        p->n_bad = 0;
    }
    if (p->n_bad <= o->patience)
        return lr;
    p->n_cooldown = o->cooldown;
    p->n_bad = 0;
    return reduced(o, lr);
}
