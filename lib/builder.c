/* The public builder calls: options with their defaults turned into attributes. Checks are each
 * op's infer. */
#include "lib/graph.h"

#include <math.h>
#include <stddef.h>

#include "lib/op.h"

/* An input's shape travels in the attributes that its infer reads: see lib/op/input.c. */
static qnn_node add_input(qnn_model *m, const char *name, int rank, int64_t h, int64_t w, int64_t c)
{
    qnn_attrs a = qnn_attrs__default();

    if (m == NULL || m->status != QNN_OK)
        return QNN_NODE_NONE;
    if (h < 1 || w < 1 || c < 1 || h > INT32_MAX || w > INT32_MAX || c > INT32_MAX) {
        (void)qnn_model__stick(
            m, qnn_ctx__fail(m->ctx, QNN_ERR_SHAPE, "input \"%s\": shape %lldx%lldx%lld",
                             name != NULL ? name : "", (long long)h, (long long)w, (long long)c));
        return QNN_NODE_NONE;
    }
    a.kh = rank == 1 ? 0 : (int32_t)h;
    a.kw = rank == 1 ? 0 : (int32_t)w;
    a.units = (int32_t)c;
    return qnn_model__add(m, QNN_OP_INPUT, name, NULL, 0, &a, 1);
}

qnn_node qnn_input(qnn_model *m, const char *name, int64_t h, int64_t w, int64_t c)
{
    return add_input(m, name, 3, h, w, c);
}

qnn_node qnn_input_features(qnn_model *m, const char *name, int64_t features)
{
    return add_input(m, name, 1, 1, 1, features);
}

static int32_t or_default(int value, int fallback) { return value != 0 ? value : fallback; }

/* Total padding of one side; a sum that leaves int32 is sent on as -1, which every infer refuses.
 */
static int32_t sum_pad(int pad, int extra)
{
    const int64_t sum = (int64_t)pad + extra;

    return sum > INT32_MAX || sum < 0 ? -1 : (int32_t)sum;
}

static void set_pads(qnn_attrs *a, int pad, const int pads[4])
{
    a->pt = sum_pad(pad, pads[0]);
    a->pl = sum_pad(pad, pads[1]);
    a->pb = sum_pad(pad, pads[2]);
    a->pr = sum_pad(pad, pads[3]);
}

/* Builder calls take x from a call that may have failed: then the error is already there. */
static qnn_node add1(qnn_model *m, qnn_op_kind kind, const char *name, qnn_node x,
                     const qnn_attrs *a)
{
    return qnn_model__add(m, kind, name, &x, 1, a, 1);
}

static qnn_node missing_opts(qnn_model *m, const char *op, const char *name)
{
    if (m != NULL && m->status == QNN_OK)
        (void)qnn_model__stick(m, qnn_ctx__fail(m->ctx, QNN_ERR_ARG, "%s \"%s\": options are NULL",
                                                op, name != NULL ? name : ""));
    return QNN_NODE_NONE;
}

qnn_node qnn_conv2d(qnn_model *m, qnn_node x, const char *name, const qnn_conv2d_opts *opts)
{
    qnn_attrs a = qnn_attrs__default();

    if (opts == NULL)
        return missing_opts(m, "conv2d", name);
    a.units = opts->filters;
    a.kh = opts->kernel;
    a.kw = or_default(opts->kernel_w, opts->kernel);
    a.sh = or_default(opts->stride, 1);
    a.sw = or_default(opts->stride_w, a.sh);
    a.dh = or_default(opts->dilation, 1);
    a.dw = or_default(opts->dilation_w, a.dh);
    a.groups = or_default(opts->groups, 1);
    set_pads(&a, opts->pad, opts->pads);
    a.no_bias = opts->no_bias != 0;
    return add1(m, QNN_OP_CONV2D, name, x, &a);
}

qnn_node qnn_linear(qnn_model *m, qnn_node x, const char *name, int64_t units)
{
    const qnn_linear_opts opts = {units, 0};

    return qnn_linear_ex(m, x, name, &opts);
}

qnn_node qnn_linear_ex(qnn_model *m, qnn_node x, const char *name, const qnn_linear_opts *opts)
{
    qnn_attrs a = qnn_attrs__default();

    if (opts == NULL)
        return missing_opts(m, "linear", name);
    a.units = opts->units > INT32_MAX || opts->units < 0 ? -1 : (int32_t)opts->units;
    a.no_bias = opts->no_bias != 0;
    return add1(m, QNN_OP_LINEAR, name, x, &a);
}

qnn_node qnn_batchnorm2d(qnn_model *m, qnn_node x, const char *name,
                         const qnn_batchnorm2d_opts *opts)
{
    qnn_attrs a = qnn_attrs__default();

    a.eps = opts != NULL && opts->eps != 0.0f ? opts->eps : 1e-5f;
    a.momentum = opts != NULL && opts->momentum != 0.0f ? opts->momentum : 0.1f;
    return add1(m, QNN_OP_BATCHNORM2D, name, x, &a);
}

qnn_node qnn_clip(qnn_model *m, qnn_node x, const char *name, float lo, float hi)
{
    qnn_attrs a = qnn_attrs__default();

    a.lo = lo;
    a.hi = hi;
    return add1(m, QNN_OP_CLIP, name, x, &a);
}

qnn_node qnn_relu(qnn_model *m, qnn_node x, const char *name)
{
    return qnn_clip(m, x, name, 0.0f, INFINITY);
}

qnn_node qnn_relu6(qnn_model *m, qnn_node x, const char *name)
{
    return qnn_clip(m, x, name, 0.0f, 6.0f);
}

static qnn_node pool(qnn_model *m, qnn_op_kind kind, qnn_node x, const char *name,
                     const qnn_pool2d_opts *opts)
{
    qnn_attrs a = qnn_attrs__default();

    if (opts == NULL)
        return missing_opts(m, qnn_ops[kind]->name, name);
    a.kh = opts->kernel;
    a.kw = or_default(opts->kernel_w, opts->kernel);
    a.sh = or_default(opts->stride, a.kh);
    a.sw = or_default(opts->stride_w, opts->stride != 0 ? opts->stride : a.kw);
    set_pads(&a, opts->pad, opts->pads);
    a.exclude_pad = opts->exclude_pad != 0;
    return add1(m, kind, name, x, &a);
}

qnn_node qnn_maxpool2d_ex(qnn_model *m, qnn_node x, const char *name, const qnn_pool2d_opts *opts)
{
    return pool(m, QNN_OP_MAXPOOL2D, x, name, opts);
}

qnn_node qnn_maxpool2d(qnn_model *m, qnn_node x, const char *name, int kernel, int stride)
{
    return pool(m, QNN_OP_MAXPOOL2D, x, name,
                &(qnn_pool2d_opts){.kernel = kernel, .stride = stride});
}

qnn_node qnn_avgpool2d_ex(qnn_model *m, qnn_node x, const char *name, const qnn_pool2d_opts *opts)
{
    return pool(m, QNN_OP_AVGPOOL2D, x, name, opts);
}

qnn_node qnn_avgpool2d(qnn_model *m, qnn_node x, const char *name, int kernel, int stride)
{
    return pool(m, QNN_OP_AVGPOOL2D, x, name,
                &(qnn_pool2d_opts){.kernel = kernel, .stride = stride});
}

qnn_node qnn_global_avgpool(qnn_model *m, qnn_node x, const char *name)
{
    const qnn_attrs a = qnn_attrs__default();

    return add1(m, QNN_OP_GLOBAL_AVGPOOL, name, x, &a);
}

qnn_node qnn_add(qnn_model *m, qnn_node a, qnn_node b, const char *name)
{
    const qnn_attrs attrs = qnn_attrs__default();
    const qnn_node in[2] = {a, b};

    return qnn_model__add(m, QNN_OP_ADD, name, in, 2, &attrs, 1);
}

qnn_node qnn_concat(qnn_model *m, const qnn_node *x, int n, const char *name)
{
    const qnn_attrs a = qnn_attrs__default();

    return qnn_model__add(m, QNN_OP_CONCAT, name, x, x == NULL ? 0 : n, &a, 1);
}

qnn_node qnn_flatten(qnn_model *m, qnn_node x, const char *name)
{
    const qnn_attrs a = qnn_attrs__default();

    return add1(m, QNN_OP_FLATTEN, name, x, &a);
}

qnn_node qnn_softmax(qnn_model *m, qnn_node x, const char *name)
{
    const qnn_attrs a = qnn_attrs__default();

    return add1(m, QNN_OP_SOFTMAX, name, x, &a);
}

qnn_node qnn_dropout(qnn_model *m, qnn_node x, const char *name, float p)
{
    qnn_attrs a = qnn_attrs__default();

    a.p = p;
    return add1(m, QNN_OP_DROPOUT, name, x, &a);
}
