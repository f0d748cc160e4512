/*
 * input: the shape of one item, kept in attributes so that files hold it; height 0 means features,
 * {units}.
 */
#include "lib/op.h"

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    const qnn_attrs *const a = &n->a;
    const int is_image = a->kh != 0 || a->kw != 0;

    QNN_RETURN_IF(m->ctx, a->units < 1 || (is_image && (a->kh < 1 || a->kw < 1)), QNN_ERR_SHAPE,
                  "input \"%s\": height %d, width %d, channels %d", n->name, (int)a->kh, (int)a->kw,
                  (int)a->units);
    n->dtype = QNN_DTYPE_F32;
    n->shape = is_image ? (qnn_shape){3, {a->kh, a->kw, a->units}} : (qnn_shape){1, {a->units}};
    return QNN_OK;
}

static const qnn_attr_field fields[] = {
    {"height", offsetof(qnn_attrs, kh), 0},
    {"width", offsetof(qnn_attrs, kw), 0},
    {"channels", offsetof(qnn_attrs, units), 0},
    {NULL, 0, 0},
};

const qnn_op qnn_op_input = {
    .name = "input",
    .fields = fields,
    .infer = infer,
};
