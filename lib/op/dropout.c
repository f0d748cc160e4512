/*
 * dropout: in training zero with probability p, else x / (1 - p); otherwise the identity.
 *
 * Whether an element is dropped is a pure function of the run's seed, the node and the element's
 * index, so that neither threads nor storage matter: backward computes the mask again.
 */
#include "lib/op_util.h"

#include <string.h>

typedef struct job {
    const float *src;
    float *dst;
    size_t total;
    uint64_t key;
    uint64_t threshold; /* an element whose 32 random bits lie below is dropped */
    float factor[2];    /* of a dropped and of a kept element */
    int beta;
} job;

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    QNN_RETURN_IF(m->ctx, !(n->a.p >= 0.0f && n->a.p < 1.0f), QNN_ERR_ARG,
                  "dropout \"%s\": probability %g is outside [0, 1)", n->name, (double)n->a.p);
    n->shape = qnn_node__in(m, n, 0)->shape;
    return qnn_node__infer_f32(m, n);
}

/* SplitMix64's mixing of a counter. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void apply_chunk(void *arg, size_t i, int thread)
{
    const job *const j = arg;
    const size_t begin = i * QNN_CHUNK, end = begin + qnn_chunk__size(j->total, i);

    (void)thread;
    for (size_t k = begin; k < end; k++) {
        const int is_kept = mix(j->key + k * 0x9e3779b97f4a7c15u) >> 32 >= j->threshold;
        const float y = j->src[k] * j->factor[is_kept]; /* a branch would be guessed wrong */

        j->dst[k] = j->beta ? j->dst[k] + y : y;
    }
}

/* The same map takes x to y and d(y) to d(x). */
static void apply(qnn_exec *x, const qnn_step *s, const float *src, float *dst, int beta)
{
    job j = {.src = src, .dst = dst, .total = qnn_exec__n_out(x, s), .beta = beta};

    j.key = mix(x->seed + mix((uint64_t)s->id + 1));
    j.threshold = (uint64_t)((double)s->n->a.p * 4294967296.0);
    j.factor[1] = 1.0f / (1.0f - s->n->a.p);
    qnn_ctx__parallel(x->ctx, qnn_chunk__count(j.total), apply_chunk, &j);
}

static void forward(qnn_exec *x, const qnn_step *s)
{
    const float *const src = qnn_exec__in(x, s, 0);
    float *const dst = qnn_exec__out(x, s);

    if (x->is_train)
        apply(x, s, src, dst, 0);
    else if (dst != src)
        memcpy(dst, src, qnn_exec__n_out(x, s) * sizeof *dst);
}

static void backward(qnn_exec *x, const qnn_step *s)
{
    float *const din = qnn_exec__din(x, s, 0);

    if (!x->is_train)
        qnn_exec__pass_gradient(x, s, 0);
    else if (din != NULL)
        apply(x, s, qnn_exec__dout(x, s), din, qnn_exec__din_beta(x, s, 0));
}

static const qnn_attr_field fields[] = {
    {"p", offsetof(qnn_attrs, p), 1},
    {NULL, 0, 0},
};

const qnn_op qnn_op_dropout = {
    .name = "dropout",
    .n_in_min = 1,
    .n_in_max = 1,
    .flags = QNN_OP_INPLACE | QNN_OP_TRAIN_ONLY,
    .fields = fields,
    .infer = infer,
    .forward = forward,
    .backward = backward,
};
