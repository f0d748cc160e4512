/* A model's life, its clone, its outputs, metadata, and the views that callers get of nodes and
 * parameters. */
#include "lib/graph.h"

#include <string.h>

#include "lib/op.h"

qnn_status qnn_model_create(qnn_model **out, qnn_ctx *ctx)
{
    void *block;

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_TRY(qnn_ctx__zalloc(ctx, &block, sizeof **out, "a model"));
    *out = block;
    (*out)->ctx = ctx;
    return QNN_OK;
}

void qnn_model_free(qnn_model *m)
{
    if (m == NULL)
        return;
    for (int i = 0; i < m->n_nodes; i++)
        qnn_node__free(m->ctx, m->node[i]);
    for (int i = 0; i < m->n_outputs; i++)
        qnn_ctx__release(m->ctx, m->output_name[i]);
    for (int i = 0; i < m->n_meta; i++) {
        qnn_ctx__release(m->ctx, m->meta[i].key);
        qnn_ctx__release(m->ctx, m->meta[i].value);
    }
    qnn_ctx__release(m->ctx, m->node);
    qnn_ctx__release(m->ctx, m->output);
    qnn_ctx__release(m->ctx, m->output_name);
    qnn_ctx__release(m->ctx, m->meta);
    qnn_ctx__release(m->ctx, m);
}

qnn_status qnn_model_check(qnn_model *m)
{
    if (m == NULL)
        return QNN_ERR_ARG;
    return qnn_model__usable(m, m->ctx);
}

static qnn_status add_output(qnn_model *m, const char *name, qnn_node x)
{
    void *outputs = m->output, *names = m->output_name;
    size_t cap = m->cap_outputs;
    char *copy;

    QNN_RETURN_IF(m->ctx, name == NULL || name[0] == '\0', QNN_ERR_ARG, "output %d has no name",
                  m->n_outputs);
    QNN_RETURN_IF(m->ctx, strlen(name) >= QNN_NAME_MAX, QNN_ERR_ARG,
                  "output \"%.40s...\": name is longer than %d bytes", name, QNN_NAME_MAX - 1);
    QNN_RETURN_IF(m->ctx, x < 0 || x >= m->n_nodes, QNN_ERR_ARG,
                  "output \"%s\" is node %d, the model has %d", name, (int)x, m->n_nodes);
    for (int i = 0; i < m->n_outputs; i++)
        QNN_RETURN_IF(m->ctx, strcmp(m->output_name[i], name) == 0, QNN_ERR_ARG,
                      "two outputs are called \"%s\"", name);
    QNN_TRY(qnn_ctx__strdup(m->ctx, &copy, name));
    if (qnn_ctx__grow(m->ctx, &outputs, &cap, (size_t)m->n_outputs + 1, sizeof *m->output,
                      "outputs") != QNN_OK) {
        qnn_ctx__release(m->ctx, copy);
        return QNN_ERR_NOMEM;
    }
    m->output = outputs;
    cap = m->cap_outputs;
    if (qnn_ctx__grow(m->ctx, &names, &cap, (size_t)m->n_outputs + 1, sizeof *m->output_name,
                      "outputs") != QNN_OK) {
        qnn_ctx__release(m->ctx, copy);
        return QNN_ERR_NOMEM;
    }
    m->output_name = names;
    m->cap_outputs = cap;
    m->output[m->n_outputs] = x;
    m->output_name[m->n_outputs++] = copy;
    return QNN_OK;
}

void qnn_output(qnn_model *m, const char *name, qnn_node x)
{
    if (m == NULL || m->status != QNN_OK)
        return;
    const qnn_status status = add_output(m, name, x);

    if (status != QNN_OK)
        (void)qnn_model__stick(m, status);
}

static qnn_status copy_node(qnn_model *dst, const qnn_node_data *n)
{
    const qnn_node made = n->dtype == QNN_DTYPE_U8
                              ? qnn_model__add_u8(dst, n->kind, n->name, n->in, n->n_in, &n->a,
                                                  n->scale, n->zero_point)
                              : qnn_model__add(dst, n->kind, n->name, n->in, n->n_in, &n->a, 0);

    if (made == QNN_NODE_NONE)
        return dst->status;
    for (int i = 0; i < n->n_param; i++)
        if (n->param[i].count > 0)
            QNN_TRY(qnn_node__copy_param(dst, dst->node[made], i, &n->param[i]));
    if (n->note != NULL)
        QNN_TRY(qnn_node__set_note(dst, dst->node[made], "%s", n->note));
    return QNN_OK;
}

static qnn_status copy_all(qnn_model *dst, const qnn_model *m)
{
    for (int i = 0; i < m->n_nodes; i++)
        QNN_TRY(copy_node(dst, m->node[i]));
    for (int k = 0; k < m->n_outputs; k++)
        qnn_output(dst, m->output_name[k], m->output[k]);
    for (int k = 0; k < m->n_meta; k++)
        QNN_TRY(qnn_model_set_meta(dst, m->meta[k].key, m->meta[k].value));
    return qnn_model_check(dst);
}

qnn_status qnn_model_clone(qnn_model **out, qnn_ctx *ctx, const qnn_model *m)
{
    qnn_model *dst;
    qnn_status status;

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_TRY(qnn_model__usable(m, ctx));
    QNN_TRY(qnn_model_create(&dst, ctx));
    status = copy_all(dst, m);
    if (status != QNN_OK) {
        qnn_model_free(dst);
        return status;
    }
    *out = dst;
    return QNN_OK;
}

/* ---- views
 * ---------------------------------------------------------------------------------------------------------
 */

int qnn_model_n_nodes(const qnn_model *m) { return m->n_nodes; }

qnn_status qnn_model_node_info(const qnn_model *m, qnn_node i, qnn_node_info *out)
{
    const qnn_node_data *n;

    if (m == NULL || out == NULL)
        return QNN_ERR_ARG;
    QNN_RETURN_IF(m->ctx, i < 0 || i >= m->n_nodes, QNN_ERR_ARG,
                  "node %d does not exist, the model has %d", (int)i, m->n_nodes);
    n = m->node[i];
    memset(out, 0, sizeof *out);
    out->name = n->name;
    out->op = qnn_ops[n->kind]->name;
    out->shape = n->shape;
    out->dtype = n->dtype;
    out->scale = n->scale;
    out->zero_point = n->zero_point;
    out->n_inputs = n->n_in;
    out->inputs = n->in;
    out->weight_dtype = n->n_param > 0 ? n->param[0].dtype : QNN_DTYPE_F32;
    out->note = n->note != NULL ? n->note : "";
    return QNN_OK;
}

qnn_node qnn_model_find(const qnn_model *m, const char *name)
{
    for (int i = 0; name != NULL && i < m->n_nodes; i++)
        if (strcmp(m->node[i]->name, name) == 0)
            return i;
    return QNN_NODE_NONE;
}

int qnn_model_n_inputs(const qnn_model *m)
{
    int n = 0;

    for (int i = 0; i < m->n_nodes; i++)
        n += m->node[i]->kind == QNN_OP_INPUT;
    return n;
}

qnn_node qnn_model_input(const qnn_model *m, int i)
{
    for (int k = 0; k < m->n_nodes; k++)
        if (m->node[k]->kind == QNN_OP_INPUT && i-- == 0)
            return k;
    return QNN_NODE_NONE;
}

int qnn_model_n_outputs(const qnn_model *m) { return m->n_outputs; }

qnn_node qnn_model_output(const qnn_model *m, int i)
{
    return i < 0 || i >= m->n_outputs ? QNN_NODE_NONE : m->output[i];
}

int64_t qnn_model_macs(const qnn_model *m)
{
    int64_t macs = 0;

    for (int i = 0; i < m->n_nodes; i++) {
        const qnn_node_data *const n = m->node[i];

        if (n->kind == QNN_OP_CONV2D)
            macs += n->shape.dim[0] * n->shape.dim[1] * (int64_t)n->param[QNN_P_WEIGHT].count;
        else if (n->kind == QNN_OP_LINEAR)
            macs += (int64_t)n->param[QNN_P_WEIGHT].count;
    }
    return macs;
}

/* Parameter number i (*slot of the returned node), NULL past the end. */
static qnn_node_data *locate(const qnn_model *m, int i, qnn_node *node, int *slot)
{
    for (int k = 0; k < m->n_nodes; k++)
        for (int s = 0; s < m->node[k]->n_param; s++)
            if (m->node[k]->param[s].count > 0 && i-- == 0) {
                *node = k;
                *slot = s;
                return m->node[k];
            }
    return NULL;
}

int qnn_model_n_params(const qnn_model *m)
{
    int n = 0;

    for (int k = 0; k < m->n_nodes; k++)
        for (int s = 0; s < m->node[k]->n_param; s++)
            n += m->node[k]->param[s].count > 0;
    return n;
}

qnn_status qnn_model_param(const qnn_model *m, int i, qnn_param_info *out)
{
    qnn_node node = QNN_NODE_NONE;
    int slot = 0;
    const qnn_node_data *n;
    const qnn_param *p;

    if (m == NULL || out == NULL)
        return QNN_ERR_ARG;
    n = i < 0 ? NULL : locate(m, i, &node, &slot);
    QNN_RETURN_IF(m->ctx, n == NULL, QNN_ERR_ARG, "parameter %d does not exist, the model has %d",
                  i, qnn_model_n_params(m));
    p = &n->param[slot];
    memset(out, 0, sizeof *out);
    out->name = p->full_name;
    out->node = node;
    out->dtype = p->dtype;
    out->rank = p->rank;
    memcpy(out->dim, p->dim, sizeof out->dim);
    out->count = p->count;
    out->bytes = p->bytes;
    out->data = p->data;
    out->scales = p->scale;
    out->n_scales = p->n_scale;
    out->is_trainable = p->is_trainable;
    return QNN_OK;
}

int qnn_model_find_param(const qnn_model *m, const char *name)
{
    int index = 0;

    for (int k = 0; name != NULL && k < m->n_nodes; k++)
        for (int s = 0; s < m->node[k]->n_param; s++) {
            if (m->node[k]->param[s].count == 0)
                continue;
            if (strcmp(m->node[k]->param[s].full_name, name) == 0)
                return index;
            index++;
        }
    return -1;
}

qnn_status qnn_model_copy_params(qnn_model *dst, const qnn_model *src)
{
    qnn_param_info a, b;
    const int n = dst == NULL ? 0 : qnn_model_n_params(dst);

    if (dst == NULL || src == NULL)
        return QNN_ERR_ARG;
    QNN_RETURN_IF(dst->ctx, qnn_model_n_params(src) != n, QNN_ERR_SHAPE,
                  "the models have %d and %d parameters", n, qnn_model_n_params(src));
    for (int i = 0; i < n; i++) {
        QNN_TRY(qnn_model_param(dst, i, &a));
        QNN_TRY(qnn_model_param(src, i, &b));
        QNN_RETURN_IF(dst->ctx,
                      strcmp(a.name, b.name) != 0 || a.dtype != b.dtype || a.count != b.count ||
                          a.n_scales != b.n_scales,
                      QNN_ERR_SHAPE,
                      "parameter %d is \"%s\" (%s, %zu elements) in one model and \"%s\" (%s, %zu "
                      "elements) in the other",
                      i, a.name, qnn_dtype_name(a.dtype), a.count, b.name, qnn_dtype_name(b.dtype),
                      b.count);
    }
    for (int i = 0; i < n; i++) {
        qnn_node node = QNN_NODE_NONE;
        int slot = 0;
        qnn_node_data *const to = locate(dst, i, &node, &slot);
        const qnn_node_data *const from = locate(src, i, &node, &slot);

        memcpy(to->param[slot].data, from->param[slot].data, to->param[slot].bytes);
        if (to->param[slot].n_scale > 0)
            memcpy(to->param[slot].scale, from->param[slot].scale,
                   to->param[slot].n_scale * sizeof(float));
    }
    return QNN_OK;
}

/* ---- metadata
 * --------------------------------------------------------------------------------------------------------
 */

static int find_meta(const qnn_model *m, const char *key)
{
    for (int i = 0; i < m->n_meta; i++)
        if (strcmp(m->meta[i].key, key) == 0)
            return i;
    return -1;
}

static qnn_status append_meta(qnn_model *m, const char *key, char *value)
{
    void *array = m->meta;
    const qnn_status status = qnn_ctx__grow(m->ctx, &array, &m->cap_meta, (size_t)m->n_meta + 1,
                                            sizeof *m->meta, "metadata");

    m->meta = array;
    QNN_TRY(status);
    QNN_TRY(qnn_ctx__strdup(m->ctx, &m->meta[m->n_meta].key, key));
    m->meta[m->n_meta++].value = value;
    return QNN_OK;
}

qnn_status qnn_model_set_meta(qnn_model *m, const char *key, const char *value)
{
    char *copy = NULL;
    int i;

    if (m == NULL)
        return QNN_ERR_ARG;
    QNN_RETURN_IF(m->ctx, key == NULL || key[0] == '\0', QNN_ERR_ARG, "a metadata key is empty");
    QNN_RETURN_IF(m->ctx, strcmp(key, "qnn.graph") == 0, QNN_ERR_ARG,
                  "metadata key \"qnn.graph\" is the file format's own");
    i = find_meta(m, key);
    if (value != NULL)
        QNN_TRY(qnn_ctx__strdup(m->ctx, &copy, value));
    if (i >= 0) {
        qnn_ctx__release(m->ctx, m->meta[i].value);
        m->meta[i].value = copy;
        if (copy == NULL) {
            qnn_ctx__release(m->ctx, m->meta[i].key);
            memmove(&m->meta[i], &m->meta[i + 1], (size_t)(m->n_meta - i - 1) * sizeof *m->meta);
            m->n_meta--;
        }
        return QNN_OK;
    }
    if (copy != NULL && append_meta(m, key, copy) != QNN_OK) {
        qnn_ctx__release(m->ctx, copy);
        return QNN_ERR_NOMEM;
    }
    return QNN_OK;
}

const char *qnn_model_meta(const qnn_model *m, const char *key)
{
    const int i = key == NULL ? -1 : find_meta(m, key);

    return i < 0 ? NULL : m->meta[i].value;
}
