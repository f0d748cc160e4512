/* linear: y = W x + b, weights [units][features]; runs as a 1x1 convolution of a 1x1 image. */
#include "lib/conv.h"

static qnn_conv geometry(const qnn_step *s)
{
    return (qnn_conv){.ih = 1,
                      .iw = 1,
                      .ic = (size_t)qnn_step__in(s, 0)->shape.dim[0],
                      .oh = 1,
                      .ow = 1,
                      .oc = (size_t)s->n->a.units,
                      .kh = 1,
                      .kw = 1,
                      .sh = 1,
                      .sw = 1,
                      .dh = 1,
                      .dw = 1,
                      .groups = 1};
}

static qnn_status infer(qnn_model *m, qnn_node_data *n)
{
    const qnn_shape *const in = &m->node[n->in[0]]->shape;
    int64_t dim[2];
    char text[80];

    QNN_RETURN_IF(m->ctx, in->rank != 1, QNN_ERR_SHAPE,
                  "linear \"%s\": input is %s, flatten it first", n->name,
                  qnn_shape__text(in, text, sizeof text));
    QNN_RETURN_IF(m->ctx, n->a.units < 1, QNN_ERR_ARG, "linear \"%s\": %d units", n->name,
                  (int)n->a.units);
    dim[0] = n->a.units;
    dim[1] = in->dim[0];
    n->shape = (qnn_shape){1, {n->a.units}};
    return qnn_conv__declare(m, n, 2, dim);
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
    {"units", offsetof(qnn_attrs, units), 0},
    {"no_bias", offsetof(qnn_attrs, no_bias), 0},
    {"clip_lo", offsetof(qnn_attrs, lo), 1},
    {"clip_hi", offsetof(qnn_attrs, hi), 1},
    {"weight_quant", offsetof(qnn_attrs, wq), 0},
    {"weight_bits", offsetof(qnn_attrs, w_bits), 0},
    {"weight_per_channel", offsetof(qnn_attrs, w_per_channel), 0},
    {NULL, 0, 0},
};

const qnn_op qnn_op_linear = {
    .name = "linear",
    .n_in_min = 1,
    .n_in_max = 1,
    .flags = QNN_OP_BWD_SRC | QNN_OP_BWD_DST, /* its output only for a fused clip */
    .fields = fields,
    .infer = infer,
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
};
