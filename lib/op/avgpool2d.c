/* avgpool2d: mean over windows; padding counts as zeros unless exclude_pad. */
#include "lib/op_pool.h"
#include "lib/op_util.h"

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    QNN_TRY(qnn_node__check_image(m, n));
    QNN_TRY(qnn_pool2d__infer(m, n));
    QNN_TRY(qnn_node__infer_f32_or_u8(m, n));
    QNN_RETURN_IF(
        m->ctx, n->dtype == QNN_DTYPE_U8 && (int64_t)n->a.kh * n->a.kw > QNN_POOL2D_MAX_U8_CELLS,
        QNN_ERR_UNSUPPORTED, "avgpool2d \"%s\": a sum of %dx%d codes may not fit in int32", n->name,
        (int)n->a.kh, (int)n->a.kw);
    return QNN_OK;
}

static void forward(qnn_exec *x, const qnn_step *s)
{
    const qnn_pool2d_geometry g = qnn_pool2d__geometry(s);

    qnn_pool2d__average(x, s, &g);
}

static void backward(qnn_exec *x, const qnn_step *s)
{
    const qnn_pool2d_geometry g = qnn_pool2d__geometry(s);

    qnn_pool2d__average_backward(x, s, &g);
}

const qnn_op qnn_op_avgpool2d = {
    .name = "avgpool2d",
    .n_in_min = 1,
    .n_in_max = 1,
    .fields = qnn_pool2d__fields,
    .infer = infer,
    .forward = forward,
    .backward = backward,
};
