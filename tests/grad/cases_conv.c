/* Gradient cases of conv2d and linear with all their options. */
#include "tests/grad/grad.h"

#include <math.h>

#include "tests/common/testutil.h"

#define IMAGE(h, w, c)                                                                             \
    {                                                                                              \
        3, { h, w, c }                                                                             \
    }

static qnn_node conv(qnn_model *m, const qnn_node *x, qnn_conv2d_opts o)
{
    return qnn_conv2d(m, x[0], "op", &o);
}

static qnn_node plain(qnn_model *m, const qnn_node *x)
{
    return conv(m, x, (qnn_conv2d_opts){.filters = 4, .kernel = 3, .pad = 1});
}
static qnn_node valid(qnn_model *m, const qnn_node *x)
{
    return conv(m, x, (qnn_conv2d_opts){.filters = 3, .kernel = 2, .kernel_w = 3});
}
static qnn_node pointwise(qnn_model *m, const qnn_node *x)
{
    return conv(m, x, (qnn_conv2d_opts){.filters = 9, .kernel = 1, .no_bias = 1});
}
static qnn_node pointwise_stride(qnn_model *m, const qnn_node *x)
{
    return conv(m, x, (qnn_conv2d_opts){.filters = 3, .kernel = 1, .stride = 2});
}
static qnn_node stride(qnn_model *m, const qnn_node *x)
{
    return conv(m, x,
                (qnn_conv2d_opts){.filters = 3, .kernel = 3, .stride = 2, .stride_w = 3, .pad = 1});
}
static qnn_node pads(qnn_model *m, const qnn_node *x)
{
    return conv(m, x, (qnn_conv2d_opts){.filters = 3, .kernel = 3, .pads = {0, 2, 3, 1}});
}
static qnn_node dilation(qnn_model *m, const qnn_node *x)
{
    return conv(
        m, x,
        (qnn_conv2d_opts){
            .filters = 2, .kernel = 3, .kernel_w = 2, .dilation = 2, .dilation_w = 3, .pad = 2});
}
static qnn_node groups(qnn_model *m, const qnn_node *x)
{
    return conv(m, x, (qnn_conv2d_opts){.filters = 6, .kernel = 3, .groups = 2, .pad = 1});
}
static qnn_node depthwise(qnn_model *m, const qnn_node *x)
{
    return conv(m, x,
                (qnn_conv2d_opts){.filters = 5, .kernel = 3, .groups = 5, .pad = 1, .stride = 2});
}
static qnn_node wide(qnn_model *m, const qnn_node *x)
{
    return conv(m, x, (qnn_conv2d_opts){.filters = 35, .kernel = 2});
}
static qnn_node everything(qnn_model *m, const qnn_node *x)
{
    return conv(m, x,
                (qnn_conv2d_opts){.filters = 6,
                                  .kernel = 3,
                                  .kernel_w = 2,
                                  .stride = 2,
                                  .stride_w = 1,
                                  .dilation = 1,
                                  .dilation_w = 2,
                                  .groups = 3,
                                  .pads = {1, 2, 0, 1},
                                  .no_bias = 1});
}

static qnn_node linear(qnn_model *m, const qnn_node *x) { return qnn_linear(m, x[0], "op", 5); }
static qnn_node linear_no_bias(qnn_model *m, const qnn_node *x)
{
    return qnn_linear_ex(m, x[0], "op", &(qnn_linear_opts){.units = 37, .no_bias = 1});
}

/* ---- fused clip ------------------------------------------------------------------------------ */

/* Channels take turns below, inside and above; none comes near a bound. */

static qnn_attrs fused_attrs(int32_t kernel)
{
    qnn_attrs a = qnn_attrs__default();

    a.units = 6;
    a.kh = a.kw = kernel;
    a.lo = 0.0f;
    a.hi = 6.0f;
    return a;
}

static qnn_node conv_fused(qnn_model *m, const qnn_node *x)
{
    const qnn_attrs a = fused_attrs(3);

    return qnn_model__add(m, QNN_OP_CONV2D, "op", x, 1, &a, 1);
}
static qnn_node linear_fused(qnn_model *m, const qnn_node *x)
{
    const qnn_attrs a = fused_attrs(0);

    return qnn_model__add(m, QNN_OP_LINEAR, "op", x, 1, &a, 1);
}

static void setup_fused(qnn_model *m)
{
    qnn_node_data *const n = m->node[qnn_model_find(m, "op")];
    float *const bias = n->param[QNN_P_BIAS].data;

    tu_fill_uniform(n->param[QNN_P_WEIGHT].data, n->param[QNN_P_WEIGHT].count, -0.05f, 0.05f, 8);
    for (size_t i = 0; i < n->param[QNN_P_BIAS].count; i++)
        bias[i] = (float)(i % 3) * 6.0f - 3.0f;
}

/* ---- fake-quantised weights ------------------------------------------------------------------ */

/* Codes in +-100 beside one of 127, which sets the scale; differences over whole steps, as for
   fake_quant. */

#define STEP 0.0078125f

static qnn_attrs fake_attrs(int32_t kernel)
{
    qnn_attrs a = qnn_attrs__default();

    a.units = 3;
    a.kh = a.kw = kernel;
    a.wq = QNN_WQ_FAKE;
    a.w_per_channel = 0;
    return a;
}

static qnn_node conv_fake(qnn_model *m, const qnn_node *x)
{
    const qnn_attrs a = fake_attrs(2);

    return qnn_model__add(m, QNN_OP_CONV2D, "op", x, 1, &a, 1);
}
static qnn_node linear_fake(qnn_model *m, const qnn_node *x)
{
    const qnn_attrs a = fake_attrs(0);

    return qnn_model__add(m, QNN_OP_LINEAR, "op", x, 1, &a, 1);
}

static void setup_fake(qnn_model *m)
{
    const qnn_param *const w = &m->node[qnn_model_find(m, "op")]->param[QNN_P_WEIGHT];
    float *const x = w->data;

    tu_fill_uniform(x, w->count, -100.0f, 100.0f, 9);
    for (size_t i = 0; i < w->count; i++)
        x[i] = (floorf(x[i]) + 0.3f) * STEP;
    x[0] = 127.0f * STEP;
}

const grad_case grad_cases_conv[] = {
    {.name = "conv2d", .build = plain, .in = {IMAGE(5, 4, 3)}},
    {.name = "conv2d valid 2x3", .build = valid, .in = {IMAGE(4, 5, 2)}},
    {.name = "conv2d 1x1 no_bias", .build = pointwise, .in = {IMAGE(3, 3, 4)}},
    {.name = "conv2d 1x1 stride 2", .build = pointwise_stride, .in = {IMAGE(5, 4, 3)}},
    {.name = "conv2d stride 2x3", .build = stride, .in = {IMAGE(6, 7, 2)}},
    {.name = "conv2d pads", .build = pads, .in = {IMAGE(4, 3, 2)}},
    {.name = "conv2d dilation", .build = dilation, .in = {IMAGE(6, 6, 2)}},
    {.name = "conv2d groups", .build = groups, .in = {IMAGE(4, 4, 4)}},
    {.name = "conv2d depthwise", .build = depthwise, .in = {IMAGE(5, 5, 5)}},
    {.name = "conv2d wide", .build = wide, .in = {IMAGE(3, 3, 7)}},
    {.name = "conv2d everything", .build = everything, .in = {IMAGE(5, 5, 6)}},
    {.name = "conv2d fused clip",
     .build = conv_fused,
     .in = {IMAGE(4, 4, 2)},
     .setup = setup_fused},
    {.name = "conv2d fake weights",
     .build = conv_fake,
     .in = {IMAGE(4, 4, 2)},
     .setup = setup_fake,
     .step = STEP,
     .skips_first_weight = 1},
    {.name = "linear", .build = linear, .in = {{1, {7}}}},
    {.name = "linear no_bias", .build = linear_no_bias, .in = {{1, {18}}}},
    {.name = "linear fused clip", .build = linear_fused, .in = {{1, {8}}}, .setup = setup_fused},
    {.name = "linear fake weights",
     .build = linear_fake,
     .in = {{1, {6}}},
     .setup = setup_fake,
     .step = STEP,
     .skips_first_weight = 1},
    {.name = NULL},
};
