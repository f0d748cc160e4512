/* Nodes of a model: adding them through their op's inference, their parameters, and what passes
 * need to rewrite a model. */
#include "lib/graph.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/op.h"

int64_t qnn_shape__count(const qnn_shape *s)
{
    int64_t n = 1;

    for (int i = 0; i < s->rank; i++)
        n *= s->dim[i];
    return n;
}

int qnn_shape__equal(const qnn_shape *a, const qnn_shape *b)
{
    if (a->rank != b->rank)
        return 0;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i])
            return 0;
    return 1;
}

const char *qnn_shape__text(const qnn_shape *s, char *buf, size_t size)
{
    size_t used = 0;

    buf[0] = '\0';
    for (int i = 0; i < s->rank && used < size; i++)
        used += (size_t)snprintf(buf + used, size - used, "%s%lld", i == 0 ? "" : "x",
                                 (long long)s->dim[i]);
    return buf;
}

const char *qnn_dtype_name(qnn_dtype t)
{
    switch (t) {
    case QNN_DTYPE_F32:
        return "f32";
    case QNN_DTYPE_F16:
        return "f16";
    case QNN_DTYPE_BF16:
        return "bf16";
    case QNN_DTYPE_I32:
        return "i32";
    case QNN_DTYPE_I8:
        return "i8";
    case QNN_DTYPE_U8:
        return "u8";
    case QNN_DTYPE_S4:
        return "s4";
    }
    return "?";
}

size_t qnn_dtype__bytes(qnn_dtype t, size_t count)
{
    switch (t) {
    case QNN_DTYPE_F32:
    case QNN_DTYPE_I32:
        return count * 4;
    case QNN_DTYPE_F16:
    case QNN_DTYPE_BF16:
        return count * 2;
    case QNN_DTYPE_I8:
    case QNN_DTYPE_U8:
        return count;
    case QNN_DTYPE_S4:
        return (count + 1) / 2;
    }
    return 0;
}

qnn_attrs qnn_attrs__default(void)
{
    qnn_attrs a;

    memset(&a, 0, sizeof a);
    a.sh = a.sw = a.dh = a.dw = a.groups = 1;
    a.lo = -INFINITY;
    a.hi = INFINITY;
    a.w_bits = 8;
    a.w_per_channel = 1;
    return a;
}

/* ---- parameters
 * --------------------------------------------------------------------------------------------- */

static void free_param(qnn_ctx *ctx, qnn_param *p)
{
    qnn_ctx__release(ctx, p->data);
    qnn_ctx__release(ctx, p->scale);
    qnn_ctx__release(ctx, p->full_name);
    memset(p, 0, sizeof *p);
}

void qnn_node__free(qnn_ctx *ctx, qnn_node_data *n)
{
    if (n == NULL)
        return;
    for (int i = 0; i < QNN_MAX_PARAMS; i++)
        free_param(ctx, &n->param[i]);
    qnn_ctx__release(ctx, n->name);
    qnn_ctx__release(ctx, n->in);
    qnn_ctx__release(ctx, n->note);
    qnn_ctx__release(ctx, n);
}

qnn_status qnn_node__declare(qnn_model *m, qnn_node_data *n, int slot, const char *suffix,
                             qnn_dtype dtype, int rank, const int64_t *dim, int is_trainable)
{
    qnn_param *const p = &n->param[slot];
    int64_t count = 1;
    char full[2 * QNN_NAME_MAX];
    char *name;

    assert(slot >= 0 && slot < QNN_MAX_PARAMS && rank >= 1 && rank <= 4);
    for (int i = 0; i < rank; i++) {
        QNN_RETURN_IF(m->ctx, dim[i] < 1 || count > QNN_MAX_ELEMENTS / dim[i], QNN_ERR_SHAPE,
                      "%s \"%s\": %s would have more than %lld elements", qnn_ops[n->kind]->name,
                      n->name, suffix, (long long)QNN_MAX_ELEMENTS);
        count *= dim[i];
    }
    snprintf(full, sizeof full, "%s.%s", n->name, suffix);
    QNN_TRY(qnn_ctx__strdup(m->ctx, &name, full));
    free_param(m->ctx, p);
    p->suffix = suffix;
    p->full_name = name;
    p->dtype = dtype;
    p->rank = rank;
    memcpy(p->dim, dim, (size_t)rank * sizeof *dim);
    p->count = (size_t)count;
    p->bytes = qnn_dtype__bytes(dtype, p->count);
    p->is_trainable = is_trainable;
    if (slot >= n->n_param)
        n->n_param = slot + 1;
    return QNN_OK;
}

qnn_status qnn_node__retype(qnn_model *m, qnn_node_data *n, int slot, qnn_dtype dtype,
                            size_t n_scale)
{
    qnn_param *const p = &n->param[slot];
    const size_t bytes = qnn_dtype__bytes(dtype, p->count);
    void *data, *scale = NULL;

    assert(p->count > 0);
    QNN_TRY(qnn_ctx__zalloc(m->ctx, &data, bytes, p->full_name));
    if (n_scale > 0) {
        const qnn_status status =
            qnn_ctx__zalloc(m->ctx, &scale, n_scale * sizeof(float), p->full_name);

        if (status != QNN_OK) {
            qnn_ctx__release(m->ctx, data);
            return status;
        }
    }
    qnn_ctx__release(m->ctx, p->data);
    qnn_ctx__release(m->ctx, p->scale);
    p->data = data;
    p->scale = scale;
    p->n_scale = n_scale;
    p->dtype = dtype;
    p->bytes = bytes;
    if (dtype != QNN_DTYPE_F32)
        p->is_trainable = 0;
    return QNN_OK;
}

qnn_status qnn_node__copy_param(qnn_model *m, qnn_node_data *dst, int slot, const qnn_param *src)
{
    qnn_param *const p = &dst->param[slot];

    QNN_RETURN_IF(m->ctx, p->count != src->count, QNN_ERR_SHAPE,
                  "parameter \"%s\" has %zu elements, its source %zu", p->full_name, p->count,
                  src->count);
    if (p->data == NULL || p->dtype != src->dtype || p->n_scale != src->n_scale)
        QNN_TRY(qnn_node__retype(m, dst, slot, src->dtype, src->n_scale));
    if (src->data != NULL)
        memcpy(p->data, src->data, p->bytes);
    if (src->n_scale > 0)
        memcpy(p->scale, src->scale, src->n_scale * sizeof *src->scale);
    p->is_trainable = src->is_trainable;
    return QNN_OK;
}

qnn_status qnn_node__set_note(qnn_model *m, qnn_node_data *n, const char *fmt, ...)
{
    char text[QNN_ERROR_MAX];
    char *copy;
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    QNN_TRY(qnn_ctx__strdup(m->ctx, &copy, text));
    qnn_ctx__release(m->ctx, n->note);
    n->note = copy;
    return QNN_OK;
}

/* Kaiming-uniform with a = sqrt(5), as PyTorch initialises conv and linear: weight and bias uniform
 * in +-1/sqrt(fan_in). */
static void init_kaiming(qnn_model *m, qnn_node_data *n)
{
    const qnn_param *const w = &n->param[QNN_P_WEIGHT];
    const double bound = 1.0 / sqrt((double)(w->count / (size_t)w->dim[0]));

    for (int slot = QNN_P_WEIGHT; slot <= QNN_P_BIAS; slot++) {
        qnn_param *const p = &n->param[slot];
        float *const x = p->data;
        qnn_rng r;

        if (p->count == 0 || p->dtype != QNN_DTYPE_F32)
            continue;
        qnn_rng__init(&r, m->ctx->seed, qnn_hash__text(p->full_name));
        for (size_t i = 0; i < p->count; i++)
            x[i] = (float)((2.0 * qnn_rng__uniform(&r) - 1.0) * bound);
    }
}

static void fill(const qnn_param *p, float value)
{
    float *const x = p->data;

    for (size_t i = 0; i < p->count; i++)
        x[i] = value;
}

static qnn_status init_params(qnn_model *m, qnn_node_data *n)
{
    for (int i = 0; i < n->n_param; i++)
        if (n->param[i].count > 0)
            QNN_TRY(qnn_ctx__zalloc(m->ctx, &n->param[i].data, n->param[i].bytes,
                                    n->param[i].full_name));
    if (n->kind == QNN_OP_CONV2D || n->kind == QNN_OP_LINEAR) {
        init_kaiming(m, n);
    } else if (n->kind == QNN_OP_BATCHNORM2D) {
        fill(&n->param[QNN_P_WEIGHT], 1.0f);
        fill(&n->param[QNN_P_VAR], 1.0f);
    }
    return QNN_OK;
}

/* ---- adding a node
 * -------------------------------------------------------------------------------------------- */

/* The first failure of building stays with the model; its text is what the context holds at that
 * moment. */
static qnn_node stick(qnn_model *m, qnn_status status)
{
    if (m->status == QNN_OK) {
        m->status = status;
        memcpy(m->error, m->ctx->error, sizeof m->error);
    }
    return QNN_NODE_NONE;
}

static qnn_status check_name(qnn_model *m, const char *op, const char *name)
{
    QNN_RETURN_IF(m->ctx, name == NULL || name[0] == '\0', QNN_ERR_ARG, "%s: node %d has no name",
                  op, m->n_nodes);
    QNN_RETURN_IF(m->ctx, strlen(name) >= QNN_NAME_MAX, QNN_ERR_ARG,
                  "%s \"%.40s...\": name is longer than %d bytes", op, name, QNN_NAME_MAX - 1);
    QNN_RETURN_IF(m->ctx, qnn_model_find(m, name) != QNN_NODE_NONE, QNN_ERR_ARG,
                  "%s \"%s\": another node has this name", op, name);
    return QNN_OK;
}

/* Shapes that infer computed; guards every later product of sizes. */
static qnn_status check_shape(qnn_model *m, const qnn_node_data *n)
{
    int64_t count = 1;

    assert(n->shape.rank >= 1 && n->shape.rank <= 4);
    for (int i = 0; i < n->shape.rank; i++) {
        QNN_RETURN_IF(m->ctx, n->shape.dim[i] < 1, QNN_ERR_SHAPE,
                      "%s \"%s\": output dimension %d would be %lld", qnn_ops[n->kind]->name,
                      n->name, i, (long long)n->shape.dim[i]);
        QNN_RETURN_IF(m->ctx, count > QNN_MAX_ELEMENTS / n->shape.dim[i], QNN_ERR_SHAPE,
                      "%s \"%s\": output would have more than %lld elements",
                      qnn_ops[n->kind]->name, n->name, (long long)QNN_MAX_ELEMENTS);
        count *= n->shape.dim[i];
    }
    return QNN_OK;
}

static qnn_status fill_node(qnn_model *m, qnn_node_data *n, const char *name, const qnn_node *in,
                            int n_in, int with_params)
{
    const qnn_op *const op = qnn_ops[n->kind];
    void *block;

    QNN_TRY(check_name(m, op->name, name));
    QNN_TRY(qnn_ctx__strdup(m->ctx, &n->name, name));
    QNN_RETURN_IF(m->ctx, n_in < op->n_in_min || n_in > op->n_in_max, QNN_ERR_ARG,
                  "%s \"%s\": takes %d to %d inputs, got %d", op->name, name, op->n_in_min,
                  op->n_in_max, n_in);
    for (int i = 0; i < n_in; i++)
        QNN_RETURN_IF(m->ctx, in[i] < 0 || in[i] >= m->n_nodes, QNN_ERR_ARG,
                      "%s \"%s\": input %d is node %d, the model has %d", op->name, name, i,
                      (int)in[i], m->n_nodes);
    QNN_TRY(qnn_ctx__alloc(m->ctx, &block, (size_t)n_in * sizeof *in, "inputs of a node"));
    n->in = block;
    if (n_in > 0)
        memcpy(n->in, in, (size_t)n_in * sizeof *in);
    n->n_in = n_in;
    QNN_TRY(op->infer(m, n));
    QNN_TRY(check_shape(m, n));
    if (with_params)
        QNN_TRY(init_params(m, n));
    return QNN_OK;
}

static qnn_status add_node(qnn_model *m, qnn_node_data *n, const char *name, const qnn_node *in,
                           int n_in, int with_params)
{
    void *array = m->node;
    qnn_status status = fill_node(m, n, name, in, n_in, with_params);

    if (status == QNN_OK) {
        status = qnn_ctx__grow(m->ctx, &array, &m->cap_nodes, (size_t)m->n_nodes + 1,
                               sizeof(qnn_node_data *), "nodes");
        m->node = array;
    }
    if (status != QNN_OK) {
        qnn_node__free(m->ctx, n);
        return status;
    }
    m->node[m->n_nodes++] = n;
    return QNN_OK;
}

static qnn_node add(qnn_model *m, qnn_op_kind kind, const char *name, const qnn_node *in, int n_in,
                    const qnn_attrs *a, int with_params, qnn_dtype dtype, float scale,
                    int32_t zero_point)
{
    void *block;
    qnn_node_data *n;
    qnn_status status;

    if (m == NULL || m->status != QNN_OK)
        return QNN_NODE_NONE;
    status = qnn_ctx__zalloc(m->ctx, &block, sizeof *n, "a node");
    if (status != QNN_OK)
        return stick(m, status);
    n = block;
    n->kind = kind;
    n->a = *a;
    n->dtype = dtype;
    n->scale = scale;
    n->zero_point = zero_point;
    status = add_node(m, n, name, in, n_in, with_params);
    return status != QNN_OK ? stick(m, status) : m->n_nodes - 1;
}

qnn_node qnn_model__add(qnn_model *m, qnn_op_kind kind, const char *name, const qnn_node *in,
                        int n_in, const qnn_attrs *a, int with_params)
{
    return add(m, kind, name, in, n_in, a, with_params, QNN_DTYPE_F32, 0.0f, 0);
}

qnn_node qnn_model__add_u8(qnn_model *m, qnn_op_kind kind, const char *name, const qnn_node *in,
                           int n_in, const qnn_attrs *a, float scale, int32_t zero_point)
{
    if (m == NULL || m->status != QNN_OK)
        return QNN_NODE_NONE;
    if (!(scale > 0.0f) || !isfinite(scale) || !isfinite(1.0f / scale))
        return stick(
            m, qnn_ctx__fail(m->ctx, QNN_ERR_ARG, "%s \"%s\": scale %g is not positive and finite",
                             qnn_ops[kind]->name, name != NULL ? name : "", (double)scale));
    if (zero_point < 0 || zero_point > 255)
        return stick(
            m, qnn_ctx__fail(m->ctx, QNN_ERR_ARG, "%s \"%s\": zero point %d is outside 0..255",
                             qnn_ops[kind]->name, name != NULL ? name : "", (int)zero_point));
    return add(m, kind, name, in, n_in, a, 0, QNN_DTYPE_U8, scale, zero_point);
}

qnn_status qnn_model__stick(qnn_model *m, qnn_status status)
{
    (void)stick(m, status);
    return status;
}

/* ---- rewriting
 * --------------------------------------------------------------------------------------------------
 */

int qnn_model__is_output(const qnn_model *m, qnn_node i)
{
    for (int k = 0; k < m->n_outputs; k++)
        if (m->output[k] == i)
            return 1;
    return 0;
}

int qnn_model__n_users(const qnn_model *m, qnn_node i)
{
    int n_users = 0;

    for (int k = 0; k < m->n_outputs; k++)
        n_users += m->output[k] == i;
    for (int k = 0; k < m->n_nodes; k++)
        for (int j = 0; j < m->node[k]->n_in; j++)
            n_users += m->node[k]->in[j] == i;
    return n_users;
}

qnn_status qnn_model__finish_rewrite(qnn_model *dst, const qnn_model *src, const qnn_node *map)
{
    for (int k = 0; k < src->n_outputs; k++)
        qnn_output(dst, src->output_name[k], map[src->output[k]]);
    for (int k = 0; k < src->n_meta; k++)
        QNN_TRY(qnn_model_set_meta(dst, src->meta[k].key, src->meta[k].value));
    return qnn_model_check(dst);
}

qnn_status qnn_model__usable(const qnn_model *m, qnn_ctx *ctx)
{
    QNN_RETURN_IF(ctx, m == NULL, QNN_ERR_ARG, "the model is NULL");
    if (m->status != QNN_OK)
        return qnn_ctx__fail(ctx, m->status, "%s", m->error);
    QNN_RETURN_IF(ctx, m->n_outputs == 0, QNN_ERR_STATE, "the model has no output");
    return QNN_OK;
}
