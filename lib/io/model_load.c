/*
 * Reading a model. Every byte is hostile: a node goes through the same checks as one that a program
 * builds, a parameter's memory is only asked for once the file has shown its bytes, and what a file
 * holds beyond its model is refused.
 */
#include "lib/io/model_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/io/json_text.h"
#include "lib/op.h"

enum {
    MAX_NODES = 16384, /* names are compared with each other: bounds the time a file can take */
    MAX_OUTPUTS = 1024,
    MAX_META = 4096
};

typedef struct loader {
    qnn_ctx *ctx;
    const qnn_st *st;
    qnn_model *m;
    json_t *index; /* node name -> number */
    size_t n_used; /* tensors that belong to a parameter */
} loader;

/* ---- values ---------------------------------------------------------------------------------- */

static qnn_status check_keys(loader *l, json_t *object, const char *const *known, const char *what)
{
    const char *unknown;

    QNN_RETURN_IF(l->ctx, !json_is_object(object), QNN_ERR_FORMAT, "%s is not an object", what);
    unknown = qnn_json__unknown_key(object, known);
    QNN_RETURN_IF(l->ctx, unknown != NULL, QNN_ERR_FORMAT, "%s: unknown field \"%s\"", what,
                  unknown);
    return QNN_OK;
}

static qnn_status get_text(loader *l, const json_t *object, const char *key, const char *what,
                           const char **out)
{
    *out = json_string_value(json_object_get(object, key));
    QNN_RETURN_IF(l->ctx, *out == NULL, QNN_ERR_FORMAT, "%s: \"%s\" is not a string", what, key);
    return QNN_OK;
}

/* value may be NULL: it is not there. */
static qnn_status get_i32(loader *l, const json_t *value, const char *what, const char *key,
                          int32_t *out)
{
    const json_int_t x = json_integer_value(value);

    QNN_RETURN_IF(l->ctx, !json_is_integer(value) || x < INT32_MIN || x > INT32_MAX, QNN_ERR_FORMAT,
                  "%s: \"%s\" is not a 32-bit integer", what, key);
    *out = (int32_t)x;
    return QNN_OK;
}

static qnn_status get_real(loader *l, const json_t *value, const char *what, const char *key,
                           float *out)
{
    const char *const text = json_string_value(value);

    *out = (float)json_number_value(value);
    if (text != NULL && strcmp(text, "inf") == 0)
        *out = INFINITY;
    else if (text != NULL && strcmp(text, "-inf") == 0)
        *out = -INFINITY;
    else
        QNN_RETURN_IF(l->ctx, !json_is_number(value) || !isfinite(*out), QNN_ERR_FORMAT,
                      "%s: \"%s\" is not a 32-bit real number", what, key);
    return QNN_OK;
}

/* What the shared checks refuse is the file's fault. */
static qnn_status as_format(qnn_status status)
{
    return status == QNN_OK || status == QNN_ERR_NOMEM ? status : QNN_ERR_FORMAT;
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Storage types of a parameter that its op declared: its own, and narrower ones for f32 weights. */
static int is_storable(const qnn_node_data *n, int slot, qnn_dtype t)
{
    const int is_float_layer =
        (n->kind == QNN_OP_CONV2D || n->kind == QNN_OP_LINEAR) && n->a.wq == QNN_WQ_NONE;

    if (t == n->param[slot].dtype)
        return 1;
    return is_float_layer && (t == QNN_DTYPE_F16 || t == QNN_DTYPE_BF16 ||
                              (t == QNN_DTYPE_S4 && slot == QNN_P_WEIGHT));
}

static qnn_status get_dtype(loader *l, const qnn_node_data *n, int slot, json_t *json,
                            qnn_dtype *out)
{
    static const char *const keys[] = {"dtype", "shape", NULL};
    const qnn_param *const p = &n->param[slot];
    const char *name;

    QNN_RETURN_IF(l->ctx, json == NULL, QNN_ERR_FORMAT, "parameter \"%s\" is missing",
                  p->full_name);
    QNN_TRY(check_keys(l, json, keys, p->full_name));
    QNN_TRY(get_text(l, json, "dtype", p->full_name, &name));
    for (int t = QNN_DTYPE_F32; t <= QNN_DTYPE_S4; t++)
        if (strcmp(qnn_dtype_name((qnn_dtype)t), name) == 0 && is_storable(n, slot, (qnn_dtype)t)) {
            *out = (qnn_dtype)t;
            return QNN_OK;
        }
    return qnn_ctx__fail(l->ctx, QNN_ERR_FORMAT, "parameter \"%s\" cannot be %s", p->full_name,
                         name);
}

static int has_shape(const qnn_st_tensor *t, int rank, const int64_t *dim)
{
    int is_equal = t->rank == rank;

    for (int i = 0; is_equal && i < rank; i++)
        is_equal = t->dim[i] == dim[i];
    return is_equal;
}

static int json_has_shape(const json_t *shape, const qnn_param *p)
{
    int is_equal = json_array_size(shape) == (size_t)p->rank;

    for (int i = 0; is_equal && i < p->rank; i++) {
        const json_t *const dim = json_array_get(shape, (size_t)i);

        is_equal = json_is_integer(dim) && json_integer_value(dim) == (json_int_t)p->dim[i];
    }
    return is_equal;
}

static qnn_status find_tensor(loader *l, const char *name, qnn_st_dtype dtype,
                              const qnn_st_tensor **out)
{
    *out = qnn_st__find(l->st, name);
    QNN_RETURN_IF(l->ctx, *out == NULL, QNN_ERR_FORMAT, "tensor \"%s\" is missing", name);
    QNN_RETURN_IF(l->ctx, (*out)->dtype != dtype, QNN_ERR_FORMAT,
                  "tensor \"%s\" has not the type that the graph says", name);
    l->n_used++;
    return QNN_OK;
}

static qnn_status find_scales(loader *l, const qnn_param *p, const qnn_st_tensor **out)
{
    char name[QNN_SCALE_NAME_MAX];
    const float *x;
    int64_t n;

    snprintf(name, sizeof name, "%s" QNN_SCALE_SUFFIX, p->full_name);
    QNN_TRY(find_tensor(l, name, QNN_ST_F32, out));
    n = (*out)->dim[0];
    QNN_RETURN_IF(l->ctx, (*out)->rank != 1 || (n != 1 && n != p->dim[0]), QNN_ERR_FORMAT,
                  "tensor \"%s\" has not one scale, nor one for each of %lld channels", name,
                  (long long)p->dim[0]);
    x = (*out)->data;
    for (int64_t i = 0; i < n; i++)
        QNN_RETURN_IF(l->ctx, !(x[i] > 0.0f) || !isfinite(x[i]), QNN_ERR_FORMAT,
                      "tensor \"%s\": scale %lld is %g, not positive and finite", name,
                      (long long)i, (double)x[i]);
    return QNN_OK;
}

/* Symmetric codes leave out the lowest one of their type. */
static qnn_status check_codes(loader *l, const qnn_param *p)
{
    const int8_t *const i8 = p->data;
    const uint8_t *const pair = p->data;

    for (size_t i = 0; p->dtype == QNN_DTYPE_I8 && i < p->count; i++)
        QNN_RETURN_IF(l->ctx, i8[i] == INT8_MIN, QNN_ERR_FORMAT,
                      "tensor \"%s\": code %zu is -128, outside [-127, 127]", p->full_name, i);
    for (size_t i = 0; p->dtype == QNN_DTYPE_S4 && i < p->bytes; i++)
        QNN_RETURN_IF(l->ctx, pair[i] >> 4 == 0 || (pair[i] & 15) == 0, QNN_ERR_FORMAT,
                      "tensor \"%s\": byte %zu holds code -8, outside [-7, 7]", p->full_name, i);
    return QNN_OK;
}

/* The factors of requantisation stay numbers. */
static qnn_status check_factors(loader *l, const qnn_node_data *n)
{
    const qnn_param *const w = &n->param[QNN_P_WEIGHT];
    const int is_int8_layer =
        (n->kind == QNN_OP_CONV2D || n->kind == QNN_OP_LINEAR) && n->a.wq == QNN_WQ_STATIC;

    for (size_t i = 0; is_int8_layer && i < w->n_scale; i++) {
        float factor = l->m->node[n->in[0]]->scale * w->scale[i];

        if (n->dtype == QNN_DTYPE_U8)
            factor /= n->scale;
        QNN_RETURN_IF(l->ctx, !isfinite(factor), QNN_ERR_FORMAT,
                      "node \"%s\": the scales of channel %zu give the factor %g", n->name, i,
                      (double)factor);
    }
    return QNN_OK;
}

static qnn_status load_param(loader *l, qnn_node_data *n, int slot, json_t *json)
{
    qnn_param *const p = &n->param[slot];
    const qnn_st_tensor *t, *scales = NULL;
    qnn_dtype dtype = p->dtype;
    int is_right;

    QNN_TRY(get_dtype(l, n, slot, json, &dtype));
    QNN_TRY(find_tensor(l, p->full_name, qnn_model__st_dtype(dtype), &t));
    if (dtype == QNN_DTYPE_S4) {
        const int64_t bytes = (int64_t)qnn_dtype__bytes(dtype, p->count);

        is_right = has_shape(t, 1, &bytes) && json_has_shape(json_object_get(json, "shape"), p);
    } else {
        is_right = has_shape(t, p->rank, p->dim) && json_object_get(json, "shape") == NULL;
    }
    QNN_RETURN_IF(l->ctx, !is_right, QNN_ERR_FORMAT,
                  "tensor \"%s\" has not the shape that the graph gives it", p->full_name);
    if (dtype == QNN_DTYPE_I8 || dtype == QNN_DTYPE_S4)
        QNN_TRY(find_scales(l, p, &scales));
    QNN_TRY(qnn_node__retype(l->m, n, slot, dtype, scales != NULL ? (size_t)scales->dim[0] : 0));
    memcpy(p->data, t->data, p->bytes);
    if (scales != NULL)
        memcpy(p->scale, scales->data, scales->bytes);
    return check_codes(l, p);
}

static qnn_status load_params(loader *l, qnn_node_data *n, json_t *params)
{
    const char *known[QNN_MAX_PARAMS + 1];
    char what[QNN_NAME_MAX + 32];
    int n_known = 0;

    for (int i = 0; i < n->n_param; i++)
        if (n->param[i].count > 0)
            known[n_known++] = n->param[i].suffix;
    known[n_known] = NULL;
    if (params == NULL && n_known == 0)
        return QNN_OK;
    snprintf(what, sizeof what, "params of node \"%s\"", n->name);
    QNN_TRY(check_keys(l, params, known, what));
    for (int i = 0; i < n->n_param; i++)
        if (n->param[i].count > 0)
            QNN_TRY(load_param(l, n, i, json_object_get(params, n->param[i].suffix)));
    return check_factors(l, n);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static qnn_status load_attrs(loader *l, const qnn_op *op, json_t *attrs, const char *what,
                             qnn_attrs *out)
{
    const char *key;
    json_t *value;

    *out = qnn_attrs__default();
    if (attrs == NULL)
        return QNN_OK;
    QNN_RETURN_IF(l->ctx, !json_is_object(attrs), QNN_ERR_FORMAT, "%s: \"attrs\" is not an object",
                  what);
    json_object_foreach(attrs, key, value)
    {
        const qnn_attr_field *f = op->fields;
        unsigned char *at;
        int32_t whole = 0;
        float x = 0.0f;

        while (f != NULL && f->name != NULL && strcmp(f->name, key) != 0)
            f++;
        QNN_RETURN_IF(l->ctx, f == NULL || f->name == NULL, QNN_ERR_FORMAT,
                      "%s: %s has no attribute \"%s\"", what, op->name, key);
        at = (unsigned char *)out + f->offset;
        if (f->is_float) {
            QNN_TRY(get_real(l, value, what, key, &x));
            memcpy(at, &x, sizeof x);
        } else {
            QNN_TRY(get_i32(l, value, what, key, &whole));
            memcpy(at, &whole, sizeof whole);
        }
    }
    return QNN_OK;
}

static qnn_status load_inputs(loader *l, const json_t *inputs, const char *what, qnn_node *in,
                              int *n_in)
{
    const size_t n = json_array_size(inputs);

    QNN_RETURN_IF(l->ctx, !json_is_array(inputs) || n > 64, QNN_ERR_FORMAT,
                  "%s: \"inputs\" is not an array of at most 64 names", what);
    for (size_t i = 0; i < n; i++) {
        const char *const name = json_string_value(json_array_get(inputs, i));
        const json_t *const number = name != NULL ? json_object_get(l->index, name) : NULL;

        QNN_RETURN_IF(l->ctx, number == NULL, QNN_ERR_FORMAT,
                      "%s: input %zu is not the name of an earlier node", what, i);
        in[i] = (qnn_node)json_integer_value(number);
    }
    *n_in = (int)n;
    return QNN_OK;
}

static qnn_status find_op(loader *l, const char *name, const char *what, qnn_op_kind *out)
{
    for (int k = 0; k < QNN_OP_COUNT; k++)
        if (strcmp(qnn_ops[k]->name, name) == 0) {
            *out = (qnn_op_kind)k;
            return QNN_OK;
        }
    return qnn_ctx__fail(l->ctx, QNN_ERR_FORMAT, "%s: unknown op \"%s\"", what, name);
}

/* The type of the node's output as the file says it; 0 for *is_u8 means f32. */
static qnn_status load_output_type(loader *l, const json_t *node, const char *what, int *is_u8,
                                   float *scale, int32_t *zero_point)
{
    const json_t *const dtype = json_object_get(node, "dtype");

    *is_u8 = dtype != NULL;
    if (!*is_u8) {
        QNN_RETURN_IF(l->ctx,
                      json_object_get(node, "scale") != NULL ||
                          json_object_get(node, "zero_point") != NULL,
                      QNN_ERR_FORMAT, "%s: a scale or zero point without a dtype", what);
        return QNN_OK;
    }
    QNN_RETURN_IF(l->ctx, !json_is_string(dtype) || strcmp(json_string_value(dtype), "u8") != 0,
                  QNN_ERR_FORMAT, "%s: \"dtype\" is not \"u8\"", what);
    QNN_TRY(get_real(l, json_object_get(node, "scale"), what, "scale", scale));
    return get_i32(l, json_object_get(node, "zero_point"), what, "zero_point", zero_point);
}

/* Ops that keep their input's scale, or give f32, must have been told so by the file. */
static qnn_status check_output_type(loader *l, const qnn_node_data *n, const char *what, int is_u8,
                                    float scale, int32_t zero_point)
{
    const int is_same =
        is_u8 ? n->dtype == QNN_DTYPE_U8 && n->scale == scale && n->zero_point == zero_point
              : n->dtype == QNN_DTYPE_F32;

    QNN_RETURN_IF(l->ctx, !is_same, QNN_ERR_FORMAT,
                  "%s: its output is %s by its inputs, the file says another type or scale", what,
                  qnn_dtype_name(n->dtype));
    return QNN_OK;
}

static qnn_status load_node(loader *l, json_t *json, size_t number)
{
    static const char *const keys[] = {"name",  "op",         "inputs", "attrs", "dtype",
                                       "scale", "zero_point", "params", "note",  NULL};
    const json_t *const note = json_object_get(json, "note");
    char what[QNN_NAME_MAX + 32];
    const char *name, *op;
    qnn_op_kind kind = QNN_OP_INPUT;
    qnn_attrs attrs;
    qnn_node in[64], made;
    int n_in = 0, is_u8;
    float scale = 0.0f;
    int32_t zero_point = 0;

    snprintf(what, sizeof what, "node %zu", number);
    QNN_TRY(check_keys(l, json, keys, what));
    QNN_TRY(get_text(l, json, "name", what, &name));
    snprintf(what, sizeof what, "node \"%.*s\"", QNN_NAME_MAX, name);
    QNN_TRY(get_text(l, json, "op", what, &op));
    QNN_TRY(find_op(l, op, what, &kind));
    QNN_TRY(load_inputs(l, json_object_get(json, "inputs"), what, in, &n_in));
    QNN_TRY(load_attrs(l, qnn_ops[kind], json_object_get(json, "attrs"), what, &attrs));
    QNN_TRY(load_output_type(l, json, what, &is_u8, &scale, &zero_point));
    made = is_u8 ? qnn_model__add_u8(l->m, kind, name, in, n_in, &attrs, scale, zero_point)
                 : qnn_model__add(l->m, kind, name, in, n_in, &attrs, 0);
    if (made == QNN_NODE_NONE)
        return as_format(l->m->status);
    QNN_TRY(check_output_type(l, l->m->node[made], what, is_u8, scale, zero_point));
    QNN_RETURN_IF(l->ctx, json_object_set_new(l->index, name, json_integer(made)) != 0,
                  QNN_ERR_NOMEM, "out of memory: the index of nodes");
    QNN_RETURN_IF(l->ctx, note != NULL && !json_is_string(note), QNN_ERR_FORMAT,
                  "%s: \"note\" is not a string", what);
    if (note != NULL)
        QNN_TRY(qnn_node__set_note(l->m, l->m->node[made], "%s", json_string_value(note)));
    return load_params(l, l->m->node[made], json_object_get(json, "params"));
}

static qnn_status load_output(loader *l, json_t *json)
{
    static const char *const keys[] = {"name", "node", NULL};
    const char *name, *node;
    const json_t *number;

    QNN_TRY(check_keys(l, json, keys, "an output"));
    QNN_TRY(get_text(l, json, "name", "an output", &name));
    QNN_TRY(get_text(l, json, "node", "an output", &node));
    number = json_object_get(l->index, node);
    QNN_RETURN_IF(l->ctx, number == NULL, QNN_ERR_FORMAT, "output \"%s\": no node is called \"%s\"",
                  name, node);
    qnn_output(l->m, name, (qnn_node)json_integer_value(number));
    return as_format(l->m->status);
}

static qnn_status load_graph(loader *l, json_t *graph)
{
    static const char *const keys[] = {"version", "nodes", "outputs", NULL};
    const json_t *const version = json_object_get(graph, "version");
    const json_t *const nodes = json_object_get(graph, "nodes");
    const json_t *const outputs = json_object_get(graph, "outputs");

    QNN_RETURN_IF(l->ctx, !json_is_integer(version), QNN_ERR_FORMAT,
                  QNN_GRAPH_KEY ": \"version\" is not an integer");
    QNN_RETURN_IF(l->ctx, json_integer_value(version) != QNN_GRAPH_VERSION, QNN_ERR_FORMAT,
                  QNN_GRAPH_KEY ": version %lld, this library reads version %d",
                  (long long)json_integer_value(version), QNN_GRAPH_VERSION);
    QNN_TRY(check_keys(l, graph, keys, QNN_GRAPH_KEY));
    QNN_RETURN_IF(l->ctx, json_array_size(nodes) < 1 || json_array_size(nodes) > MAX_NODES,
                  QNN_ERR_FORMAT, QNN_GRAPH_KEY ": \"nodes\" is not an array of 1 to %d nodes",
                  MAX_NODES);
    QNN_RETURN_IF(l->ctx, json_array_size(outputs) < 1 || json_array_size(outputs) > MAX_OUTPUTS,
                  QNN_ERR_FORMAT, QNN_GRAPH_KEY ": \"outputs\" is not an array of 1 to %d outputs",
                  MAX_OUTPUTS);
    for (size_t i = 0; i < json_array_size(nodes); i++)
        QNN_TRY(load_node(l, json_array_get(nodes, i), i));
    for (size_t i = 0; i < json_array_size(outputs); i++)
        QNN_TRY(load_output(l, json_array_get(outputs, i)));
    return QNN_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

static qnn_status load_meta(loader *l)
{
    QNN_RETURN_IF(l->ctx, l->st->n_meta > MAX_META, QNN_ERR_FORMAT,
                  "%zu metadata entries, at most %d are read", l->st->n_meta, MAX_META);
    for (size_t i = 0; i < l->st->n_meta; i++) {
        const qnn_st_meta *const meta = &l->st->meta[i];

        if (strcmp(meta->key, QNN_GRAPH_KEY) != 0)
            QNN_TRY(as_format(qnn_model_set_meta(l->m, meta->key, meta->value)));
    }
    return QNN_OK;
}

/* Every tensor of a model file is a parameter or its scales. */
static qnn_status check_all_used(loader *l)
{
    QNN_RETURN_IF(l->ctx, l->n_used != l->st->n_tensors, QNN_ERR_FORMAT,
                  "%zu tensors in the file, the graph uses %zu", l->st->n_tensors, l->n_used);
    return QNN_OK;
}

static qnn_status load(loader *l)
{
    const char *const text = qnn_st__meta(l->st, QNN_GRAPH_KEY);
    json_t *graph;
    qnn_status status;

    QNN_RETURN_IF(l->ctx, text == NULL, QNN_ERR_FORMAT,
                  "no \"" QNN_GRAPH_KEY "\" in the metadata: not a qnn model");
    l->index = json_object();
    QNN_RETURN_IF(l->ctx, l->index == NULL, QNN_ERR_NOMEM, "out of memory: the index of nodes");
    QNN_TRY(qnn_json__parse(l->ctx, &graph, text, strlen(text), QNN_GRAPH_KEY));
    status = load_graph(l, graph);
    json_decref(graph);
    QNN_TRY(status);
    QNN_TRY(check_all_used(l));
    QNN_TRY(load_meta(l));
    return as_format(qnn_model_check(l->m));
}

static qnn_status load_model(qnn_model **out, qnn_ctx *ctx, const qnn_st *st)
{
    loader l = {.ctx = ctx, .st = st};
    qnn_status status = qnn_model_create(&l.m, ctx);

    if (status == QNN_OK)
        status = load(&l);
    json_decref(l.index);
    if (status != QNN_OK) {
        qnn_model_free(l.m);
        return status;
    }
    *out = l.m;
    return QNN_OK;
}

qnn_status qnn_model_load_mem(qnn_model **out, qnn_ctx *ctx, const void *bytes, size_t n_bytes)
{
    qnn_st st;
    qnn_status status;

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_TRY(qnn_st__read_mem(&st, ctx, bytes, n_bytes));
    status = load_model(out, ctx, &st);
    qnn_st__free(&st);
    return status;
}

qnn_status qnn_model_load(qnn_model **out, qnn_ctx *ctx, const char *path)
{
    qnn_st st;
    qnn_status status;

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_TRY(qnn_st__read(&st, ctx, path));
    status = load_model(out, ctx, &st);
    qnn_st__free(&st);
    return status;
}
