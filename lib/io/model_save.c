/* Writing a model: parameters as tensors, the graph as JSON in the file's metadata. */
#include "lib/io/model_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/io/json_text.h"
#include "lib/op.h"

qnn_st_dtype qnn_model__st_dtype(qnn_dtype t)
{
    switch (t) {
    case QNN_DTYPE_F32:
        return QNN_ST_F32;
    case QNN_DTYPE_F16:
        return QNN_ST_F16;
    case QNN_DTYPE_BF16:
        return QNN_ST_BF16;
    case QNN_DTYPE_I32:
        return QNN_ST_I32;
    case QNN_DTYPE_I8:
        return QNN_ST_I8;
    case QNN_DTYPE_U8:
    case QNN_DTYPE_S4:
        return QNN_ST_U8;
    }
    return QNN_ST_U8;
}

/* JSON has no infinities: they are written as text. */
static json_t *real(float x)
{
    if (isinf(x))
        return json_string(x > 0.0f ? "inf" : "-inf");
    return json_real((double)x);
}

/* ---- the graph. jansson takes over new values even when it fails, so only the verdict is kept.
 * ---- */

static json_t *attrs_json(const qnn_node_data *n)
{
    json_t *const attrs = json_object();
    int failed = attrs == NULL;

    for (const qnn_attr_field *f = qnn_ops[n->kind]->fields; f != NULL && f->name != NULL; f++) {
        const unsigned char *const at = (const unsigned char *)&n->a + f->offset;
        int32_t whole;
        float x;

        memcpy(&whole, at, sizeof whole);
        memcpy(&x, at, sizeof x);
        failed |= json_object_set_new(attrs, f->name, f->is_float ? real(x) : json_integer(whole));
    }
    if (failed) {
        json_decref(attrs);
        return NULL;
    }
    return attrs;
}

static json_t *param_json(const qnn_param *p)
{
    json_t *const param = json_object();
    int failed = json_object_set_new(param, "dtype", json_string(qnn_dtype_name(p->dtype)));

    if (p->dtype == QNN_DTYPE_S4) { /* its tensor has lost the shape */
        json_t *const shape = json_array();

        for (int i = 0; i < p->rank; i++)
            failed |= json_array_append_new(shape, json_integer((json_int_t)p->dim[i]));
        failed |= json_object_set_new(param, "shape", shape);
    }
    if (failed) {
        json_decref(param);
        return NULL;
    }
    return param;
}

static json_t *node_json(const qnn_model *m, const qnn_node_data *n)
{
    json_t *const node = json_object(), *const inputs = json_array(), *const params = json_object();
    int failed = 0;

    failed |= json_object_set_new(node, "name", json_string(n->name));
    failed |= json_object_set_new(node, "op", json_string(qnn_ops[n->kind]->name));
    for (int i = 0; i < n->n_in; i++)
        failed |= json_array_append_new(inputs, json_string(m->node[n->in[i]]->name));
    failed |= json_object_set_new(node, "inputs", inputs);
    failed |= json_object_set_new(node, "attrs", attrs_json(n));
    if (n->dtype == QNN_DTYPE_U8) {
        failed |= json_object_set_new(node, "dtype", json_string("u8"));
        failed |= json_object_set_new(node, "scale", real(n->scale));
        failed |= json_object_set_new(node, "zero_point", json_integer(n->zero_point));
    }
    for (int i = 0; i < n->n_param; i++)
        if (n->param[i].count > 0)
            failed |= json_object_set_new(params, n->param[i].suffix, param_json(&n->param[i]));
    failed |= json_object_set_new(node, "params", params);
    if (n->note != NULL)
        failed |= json_object_set_new(node, "note", json_string(n->note));
    if (failed) {
        json_decref(node);
        return NULL;
    }
    return node;
}

/* NULL: out of memory. */
static json_t *graph_json(const qnn_model *m)
{
    json_t *const graph = json_object(), *const nodes = json_array(), *const outputs = json_array();
    int failed = 0;

    failed |= json_object_set_new(graph, "version", json_integer(QNN_GRAPH_VERSION));
    for (int i = 0; i < m->n_nodes && !failed; i++)
        failed |= json_array_append_new(nodes, node_json(m, m->node[i]));
    failed |= json_object_set_new(graph, "nodes", nodes);
    for (int k = 0; k < m->n_outputs && !failed; k++) {
        json_t *const output = json_object();

        failed |= json_object_set_new(output, "name", json_string(m->output_name[k]));
        failed |= json_object_set_new(output, "node", json_string(m->node[m->output[k]]->name));
        failed |= json_array_append_new(outputs, output);
    }
    failed |= json_object_set_new(graph, "outputs", outputs);
    if (failed) {
        json_decref(graph);
        return NULL;
    }
    return graph;
}

/* JSON is UTF-8: said before jansson fails without telling why. */
static qnn_status check_text(const qnn_model *m)
{
    for (int i = 0; i < m->n_nodes; i++) {
        const qnn_node_data *const n = m->node[i];

        QNN_RETURN_IF(m->ctx, !qnn_json__is_utf8(n->name), QNN_ERR_ARG,
                      "the name of node %d is not valid UTF-8", i);
        QNN_RETURN_IF(m->ctx, n->note != NULL && !qnn_json__is_utf8(n->note), QNN_ERR_ARG,
                      "the note of node \"%s\" is not valid UTF-8", n->name);
    }
    for (int k = 0; k < m->n_outputs; k++)
        QNN_RETURN_IF(m->ctx, !qnn_json__is_utf8(m->output_name[k]), QNN_ERR_ARG,
                      "the name of output %d is not valid UTF-8", k);
    return QNN_OK;
}

static qnn_status add_graph(qnn_st *st, const qnn_model *m)
{
    json_t *graph;
    char *text;
    qnn_status status;

    QNN_TRY(check_text(m));
    graph = graph_json(m);
    QNN_RETURN_IF(st->ctx, graph == NULL, QNN_ERR_NOMEM, "out of memory: the graph's JSON");
    status = qnn_json__dump(st->ctx, &text, graph);
    json_decref(graph);
    QNN_TRY(status);
    status = qnn_st__add_meta(st, QNN_GRAPH_KEY, text);
    qnn_ctx__release(st->ctx, text);
    return status;
}

/* ---- the tensors ----------------------------------------------------------------------------- */

static qnn_status add_param(qnn_st *st, const qnn_param *p)
{
    const int64_t n_scale = (int64_t)p->n_scale, n_bytes = (int64_t)p->bytes;
    char name[QNN_SCALE_NAME_MAX];

    if (p->dtype == QNN_DTYPE_S4)
        QNN_TRY(qnn_st__add(st, p->full_name, QNN_ST_U8, 1, &n_bytes, p->data));
    else
        QNN_TRY(
            qnn_st__add(st, p->full_name, qnn_model__st_dtype(p->dtype), p->rank, p->dim, p->data));
    if (p->n_scale == 0)
        return QNN_OK;
    snprintf(name, sizeof name, "%s" QNN_SCALE_SUFFIX, p->full_name);
    return qnn_st__add(st, name, QNN_ST_F32, 1, &n_scale, p->scale);
}

static qnn_status collect(qnn_st *st, const qnn_model *m)
{
    QNN_TRY(add_graph(st, m));
    for (int i = 0; i < m->n_meta; i++)
        QNN_TRY(qnn_st__add_meta(st, m->meta[i].key, m->meta[i].value));
    for (int i = 0; i < m->n_nodes; i++)
        for (int k = 0; k < m->node[i]->n_param; k++)
            if (m->node[i]->param[k].count > 0)
                QNN_TRY(add_param(st, &m->node[i]->param[k]));
    return QNN_OK;
}

qnn_status qnn_model_save(const qnn_model *m, const char *path)
{
    qnn_st st;
    qnn_status status;

    if (m == NULL)
        return QNN_ERR_ARG;
    QNN_TRY(qnn_model__usable(m, m->ctx));
    qnn_st__init(&st, m->ctx);
    status = collect(&st, m);
    if (status == QNN_OK)
        status = qnn_st__write(&st, path);
    qnn_st__free(&st);
    return status;
}
