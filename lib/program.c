/* Compiling a model: which nodes run, their private copies, gradients' routes, then each op's
 * preparation and the memory plan. */
#include "lib/exec.h"

#include <string.h>

static void release_steps(qnn_program *p)
{
    for (int i = 0; p->step != NULL && i < p->n_steps; i++)
        qnn_ctx__release(p->ctx, p->step[i].packed);
}

void qnn_program_free(qnn_program *p)
{
    if (p == NULL)
        return;
    release_steps(p);
    if (p->owns_graph)
        qnn_model_free(p->graph);
    qnn_ctx__release(p->ctx, p->step);
    qnn_ctx__release(p->ctx, p->step_of);
    qnn_ctx__release(p->ctx, p);
}

size_t qnn_program_workspace(const qnn_program *p) { return p->workspace; }

size_t qnn_program_bytes(const qnn_program *p) { return p->bytes; }

int qnn_program_max_batch(const qnn_program *p) { return p->max_batch; }

int qnn_program_n_steps(const qnn_program *p) { return p->n_steps; }

qnn_status qnn_program_step(const qnn_program *p, int i, qnn_step_info *out)
{
    const qnn_step *s;

    if (p == NULL || out == NULL || i < 0 || i >= p->n_steps)
        return QNN_ERR_ARG;
    s = &p->step[i];
    out->name = s->n->name;
    out->op = s->op->name;
    out->device = p->backend->name;
    out->kernel = s->kernel != NULL ? s->kernel : "";
    out->dtype = s->n->n_in > 0 ? qnn_step__in(s, 0)->dtype : s->n->dtype;
    out->offset = s->out == QNN_NO_OFFSET ? 0 : s->out;
    out->bytes = s->out_bytes;
    return QNN_OK;
}

qnn_status qnn_step__pack(qnn_step *s, void **out, size_t bytes)
{
    assert(s->packed == NULL);
    QNN_TRY(qnn_ctx__alloc(s->p->ctx, &s->packed, bytes, "packed weights"));
    s->packed_bytes = bytes;
    s->p->bytes += bytes;
    *out = s->packed;
    return QNN_OK;
}

const qnn_node_data *qnn_step__in(const qnn_step *s, int i)
{
    return s->p->graph->node[s->n->in[i]];
}

/* ---- the private copy of the graph
 * -------------------------------------------------------------------------------- */

/* Parameters' data and scales are borrowed from the model while ops prepare, and forgotten
 * afterwards. */
static qnn_status copy_node(qnn_model *g, const qnn_node_data *src)
{
    void *block;
    qnn_node_data *n;
    qnn_status status;

    QNN_TRY(qnn_ctx__zalloc(g->ctx, &block, sizeof *n, "a program's node"));
    n = block;
    *n = *src;
    n->name = NULL;
    n->in = NULL;
    n->note = NULL;
    for (int i = 0; i < QNN_MAX_PARAMS; i++)
        n->param[i].full_name = NULL;
    g->node[g->n_nodes++] = n;
    QNN_TRY(qnn_ctx__strdup(g->ctx, &n->name, src->name));
    status = qnn_ctx__alloc(g->ctx, &block, (size_t)n->n_in * sizeof *n->in, "a program's node");
    QNN_TRY(status);
    n->in = block;
    if (n->n_in > 0)
        memcpy(n->in, src->in, (size_t)n->n_in * sizeof *n->in);
    return QNN_OK;
}

static void forget_params(qnn_model *g)
{
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < QNN_MAX_PARAMS; k++) {
            g->node[i]->param[k].data = NULL;
            g->node[i]->param[k].scale = NULL;
        }
}

static qnn_status copy_graph(qnn_program *p, const qnn_model *m)
{
    void *block;
    qnn_model *g;

    QNN_TRY(qnn_model_create(&g, p->ctx));
    p->graph = g;
    p->owns_graph = 1;
    QNN_TRY(
        qnn_ctx__zalloc(p->ctx, &block, (size_t)m->n_nodes * sizeof *g->node, "a program's nodes"));
    g->node = block;
    for (int i = 0; i < m->n_nodes; i++)
        QNN_TRY(copy_node(g, m->node[i]));
    QNN_TRY(qnn_ctx__alloc(p->ctx, &block, (size_t)m->n_outputs * sizeof *g->output,
                           "a program's outputs"));
    g->output = block;
    memcpy(g->output, m->output, (size_t)m->n_outputs * sizeof *g->output);
    QNN_TRY(qnn_ctx__zalloc(p->ctx, &block, (size_t)m->n_outputs * sizeof *g->output_name,
                            "a program's outputs"));
    g->output_name = block;
    g->n_outputs = m->n_outputs;
    return QNN_OK;
}

/* ---- steps
 * -------------------------------------------------------------------------------------------------------------
 */

static int is_dropped(const qnn_program *p, const qnn_op *op)
{
    return (op->flags & QNN_OP_VIEW) != 0 || ((op->flags & QNN_OP_TRAIN_ONLY) != 0 && !p->is_train);
}

static qnn_status make_steps(qnn_program *p)
{
    const qnn_model *const g = p->graph;
    void *block;
    int n_inputs = 0;

    QNN_TRY(
        qnn_ctx__zalloc(p->ctx, &block, (size_t)g->n_nodes * sizeof *p->step, "a program's steps"));
    p->step = block;
    QNN_TRY(qnn_ctx__alloc(p->ctx, &block, (size_t)g->n_nodes * sizeof *p->step_of,
                           "a program's steps"));
    p->step_of = block;
    for (int i = 0; i < g->n_nodes; i++) {
        const qnn_node_data *const n = g->node[i];
        const qnn_op *const op = qnn_ops[n->kind];
        qnn_step *s;

        if (is_dropped(p, op)) {
            p->step_of[i] = p->step_of[n->in[0]];
            continue;
        }
        p->step_of[i] = p->n_steps;
        s = &p->step[p->n_steps++];
        s->p = p;
        s->id = i;
        s->op = op;
        s->flags = op->flags;
        s->n = n;
        s->input_index = n->kind == QNN_OP_INPUT ? n_inputs++ : -1;
        s->out = s->dout = s->saved = QNN_NO_OFFSET;
    }
    return QNN_OK;
}

static int has_trainable(const qnn_node_data *n)
{
    for (int i = 0; i < n->n_param; i++)
        if (n->param[i].count > 0 && n->param[i].is_trainable)
            return 1;
    return 0;
}

static qnn_step *in_step(const qnn_step *s, int i)
{
    return &s->p->step[s->p->step_of[s->n->in[i]]];
}

/* Which gradients exist, and which contribution to each comes first when steps run backwards. */
static qnn_status route_gradients(qnn_program *p)
{
    uint8_t *seen;
    void *block;

    if (!p->is_train)
        return QNN_OK;
    for (int i = 0; i < p->n_steps; i++) {
        qnn_step *const s = &p->step[i];

        s->needs_grad = s->input_index >= 0 ? p->input_grad : 0;
        if (s->op->backward == NULL)
            continue;
        s->needs_grad = has_trainable(s->n);
        for (int k = 0; k < s->n->n_in; k++)
            s->needs_grad |= in_step(s, k)->needs_grad;
    }
    QNN_TRY(qnn_ctx__zalloc(p->ctx, &block, (size_t)p->n_steps, "gradient routes"));
    seen = block;
    for (int k = 0; k < p->graph->n_outputs; k++)
        seen[p->step_of[p->graph->output[k]]] = 1; /* the loss writes it first */
    for (int i = p->n_steps - 1; i >= 0; i--) {
        qnn_step *const s = &p->step[i];

        s->needs_grad &= seen[i]; /* a node that no output depends on has no gradient */
        if (!s->needs_grad || s->op->backward == NULL)
            continue;
        for (int k = 0; k < s->n->n_in; k++) {
            const int from = p->step_of[s->n->in[k]];

            s->din_beta[k] = seen[from];
            seen[from] = 1;
        }
    }
    qnn_ctx__release(p->ctx, seen);
    return QNN_OK;
}

static qnn_status check_ends(const qnn_program *p, const qnn_model *m)
{
    QNN_RETURN_IF(p->ctx, qnn_model_n_inputs(m) > QNN_MAX_INPUTS, QNN_ERR_UNSUPPORTED,
                  "the model has %d inputs, at most %d can be run", qnn_model_n_inputs(m),
                  QNN_MAX_INPUTS);
    for (int k = 0; k < m->n_outputs; k++)
        QNN_RETURN_IF(p->ctx, m->node[m->output[k]]->dtype != QNN_DTYPE_F32, QNN_ERR_DTYPE,
                      "output \"%s\" is %s: outputs are f32, dequantize it", m->output_name[k],
                      qnn_dtype_name(m->node[m->output[k]]->dtype));
    return QNN_OK;
}

static qnn_status build(qnn_program *p, const qnn_model *m)
{
    QNN_TRY(check_ends(p, m));
    if (p->is_train) {
        /* The trainer changes parameters between runs, so a training program reads the model
           itself; the cast is its promise to change nothing else. */
        union {
            const qnn_model *in;
            qnn_model *out;
        } borrowed = {m};

        p->graph = borrowed.out;
    } else {
        QNN_TRY(copy_graph(p, m));
    }
    QNN_TRY(make_steps(p));
    QNN_TRY(route_gradients(p));
    for (int i = 0; i < p->n_steps; i++) {
        size_t bytes;
        qnn_step *const s = &p->step[i];

        QNN_RETURN_IF(
            p->ctx,
            !qnn_mul_size((size_t)qnn_shape__count(&s->n->shape), (size_t)p->max_batch, &bytes) ||
                bytes > SIZE_MAX / 64,
            QNN_ERR_NOMEM, "a batch of %d is too large for \"%s\"", p->max_batch, s->n->name);
        s->out_bytes = qnn_dtype__bytes(s->n->dtype, bytes);
        QNN_TRY(p->backend->prepare(s));
    }
    return qnn_program__plan(p);
}

qnn_status qnn_program__compile(qnn_program **out, qnn_ctx *ctx, const qnn_model *m,
                                const qnn_compile_opts *o)
{
    qnn_program *p;
    qnn_status status;
    void *block;

    *out = NULL;
    QNN_TRY(qnn_model__usable(m, ctx));
    QNN_RETURN_IF(ctx, o->max_batch < 1 || o->max_batch > 1 << 20, QNN_ERR_ARG,
                  "max_batch %d is outside 1..%d", o->max_batch, 1 << 20);
    QNN_TRY(qnn_ctx__zalloc(ctx, &block, sizeof *p, "a program"));
    p = block;
    p->ctx = ctx;
    p->kernels_ = ctx->k;
    p->k = &p->kernels_;
    p->backend = &qnn_backend_cpu;
    p->max_batch = o->max_batch;
    p->is_train = o->is_train;
    p->keep_all = o->keep_all;
    p->input_grad = o->input_grad;
    p->bytes = sizeof *p;
    status = build(p, m);
    if (p->owns_graph)
        forget_params(p->graph);
    if (status != QNN_OK) {
        qnn_program_free(p);
        return status;
    }
    *out = p;
    return QNN_OK;
}

qnn_status qnn_program_compile(qnn_program **out, qnn_ctx *ctx, const qnn_model *m,
                               const qnn_program_opts *opts)
{
    qnn_compile_opts o = {.max_batch = opts != NULL && opts->max_batch != 0 ? opts->max_batch : 1};

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    return qnn_program__compile(out, ctx, m, &o);
}
