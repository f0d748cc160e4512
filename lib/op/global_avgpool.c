/*
 * global_avgpool: mean over height and width, {H, W, C} -> {1, 1, C}: an average pool whose window
 * is the image.
 */
#include "lib/op_pool.h"
#include "lib/op_util.h"

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    const qnn_shape *in;

    QNN_TRY(qnn_node__check_image(m, n));
    QNN_TRY(qnn_node__infer_f32_or_u8(m, n));
    in = &qnn_node__in(m, n, 0)->shape;
    QNN_RETURN_IF(
        m->ctx, n->dtype == QNN_DTYPE_U8 && in->dim[0] * in->dim[1] > QNN_POOL2D_MAX_U8_CELLS,
        QNN_ERR_UNSUPPORTED, "global_avgpool \"%s\": a sum of %lldx%lld codes may not fit in int32",
        n->name, (long long)in->dim[0], (long long)in->dim[1]);
    n->shape = (qnn_shape){3, {1, 1, in->dim[2]}};
    return QNN_OK;
}

static qnn_pool2d_geometry geometry(const qnn_step *s)
{
    const int64_t *const in = qnn_step__in(s, 0)->shape.dim;

    return (qnn_pool2d_geometry){.ih = in[0],
                                 .iw = in[1],
                                 .oh = 1,
                                 .ow = 1,
                                 .kh = in[0],
                                 .kw = in[1],
                                 .sh = in[0],
                                 .sw = in[1],
                                 .c = (size_t)in[2]};
}

static void forward(qnn_exec *x, const qnn_step *s)
{
    const qnn_pool2d_geometry g = geometry(s);

    qnn_pool2d__average(x, s, &g);
}

static void backward(qnn_exec *x, const qnn_step *s)
{
    const qnn_pool2d_geometry g = geometry(s);

    qnn_pool2d__average_backward(x, s, &g);
}

const qnn_op qnn_op_global_avgpool = {
    .name = "global_avgpool",
    .n_in_min = 1,
    .n_in_max = 1,
    .infer = infer,
    .forward = forward,
    .backward = backward,
};
