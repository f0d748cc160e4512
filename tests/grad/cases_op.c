/* Gradient cases of every operation but conv2d and linear. Inputs keep away from kinks. */
#include "tests/grad/grad.h"

#include <string.h>

#include "tests/common/testutil.h"

#define IMAGE(h, w, c)                                                                             \
    {                                                                                              \
        3, { h, w, c }                                                                             \
    }

/* ---- element-wise ---------------------------------------------------------------------------- */

static qnn_node relu(qnn_model *m, const qnn_node *x) { return qnn_relu(m, x[0], "op"); }
static qnn_node relu6(qnn_model *m, const qnn_node *x) { return qnn_relu6(m, x[0], "op"); }
static qnn_node clip(qnn_model *m, const qnn_node *x)
{
    return qnn_clip(m, x[0], "op", -1.0f, 2.0f);
}
static qnn_node softmax(qnn_model *m, const qnn_node *x) { return qnn_softmax(m, x[0], "op"); }
static qnn_node dropout(qnn_model *m, const qnn_node *x)
{
    return qnn_dropout(m, x[0], "op", 0.4f);
}
static qnn_node flatten(qnn_model *m, const qnn_node *x)
{
    return qnn_relu(m, qnn_flatten(m, x[0], "op"), "relu");
}
static qnn_node batchnorm2d(qnn_model *m, const qnn_node *x)
{
    return qnn_batchnorm2d(m, x[0], "op", NULL);
}

/* Parameters and statistics that are not those of a fresh node. */
static void setup_batchnorm2d(qnn_model *m)
{
    qnn_node_data *const n = m->node[qnn_model_find(m, "op")];

    for (int slot = 0; slot < n->n_param; slot++)
        tu_fill_uniform(n->param[slot].data, n->param[slot].count, slot == QNN_P_VAR ? 0.5f : -1.0f,
                        2.0f, 10u + (uint64_t)slot);
}

/* ---- pools ----------------------------------------------------------------------------------- */

static qnn_node max_2x2(qnn_model *m, const qnn_node *x)
{
    return qnn_maxpool2d(m, x[0], "op", 2, 2);
}
static qnn_node max_2x2_overlapping(qnn_model *m, const qnn_node *x)
{
    return qnn_maxpool2d(m, x[0], "op", 2, 1);
}
static qnn_node max_2x2_apart(qnn_model *m, const qnn_node *x)
{
    return qnn_maxpool2d(m, x[0], "op", 2, 3);
}
static qnn_node max_3x3_padded(qnn_model *m, const qnn_node *x)
{
    return qnn_maxpool2d_ex(m, x[0], "op", &(qnn_pool2d_opts){.kernel = 3, .stride = 2, .pad = 1});
}
static qnn_node max_odd(qnn_model *m, const qnn_node *x)
{
    return qnn_maxpool2d_ex(
        m, x[0], "op",
        &(qnn_pool2d_opts){
            .kernel = 4, .kernel_w = 3, .stride = 1, .stride_w = 2, .pads = {2, 0, 1, 1}});
}
static qnn_node average_2x2(qnn_model *m, const qnn_node *x)
{
    return qnn_avgpool2d(m, x[0], "op", 2, 2);
}
static qnn_node average_padded(qnn_model *m, const qnn_node *x)
{
    return qnn_avgpool2d_ex(m, x[0], "op", &(qnn_pool2d_opts){.kernel = 3, .stride = 2, .pad = 1});
}
static qnn_node average_inside(qnn_model *m, const qnn_node *x)
{
    return qnn_avgpool2d_ex(m, x[0], "op",
                            &(qnn_pool2d_opts){.kernel = 3,
                                               .kernel_w = 2,
                                               .stride = 1,
                                               .stride_w = 3,
                                               .pads = {1, 0, 1, 1},
                                               .exclude_pad = 1});
}
static qnn_node global_average(qnn_model *m, const qnn_node *x)
{
    return qnn_global_avgpool(m, x[0], "op");
}

/* ---- several inputs -------------------------------------------------------------------------- */

static qnn_node add(qnn_model *m, const qnn_node *x) { return qnn_add(m, x[0], x[1], "op"); }
static qnn_node add_twice(qnn_model *m, const qnn_node *x) { return qnn_add(m, x[0], x[0], "op"); }
static qnn_node concat(qnn_model *m, const qnn_node *x) { return qnn_concat(m, x, 3, "op"); }
static qnn_node concat_twice(qnn_model *m, const qnn_node *x)
{
    return qnn_concat(m, (qnn_node[3]){x[0], x[1], x[0]}, 3, "op");
}

/* ---- fake_quant ------------------------------------------------------------------------------ */

/* A staircase: its differences over whole steps are those of the straight-through estimate. */

#define STEP 0.01f /* of the range below */

static qnn_node fake_quant(qnn_model *m, const qnn_node *x)
{
    qnn_attrs a = qnn_attrs__default();

    a.average = 0.01f;
    return qnn_model__add(m, QNN_OP_FAKE_QUANT, "op", x, 1, &a, 1);
}

static void setup_fake_quant(qnn_model *m)
{
    const float range[3] = {-100.0f * STEP, 155.0f * STEP, 1.0f};

    memcpy(m->node[qnn_model_find(m, "op")]->param[QNN_P_RANGE].data, range, sizeof range);
}

/*
 * 0.3 of a step beside multiples of it, inside and outside the range but not within 3 steps of its
 * ends.
 */
static void fill_fake_quant(float *x, size_t n, uint64_t seed)
{
    qnn_rng r;

    qnn_rng__init(&r, seed, 0);
    for (size_t i = 0; i < n; i++) {
        int64_t k = (int64_t)qnn_rng__below(&r, 350) - 150;

        if (k >= -104 && k <= -96)
            k = -50;
        if (k >= 151 && k <= 159)
            k = 50;
        x[i] = ((float)k + 0.3f) * STEP;
    }
}

const grad_case grad_cases_op[] = {
    {.name = "relu", .build = relu, .in = {IMAGE(3, 4, 3)}, .fill = grad_fill_apart},
    {.name = "relu6", .build = relu6, .in = {IMAGE(4, 4, 3)}, .fill = grad_fill_apart},
    {.name = "clip", .build = clip, .in = {{1, {37}}}, .fill = grad_fill_apart},
    {.name = "softmax", .build = softmax, .in = {{1, {9}}}},
    {.name = "softmax image", .build = softmax, .in = {IMAGE(2, 3, 5)}},
    {.name = "dropout", .build = dropout, .in = {IMAGE(3, 3, 7)}},
    {.name = "dropout evaluation", .build = dropout, .in = {IMAGE(3, 3, 2)}, .is_eval = 1},
    {.name = "flatten", .build = flatten, .in = {IMAGE(3, 2, 4)}, .fill = grad_fill_apart},
    {.name = "batchnorm2d",
     .build = batchnorm2d,
     .in = {IMAGE(3, 4, 5)},
     .setup = setup_batchnorm2d},
    {.name = "batchnorm2d wide",
     .build = batchnorm2d,
     .in = {IMAGE(2, 3, 19)},
     .setup = setup_batchnorm2d},
    {.name = "batchnorm2d evaluation",
     .build = batchnorm2d,
     .in = {IMAGE(3, 3, 4)},
     .setup = setup_batchnorm2d,
     .is_eval = 1},
    {.name = "maxpool2d 2x2", .build = max_2x2, .in = {IMAGE(4, 6, 19)}, .fill = grad_fill_apart},
    {.name = "maxpool2d 2x2 odd",
     .build = max_2x2,
     .in = {IMAGE(5, 5, 3)},
     .fill = grad_fill_apart},
    {.name = "maxpool2d 2x2 overlapping",
     .build = max_2x2_overlapping,
     .in = {IMAGE(4, 5, 18)},
     .fill = grad_fill_apart},
    {.name = "maxpool2d 2x2 apart",
     .build = max_2x2_apart,
     .in = {IMAGE(6, 5, 3)},
     .fill = grad_fill_apart},
    {.name = "maxpool2d 3x3 padded",
     .build = max_3x3_padded,
     .in = {IMAGE(5, 6, 17)},
     .fill = grad_fill_apart},
    {.name = "maxpool2d 4x3 odd pads",
     .build = max_odd,
     .in = {IMAGE(5, 6, 3)},
     .fill = grad_fill_apart},
    {.name = "avgpool2d 2x2", .build = average_2x2, .in = {IMAGE(5, 4, 3)}},
    {.name = "avgpool2d 3x3 padded", .build = average_padded, .in = {IMAGE(5, 6, 3)}},
    {.name = "avgpool2d exclude_pad", .build = average_inside, .in = {IMAGE(5, 6, 3)}},
    {.name = "avgpool2d 65 channels", .build = average_2x2, .in = {IMAGE(2, 3, 65)}},
    {.name = "global_avgpool", .build = global_average, .in = {IMAGE(3, 5, 6)}},
    {.name = "add", .build = add, .in = {IMAGE(3, 3, 5), IMAGE(3, 3, 5)}},
    {.name = "add twice", .build = add_twice, .in = {IMAGE(3, 3, 5)}},
    {.name = "concat", .build = concat, .in = {IMAGE(2, 3, 2), IMAGE(2, 3, 5), IMAGE(2, 3, 1)}},
    {.name = "concat features", .build = concat, .in = {{1, {2}}, {1, {5}}, {1, {1}}}},
    {.name = "concat twice", .build = concat_twice, .in = {IMAGE(2, 2, 3), IMAGE(2, 2, 2)}},
    {.name = "fake_quant",
     .build = fake_quant,
     .in = {IMAGE(4, 5, 3)},
     .fill = fill_fake_quant,
     .setup = setup_fake_quant,
     .step = STEP,
     .is_eval = 1},
    {.name = "fake_quant before a batch", .build = fake_quant, .in = {{1, {11}}}, .is_eval = 1},
    {.name = NULL},
};
