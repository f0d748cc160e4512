/* Static int8: u8 activations by known ranges, s8 weights, s32 biases; what cannot be quantised
 * stays float and says why. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/exec.h"
#include "lib/qmath.h"
#include "lib/quant/rewrite.h"

#define RAISE 1.0625f /* step by which a weight scale grows until its sums fit */

typedef struct convert {
    qnn_ctx *ctx;
    const qnn_model *m;
    qnn_model *dst;
    const qnn_range *range; /* by site */
    const qnn_quant_opts *opts;
    qnn_node *site;
    uint8_t *needed;
    qnn_node *as_f32, *as_u8; /* node of the new model that holds the value as float, as codes;
                                 NONE: not there (yet) */
    size_t n_raised;          /* output channels */
} convert;

static const qnn_range *range_of(const convert *c, qnn_node i) { return &c->range[c->site[i]]; }

static void affine_of(const convert *c, qnn_node i, float *scale, int32_t *zp)
{
    const qnn_range *const r = range_of(c, i);

    qnn_qparams__affine(r->lo, r->hi, 0, 255, scale, zp);
}

static const char *suffixed(char *buf, const char *name, const char *suffix)
{
    snprintf(buf, QNN_NAME_MAX, "%.*s%s", (int)(QNN_NAME_MAX - 1 - strlen(suffix)), name, suffix);
    return buf;
}

static int can_u8(const convert *c, qnn_node i)
{
    return c->as_u8[i] != QNN_NODE_NONE || range_of(c, i)->known;
}

/* Node i's value as codes, quantised where it is float; only where can_u8(). */
static qnn_status want_u8(convert *c, qnn_node i, qnn_node *out)
{
    char name[QNN_NAME_MAX];
    const qnn_attrs a = qnn_attrs__default();
    float scale;
    int32_t zp;

    if (c->as_u8[i] == QNN_NODE_NONE) {
        affine_of(c, i, &scale, &zp);
        c->as_u8[i] = qnn_model__add_u8(c->dst, QNN_OP_QUANTIZE,
                                        suffixed(name, c->m->node[i]->name, ".quant"),
                                        &c->as_f32[i], 1, &a, scale, zp);
        if (c->as_u8[i] == QNN_NODE_NONE)
            return c->dst->status;
    }
    *out = c->as_u8[i];
    return QNN_OK;
}

static qnn_status want_f32(convert *c, qnn_node i, qnn_node *out)
{
    char name[QNN_NAME_MAX];
    const qnn_attrs a = qnn_attrs__default();

    if (c->as_f32[i] == QNN_NODE_NONE) {
        c->as_f32[i] =
            qnn_model__add(c->dst, QNN_OP_DEQUANTIZE,
                           suffixed(name, c->m->node[i]->name, ".dequant"), &c->as_u8[i], 1, &a, 0);
        if (c->as_f32[i] == QNN_NODE_NONE)
            return c->dst->status;
    }
    *out = c->as_f32[i];
    return QNN_OK;
}

/* Whether node i, which computes with codes, gives codes too. */
static int emits_u8(const convert *c, qnn_node i)
{
    return c->needed[c->site[i]] && range_of(c, i)->known;
}

static qnn_status keep_float(convert *c, qnn_node i, const char *why)
{
    const qnn_node_data *const n = c->m->node[i];
    qnn_node in[QNN_MAX_INPUTS];

    for (int k = 0; k < n->n_in; k++)
        QNN_TRY(want_f32(c, n->in[k], &in[k]));
    QNN_TRY(qnn_rewrite__copy(c->dst, c->m, i, in, NULL, &c->as_f32[i]));
    return why == NULL
               ? QNN_OK
               : qnn_node__set_note(c->dst, c->dst->node[c->as_f32[i]], "stays f32: %s", why);
}

/* ---- conv2d and linear
 * ----------------------------------------------------------------------------------------------------------
 */

/* What the bias is in units of the sums. */
static int64_t bias_code(float bias, float in_scale, float w_scale)
{
    const double q = rint((double)bias / ((double)in_scale * (double)w_scale));

    return q > 9e18 ? INT64_MAX : q < -9e18 ? INT64_MIN + 1 : (int64_t)q;
}

/* The contract: 255 * sum|w| + |bias| of a channel fits int32. */
static int fits(const int8_t *codes, size_t per, int64_t bias)
{
    int64_t sum = 0;

    for (size_t i = 0; i < per; i++)
        sum += codes[i] < 0 ? -codes[i] : codes[i];
    return (bias < 0 ? -bias : bias) <= INT32_MAX - 255 * sum;
}

/* A weight scale can be raised only so far; its codes are at most 1 by then. */
static int bias_can_fit(const qnn_param *b, float in_scale)
{
    const double limit = (double)in_scale * (double)(FLT_MAX / RAISE) * (INT32_MAX / 2);

    for (size_t k = 0; k < b->count; k++)
        if (fabs((double)((const float *)b->data)[k]) > limit)
            return 0;
    return 1;
}

static qnn_status fill_weights(convert *c, qnn_node_data *n, const qnn_node_data *from,
                               float in_scale)
{
    const qnn_param *const w = &from->param[QNN_P_WEIGHT], *const b = &from->param[QNN_P_BIAS];
    const size_t channels = (size_t)w->dim[0], per = w->count / channels;
    const int per_channel = !c->opts->per_tensor;
    size_t n_raised = 0;
    int is_raised = 0;
    float *const scale = n->param[QNN_P_WEIGHT].scale;
    int8_t *const codes = n->param[QNN_P_WEIGHT].data;
    int32_t *const bias = n->param[QNN_P_BIAS].data;

    qnn_qmath__weight_scales(c->ctx, w->data, channels, per, 127, per_channel, scale);
    for (size_t k = 0; k < channels;) {
        float *const s = &scale[per_channel ? k : 0];
        const float *const row = (const float *)w->data + k * per;
        int64_t code;

        qnn_qmath__weight_codes(c->ctx, row, 1, per, 127, 0, s, codes + k * per);
        code = b->count > 0 ? bias_code(((const float *)b->data)[k], in_scale, *s) : 0;
        if (!fits(codes + k * per, per, code)) {
            *s *= RAISE; /* a coarser weight scale: smaller codes and a smaller bias */
            n_raised += is_raised ? 0 : per_channel ? 1 : channels;
            is_raised = 1;
            k = per_channel ? k : 0; /* one scale for all: every channel anew */
            continue;
        }
        is_raised = is_raised && !per_channel;
        if (b->count > 0)
            bias[k] = (int32_t)code;
        k++;
    }
    c->n_raised += n_raised;
    return n_raised == 0
               ? QNN_OK
               : qnn_node__set_note(c->dst, n,
                                    "weight scales of %zu channels raised so that sums fit int32",
                                    n_raised);
}

static qnn_status convert_compute(convert *c, qnn_node i)
{
    const qnn_node_data *const from = c->m->node[i];
    const size_t channels = (size_t)from->param[QNN_P_WEIGHT].dim[0];
    qnn_attrs a = from->a;
    qnn_node in, made;
    float scale;
    int32_t zp;

    if (!can_u8(c, from->in[0]))
        return keep_float(c, i, "the range of its input is unknown");
    affine_of(c, from->in[0], &scale, &zp);
    if (!bias_can_fit(&from->param[QNN_P_BIAS], scale))
        return keep_float(c, i, "its bias is too large beside its input");
    QNN_TRY(want_u8(c, from->in[0], &in));
    a.wq = QNN_WQ_STATIC;
    a.w_per_channel = !c->opts->per_tensor;
    if (emits_u8(c, i)) {
        affine_of(c, i, &scale, &zp);
        made = qnn_model__add_u8(c->dst, from->kind, from->name, &in, 1, &a, scale, zp);
        c->as_u8[i] = made;
    } else {
        made = qnn_model__add(c->dst, from->kind, from->name, &in, 1, &a, 0);
        c->as_f32[i] = made;
    }
    if (made == QNN_NODE_NONE)
        return c->dst->status;
    QNN_TRY(qnn_node__retype(c->dst, c->dst->node[made], QNN_P_WEIGHT, QNN_DTYPE_I8,
                             c->opts->per_tensor ? 1 : channels));
    if (from->param[QNN_P_BIAS].count > 0)
        QNN_TRY(qnn_node__retype(c->dst, c->dst->node[made], QNN_P_BIAS, QNN_DTYPE_I32, 0));
    return fill_weights(c, c->dst->node[made], from, c->dst->node[in]->scale);
}

/* ---- the others
 * ------------------------------------------------------------------------------------------------------------------
 */

/* add, concat, average pools: in codes when all they read and write has codes. */
static qnn_status convert_arithmetic(convert *c, qnn_node i)
{
    const qnn_node_data *const from = c->m->node[i];
    qnn_node in[QNN_MAX_INPUTS];
    float scale;
    int32_t zp;

    if (!c->needed[c->site[i]])
        return keep_float(c, i, "nothing that reads it is quantised");
    if (!emits_u8(c, i))
        return keep_float(c, i, "its range is unknown");
    for (int k = 0; k < from->n_in; k++)
        if (!can_u8(c, from->in[k]))
            return keep_float(c, i, "the range of an input is unknown");
    for (int k = 0; k < from->n_in; k++)
        QNN_TRY(want_u8(c, from->in[k], &in[k]));
    affine_of(c, i, &scale, &zp);
    c->as_u8[i] =
        qnn_model__add_u8(c->dst, from->kind, from->name, in, from->n_in, &from->a, scale, zp);
    return c->as_u8[i] == QNN_NODE_NONE ? c->dst->status : QNN_OK;
}

static qnn_status convert_node(convert *c, qnn_node i)
{
    const qnn_node_data *const from = c->m->node[i];
    const char *const why = qnn_sites__why_float(c->m, c->opts, i);

    if (from->kind == QNN_OP_INPUT)
        return keep_float(c, i, NULL);
    if ((qnn_ops[from->kind]->flags & QNN_OP_KEEPS_Q) != 0 &&
        !qnn_rewrite__in_list(c->opts->skip, from->name)) {
        if (c->as_u8[from->in[0]] == QNN_NODE_NONE)
            return keep_float(c, i, "what it reads is f32");
        c->as_u8[i] =
            qnn_model__add(c->dst, from->kind, from->name, &c->as_u8[from->in[0]], 1, &from->a, 0);
        return c->as_u8[i] == QNN_NODE_NONE ? c->dst->status : QNN_OK;
    }
    if (why != NULL)
        return keep_float(c, i, why);
    return from->kind == QNN_OP_CONV2D || from->kind == QNN_OP_LINEAR ? convert_compute(c, i)
                                                                      : convert_arithmetic(c, i);
}

static qnn_status convert_all(convert *c)
{
    for (int i = 0; i < c->m->n_nodes; i++)
        QNN_TRY(convert_node(c, i));
    for (int k = 0; k < c->m->n_outputs; k++) {
        qnn_node out;

        QNN_TRY(want_f32(c, c->m->output[k], &out));
        (void)out;
    }
    return qnn_model__finish_rewrite(c->dst, c->m, c->as_f32);
}

static qnn_status set_meta(convert *c, const char *method)
{
    char text[32];

    snprintf(text, sizeof text, "%zu", c->n_raised);
    QNN_TRY(qnn_model_set_meta(c->dst, "quant.method", method));
    QNN_TRY(qnn_model_set_meta(c->dst, "quant.weights",
                               c->opts->per_tensor ? "per-tensor" : "per-channel"));
    return qnn_model_set_meta(c->dst, "quant.raised", text);
}

qnn_status qnn_convert__static(qnn_model **out, qnn_ctx *ctx, const qnn_model *m,
                               const qnn_range *range, const qnn_quant_opts *opts,
                               const char *method)
{
    const qnn_quant_opts defaults = {0};
    convert c = {.ctx = ctx, .m = m, .range = range, .opts = opts != NULL ? opts : &defaults};
    qnn_status status;
    void *needed = NULL;

    *out = NULL;
    QNN_TRY(qnn_rewrite__check_names(ctx, m, c.opts->skip));
    QNN_TRY(qnn_rewrite__check_finite(ctx, m));
    status = qnn_rewrite__map(ctx, m, &c.site);
    if (status == QNN_OK)
        status = qnn_rewrite__map(ctx, m, &c.as_f32);
    if (status == QNN_OK)
        status = qnn_rewrite__map(ctx, m, &c.as_u8);
    if (status == QNN_OK)
        status = qnn_ctx__alloc(ctx, &needed, (size_t)m->n_nodes, "a pass's map");
    if (status == QNN_OK)
        status = qnn_model_create(&c.dst, ctx);
    if (status == QNN_OK) {
        c.needed = needed;
        qnn_sites__find(m, c.opts, c.site, c.needed);
        status = convert_all(&c);
        if (status == QNN_OK)
            status = set_meta(&c, method);
        if (status != QNN_OK)
            qnn_model_free(c.dst);
        else
            *out = c.dst;
    }
    qnn_ctx__release(ctx, needed);
    qnn_ctx__release(ctx, c.as_u8);
    qnn_ctx__release(ctx, c.as_f32);
    qnn_ctx__release(ctx, c.site);
    return status;
}
