/* flatten: the same memory as a row of features. NHWC order: height, width, channels. */
#include "lib/op_util.h"

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    qnn_node__infer_keep(m, n);
    n->shape = (qnn_shape){1, {qnn_shape__count(&qnn_node__in(m, n, 0)->shape)}};
    return QNN_OK;
}

const qnn_op qnn_op_flatten = {
    .name = "flatten",
    .n_in_min = 1,
    .n_in_max = 1,
    .flags = QNN_OP_VIEW | QNN_OP_KEEPS_Q,
    .infer = infer,
};
