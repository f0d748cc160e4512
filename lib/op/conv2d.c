/* conv2d: cross-correlation of an NHWC image, weights [filters][kh][kw][c / groups]. The work is
 * lib/conv.c's. */
#include "lib/conv.h"

static qnn_conv geometry(const qnn_step *s)
{
    const qnn_attrs *const a = &s->n->a;
    const qnn_shape *const in = &qnn_step__in(s, 0)->shape, *const out = &s->n->shape;

    return (qnn_conv){
        .ih = (size_t)in->dim[0],
        .iw = (size_t)in->dim[1],
        .ic = (size_t)in->dim[2],
        .oh = (size_t)out->dim[0],
        .ow = (size_t)out->dim[1],
        .oc = (size_t)out->dim[2],
        .kh = (size_t)a->kh,
        .kw = (size_t)a->kw,
        .sh = (size_t)a->sh,
        .sw = (size_t)a->sw,
        .dh = (size_t)a->dh,
        .dw = (size_t)a->dw,
        .pt = (size_t)a->pt,
        .pl = (size_t)a->pl,
        .groups = (size_t)a->groups,
    };
}

/* floor((size + pads - dilation (k - 1) - 1) / stride) + 1, or 0 when the window does not fit. */
static int64_t out_size(int64_t size, int64_t pads, int64_t k, int64_t dilation, int64_t stride)
{
    const int64_t room = size + pads - dilation * (k - 1) - 1;

    return room < 0 ? 0 : room / stride + 1;
}

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    const qnn_attrs *const a = &n->a;
    const qnn_shape *const in = &m->node[n->in[0]]->shape;
    qnn_ctx *const ctx = m->ctx;
    char text[80];
    int64_t oh, ow, dim[4];

    QNN_RETURN_IF(ctx, in->rank != 3, QNN_ERR_SHAPE,
                  "conv2d \"%s\": input is %s, expected an image HxWxC", n->name,
                  qnn_shape__text(in, text, sizeof text));
    QNN_RETURN_IF(ctx, a->units < 1, QNN_ERR_ARG, "conv2d \"%s\": %d filters", n->name,
                  (int)a->units);
    QNN_RETURN_IF(ctx, a->kh < 1 || a->kw < 1, QNN_ERR_ARG, "conv2d \"%s\": kernel %dx%d", n->name,
                  (int)a->kh, (int)a->kw);
    QNN_RETURN_IF(ctx, a->sh < 1 || a->sw < 1, QNN_ERR_ARG, "conv2d \"%s\": stride %dx%d", n->name,
                  (int)a->sh, (int)a->sw);
    QNN_RETURN_IF(ctx, a->dh < 1 || a->dw < 1, QNN_ERR_ARG, "conv2d \"%s\": dilation %dx%d",
                  n->name, (int)a->dh, (int)a->dw);
    QNN_RETURN_IF(ctx, a->pt < 0 || a->pl < 0 || a->pb < 0 || a->pr < 0, QNN_ERR_ARG,
                  "conv2d \"%s\": padding %d,%d,%d,%d (top, left, bottom, right)", n->name,
                  (int)a->pt, (int)a->pl, (int)a->pb, (int)a->pr);
    QNN_RETURN_IF(ctx, a->groups < 1 || in->dim[2] % a->groups != 0, QNN_ERR_SHAPE,
                  "conv2d \"%s\": groups %d does not divide %lld input channels", n->name,
                  (int)a->groups, (long long)in->dim[2]);
    QNN_RETURN_IF(ctx, a->units % a->groups != 0, QNN_ERR_SHAPE,
                  "conv2d \"%s\": groups %d does not divide %d filters", n->name, (int)a->groups,
                  (int)a->units);
    oh = out_size(in->dim[0], (int64_t)a->pt + a->pb, a->kh, a->dh, a->sh);
    ow = out_size(in->dim[1], (int64_t)a->pl + a->pr, a->kw, a->dw, a->sw);
    QNN_RETURN_IF(ctx, oh < 1 || ow < 1, QNN_ERR_SHAPE,
                  "conv2d \"%s\": kernel %dx%d, dilation %dx%d does not fit input %s with padding "
                  "%d,%d,%d,%d",
                  n->name, (int)a->kh, (int)a->kw, (int)a->dh, (int)a->dw,
                  qnn_shape__text(in, text, sizeof text), (int)a->pt, (int)a->pl, (int)a->pb,
                  (int)a->pr);
    QNN_RETURN_IF(ctx, a->wq == QNN_WQ_DYNAMIC, QNN_ERR_UNSUPPORTED,
                  "conv2d \"%s\": dynamic quantisation is for linear layers", n->name);
    n->shape = (qnn_shape){3, {oh, ow, a->units}};
    dim[0] = a->units;
    dim[1] = a->kh;
    dim[2] = a->kw;
    dim[3] = in->dim[2] / a->groups;
    return qnn_conv__declare(m, n, 4, dim);
}

static qnn_status prepare(qnn_step *s)
{
    const qnn_conv c = geometry(s);

    return qnn_conv__prepare(s, &c);
}

static void forward(qnn_exec *x, const qnn_step *s)
{
    const qnn_conv c = geometry(s);

    qnn_conv__forward(x, s, &c);
}

static void backward(qnn_exec *x, const qnn_step *s)
{
    const qnn_conv c = geometry(s);

    qnn_conv__backward(x, s, &c);
}

static const qnn_attr_field fields[] = {
    {"filters", offsetof(qnn_attrs, units), 0},
    {"kernel_h", offsetof(qnn_attrs, kh), 0},
    {"kernel_w", offsetof(qnn_attrs, kw), 0},
    {"stride_h", offsetof(qnn_attrs, sh), 0},
    {"stride_w", offsetof(qnn_attrs, sw), 0},
    {"dilation_h", offsetof(qnn_attrs, dh), 0},
    {"dilation_w", offsetof(qnn_attrs, dw), 0},
    {"groups", offsetof(qnn_attrs, groups), 0},
    {"pad_top", offsetof(qnn_attrs, pt), 0},
    {"pad_left", offsetof(qnn_attrs, pl), 0},
    {"pad_bottom", offsetof(qnn_attrs, pb), 0},
    {"pad_right", offsetof(qnn_attrs, pr), 0},
    {"no_bias", offsetof(qnn_attrs, no_bias), 0},
    {"clip_lo", offsetof(qnn_attrs, lo), 1},
    {"clip_hi", offsetof(qnn_attrs, hi), 1},
    {"weight_quant", offsetof(qnn_attrs, wq), 0},
    {"weight_bits", offsetof(qnn_attrs, w_bits), 0},
    {"weight_per_channel", offsetof(qnn_attrs, w_per_channel), 0},
    {NULL, 0, 0},
};

const qnn_op qnn_op_conv2d = {
    .name = "conv2d",
    .n_in_min = 1,
    .n_in_max = 1,
    .flags = QNN_OP_BWD_SRC | QNN_OP_BWD_DST, /* its output only for a fused clip */
    .fields = fields,
    .infer = infer,
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
};
