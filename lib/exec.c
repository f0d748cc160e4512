/* Running a program: what ops ask of it, and the public run calls. */
#include "lib/exec.h"

#include <string.h>

qnn_status qnn_exec__forward(qnn_exec *x) { return x->p->backend->forward(x, 0, x->p->n_steps); }

qnn_status qnn_exec__backward(qnn_exec *x)
{
    return x->p->backend->backward(x, x->p->n_steps - 1, x->p->n_steps);
}

static const qnn_step *in_step(const qnn_exec *x, const qnn_step *s, int i)
{
    return &x->p->step[x->p->step_of[s->n->in[i]]];
}

static const void *value(const qnn_exec *x, const qnn_step *s)
{
    return s->input_index >= 0 ? x->src[s->input_index] : x->ws + s->out;
}

const void *qnn_exec__in(const qnn_exec *x, const qnn_step *s, int i)
{
    return value(x, in_step(x, s, i));
}

void *qnn_exec__out(const qnn_exec *x, const qnn_step *s) { return x->ws + s->out; }

float *qnn_exec__dout(const qnn_exec *x, const qnn_step *s)
{
    return s->dout == QNN_NO_OFFSET ? NULL : (float *)(void *)(x->ws + s->dout);
}

float *qnn_exec__din(const qnn_exec *x, const qnn_step *s, int i)
{
    return qnn_exec__dout(x, in_step(x, s, i));
}

int qnn_exec__din_beta(const qnn_exec *x, const qnn_step *s, int i)
{
    (void)x;
    return s->din_beta[i];
}

float *qnn_exec__dparam(const qnn_exec *x, const qnn_step *s, int slot)
{
    return x->grad == NULL ? NULL : x->grad[(size_t)s->id * QNN_MAX_PARAMS + (size_t)slot];
}

void *qnn_exec__saved(const qnn_exec *x, const qnn_step *s)
{
    return s->saved == QNN_NO_OFFSET ? NULL : x->ws + s->saved;
}

void *qnn_exec__scratch(const qnn_exec *x, const qnn_step *s)
{
    (void)s;
    return x->ws + x->p->scratch;
}

const void *qnn_exec__value(const qnn_exec *x, qnn_node i)
{
    return value(x, &x->p->step[x->p->step_of[i]]);
}

float *qnn_exec__dvalue(const qnn_exec *x, qnn_node i)
{
    return qnn_exec__dout(x, &x->p->step[x->p->step_of[i]]);
}

/* ---- public
 * ------------------------------------------------------------------------------------------------------------
 */

static qnn_status check_run(const qnn_program *p, qnn_ctx *ctx, const float *const *src, int n,
                            float *const *dst)
{
    QNN_RETURN_IF(ctx, src == NULL || dst == NULL, QNN_ERR_ARG,
                  "the list of inputs or outputs is NULL");
    QNN_RETURN_IF(ctx, n < 1 || n > p->max_batch, QNN_ERR_ARG,
                  "a batch of %d items is outside 1..%d", n, p->max_batch);
    for (int i = 0, n_inputs = qnn_model_n_inputs(p->graph); i < n_inputs; i++)
        QNN_RETURN_IF(ctx, src[i] == NULL, QNN_ERR_ARG, "input %d is NULL", i);
    for (int i = 0; i < p->graph->n_outputs; i++)
        QNN_RETURN_IF(ctx, dst[i] == NULL, QNN_ERR_ARG, "output %d is NULL", i);
    return QNN_OK;
}

qnn_status qnn_run_in(const qnn_program *p, qnn_ctx *ctx, const float *const *src, int n,
                      float *const *dst, void *ws, size_t ws_bytes)
{
    const void *inputs[QNN_MAX_INPUTS];
    qnn_exec x = {.ctx = ctx, .p = p, .n = n, .ws = ws, .src = inputs};

    if (p == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    x.k = p->k;
    QNN_TRY(check_run(p, ctx, src, n, dst));
    QNN_RETURN_IF(ctx, ws_bytes < p->workspace, QNN_ERR_ARG,
                  "the workspace has %zu bytes, the program needs %zu", ws_bytes, p->workspace);
    QNN_RETURN_IF(ctx, p->workspace > 0 && (ws == NULL || (uintptr_t)ws % QNN_ALIGN != 0),
                  QNN_ERR_ARG, "the workspace is NULL or not aligned to %d bytes", QNN_ALIGN);
    for (int i = 0, n_inputs = qnn_model_n_inputs(p->graph); i < n_inputs; i++)
        inputs[i] = src[i];
    QNN_TRY(qnn_exec__forward(&x));
    for (int i = 0; i < p->graph->n_outputs; i++) {
        const qnn_node_data *const out = p->graph->node[p->graph->output[i]];

        memcpy(dst[i], qnn_exec__value(&x, p->graph->output[i]),
               (size_t)n * (size_t)qnn_shape__count(&out->shape) * sizeof(float));
    }
    return QNN_OK;
}

qnn_status qnn_run(const qnn_program *p, qnn_ctx *ctx, const float *src, int n, float *dst)
{
    if (p == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    QNN_RETURN_IF(ctx, qnn_model_n_inputs(p->graph) != 1 || p->graph->n_outputs != 1, QNN_ERR_ARG,
                  "the program has %d inputs and %d outputs: qnn_run_in() takes them",
                  qnn_model_n_inputs(p->graph), p->graph->n_outputs);
    if (ctx->run_ws_bytes < p->workspace) {
        void *bigger;

        QNN_TRY(qnn_ctx__alloc(ctx, &bigger, p->workspace, "the workspace"));
        qnn_ctx__release(ctx, ctx->run_ws);
        ctx->run_ws = bigger;
        ctx->run_ws_bytes = p->workspace;
    }
    return qnn_run_in(p, ctx, &src, n, &dst, ctx->run_ws, ctx->run_ws_bytes);
}
