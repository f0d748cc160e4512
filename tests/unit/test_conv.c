/*
 * conv2d and linear against naive loops: f32 forward and backward, int8 to the last bit, every way
 * of treating weights, refusals.
 */
#include "suites.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/exec.h"
#include "lib/qmath.h"
#include "tests/common/testutil.h"
#include "tests/unit/conv_shapes.h"

#define LEN(a) (sizeof(a) / sizeof *(a))
#define BATCH  3

static qnn_ctx *ctx;
static qnn_model *m;

static void setup(void)
{
    ctx = tu_ctx(2);
    TU_OK(ctx, qnn_model_create(&m, ctx));
}

static void teardown(void)
{
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}

/* ---- running one node ------------------------------------------------------------------------ */

typedef struct run {
    qnn_ctx *ctx;
    qnn_program *p;
    qnn_exec x;
    const void *src[1];
    float *grad[8 * QNN_MAX_PARAMS];
} run;

static void open_run(run *r, qnn_ctx *c, const qnn_model *model, int n, const void *src,
                     int is_train)
{
    const qnn_compile_opts o = {
        .max_batch = n, .is_train = is_train, .keep_all = 1, .input_grad = is_train};

    memset(r, 0, sizeof *r);
    r->ctx = c;
    TU_OK(c, qnn_program__compile(&r->p, c, model, &o));
    r->src[0] = src;
    r->x = (qnn_exec){.ctx = c,
                      .p = r->p,
                      .k = r->p->k,
                      .n = n,
                      .is_train = is_train,
                      .src = r->src,
                      .grad = r->grad};
    r->x.ws = tu_alloc_aligned(qnn_program_workspace(r->p));
    memset(r->x.ws, 0xa5, qnn_program_workspace(r->p));
    TU_OK(c, qnn_exec__forward(&r->x));
}

static void close_run(run *r)
{
    for (size_t i = 0; i < LEN(r->grad); i++)
        free(r->grad[i]);
    free(r->x.ws);
    qnn_program_free(r->p);
}

static float *uniform(size_t n, float lo, float hi, uint64_t seed)
{
    float *const x = tu_alloc(n * sizeof *x);

    tu_fill_uniform(x, n, lo, hi, seed);
    return x;
}

/* The same bits as r's value of node i on other thread counts, for one item, and in a program that
 * trains. */
static void expect_same_bits(const qnn_model *model, const run *r, qnn_node i, const float *src,
                             size_t n_in, size_t n_out, int can_train)
{
    static const int threads[] = {1, 2, 5};
    const float *const want = qnn_exec__value(&r->x, i);

    for (size_t t = 0; t < LEN(threads) * 2; t++) {
        qnn_ctx *const other_ctx = tu_ctx_isa(threads[t / 2], qnn_ctx_isa(ctx));
        const int n = t % 2 == 0 ? BATCH : 1;
        const size_t first = (size_t)(BATCH - n); /* one item: the last */
        run other;

        for (int is_train = 0; is_train <= can_train; is_train++) {
            open_run(&other, other_ctx, model, n, src + first * n_in, is_train);
            ck_assert_msg(memcmp(want + first * n_out, qnn_exec__value(&other.x, i),
                                 (size_t)n * n_out * sizeof(float)) == 0,
                          "other bits: %d threads, batch %d, training %d", threads[t / 2], n,
                          is_train);
            close_run(&other);
        }
        qnn_ctx_free(other_ctx);
    }
}

/* ---- f32 ------------------------------------------------------------------------------------- */

/* Values and the sums of magnitudes that bound their rounding errors. */
typedef struct sums {
    const float *src, *wei, *ddst;
    double *dst, *dst_size, *dsrc, *dsrc_size, *dwei, *dwei_size;
} sums;

static void add_forward(void *arg, size_t dst, ptrdiff_t src, size_t wei)
{
    sums *const s = arg;
    const double v = src < 0 ? 0.0 : (double)s->src[src] * (double)s->wei[wei];

    s->dst[dst] += v;
    s->dst_size[dst] += fabs(v);
}

static void add_backward(void *arg, size_t dst, ptrdiff_t src, size_t wei)
{
    sums *const s = arg;
    double v;

    if (src < 0)
        return;
    v = (double)s->ddst[dst] * (double)s->wei[wei];
    s->dsrc[src] += v;
    s->dsrc_size[src] += fabs(v);
    v = (double)s->ddst[dst] * (double)s->src[src];
    s->dwei[wei] += v;
    s->dwei_size[wei] += fabs(v);
}

static void expect_near(const char *name, const char *what, const float *got, const double *want,
                        const double *size, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(fabs((double)got[i] - want[i]) <= 2e-5 * size[i] + 1e-30,
                      "%s: %s %zu is %.9g, expected %.9g", name, what, i, (double)got[i], want[i]);
}

static double *zeros(size_t n)
{
    double *const x = tu_alloc(n * sizeof *x);

    for (size_t i = 0; i < n; i++)
        x[i] = 0.0;
    return x;
}

/* Odd cases have a fused clip, every third no bias. */
static qnn_node add_case(const shape *s, int number, int wq)
{
    const qnn_node x = qnn_input(m, "in", s->h, s->w, s->c);
    qnn_attrs a = attrs_of(s);
    qnn_node y;

    a.wq = wq;
    a.no_bias = number % 3 == 2;
    if (number % 2 == 1) {
        a.lo = -0.2f;
        a.hi = 0.6f;
    }
    y = qnn_model__add(m, QNN_OP_CONV2D, "c", &x, 1, &a, 1);
    qnn_output(m, "y", y);
    TU_OK(ctx, qnn_model_check(m));
    return y;
}

static double clipped(const qnn_attrs *a, double x)
{
    return fmin(fmax(x, (double)a->lo), (double)a->hi);
}

START_TEST(f32_forward)
{
    const shape *const s = &shapes[_i];
    const qnn_node y = add_case(s, _i, QNN_WQ_NONE);
    const qnn_node_data *const n = m->node[y];
    const size_t total = BATCH * n_dst(s);
    float *const src = uniform(BATCH * n_src(s), -1.0f, 1.0f, 1);
    const float *const bias = n->param[QNN_P_BIAS].data;
    sums want = {.src = src,
                 .wei = n->param[QNN_P_WEIGHT].data,
                 .dst = zeros(total),
                 .dst_size = zeros(total)};
    run r;

    each_product(s, BATCH, add_forward, &want);
    for (size_t i = 0; i < total; i++) {
        const double b = bias != NULL ? (double)bias[i % (size_t)s->oc] : 0.0;

        want.dst[i] = clipped(&n->a, want.dst[i] + b);
        want.dst_size[i] += fabs(b);
    }
    open_run(&r, ctx, m, BATCH, src, 0);
    expect_near(s->name, "output", qnn_exec__value(&r.x, y), want.dst, want.dst_size, total);
    expect_same_bits(m, &r, y, src, n_src(s), n_dst(s), 1);
    close_run(&r);
    free(src);
    free(want.dst);
    free(want.dst_size);
}
END_TEST

static void start_gradients(run *r, qnn_node y)
{
    for (int slot = 0; slot < m->node[y]->n_param; slot++) {
        const size_t count = m->node[y]->param[slot].count;
        float *const g = tu_alloc(count * sizeof *g);

        for (size_t i = 0; i < count; i++)
            g[i] = 1.0f; /* they must be added to */
        r->grad[y * QNN_MAX_PARAMS + slot] = g;
    }
}

/* Gradients of everything, against loops over the same weights wei (the layer's, or their
 * fake-quantised values). */
static void check_backward(const shape *s, qnn_node y, const float *wei)
{
    const qnn_node_data *const n = m->node[y];
    const size_t total = BATCH * n_dst(s), n_in = BATCH * n_src(s),
                 n_wei = n->param[QNN_P_WEIGHT].count;
    float *const src = uniform(n_in, -1.0f, 1.0f, 2), *const ddst = uniform(total, -1.0f, 1.0f, 3);
    double *const dbias = zeros((size_t)s->oc), *const dbias_size = zeros((size_t)s->oc);
    sums want = {src, wei, ddst, NULL, NULL, zeros(n_in), zeros(n_in), zeros(n_wei), zeros(n_wei)};
    float *out;
    run r;

    open_run(&r, ctx, m, BATCH, src, 1);
    start_gradients(&r, y);
    memcpy(qnn_exec__dvalue(&r.x, y), ddst, total * sizeof *ddst);
    out = tu_alloc(total * sizeof *out);
    memcpy(out, qnn_exec__value(&r.x, y), total * sizeof *out);
    TU_OK(ctx, qnn_exec__backward(&r.x));
    for (size_t i = 0; i < total; i++)
        if (!(out[i] > n->a.lo && out[i] < n->a.hi))
            ddst[i] = 0.0f;
    each_product(s, BATCH, add_backward, &want);
    for (size_t i = 0; i < n_wei; i++) {
        want.dwei[i] += 1.0;
        want.dwei_size[i] += 1.0;
    }
    expect_near(s->name, "input gradient", qnn_exec__dvalue(&r.x, 0), want.dsrc, want.dsrc_size,
                n_in);
    expect_near(s->name, "weight gradient", r.grad[y * QNN_MAX_PARAMS + QNN_P_WEIGHT], want.dwei,
                want.dwei_size, n_wei);
    for (size_t i = 0; i < total; i++) {
        dbias[i % (size_t)s->oc] += (double)ddst[i];
        dbias_size[i % (size_t)s->oc] += fabs((double)ddst[i]);
    }
    for (int i = 0; i < s->oc; i++) {
        dbias[i] += 1.0;
        dbias_size[i] += 1.0;
    }
    if (!n->a.no_bias)
        expect_near(s->name, "bias gradient", r.grad[y * QNN_MAX_PARAMS + QNN_P_BIAS], dbias,
                    dbias_size, (size_t)s->oc);
    close_run(&r);
    free(src);
    free(ddst);
    free(out);
    free(dbias);
    free(dbias_size);
    free(want.dsrc);
    free(want.dsrc_size);
    free(want.dwei);
    free(want.dwei_size);
}

START_TEST(f32_backward)
{
    const qnn_node y = add_case(&shapes[_i], _i, QNN_WQ_NONE);

    check_backward(&shapes[_i], y, m->node[y]->param[QNN_P_WEIGHT].data);
}
END_TEST

/* Bits of the gradients do not depend on the threads. */
START_TEST(backward_on_other_threads)
{
    static const int threads[] = {1, 2, 5};
    const shape *const s = &shapes[_i];
    const qnn_node y = add_case(s, _i, QNN_WQ_NONE);
    const size_t n_wei = m->node[y]->param[QNN_P_WEIGHT].count, n_in = BATCH * n_src(s);
    float *const src = uniform(n_in, -1.0f, 1.0f, 2), *const ddst =
                                                          uniform(BATCH * n_dst(s), -1.0f, 1.0f, 3);
    float *const dsrc = tu_alloc(n_in * sizeof *dsrc), *const dwei = tu_alloc(n_wei * sizeof *dwei);

    for (size_t t = 0; t < LEN(threads); t++) {
        qnn_ctx *const c = tu_ctx_isa(threads[t], qnn_ctx_isa(ctx));
        const float *got_dsrc, *got_dwei;
        run r;

        open_run(&r, c, m, BATCH, src, 1);
        start_gradients(&r, y);
        memcpy(qnn_exec__dvalue(&r.x, y), ddst, BATCH * n_dst(s) * sizeof *ddst);
        TU_OK(c, qnn_exec__backward(&r.x));
        got_dsrc = qnn_exec__dvalue(&r.x, 0);
        got_dwei = r.grad[y * QNN_MAX_PARAMS + QNN_P_WEIGHT];
        if (t == 0) {
            memcpy(dsrc, got_dsrc, n_in * sizeof *dsrc);
            memcpy(dwei, got_dwei, n_wei * sizeof *dwei);
        }
        ck_assert_msg(memcmp(dsrc, got_dsrc, n_in * sizeof *dsrc) == 0 &&
                          memcmp(dwei, got_dwei, n_wei * sizeof *dwei) == 0,
                      "%s: other gradients on %d threads", s->name, threads[t]);
        close_run(&r);
        qnn_ctx_free(c);
    }
    free(src);
    free(ddst);
    free(dsrc);
    free(dwei);
}
END_TEST

/* ---- weights that are not f32 ---------------------------------------------------------------- */

/* What w becomes when fake-quantised, from the definition. */
static void fake(const float *w, size_t channels, size_t per, int bits, int is_per_channel,
                 float *out)
{
    const float qmax = bits == 4 ? 7.0f : 127.0f;

    for (size_t c = 0; c < channels; c++) {
        const size_t first = is_per_channel ? c * per : 0,
                     count = is_per_channel ? per : channels * per;
        float largest = 0.0f, scale;

        for (size_t i = first; i < first + count; i++)
            largest = fmaxf(largest, fabsf(w[i]));
        scale = largest > 0.0f ? largest / qmax : 1.0f;
        for (size_t i = c * per; i < (c + 1) * per; i++)
            out[i] = scale * fmaxf(fminf(rintf(w[i] * (1.0f / scale)), qmax), -qmax);
    }
}

/* 8 and 4 bits, per channel and per tensor: forward and the gradient that passes straight through.
 */
START_TEST(fake_weights)
{
    static const int numbers[] = {0, 5, 12,
                                  17}; /* plain, asymmetric with a clip, groups, depthwise */
    const shape *const s = &shapes[numbers[_i / 4]];
    const qnn_node y = add_case(s, numbers[_i / 4], QNN_WQ_FAKE);
    qnn_node_data *const n = m->node[y];
    const size_t total = BATCH * n_dst(s);
    float *const src = uniform(BATCH * n_src(s), -1.0f, 1.0f, 4), *const wei = tu_alloc(
                                                                      n->param[QNN_P_WEIGHT].bytes);
    sums want = {.src = src, .wei = wei, .dst = zeros(total), .dst_size = zeros(total)};
    const float *const bias = n->param[QNN_P_BIAS].data;
    run r;

    n->a.w_bits = _i % 2 == 0 ? 8 : 4;
    n->a.w_per_channel = _i / 2 % 2;
    fake(n->param[QNN_P_WEIGHT].data, (size_t)s->oc, per_channel(s), n->a.w_bits,
         n->a.w_per_channel, wei);
    each_product(s, BATCH, add_forward, &want);
    for (size_t i = 0; i < total; i++) {
        want.dst[i] =
            clipped(&n->a, want.dst[i] + (bias != NULL ? (double)bias[i % (size_t)s->oc] : 0.0));
        want.dst_size[i] += 1.0;
    }
    open_run(&r, ctx, m, BATCH, src, 0);
    expect_near(s->name, "output", qnn_exec__value(&r.x, y), want.dst, want.dst_size, total);
    expect_same_bits(m, &r, y, src, n_src(s), n_dst(s), 1);
    close_run(&r);
    check_backward(s, y, wei);
    free(src);
    free(wei);
    free(want.dst);
    free(want.dst_size);
}
END_TEST

/* Stores the weights as type and leaves in wide what they are as f32. */
static void store(qnn_node_data *n, qnn_dtype type, size_t n_scale, float *wide)
{
    qnn_param *const p = &n->param[QNN_P_WEIGHT];
    const size_t channels = (size_t)p->dim[0], per = p->count / channels;
    float *const w = uniform(p->count, -1.0f, 1.0f, 5);
    int8_t *const codes = tu_alloc(p->count);

    TU_OK(ctx, qnn_node__retype(m, n, QNN_P_WEIGHT, type, n_scale));
    if (type == QNN_DTYPE_F16) {
        ctx->k.vec->f32_to_f16(p->count, w, p->data);
        ctx->k.vec->f16_to_f32(p->count, p->data, wide);
    } else if (type == QNN_DTYPE_BF16) {
        ctx->k.vec->f32_to_bf16(p->count, w, p->data);
        ctx->k.vec->bf16_to_f32(p->count, p->data, wide);
    } else {
        qnn_qmath__weight_scales(ctx, w, channels, per, 7, n_scale > 1, p->scale);
        qnn_qmath__weight_codes(ctx, w, channels, per, 7, n_scale > 1, p->scale, codes);
        qnn_qmath__pack_s4(codes, p->count, p->data);
        for (size_t i = 0; i < p->count; i++)
            wide[i] = p->scale[n_scale > 1 ? i / per : 0] * (float)codes[i];
    }
    free(w);
    free(codes);
}

START_TEST(stored_weights)
{
    static const struct {
        qnn_dtype type;
        int has_channels;
    } kinds[] = {{QNN_DTYPE_F16, -1}, {QNN_DTYPE_BF16, -1}, {QNN_DTYPE_S4, 0}, {QNN_DTYPE_S4, 1}};
    static const int numbers[] = {0, 17};
    const int number = numbers[_i / (int)LEN(kinds)],
              has_channels = kinds[_i % (int)LEN(kinds)].has_channels;
    const shape *const s = &shapes[number];
    const qnn_node y = add_case(s, number + 6, QNN_WQ_NONE);
    qnn_node_data *const n = m->node[y];
    const size_t total = BATCH * n_dst(s);
    float *const src = uniform(BATCH * n_src(s), -1.0f, 1.0f, 6);
    float *const wide = tu_alloc(n->param[QNN_P_WEIGHT].count * sizeof *wide);
    run stored, plain;

    store(n, kinds[_i % (int)LEN(kinds)].type,
          has_channels < 0 ? 0
          : has_channels   ? (size_t)s->oc
                           : 1,
          wide);
    open_run(&stored, ctx, m, BATCH, src, 0);
    TU_OK(ctx, qnn_node__retype(m, n, QNN_P_WEIGHT, QNN_DTYPE_F32, 0));
    memcpy(n->param[QNN_P_WEIGHT].data, wide, n->param[QNN_P_WEIGHT].bytes);
    open_run(&plain, ctx, m, BATCH, src, 0);
    ck_assert_msg(memcmp(qnn_exec__value(&stored.x, y), qnn_exec__value(&plain.x, y),
                         total * sizeof(float)) == 0,
                  "%s: stored weights give other bits than the same weights in f32", s->name);
    close_run(&stored);
    close_run(&plain);
    free(src);
    free(wide);
}
END_TEST

/* ---- int8 ------------------------------------------------------------------------------------ */

#define S_IN  0.03125f
#define S_OUT 0.75f

typedef struct int8_sums {
    const uint8_t *src;
    const int8_t *wei;
    int32_t zp;
    int64_t *dst;
} int8_sums;

static void add_int8(void *arg, size_t dst, ptrdiff_t src, size_t wei)
{
    int8_sums *const s = arg;

    s->dst[dst] += src < 0 ? 0 : (int64_t)(s->src[src] - s->zp) * s->wei[wei];
}

/* A static layer behind a quantiser; random codes and scales. S_out follows the sums so that
 * outputs fill the range. */
static qnn_node add_static(qnn_op_kind kind, qnn_node image, const qnn_attrs *layer, int32_t zp,
                           int is_u8, size_t n_scale)
{
    const qnn_attrs plain = qnn_attrs__default();
    const qnn_node q = qnn_model__add_u8(m, QNN_OP_QUANTIZE, "q", &image, 1, &plain, S_IN, zp);
    const qnn_node y = is_u8 ? qnn_model__add_u8(m, kind, "c", &q, 1, layer, S_OUT, 120)
                             : qnn_model__add(m, kind, "c", &q, 1, layer, 0);
    qnn_node_data *const n = y == QNN_NODE_NONE ? NULL : m->node[y];

    ck_assert_msg(n != NULL, "%s", qnn_ctx_error(ctx));
    TU_OK(ctx, qnn_node__retype(m, n, QNN_P_WEIGHT, QNN_DTYPE_I8, n_scale));
    tu_fill_u8(n->param[QNN_P_WEIGHT].data, n->param[QNN_P_WEIGHT].count, 7);
    for (size_t i = 0; i < n->param[QNN_P_WEIGHT].count; i++)
        if (((int8_t *)n->param[QNN_P_WEIGHT].data)[i] == -128)
            ((int8_t *)n->param[QNN_P_WEIGHT].data)[i] = 127;
    tu_fill_uniform(n->param[QNN_P_WEIGHT].scale, n_scale, 0.5f, 1.5f, 8);
    for (size_t i = 0; i < n_scale; i++)
        n->param[QNN_P_WEIGHT].scale[i] *=
            0.2f / sqrtf((float)(n->param[QNN_P_WEIGHT].count / (size_t)layer->units));
    if (!layer->no_bias) {
        TU_OK(ctx, qnn_node__retype(m, n, QNN_P_BIAS, QNN_DTYPE_I32, 0));
        for (int i = 0; i < layer->units; i++)
            ((int32_t *)n->param[QNN_P_BIAS].data)[i] = i * 1009 % 4001 - 2000;
    }
    qnn_output(m, "y", is_u8 ? qnn_model__add(m, QNN_OP_DEQUANTIZE, "real", &y, 1, &plain, 1) : y);
    TU_OK(ctx, qnn_model_check(m));
    return y;
}

static void expect_static(const char *name, const qnn_node_data *n, const int64_t *sum,
                          const void *got, size_t total)
{
    const qnn_param *const w = &n->param[QNN_P_WEIGHT];
    const int32_t *const bias = n->param[QNN_P_BIAS].data;
    const size_t oc = (size_t)n->a.units;
    int low = 255, high = 0;

    for (size_t i = 0; i < total; i++) {
        const float factor = S_IN * w->scale[w->n_scale > 1 ? i % oc : 0];
        const float acc = (float)(int32_t)(sum[i] + (bias != NULL ? bias[i % oc] : 0));

        if (n->dtype == QNN_DTYPE_U8) {
            const int code = ((const uint8_t *)got)[i];
            const float qmin = fmaxf(rintf(n->a.lo / S_OUT) + 120.0f, 0.0f);
            const float qmax = fminf(rintf(n->a.hi / S_OUT) + 120.0f, 255.0f);
            const float want = fminf(fmaxf(rintf(acc * (factor / S_OUT)) + 120.0f, qmin), qmax);

            ck_assert_msg((float)code == want, "%s: code %zu is %d, expected %g", name, i, code,
                          (double)want);
            low = code < low ? code : low;
            high = code > high ? code : high;
        } else {
            const float want = fminf(fmaxf(acc * factor, n->a.lo), n->a.hi),
                        y = ((const float *)got)[i];

            ck_assert_msg(y == want, "%s: value %zu is %.9g, expected %.9g", name, i, (double)y,
                          (double)want);
        }
    }
    ck_assert_msg(n->dtype != QNN_DTYPE_U8 || high - low > 5, "%s: codes only from %d to %d", name,
                  low, high);
}

static void real_of(const uint8_t *codes, size_t n, int32_t zp, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = S_IN * (float)(codes[i] - zp);
}

/* Every instruction set, several thread counts: exactly the naive codes. */
static void expect_on_all(const char *name, qnn_node y, const float *src, const int64_t *sum,
                          size_t n_out)
{
    static const int threads[] = {1, 5};

    for (const qnn_isa_info *info = qnn_isa_list; info->name != NULL; info++)
        for (size_t t = 0; t < LEN(threads) && (info->bits & ~ctx->k.isa) == 0; t++) {
            qnn_ctx *const c = tu_ctx_isa(threads[t], info->name);
            run r;

            open_run(&r, c, m, BATCH, src, 0);
            expect_static(name, m->node[y], sum, qnn_exec__value(&r.x, y), BATCH * n_out);
            close_run(&r);
            qnn_ctx_free(c);
        }
}

START_TEST(static_is_exact)
{
    const int number = _i / 2;
    const shape *const s = &shapes[number];
    const int32_t zp = number % 4 == 0 ? 0 : number % 4 == 1 ? 255 : 101;
    const size_t n_in = BATCH * n_src(s), total = BATCH * n_dst(s);
    uint8_t *const codes = tu_alloc(n_in);
    float *const src = tu_alloc(n_in * sizeof *src);
    int64_t *const sum = tu_alloc(total * sizeof *sum);
    qnn_attrs a = attrs_of(s);
    int8_sums want = {codes, NULL, zp, sum};
    qnn_node y;

    tu_fill_u8(codes, n_in, 9);
    real_of(codes, n_in, zp, src);
    a.wq = QNN_WQ_STATIC;
    a.no_bias = number % 3 == 2;
    if (number % 2 == 1) {
        a.lo = -20.0f;
        a.hi = 37.5f;
    }
    y = add_static(QNN_OP_CONV2D, qnn_input(m, "in", s->h, s->w, s->c), &a, zp, _i % 2 == 0,
                   number % 3 == 0 ? 1 : (size_t)s->oc);
    want.wei = m->node[y]->param[QNN_P_WEIGHT].data;
    memset(sum, 0, total * sizeof *sum);
    each_product(s, BATCH, add_int8, &want);
    expect_on_all(s->name, y, src, sum, n_dst(s));
    free(codes);
    free(src);
    free(sum);
}
END_TEST

/* Codes [11, 12, 13] with zero point 10, three weights of 1, padding 1: [3, 6, 5], by GEMM and
 * depthwise. */
START_TEST(padding_is_the_zero_point)
{
    static const uint8_t want[3] = {3, 6, 5};
    const int channels = _i == 0 ? 1 : 2;
    const qnn_attrs plain = qnn_attrs__default();
    const qnn_node x = qnn_input(m, "in", 1, 3, channels);
    const qnn_node q = qnn_model__add_u8(m, QNN_OP_QUANTIZE, "q", &x, 1, &plain, 1.0f, 10);
    qnn_attrs a = qnn_attrs__default();
    float src[6];
    qnn_node y, real;
    run r;

    a.units = a.groups = channels;
    a.kh = 1;
    a.kw = 3;
    a.pl = a.pr = 1;
    a.wq = QNN_WQ_STATIC;
    a.no_bias = 1;
    y = qnn_model__add_u8(m, QNN_OP_CONV2D, "c", &q, 1, &a, 1.0f, 0);
    real = qnn_model__add(m, QNN_OP_DEQUANTIZE, "real", &y, 1, &plain, 1);
    qnn_output(m, "y", real);
    TU_OK(ctx, qnn_model_check(m));
    TU_OK(ctx, qnn_node__retype(m, m->node[y], QNN_P_WEIGHT, QNN_DTYPE_I8, 1));
    memset(m->node[y]->param[QNN_P_WEIGHT].data, 1, m->node[y]->param[QNN_P_WEIGHT].count);
    m->node[y]->param[QNN_P_WEIGHT].scale[0] = 1.0f;
    for (int i = 0; i < 3 * channels; i++)
        src[i] = (float)(i / channels + 1);
    open_run(&r, ctx, m, 1, src, 0);
    for (int i = 0; i < 3 * channels; i++)
        ck_assert_int_eq(((const uint8_t *)qnn_exec__value(&r.x, y))[i], want[i / channels]);
    close_run(&r);
}
END_TEST

/* ---- linear ---------------------------------------------------------------------------------- */

typedef struct linear_case {
    int features, units;
} linear_case;

static const linear_case linear_cases[] = {{1, 1},     {7, 5},     {64, 33},
                                           {1025, 10}, {512, 101}, {5000, 70}};

START_TEST(linear_f32_and_fake)
{
    const linear_case *const c = &linear_cases[_i / 3];
    const qnn_node x = qnn_input_features(m, "in", c->features);
    const shape s = {"linear", 1, 1, c->features, c->units, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0};
    qnn_attrs a = qnn_attrs__default();
    const size_t total = BATCH * (size_t)c->units;
    float *const src = uniform(BATCH * (size_t)c->features, -1.0f, 1.0f, 10);
    sums want = {.src = src, .dst = zeros(total), .dst_size = zeros(total)};
    float *wei;
    qnn_node y;
    run r;

    a.units = c->units;
    a.wq = _i % 3 == 0 ? QNN_WQ_NONE : QNN_WQ_FAKE;
    a.w_bits = _i % 3 == 2 ? 4 : 8;
    y = qnn_model__add(m, QNN_OP_LINEAR, "c", &x, 1, &a, 1);
    qnn_output(m, "y", y);
    TU_OK(ctx, qnn_model_check(m));
    wei = tu_alloc(m->node[y]->param[QNN_P_WEIGHT].bytes);
    memcpy(wei, m->node[y]->param[QNN_P_WEIGHT].data, m->node[y]->param[QNN_P_WEIGHT].bytes);
    if (a.wq == QNN_WQ_FAKE)
        fake(m->node[y]->param[QNN_P_WEIGHT].data, (size_t)c->units, (size_t)c->features, a.w_bits,
             1, wei);
    want.wei = wei;
    each_product(&s, BATCH, add_forward, &want);
    for (size_t i = 0; i < total; i++) {
        want.dst[i] +=
            (double)((const float *)m->node[y]->param[QNN_P_BIAS].data)[i % (size_t)c->units];
        want.dst_size[i] += 1.0;
    }
    open_run(&r, ctx, m, BATCH, src, 0);
    expect_near("linear", "output", qnn_exec__value(&r.x, y), want.dst, want.dst_size, total);
    expect_same_bits(m, &r, y, src, (size_t)c->features, (size_t)c->units, 1);
    close_run(&r);
    check_backward(&s, y, wei);
    free(src);
    free(wei);
    free(want.dst);
    free(want.dst_size);
}
END_TEST

START_TEST(linear_static)
{
    const linear_case *const c = &linear_cases[_i / 2];
    const shape s = {"linear", 1, 1, c->features, c->units, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0};
    const size_t n_in = BATCH * (size_t)c->features, total = BATCH * (size_t)c->units;
    uint8_t *const codes = tu_alloc(n_in);
    float *const src = tu_alloc(n_in * sizeof *src);
    int64_t *const sum = tu_alloc(total * sizeof *sum);
    qnn_attrs a = qnn_attrs__default();
    int8_sums want = {codes, NULL, 77, sum};
    const int is_u8 = _i % 2 == 0 && c->units > 1; /* three outputs cannot fill a range */
    qnn_node y;

    tu_fill_u8(codes, n_in, 11);
    real_of(codes, n_in, 77, src);
    a.units = c->units;
    a.wq = QNN_WQ_STATIC;
    y = add_static(QNN_OP_LINEAR, qnn_input_features(m, "in", c->features), &a, 77, is_u8,
                   (size_t)c->units);
    want.wei = m->node[y]->param[QNN_P_WEIGHT].data;
    memset(sum, 0, total * sizeof *sum);
    each_product(&s, BATCH, add_int8, &want);
    expect_on_all("linear", y, src, sum, (size_t)c->units);
    free(codes);
    free(src);
    free(sum);
}
END_TEST

/* Rows quantised at run time, each by its own range; the last row is all zeros. */
START_TEST(linear_dynamic)
{
    const linear_case *const c = &linear_cases[_i / 2];
    const size_t k = (size_t)c->features, n = (size_t)c->units;
    const qnn_node x = qnn_input_features(m, "in", c->features);
    float *const src = uniform(BATCH * k, -1.0f, 3.0f, 12);
    qnn_attrs a = qnn_attrs__default();
    qnn_node_data *node;
    const int8_t *w;
    const float *got;
    qnn_node y;
    run r;

    a.units = c->units;
    a.wq = QNN_WQ_DYNAMIC;
    a.lo = -1.0f;
    a.no_bias = _i % 2;
    y = qnn_model__add(m, QNN_OP_LINEAR, "c", &x, 1, &a, 0);
    qnn_output(m, "y", y);
    TU_OK(ctx, qnn_model_check(m));
    node = m->node[y];
    TU_OK(ctx, qnn_node__retype(m, node, QNN_P_WEIGHT, QNN_DTYPE_I8, n));
    tu_fill_u8(node->param[QNN_P_WEIGHT].data, k * n, 13);
    tu_fill_uniform(node->param[QNN_P_WEIGHT].scale, n, 0.001f, 0.01f, 14);
    if (!a.no_bias) {
        TU_OK(ctx, qnn_node__retype(m, node, QNN_P_BIAS, QNN_DTYPE_F32, 0));
        tu_fill_uniform(node->param[QNN_P_BIAS].data, n, -1.0f, 1.0f, 15);
    }
    for (size_t p = 0; p < k; p++) {
        src[k + p] *= 1e-3f; /* would be all zeros if the rows shared a range */
        src[2 * k + p] = 0.0f;
    }
    open_run(&r, ctx, m, BATCH, src, 0);
    w = node->param[QNN_P_WEIGHT].data;
    got = qnn_exec__value(&r.x, y);
    for (size_t i = 0; i < BATCH; i++) {
        float lo = 0.0f, hi = 0.0f, scale;
        int32_t zp;

        for (size_t p = 0; p < k; p++) {
            lo = fminf(lo, src[i * k + p]);
            hi = fmaxf(hi, src[i * k + p]);
        }
        scale = hi > lo ? (float)(((double)hi - (double)lo) / 255.0) : 1.0f;
        zp = (int32_t)rint(-(double)lo / (double)scale);
        for (size_t j = 0; j < n; j++) {
            int64_t sum = 0;
            float want;

            for (size_t p = 0; p < k; p++) {
                const float q = rintf(src[i * k + p] * (1.0f / scale)) + (float)zp;

                sum += (int64_t)((int32_t)fminf(fmaxf(q, 0.0f), 255.0f) - zp) * w[j * k + p];
            }
            want = (float)(int32_t)sum * (scale * node->param[QNN_P_WEIGHT].scale[j]);
            if (!a.no_bias)
                want += ((const float *)node->param[QNN_P_BIAS].data)[j];
            want = fmaxf(want, a.lo);
            ck_assert_msg(got[i * n + j] == want, "row %zu, unit %zu is %.9g, expected %.9g", i, j,
                          (double)got[i * n + j], (double)want);
        }
    }
    expect_same_bits(m, &r, y, src, k, n, 0);
    close_run(&r);
    free(src);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

typedef struct refusal {
    qnn_op_kind kind;
    qnn_attrs change; /* non-zero integers replace the defaults */
    qnn_status status;
    const char *text;
} refusal;

static const refusal refusals[] = {
    {QNN_OP_CONV2D,
     {.groups = 3},
     QNN_ERR_SHAPE,
     "conv2d \"c\": groups 3 does not divide 64 input channels"},
    {QNN_OP_CONV2D,
     {.groups = 32},
     QNN_ERR_SHAPE,
     "conv2d \"c\": groups 32 does not divide 8 filters"},
    {QNN_OP_CONV2D,
     {.groups = -1},
     QNN_ERR_SHAPE,
     "conv2d \"c\": groups -1 does not divide 64 input channels"},
    {QNN_OP_CONV2D,
     {.kh = 9},
     QNN_ERR_SHAPE,
     "conv2d \"c\": kernel 9x3, dilation 1x1 does not fit input 6x6x64 with padding 0,0,0,0"},
    {QNN_OP_CONV2D,
     {.dw = 3},
     QNN_ERR_SHAPE,
     "conv2d \"c\": kernel 3x3, dilation 1x3 does not fit input 6x6x64 with padding 0,0,0,0"},
    {QNN_OP_CONV2D, {.units = -4}, QNN_ERR_ARG, "conv2d \"c\": -4 filters"},
    {QNN_OP_CONV2D, {.kw = -1}, QNN_ERR_ARG, "conv2d \"c\": kernel 3x-1"},
    {QNN_OP_CONV2D, {.sh = -2}, QNN_ERR_ARG, "conv2d \"c\": stride -2x1"},
    {QNN_OP_CONV2D, {.dh = -2}, QNN_ERR_ARG, "conv2d \"c\": dilation -2x1"},
    {QNN_OP_CONV2D, {.pl = -1}, QNN_ERR_ARG, "conv2d \"c\": padding 0,-1,0,0"},
    {QNN_OP_CONV2D, {.wq = 9}, QNN_ERR_ARG, "conv2d \"c\": weight quantisation 9 is unknown"},
    {QNN_OP_CONV2D, {.w_bits = 5}, QNN_ERR_ARG, "conv2d \"c\": 5-bit weights, expected 8 or 4"},
    {QNN_OP_CONV2D,
     {.wq = QNN_WQ_DYNAMIC},
     QNN_ERR_UNSUPPORTED,
     "conv2d \"c\": dynamic quantisation is for linear layers"},
    {QNN_OP_CONV2D,
     {.wq = QNN_WQ_STATIC},
     QNN_ERR_DTYPE,
     "conv2d \"c\": input is f32, expected u8"},
    {QNN_OP_LINEAR, {.units = 8}, QNN_ERR_SHAPE, "linear \"c\": input is 6x6x64, flatten it first"},
};

static qnn_attrs changed(const qnn_attrs *change)
{
    static const size_t at[] = {
        offsetof(qnn_attrs, kh),     offsetof(qnn_attrs, kw),    offsetof(qnn_attrs, sh),
        offsetof(qnn_attrs, sw),     offsetof(qnn_attrs, dh),    offsetof(qnn_attrs, dw),
        offsetof(qnn_attrs, groups), offsetof(qnn_attrs, pl),    offsetof(qnn_attrs, units),
        offsetof(qnn_attrs, wq),     offsetof(qnn_attrs, w_bits)};
    qnn_attrs a = qnn_attrs__default();

    a.units = 8;
    a.kh = a.kw = 3;
    for (size_t i = 0; i < LEN(at); i++)
        if (*(const int32_t *)(const void *)((const char *)change + at[i]) != 0)
            memcpy((char *)&a + at[i], (const char *)change + at[i], sizeof(int32_t));
    return a;
}

static void expect_refused(qnn_status got, qnn_status status, const char *text)
{
    ck_assert_msg(got == status && strstr(qnn_ctx_error(ctx), text) != NULL,
                  "got %s \"%s\", expected %s \"%s\"", qnn_status_name(got), qnn_ctx_error(ctx),
                  qnn_status_name(status), text);
}

START_TEST(infer_refuses)
{
    const refusal *const c = &refusals[_i];
    const qnn_attrs a = changed(&c->change);
    const qnn_node x = qnn_input(m, "in", 6, 6, 64);

    ck_assert_int_eq(qnn_model__add(m, c->kind, "c", &x, 1, &a, 1), QNN_NODE_NONE);
    expect_refused(qnn_model_check(m), c->status, c->text);
}
END_TEST

START_TEST(too_many_products_for_int32)
{
    const qnn_node x = qnn_input_features(m, "in", 65537);
    qnn_attrs a = qnn_attrs__default();

    a.units = 2;
    a.wq = QNN_WQ_DYNAMIC;
    ck_assert_int_eq(qnn_model__add(m, QNN_OP_LINEAR, "c", &x, 1, &a, 1), QNN_NODE_NONE);
    expect_refused(qnn_model_check(m), QNN_ERR_UNSUPPORTED,
                   "linear \"c\": int8 sums of 65537 products, at most 65536 fit");
}
END_TEST

/* 255 * sum|w| + |bias| fits int32 exactly, and with one more does not. */
START_TEST(bias_past_int32)
{
    qnn_attrs a = qnn_attrs__default();
    qnn_program *p;
    qnn_node y;

    a.units = 1;
    a.wq = QNN_WQ_STATIC;
    y = add_static(QNN_OP_LINEAR, qnn_input_features(m, "in", 2), &a, 3, 0, 1);
    ((int8_t *)m->node[y]->param[QNN_P_WEIGHT].data)[0] = -3;
    ((int8_t *)m->node[y]->param[QNN_P_WEIGHT].data)[1] = 4;
    ((int32_t *)m->node[y]->param[QNN_P_BIAS].data)[0] = -(INT32_MAX - 255 * 7);
    TU_OK(ctx, qnn_program_compile(&p, ctx, m, NULL));
    qnn_program_free(p);
    ((int32_t *)m->node[y]->param[QNN_P_BIAS].data)[0] = -(INT32_MAX - 255 * 7) - 1;
    expect_refused(qnn_program_compile(&p, ctx, m, NULL), QNN_ERR_ARG,
                   "linear \"c\": sums of channel 0 can reach 2147483648, past int32");
}
END_TEST

START_TEST(int8_weights_are_not_trained)
{
    const qnn_compile_opts o = {.max_batch = 1, .is_train = 1};
    qnn_attrs a = qnn_attrs__default();
    qnn_program *p;

    a.units = 1;
    a.wq = QNN_WQ_STATIC;
    (void)add_static(QNN_OP_LINEAR, qnn_input_features(m, "in", 2), &a, 3, 0, 1);
    expect_refused(qnn_program__compile(&p, ctx, m, &o), QNN_ERR_DTYPE,
                   "linear \"c\": i8 weights cannot be trained");
}
END_TEST

Suite *conv_suite(void)
{
    Suite *const s = suite_create("conv");
    TCase *const f32 = tcase_create("f32"), *const int8 = tcase_create("int8");
    TCase *const refused = tcase_create("refusals");
    TCase *const all[] = {f32, int8, refused};

    for (size_t i = 0; i < LEN(all); i++) {
        tcase_add_checked_fixture(all[i], setup, teardown);
        tcase_set_timeout(all[i], 60);
        suite_add_tcase(s, all[i]);
    }
    tcase_add_loop_test(f32, f32_forward, 0, LEN(shapes));
    tcase_add_loop_test(f32, f32_backward, 0, LEN(shapes));
    tcase_add_loop_test(f32, backward_on_other_threads, 0, LEN(shapes));
    tcase_add_loop_test(f32, fake_weights, 0, 4 * 4);
    tcase_add_loop_test(f32, stored_weights, 0, 2 * 4);
    tcase_add_loop_test(f32, linear_f32_and_fake, 0, 3 * LEN(linear_cases));
    tcase_add_loop_test(int8, static_is_exact, 0, 2 * LEN(shapes));
    tcase_add_loop_test(int8, padding_is_the_zero_point, 0, 2);
    tcase_add_loop_test(int8, linear_static, 0, 2 * LEN(linear_cases));
    tcase_add_loop_test(int8, linear_dynamic, 0, 2 * LEN(linear_cases));
    tcase_add_loop_test(refused, infer_refuses, 0, LEN(refusals));
    tcase_add_test(refused, too_many_products_for_int32);
    tcase_add_test(refused, bias_past_int32);
    tcase_add_test(refused, int8_weights_are_not_trained);
    return s;
}
