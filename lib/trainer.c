/* Trainer: forward, loss, backward, clipping and the optimiser's step over a model's parameters. */
#include "lib/trainer.h"

#include <math.h>
#include <string.h>

#include "lib/argmax.h"
#include "lib/loss.h"
#include "lib/optim.h"

#define PIECE ((size_t)1 << 16) /* floats; fixed, so that no result depends on threads */
#define PAD   (QNN_ALIGN / sizeof(float))

/* ---- life ------------------------------------------------------------------------------------ */

static qnn_trainer_opts with_defaults(const qnn_trainer_opts *opts)
{
    qnn_trainer_opts o = {0};

    if (opts != NULL)
        o = *opts;
    o.batch = o.batch != 0 ? o.batch : 64;
    o.lr = o.lr != 0.0f ? o.lr : 1e-3f;
    o.beta1 = o.beta1 != 0.0f ? o.beta1 : 0.9f;
    o.beta2 = o.beta2 != 0.0f ? o.beta2 : 0.999f;
    o.eps = o.eps != 0.0f ? o.eps : 1e-8f;
    return o;
}

static qnn_status check_opts(qnn_ctx *ctx, const qnn_trainer_opts *o)
{
    QNN_RETURN_IF(ctx, o->batch < 1, QNN_ERR_ARG, "batch %d is below 1", o->batch);
    QNN_RETURN_IF(ctx, o->optimizer != QNN_OPTIMIZER_ADAM && o->optimizer != QNN_OPTIMIZER_SGD,
                  QNN_ERR_ARG, "optimizer %d is unknown", (int)o->optimizer);
    QNN_RETURN_IF(ctx, !(o->lr > 0.0f) || !isfinite(o->lr), QNN_ERR_ARG,
                  "learning rate %g is not positive and finite", (double)o->lr);
    QNN_RETURN_IF(
        ctx, !(o->beta1 >= 0.0f && o->beta1 < 1.0f && o->beta2 >= 0.0f && o->beta2 < 1.0f),
        QNN_ERR_ARG, "betas %g and %g are not both in [0, 1)", (double)o->beta1, (double)o->beta2);
    QNN_RETURN_IF(ctx, !(o->eps > 0.0f) || !isfinite(o->eps), QNN_ERR_ARG,
                  "eps %g is not positive and finite", (double)o->eps);
    QNN_RETURN_IF(ctx, !(o->momentum >= 0.0f) || !isfinite(o->momentum), QNN_ERR_ARG,
                  "momentum %g is negative or not finite", (double)o->momentum);
    QNN_RETURN_IF(ctx, o->nesterov && o->momentum == 0.0f, QNN_ERR_ARG,
                  "Nesterov's method needs a momentum");
    QNN_RETURN_IF(ctx, !(o->weight_decay >= 0.0f) || !isfinite(o->weight_decay), QNN_ERR_ARG,
                  "weight decay %g is negative or not finite", (double)o->weight_decay);
    QNN_RETURN_IF(ctx, !(o->clip_norm >= 0.0f), QNN_ERR_ARG, "clip norm %g is negative",
                  (double)o->clip_norm);
    return QNN_OK;
}

/* One input, one output with a score for each class, everything f32. */
static qnn_status check_model(qnn_trainer *t)
{
    const qnn_model *const m = t->m;
    const qnn_shape *out;
    char text[96];

    QNN_TRY(qnn_model__usable(m, t->ctx));
    QNN_RETURN_IF(t->ctx, qnn_model_n_inputs(m) != 1 || m->n_outputs != 1, QNN_ERR_ARG,
                  "the model has %d inputs and %d outputs, training takes one of each",
                  qnn_model_n_inputs(m), m->n_outputs);
    out = &m->node[m->output[0]]->shape;
    for (int i = 0; i < out->rank - 1; i++)
        QNN_RETURN_IF(t->ctx, out->dim[i] != 1, QNN_ERR_SHAPE,
                      "output \"%s\" has shape %s, training takes one score for each class",
                      m->output_name[0], qnn_shape__text(out, text, sizeof text));
    QNN_RETURN_IF(t->ctx, qnn_shape__count(out) > 1 << 15, QNN_ERR_SHAPE,
                  "output \"%s\" has %lld classes, at most %d are taken", m->output_name[0],
                  (long long)qnn_shape__count(out), 1 << 15);
    t->n_classes = (int)qnn_shape__count(out);
    return QNN_OK;
}

static int is_trained(const qnn_trained *tr) { return tr->p->is_trainable; }

static qnn_status list_params(qnn_trainer *t)
{
    void *block;
    int n = 0;

    t->n_trained = qnn_model_n_params(t->m);
    QNN_TRY(qnn_ctx__zalloc(t->ctx, &block, (size_t)t->n_trained * sizeof *t->trained,
                            "a trainer's parameters"));
    t->trained = block;
    for (int k = 0; k < t->m->n_nodes; k++)
        for (int s = 0; s < t->m->node[k]->n_param; s++) {
            const qnn_param *const p = &t->m->node[k]->param[s];

            if (p->count == 0)
                continue;
            QNN_RETURN_IF(t->ctx, p->dtype != QNN_DTYPE_F32, QNN_ERR_DTYPE,
                          "parameter \"%s\" is %s, training needs f32", p->full_name,
                          qnn_dtype_name(p->dtype));
            t->trained[n].p = p;
            t->trained[n].snapshot = t->n_snapshot;
            t->n_snapshot += p->count;
            t->n_buffers += p->is_trainable ? 0 : p->count;
            n++;
        }
    for (int i = n - 1; i >= 0; i--) {
        if (!is_trained(&t->trained[i]))
            continue;
        t->trained[i].grad = t->n_bucket;
        t->n_bucket += qnn_round_up(t->trained[i].p->count, PAD);
        t->n_pieces += (t->trained[i].p->count + PIECE - 1) / PIECE;
    }
    QNN_RETURN_IF(t->ctx, t->n_bucket == 0, QNN_ERR_ARG, "the model has no parameter to train");
    return QNN_OK;
}

static qnn_status alloc_floats(qnn_trainer *t, float **out, size_t n, const char *what)
{
    void *block;

    QNN_TRY(qnn_ctx__zalloc(t->ctx, &block, n * sizeof **out, what));
    *out = block;
    return QNN_OK;
}

static qnn_status alloc_state(qnn_trainer *t)
{
    void *block;

    QNN_TRY(alloc_floats(t, &t->bucket, t->n_bucket, "gradients"));
    for (size_t i = 0; i < qnn_optim__n_state(&t->opts); i++)
        QNN_TRY(alloc_floats(t, &t->state[i], t->n_bucket, "optimiser state"));
    QNN_TRY(alloc_floats(t, &t->buffers, t->n_buffers, "statistics"));
    QNN_TRY(qnn_ctx__zalloc(t->ctx, &block,
                            (size_t)t->m->n_nodes * QNN_MAX_PARAMS * sizeof *t->grad,
                            "gradients' places"));
    t->grad = block;
    QNN_TRY(qnn_ctx__zalloc(t->ctx, &block, t->n_pieces * sizeof *t->piece, "a trainer's tasks"));
    t->piece = block;
    return QNN_OK;
}

static void fill_places(qnn_trainer *t)
{
    size_t n = 0;
    int i = 0;

    for (int k = 0; k < t->m->n_nodes; k++)
        for (int s = 0; s < t->m->node[k]->n_param; s++) {
            const qnn_param *const p = &t->m->node[k]->param[s];

            if (p->count == 0)
                continue;
            if (is_trained(&t->trained[i])) {
                t->grad[k * QNN_MAX_PARAMS + s] = t->bucket + t->trained[i].grad;
                for (size_t begin = 0; begin < p->count; begin += PIECE) {
                    const size_t rest = p->count - begin;

                    t->piece[n++] = (qnn_piece){i, begin, rest < PIECE ? rest : PIECE, 0.0};
                }
            }
            i++;
        }
    assert(n == t->n_pieces && i == t->n_trained);
}

static qnn_status build(qnn_trainer *t)
{
    const qnn_compile_opts o = {.max_batch = t->opts.batch, .is_train = 1};

    QNN_TRY(check_opts(t->ctx, &t->opts));
    QNN_TRY(check_model(t));
    QNN_TRY(list_params(t));
    QNN_TRY(alloc_state(t));
    fill_places(t);
    QNN_TRY(qnn_program__compile(&t->program, t->ctx, t->m, &o));
    return qnn_ctx__alloc(t->ctx, &t->ws, qnn_program_workspace(t->program),
                          "the training workspace");
}

qnn_status qnn_trainer_create(qnn_trainer **out, qnn_ctx *ctx, qnn_model *m,
                              const qnn_trainer_opts *opts)
{
    qnn_trainer *t;
    void *block;
    qnn_status status;

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_TRY(qnn_ctx__zalloc(ctx, &block, sizeof *t, "a trainer"));
    t = block;
    t->ctx = ctx;
    t->m = m;
    t->opts = with_defaults(opts);
    t->lr = t->opts.lr;
    status = build(t);
    if (status != QNN_OK) {
        qnn_trainer_free(t);
        return status;
    }
    *out = t;
    return QNN_OK;
}

void qnn_trainer_free(qnn_trainer *t)
{
    if (t == NULL)
        return;
    qnn_program_free(t->program);
    qnn_ctx__release(t->ctx, t->ws);
    qnn_ctx__release(t->ctx, t->trained);
    qnn_ctx__release(t->ctx, t->grad);
    qnn_ctx__release(t->ctx, t->bucket);
    qnn_ctx__release(t->ctx, t->state[0]);
    qnn_ctx__release(t->ctx, t->state[1]);
    qnn_ctx__release(t->ctx, t->piece);
    qnn_ctx__release(t->ctx, t->buffers);
    qnn_ctx__release(t->ctx, t->best);
    qnn_ctx__release(t->ctx, t->history);
    qnn_ctx__release(t->ctx, t);
}

size_t qnn_trainer_bytes(const qnn_trainer *t)
{
    const size_t n_buckets = 1 + qnn_optim__n_state(&t->opts);
    const size_t n_best = t->best != NULL ? t->n_snapshot : 0;

    return sizeof *t + qnn_program_bytes(t->program) + qnn_program_workspace(t->program) +
           (n_buckets * t->n_bucket + n_best + t->n_buffers) * sizeof(float) +
           t->n_pieces * sizeof *t->piece + (size_t)t->n_trained * sizeof *t->trained +
           (size_t)t->m->n_nodes * QNN_MAX_PARAMS * sizeof *t->grad;
}

qnn_status qnn_trainer__need_best(qnn_trainer *t)
{
    return t->best != NULL
               ? QNN_OK
               : alloc_floats(t, &t->best, t->n_snapshot, "the best epoch's parameters");
}

qnn_status qnn_trainer__need_history(qnn_trainer *t, size_t n)
{
    void *array = t->history;
    const qnn_status status =
        qnn_ctx__grow(t->ctx, &array, &t->cap_history, n, sizeof *t->history, "the log of epochs");

    t->history = array;
    return status;
}

qnn_status qnn_trainer_restore_best(qnn_trainer *t)
{
    if (t == NULL)
        return QNN_ERR_ARG;
    QNN_RETURN_IF(t->ctx, t->best_epoch == 0, QNN_ERR_STATE, "no epoch has been completed");
    for (int i = 0; i < t->n_trained; i++)
        memcpy(t->trained[i].p->data, t->best + t->trained[i].snapshot, t->trained[i].p->bytes);
    return QNN_OK;
}

/* ---- one batch ------------------------------------------------------------------------------- */

static qnn_status check_batch(const qnn_trainer *t, const float *x, int n)
{
    QNN_RETURN_IF(t->ctx, n < 1 || n > t->opts.batch, QNN_ERR_ARG,
                  "a batch of %d items is outside 1..%d", n, t->opts.batch);
    QNN_RETURN_IF(t->ctx, x == NULL, QNN_ERR_ARG, "the batch is NULL");
    return QNN_OK;
}

static qnn_status check_labels(const qnn_trainer *t, const int32_t *labels, int n)
{
    QNN_RETURN_IF(t->ctx, labels == NULL, QNN_ERR_ARG, "the labels are NULL");
    for (int i = 0; i < n; i++)
        QNN_RETURN_IF(t->ctx, labels[i] < 0 || labels[i] >= t->n_classes, QNN_ERR_ARG,
                      "label %d of item %d is outside 0..%d", (int)labels[i], i, t->n_classes - 1);
    return QNN_OK;
}

/*
 * Running statistics and observed ranges move in the forward pass, before the loss is known: they
 * are kept, and put back when the loss is not finite.
 */
static void move_buffers(qnn_trainer *t, int put_back)
{
    float *kept = t->buffers;

    for (int i = 0; i < t->n_trained; i++) {
        const qnn_param *const p = t->trained[i].p;

        if (is_trained(&t->trained[i]))
            continue;
        if (put_back)
            memcpy(p->data, kept, p->bytes);
        else
            memcpy(kept, p->data, p->bytes);
        kept += p->count;
    }
}

static int count_right(const qnn_trainer *t, const float *logits, const int32_t *labels, int n)
{
    int n_right = 0;

    for (int i = 0; i < n; i++)
        n_right +=
            qnn_arg_max(logits + (size_t)i * (size_t)t->n_classes, t->n_classes) == labels[i];
    return n_right;
}

static qnn_exec make_exec(qnn_trainer *t, const void *const *src, int n)
{
    return (qnn_exec){
        .ctx = t->ctx, .p = t->program, .k = t->program->k, .n = n, .ws = t->ws, .src = src};
}

/* The gradients of one batch, in the bucket. */
static qnn_status find_gradients(qnn_trainer *t, const float *x, const int32_t *labels, int n,
                                 double *loss, int *n_right)
{
    const qnn_node out = t->m->output[0];
    const void *const src = x;
    qnn_exec e = make_exec(t, &src, n);
    const float *logits;
    qnn_rng r;

    QNN_TRY(check_batch(t, x, n));
    QNN_TRY(check_labels(t, labels, n));
    qnn_rng__init(&r, t->opts.seed, (uint64_t)t->n_steps);
    e.seed = qnn_rng__u64(&r);
    e.is_train = 1;
    e.grad = t->grad;
    move_buffers(t, 0);
    QNN_TRY(qnn_exec__forward(&e));
    logits = qnn_exec__value(&e, out);
    *n_right = count_right(t, logits, labels, n);
    *loss = qnn_loss__cross_entropy(logits, labels, (size_t)n, (size_t)t->n_classes,
                                    qnn_exec__dvalue(&e, out));
    if (!isfinite(*loss)) {
        move_buffers(t, 1);
        return qnn_ctx__fail(t->ctx, QNN_ERR_STATE, "the loss is %g", *loss);
    }
    memset(t->bucket, 0, t->n_bucket * sizeof *t->bucket);
    return qnn_exec__backward(&e);
}

static void square_piece(void *arg, size_t i, int thread)
{
    qnn_trainer *const t = arg;
    qnn_piece *const piece = &t->piece[i];

    (void)thread;
    piece->squares = t->ctx->k.vec->sum_squares(
        piece->n, t->bucket + t->trained[piece->trained].grad + piece->begin);
}

static double gradient_norm(qnn_trainer *t)
{
    double squares = 0.0;

    qnn_ctx__parallel(t->ctx, t->n_pieces, square_piece, t);
    for (size_t i = 0; i < t->n_pieces; i++)
        squares += t->piece[i].squares;
    return sqrt(squares);
}

typedef struct update_job {
    qnn_trainer *t;
    qnn_optim_step step;
} update_job;

static void update_piece(void *arg, size_t i, int thread)
{
    const update_job *const j = arg;
    qnn_trainer *const t = j->t;
    const qnn_piece *const piece = &t->piece[i];
    const qnn_trained *const tr = &t->trained[piece->trained];
    const size_t at = tr->grad + piece->begin;

    (void)thread;
    qnn_optim__update(&j->step, t->ctx->k.vec, piece->n, (float *)tr->p->data + piece->begin,
                      t->state[0] + at, t->state[1] != NULL ? t->state[1] + at : NULL,
                      t->bucket + at);
}

qnn_status qnn_trainer__step(qnn_trainer *t, const float *x, const int32_t *labels, int n,
                             double *loss, int *n_right)
{
    update_job j = {.t = t};
    double norm, scale = 1.0;

    QNN_TRY(find_gradients(t, x, labels, n, loss, n_right));
    norm = gradient_norm(t);
    if (!isfinite(norm)) {
        move_buffers(t, 1);
        return qnn_ctx__fail(t->ctx, QNN_ERR_STATE, "the gradient's norm is %g at loss %g", norm,
                             *loss);
    }
    if (t->opts.clip_norm > 0.0f)
        scale = fmin(1.0, (double)t->opts.clip_norm / (norm + 1e-6));
    j.step = qnn_optim__begin(&t->opts, t->lr, (float)scale, t->n_steps + 1);
    qnn_ctx__parallel(t->ctx, t->n_pieces, update_piece, &j);
    t->n_steps++;
    return QNN_OK;
}

qnn_status qnn_trainer_step(qnn_trainer *t, const float *x, const int32_t *labels, int n,
                            float *loss)
{
    double mean = 0.0;
    int n_right;
    qnn_status status;

    if (t == NULL)
        return QNN_ERR_ARG;
    status = qnn_trainer__step(t, x, labels, n, &mean, &n_right);
    if (loss != NULL)
        *loss = (float)mean;
    return status;
}

qnn_status qnn_trainer_gradients(qnn_trainer *t, const float *x, const int32_t *labels, int n,
                                 float *loss)
{
    double mean = 0.0;
    int n_right;
    qnn_status status;

    if (t == NULL)
        return QNN_ERR_ARG;
    status = find_gradients(t, x, labels, n, &mean, &n_right);
    if (loss != NULL)
        *loss = (float)mean;
    return status;
}

const float *qnn_trainer_grad(const qnn_trainer *t, int i)
{
    if (i < 0 || i >= t->n_trained || !is_trained(&t->trained[i]))
        return NULL;
    return t->bucket + t->trained[i].grad;
}

qnn_status qnn_trainer_evaluate(qnn_trainer *t, const float *x, int n, float *logits)
{
    const void *const src = x;
    qnn_exec e;

    if (t == NULL)
        return QNN_ERR_ARG;
    QNN_TRY(check_batch(t, x, n));
    QNN_RETURN_IF(t->ctx, logits == NULL, QNN_ERR_ARG, "the scores' place is NULL");
    e = make_exec(t, &src, n);
    QNN_TRY(qnn_exec__forward(&e));
    memcpy(logits, qnn_exec__value(&e, t->m->output[0]),
           (size_t)n * (size_t)t->n_classes * sizeof *logits);
    return QNN_OK;
}

float qnn_trainer_lr(const qnn_trainer *t) { return t->lr; }

void qnn_trainer_set_lr(qnn_trainer *t, float lr) { t->lr = lr; }

int64_t qnn_trainer_steps(const qnn_trainer *t) { return t->n_steps; }
