/* Operations: values known by hand, u8 arithmetic, refusals, running in place, and bits that depend
 * on nothing but the input. */
#include "suites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/exec.h"
#include "tests/common/testutil.h"

/* ---- running a model node by node ------------------------------------------------------------ */

typedef struct run {
    qnn_ctx *ctx;
    qnn_model *m;
    qnn_program *p;
    qnn_exec x;
    const void *src[8];
} run;

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

static void open_run(run *r, qnn_ctx *c, const qnn_model *model, int n, qnn_compile_opts o)
{
    *r = (run){.ctx = c};
    o.max_batch = n + 1;
    TU_OK(c, qnn_program__compile(&r->p, c, model, &o));
    r->x = (qnn_exec){
        .ctx = c, .p = r->p, .k = r->p->k, .n = n, .is_train = o.is_train, .src = r->src};
    r->x.ws = tu_alloc_aligned(qnn_program_workspace(r->p));
    memset(r->x.ws, 0xa5, qnn_program_workspace(r->p));
}

static void close_run(run *r)
{
    free(r->x.ws);
    qnn_program_free(r->p);
}

/* Forward of one input with every value kept. */
static void forward(run *r, int n, const void *src)
{
    open_run(r, ctx, m, n, (qnn_compile_opts){.keep_all = 1});
    r->src[0] = src;
    TU_OK(ctx, qnn_exec__forward(&r->x));
}

static const uint8_t *codes_of(const run *r, qnn_node i) { return qnn_exec__value(&r->x, i); }

static const float *values_of(const run *r, qnn_node i) { return qnn_exec__value(&r->x, i); }

static void expect_codes(const run *r, qnn_node i, const uint8_t *want, size_t n)
{
    for (size_t k = 0; k < n; k++)
        ck_assert_msg(codes_of(r, i)[k] == want[k], "%s: code %zu is %d, expected %d",
                      m->node[i]->name, k, codes_of(r, i)[k], want[k]);
}

static void expect_values(const run *r, qnn_node i, const float *want, size_t n, double tolerance)
{
    for (size_t k = 0; k < n; k++)
        ck_assert_msg(fabs((double)values_of(r, i)[k] - (double)want[k]) <= tolerance,
                      "%s: value %zu is %.9g, expected %.9g", m->node[i]->name, k,
                      (double)values_of(r, i)[k], (double)want[k]);
}

/* A node of u8 codes with its own scale and zero point: x = S (q - Z), quantised again. */
static qnn_node u8_node(const char *name, qnn_node x, float scale, int32_t zp)
{
    const qnn_attrs a = qnn_attrs__default();

    return qnn_model__add_u8(m, QNN_OP_QUANTIZE, name, &x, 1, &a, scale, zp);
}

static qnn_node u8_op(qnn_op_kind kind, const qnn_node *in, int n_in, const qnn_attrs *a,
                      float scale, int32_t zp)
{
    return qnn_model__add_u8(m, kind, "op", in, n_in, a, scale, zp);
}

/* Models need an f32 output. */
static void finish_u8(qnn_node x)
{
    const qnn_attrs a = qnn_attrs__default();

    qnn_output(m, "y", qnn_model__add(m, QNN_OP_DEQUANTIZE, "real", &x, 1, &a, 1));
    TU_OK(ctx, qnn_model_check(m));
}

static void real_of(const uint8_t *q, size_t n, float scale, int32_t zp, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = scale * (float)(q[i] - zp);
}

/* ---- u8 -------------------------------------------------------------------------------------- */

START_TEST(u8_max_pool_keeps_codes)
{
    const uint8_t codes[2] = {3, 9}, want[1] = {9};
    const qnn_node in = qnn_input(m, "in", 1, 2, 1), q = u8_node("q", in, 0.37f, 5);
    const qnn_node y = qnn_maxpool2d_ex(m, q, "op", &(qnn_pool2d_opts){.kernel = 1, .kernel_w = 2});
    float x[2];
    run r;

    finish_u8(y);
    real_of(codes, 2, 0.37f, 5, x);
    forward(&r, 1, x);
    expect_codes(&r, y, want, 1);
    ck_assert(m->node[y]->scale == 0.37f && m->node[y]->zero_point == 5);
    close_run(&r);
}
END_TEST

START_TEST(u8_max_pool_ignores_padding)
{
    const uint8_t codes[4] = {5, 2, 1, 0}, want[4] = {5, 2, 1, 0}; /* all below the zero point */
    const qnn_node in = qnn_input(m, "in", 2, 2, 1), q = u8_node("q", in, 1.0f, 10);
    const qnn_node y =
        qnn_maxpool2d_ex(m, q, "op", &(qnn_pool2d_opts){.kernel = 2, .stride = 2, .pad = 1});
    float x[4];
    run r;

    finish_u8(y);
    real_of(codes, 4, 1.0f, 10, x);
    forward(&r, 1, x);
    expect_codes(&r, y, want, 4);
    close_run(&r);
}
END_TEST

START_TEST(u8_clip_works_on_codes)
{
    const uint8_t codes[6] = {0, 19, 20, 50, 80, 255}, want[6] = {20, 20, 20, 50, 80, 80};
    const qnn_node in = qnn_input_features(m, "in", 6), q = u8_node("q", in, 0.1f, 20);
    const qnn_node y = qnn_relu6(m, q, "op");
    float x[6];
    run r;

    finish_u8(y);
    real_of(codes, 6, 0.1f, 20, x);
    forward(&r, 1, x);
    expect_codes(&r, q, codes, 6);
    expect_codes(&r, y, want, 6);
    close_run(&r);
}
END_TEST

/* numerics.md: (53, S .1, Z 3) + (228, S .02, Z 128) -> (S .1, Z 10) is 80; and both ends saturate.
 */
START_TEST(u8_add_rounds_once)
{
    const uint8_t a[3] = {53, 255, 0}, b[3] = {228, 255, 0}, want[3] = {80, 255, 0};
    const qnn_attrs attrs = qnn_attrs__default();
    const qnn_node ia = qnn_input_features(m, "a", 3), ib = qnn_input_features(m, "b", 3);
    const qnn_node in[2] = {u8_node("qa", ia, 0.1f, 3), u8_node("qb", ib, 0.02f, 128)};
    const qnn_node y = u8_op(QNN_OP_ADD, in, 2, &attrs, 0.1f, 10);
    float xa[3], xb[3];
    run r;

    finish_u8(y);
    real_of(a, 3, 0.1f, 3, xa);
    real_of(b, 3, 0.02f, 128, xb);
    open_run(&r, ctx, m, 1, (qnn_compile_opts){.keep_all = 1});
    r.src[0] = xa;
    r.src[1] = xb;
    TU_OK(ctx, qnn_exec__forward(&r.x));
    expect_codes(&r, in[0], a, 3);
    expect_codes(&r, in[1], b, 3);
    expect_codes(&r, y, want, 3);
    close_run(&r);
}
END_TEST

/* 53 at (.1, 3) is 5.0 and 228 at (.02, 128) is 2.0: codes 60 and 30 at (.1, 10). Equal (S, Z)
 * copies every code. */
START_TEST(u8_concat_requantises_each_input_once)
{
    const uint8_t a[2] = {53, 255}, b[2] = {228, 0}, c[2] = {0, 255};
    const uint8_t want[6] = {60, 255, 30, 0, 0, 255};
    const qnn_attrs attrs = qnn_attrs__default();
    const qnn_node ia = qnn_input_features(m, "a", 2), ib = qnn_input_features(m, "b", 2),
                   ic = qnn_input_features(m, "c", 2);
    const qnn_node in[3] = {u8_node("qa", ia, 0.1f, 3), u8_node("qb", ib, 0.02f, 128),
                            u8_node("qc", ic, 0.1f, 10)};
    const qnn_node y = u8_op(QNN_OP_CONCAT, in, 3, &attrs, 0.1f, 10);
    float xa[2], xb[2], xc[2];
    run r;

    finish_u8(y);
    real_of(a, 2, 0.1f, 3, xa);
    real_of(b, 2, 0.02f, 128, xb);
    real_of(c, 2, 0.1f, 10, xc);
    open_run(&r, ctx, m, 1, (qnn_compile_opts){.keep_all = 1});
    r.src[0] = xa;
    r.src[1] = xb;
    r.src[2] = xc;
    TU_OK(ctx, qnn_exec__forward(&r.x));
    expect_codes(&r, y, want, 6);
    close_run(&r);
}
END_TEST

/* Means 2.5, 3.5 and 3.75 (ties to even: 2, 4), and an output of half the scale. */
START_TEST(u8_average_rounds_once)
{
    const uint8_t codes[12] = {1, 3, 1, 2, 4, 2, 3, 3, 4, 4, 4, 8}; /* [4 pixels][3 channels] */
    const uint8_t mean[3] = {2, 4, 4}, twice[3] = {105, 107, 108};
    qnn_attrs a = qnn_attrs__default();
    const qnn_node in = qnn_input(m, "in", 2, 2, 3), q = u8_node("q", in, 1.0f, 0);
    qnn_node pool, global;
    float x[12];
    run r;

    a.kh = a.kw = 2;
    pool = qnn_model__add_u8(m, QNN_OP_AVGPOOL2D, "pool", &q, 1, &a, 1.0f, 0);
    global = qnn_model__add_u8(m, QNN_OP_GLOBAL_AVGPOOL, "global", &q, 1, &a, 0.5f, 100);
    finish_u8(pool);
    qnn_output(m, "y2", qnn_model__add(m, QNN_OP_DEQUANTIZE, "real2", &global, 1, &a, 1));
    real_of(codes, 12, 1.0f, 0, x);
    forward(&r, 1, x);
    expect_codes(&r, pool, mean, 3);
    expect_codes(&r, global, twice, 3);
    close_run(&r);
}
END_TEST

/* One cell of value 4 (14 at zero point 10) in windows of four: 1 with the padding counted, 4
 * without. */
START_TEST(u8_average_pads_with_zero)
{
    const uint8_t code = 14, counted[4] = {8, 8, 8, 8}, inside[4] = {11, 11, 11, 11};
    qnn_attrs a = qnn_attrs__default();
    const qnn_node in = qnn_input(m, "in", 1, 1, 1), q = u8_node("q", in, 1.0f, 10);
    qnn_node y, z;
    float x;
    run r;

    a.kh = a.kw = 2;
    a.pt = a.pl = a.pb = a.pr = 1;
    y = qnn_model__add_u8(m, QNN_OP_AVGPOOL2D, "counted", &q, 1, &a, 1.0f, 7);
    a.exclude_pad = 1;
    z = qnn_model__add_u8(m, QNN_OP_AVGPOOL2D, "inside", &q, 1, &a, 1.0f, 7);
    finish_u8(y);
    qnn_output(m, "y2", qnn_model__add(m, QNN_OP_DEQUANTIZE, "real2", &z, 1, &a, 1));
    real_of(&code, 1, 1.0f, 10, &x);
    forward(&r, 1, &x);
    expect_codes(&r, y, counted, 4);
    expect_codes(&r, z, inside, 4);
    close_run(&r);
}
END_TEST

/* ---- f32 ------------------------------------------------------------------------------------- */

/* Runs a training program on one input, with `dy` as the output's gradient; gradient of the input
 * into din. */
static void train_once(const float *src, int n, const float *dy, float *y, float *din)
{
    const qnn_node in = qnn_model_input(m, 0), out = m->output[0];
    float *grad[64 * QNN_MAX_PARAMS] = {0};
    const size_t n_in = (size_t)n * (size_t)qnn_shape__count(&m->node[in]->shape);
    const size_t n_out = (size_t)n * (size_t)qnn_shape__count(&m->node[out]->shape);
    run r;

    open_run(&r, ctx, m, n, (qnn_compile_opts){.is_train = 1, .input_grad = 1});
    r.src[0] = src;
    r.x.grad = grad;
    TU_OK(ctx, qnn_exec__forward(&r.x));
    if (y != NULL)
        memcpy(y, qnn_exec__value(&r.x, out), n_out * sizeof *y);
    memcpy(qnn_exec__dvalue(&r.x, out), dy, n_out * sizeof *dy);
    TU_OK(ctx, qnn_exec__backward(&r.x));
    memcpy(din, qnn_exec__dvalue(&r.x, in), n_in * sizeof *din);
    close_run(&r);
}

/* 2x2 windows of one row of windows: equal values (the first wins), a NaN, -inf everywhere, an
   ordinary one. Wide enough for the vector loop as well: every channel holds the same. Both the 2x2
   path and the general one. */
START_TEST(max_pool_chooses_as_pytorch)
{
    enum { C = 19, W = 8 };
    static const float cell[2][W] = {{7, 7, 1, NAN, -INFINITY, -INFINITY, -4, -3},
                                     {7, 7, 9, 2, -INFINITY, -INFINITY, -2, -5}};
    static const float top[4] = {7, NAN, -INFINITY, -2};
    static const float passed[2][W] = {{1, 0, 0, 2, 3, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 4, 0}};
    float x[2 * W * C], dy[4 * C], y[4 * C], din[2 * W * C];
    qnn_node node = qnn_input(m, "in", 2, W, C);

    node =
        _i == 0
            ? qnn_maxpool2d(m, node, "op", 2, 2)
            : qnn_maxpool2d_ex(m, node, "op",
                               &(qnn_pool2d_opts){
                                   .kernel = 3, .kernel_w = 2, .stride = 2, .pads = {1, 0, 0, 0}});
    qnn_output(m, "y", node);
    for (int i = 0; i < 2 * W * C; i++)
        x[i] = cell[i / C / W][i / C % W];
    for (int i = 0; i < 4 * C; i++)
        dy[i] = (float)(i / C + 1);
    train_once(x, 1, dy, y, din);
    for (int i = 0; i < 4 * C; i++)
        ck_assert_msg(isnan(top[i / C]) ? isnan(y[i]) : y[i] == top[i / C],
                      "window %d channel %d: %g", i / C, i % C, (double)y[i]);
    for (int i = 0; i < 2 * W * C; i++)
        ck_assert_msg(din[i] == passed[i / C / W][i / C % W],
                      "gradient of row %d column %d channel %d: %g", i / C / W, i / C % W, i % C,
                      (double)din[i]);
}
END_TEST

START_TEST(max_pool_infers_without_choices)
{
    enum { H = 5, W = 7, C = 21 };
    const qnn_node in = qnn_input(m, "in", H, W, C);
    const qnn_node a = qnn_maxpool2d(m, in, "even", 2, 2),
                   b = qnn_maxpool2d_ex(m, in, "padded",
                                        &(qnn_pool2d_opts){.kernel = 3, .stride = 2, .pad = 1});
    float x[2 * H * W * C];
    run r;

    qnn_output(m, "a", a);
    qnn_output(m, "b", b);
    tu_fill_uniform(x, 2 * H * W * C, -1.0f, 1.0f, 5);
    forward(&r, 2, x);
    for (int which = 0; which < 2; which++) {
        const int64_t *const d = m->node[which == 0 ? a : b]->shape.dim;
        const int k = which == 0 ? 2 : 3, pad = which;

        for (int64_t i = 0; i < 2 * d[0] * d[1] * C; i++) {
            const int64_t c = i % C, ox = i / C % d[1], oy = i / C / d[1] % d[0],
                          n = i / C / d[1] / d[0];
            float want = -INFINITY;

            for (int64_t y = oy * 2 - pad; y < oy * 2 - pad + k; y++)
                for (int64_t z = ox * 2 - pad; z < ox * 2 - pad + k; z++)
                    if (y >= 0 && y < H && z >= 0 && z < W)
                        want = fmaxf(want, x[((n * H + y) * W + z) * C + c]);
            ck_assert_msg(values_of(&r, which == 0 ? a : b)[i] == want, "pool %d element %d", which,
                          (int)i);
        }
    }
    close_run(&r);
}
END_TEST

START_TEST(average_counts_padding_or_not)
{
    const float x[4] = {1, 2, 3, 6}, counted[4] = {0.25f, 0.5f, 0.75f, 1.5f}, whole[1] = {3};
    const qnn_node in = qnn_input(m, "in", 2, 2, 1);
    const qnn_node a =
        qnn_avgpool2d_ex(m, in, "counted", &(qnn_pool2d_opts){.kernel = 2, .pad = 1});
    const qnn_node b = qnn_avgpool2d_ex(
        m, in, "inside", &(qnn_pool2d_opts){.kernel = 2, .pad = 1, .exclude_pad = 1});
    const qnn_node c = qnn_global_avgpool(m, in, "global");
    run r;

    qnn_output(m, "a", a);
    qnn_output(m, "b", b);
    qnn_output(m, "c", c);
    forward(&r, 1, x);
    expect_values(&r, a, counted, 4, 0.0);
    expect_values(&r, b, x, 4, 0.0);
    expect_values(&r, c, whole, 1, 0.0);
    close_run(&r);
}
END_TEST

START_TEST(softmax_known_values)
{
    const float x[6] = {0.0f, 0.69314718f, -INFINITY, 1000.0f, 1000.0f, 999.0f};
    const float want[6] = {1.0f / 3, 2.0f / 3, 0.0f, 0.42231880f, 0.42231880f, 0.15536240f};
    const qnn_node y = qnn_softmax(m, qnn_input_features(m, "in", 3), "op");
    run r;

    qnn_output(m, "y", y);
    forward(&r, 2, x);
    expect_values(&r, y, want, 6, 1e-7);
    close_run(&r);
}
END_TEST

/* x = 1 2 3 4: mean 2.5, variance 1.25, unbiased 5/3. */
START_TEST(batchnorm_moves_running_statistics)
{
    const float x[4] = {1, 2, 3, 4}, dy[4] = {0, 0, 0, 0};
    const qnn_node y = qnn_batchnorm2d(m, qnn_input(m, "in", 1, 2, 1), "op", NULL);
    float out[4], din[4];
    run r;

    qnn_output(m, "y", y);
    train_once(x, 2, dy, out, din);
    for (int i = 0; i < 4; i++)
        ck_assert_double_eq_tol((double)out[i], ((double)x[i] - 2.5) / sqrt(1.25 + 1e-5), 1e-6);
    ck_assert_double_eq_tol((double)*(float *)m->node[y]->param[QNN_P_MEAN].data, 0.25, 1e-7);
    ck_assert_double_eq_tol((double)*(float *)m->node[y]->param[QNN_P_VAR].data,
                            0.9 + 0.1 * 5.0 / 3.0, 1e-7);
    forward(&r, 2, x); /* an inference program uses them */
    for (int i = 0; i < 4; i++)
        ck_assert_double_eq_tol((double)values_of(&r, y)[i],
                                ((double)x[i] - 0.25) / sqrt(0.9 + 0.5 / 3.0 + 1e-5), 1e-6);
    close_run(&r);
}
END_TEST

START_TEST(dropout_drops_a_share_and_scales)
{
    enum { N = 40000 };
    float *const x = tu_alloc(N * sizeof *x), *const y = tu_alloc(2 * N * sizeof *y);
    const qnn_node node = qnn_dropout(m, qnn_input_features(m, "in", N / 4), "op", 0.3f);
    int n_zero = 0, n_same = 0;
    run r;

    qnn_output(m, "y", node);
    for (int i = 0; i < N; i++)
        x[i] = 1.0f;
    open_run(&r, ctx, m, 4, (qnn_compile_opts){.is_train = 1});
    r.src[0] = x;
    for (int run_index = 0; run_index < 2; run_index++) {
        r.x.seed = (uint64_t)run_index;
        TU_OK(ctx, qnn_exec__forward(&r.x));
        memcpy(y + run_index * N, qnn_exec__value(&r.x, node), N * sizeof *y);
    }
    for (int i = 0; i < N; i++) {
        ck_assert(y[i] == 0.0f || fabsf(y[i] - 1.0f / 0.7f) < 1e-6f);
        n_zero += y[i] == 0.0f;
        n_same += (y[i] == 0.0f) == (y[N + i] == 0.0f);
    }
    /* standard deviation of both counts: about 92 and 99 */
    ck_assert_msg(abs(n_zero - 12000) < 460, "%d of %d dropped", n_zero, N);
    ck_assert_msg(abs(n_same - 23200) < 495, "%d of %d alike under two seeds", n_same, N);
    r.x.is_train = 0;
    TU_OK(ctx, qnn_exec__forward(&r.x));
    ck_assert_mem_eq(qnn_exec__value(&r.x, node), x, N * sizeof *x);
    close_run(&r);
    free(x);
    free(y);
}
END_TEST

START_TEST(fake_quant_follows_batches_and_freezes)
{
    const float first[4] = {-1.0f, 3.0f, NAN, INFINITY}, second[4] = {-2.0f, 1.0f, 0.0f, 0.5f};
    const float none[4] = {NAN, NAN, INFINITY, -INFINITY};
    const qnn_node in = qnn_input_features(m, "in", 4);
    qnn_attrs a = qnn_attrs__default();
    const float *range;
    float before[3];
    qnn_node y;
    run r;

    a.average = 0.25f;
    y = qnn_model__add(m, QNN_OP_FAKE_QUANT, "op", &in, 1, &a, 1);
    qnn_output(m, "y", y);
    TU_OK(ctx, qnn_model_check(m));
    range = m->node[y]->param[QNN_P_RANGE].data;

    forward(&r, 1, second); /* never observed: values pass */
    expect_values(&r, y, second, 4, 0.0);
    close_run(&r);

    open_run(&r, ctx, m, 1, (qnn_compile_opts){.is_train = 1});
    r.src[0] = none;
    TU_OK(ctx, qnn_exec__forward(&r.x));
    ck_assert(range[2] == 0.0f);
    r.src[0] = first;
    TU_OK(ctx, qnn_exec__forward(&r.x));
    ck_assert(range[0] == -1.0f && range[1] == 3.0f && range[2] == 1.0f);
    r.src[0] = second;
    TU_OK(ctx, qnn_exec__forward(&r.x));
    ck_assert(range[0] == -1.25f && range[1] == 2.5f && range[2] == 2.0f);
    memcpy(before, range, sizeof before);
    r.x.is_train = 0;
    r.src[0] = first;
    TU_OK(ctx, qnn_exec__forward(&r.x));
    ck_assert_mem_eq(range, before, sizeof before);
    ck_assert(fabsf(values_of(&r, y)[1] - 2.5f) < 0.01f); /* clipped at the frozen range */
    close_run(&r);

    forward(&r, 1, second); /* S = 3.75 / 255, Z = 85 */
    for (int i = 0; i < 4; i++) {
        const double s = 3.75 / 255, q = rint((double)second[i] / s) + 85;

        ck_assert_double_eq_tol((double)values_of(&r, y)[i], s * ((q < 0 ? 0 : q) - 85), 1e-6);
    }
    close_run(&r);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

typedef struct refusal {
    void (*build)(qnn_node image, qnn_node row, qnn_node codes); /* {4, 4, 3}, {7}, u8 {4, 4, 3} */
    qnn_status status;
    const char *text;
} refusal;

static void bad_pad(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)row, (void)codes;
    qnn_maxpool2d_ex(m, image, "op", &(qnn_pool2d_opts){.kernel = 3, .pad = 2});
}
static void bad_negative_pad(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)row, (void)codes;
    qnn_avgpool2d_ex(m, image, "op", &(qnn_pool2d_opts){.kernel = 3, .pads = {0, -1, 0, 0}});
}
static void bad_window(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)row, (void)codes;
    qnn_avgpool2d(m, image, "op", 5, 1);
}
static void bad_kernel(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)row, (void)codes;
    qnn_maxpool2d(m, image, "op", 0, 2);
}
static void bad_stride(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)row, (void)codes;
    qnn_maxpool2d(m, image, "op", 2, -1);
}
static void bad_rank(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)image, (void)codes;
    qnn_batchnorm2d(m, row, "op", NULL);
}
static void bad_pool_rank(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)image, (void)codes;
    qnn_global_avgpool(m, row, "op");
}
static void bad_add(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)codes;
    qnn_add(m, image, row, "op");
}
static void bad_concat(qnn_node image, qnn_node row, qnn_node codes)
{
    const qnn_node in[2] = {image, qnn_maxpool2d(m, image, "small", 2, 2)};

    (void)row, (void)codes;
    qnn_concat(m, in, 2, "op");
}
static void bad_concat_of_one(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)row, (void)codes;
    qnn_concat(m, &image, 1, "op");
}
static void bad_clip(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)row, (void)codes;
    qnn_clip(m, image, "op", 2.0f, 1.0f);
}
static void bad_clip_nan(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)row, (void)codes;
    qnn_clip(m, image, "op", NAN, 1.0f);
}
static void bad_dropout(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)row, (void)codes;
    qnn_dropout(m, image, "op", 1.0f);
}
static void bad_momentum(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)row, (void)codes;
    qnn_batchnorm2d(m, image, "op", &(qnn_batchnorm2d_opts){.momentum = 1.5f});
}
static void bad_eps(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)row, (void)codes;
    qnn_batchnorm2d(m, image, "op", &(qnn_batchnorm2d_opts){.eps = -1.0f});
}
static void u8_softmax(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)image, (void)row;
    qnn_softmax(m, codes, "op");
}
static void u8_add_to_f32(qnn_node image, qnn_node row, qnn_node codes)
{
    (void)image, (void)row;
    qnn_add(m, codes, codes, "op");
}
static void mixed_add(qnn_node image, qnn_node row, qnn_node codes)
{
    const qnn_attrs a = qnn_attrs__default();
    const qnn_node in[2] = {codes, image};

    (void)row;
    u8_op(QNN_OP_ADD, in, 2, &a, 1.0f, 0);
}
static void quantize_without_scale(qnn_node image, qnn_node row, qnn_node codes)
{
    const qnn_attrs a = qnn_attrs__default();

    (void)row, (void)codes;
    qnn_model__add(m, QNN_OP_QUANTIZE, "op", &image, 1, &a, 1);
}
static void dequantize_f32(qnn_node image, qnn_node row, qnn_node codes)
{
    const qnn_attrs a = qnn_attrs__default();

    (void)row, (void)codes;
    qnn_model__add(m, QNN_OP_DEQUANTIZE, "op", &image, 1, &a, 1);
}
static void fake_quant_average(qnn_node image, qnn_node row, qnn_node codes)
{
    const qnn_attrs a = qnn_attrs__default();

    (void)row, (void)codes;
    qnn_model__add(m, QNN_OP_FAKE_QUANT, "op", &image, 1, &a, 1);
}

static const refusal refusals[] = {
    {bad_pad, QNN_ERR_ARG, "maxpool2d \"op\": pad 2 exceeds half of kernel 3"},
    {bad_negative_pad, QNN_ERR_ARG, "avgpool2d \"op\": pad -1 is negative"},
    {bad_window, QNN_ERR_SHAPE, "avgpool2d \"op\": kernel height 5 exceeds the padded input's 4"},
    {bad_kernel, QNN_ERR_ARG, "maxpool2d \"op\": kernel height 0 and stride 2 must be at least 1"},
    {bad_stride, QNN_ERR_ARG, "maxpool2d \"op\": kernel height 2 and stride -1 must be at least 1"},
    {bad_rank, QNN_ERR_SHAPE,
     "batchnorm2d \"op\": input \"row\" has shape 7, it must be height x width x channels"},
    {bad_pool_rank, QNN_ERR_SHAPE,
     "global_avgpool \"op\": input \"row\" has shape 7, it must be height x width x channels"},
    {bad_add, QNN_ERR_SHAPE, "add \"op\": inputs have shapes 4x4x3 and 7"},
    {bad_concat, QNN_ERR_SHAPE,
     "concat \"op\": input 0 is 4x4x3, input 1 is 2x2x3: only the last may differ"},
    {bad_concat_of_one, QNN_ERR_ARG, "concat \"op\": takes 2 to 64 inputs, got 1"},
    {bad_clip, QNN_ERR_ARG, "clip \"op\": lower bound 2 is not below upper bound 1"},
    {bad_clip_nan, QNN_ERR_ARG, "clip \"op\": lower bound nan is not below upper bound 1"},
    {bad_dropout, QNN_ERR_ARG, "dropout \"op\": probability 1 is outside [0, 1)"},
    {bad_momentum, QNN_ERR_ARG, "batchnorm2d \"op\": momentum 1.5 is outside [0, 1]"},
    {bad_eps, QNN_ERR_ARG, "batchnorm2d \"op\": eps -1 is negative or not finite"},
    {u8_softmax, QNN_ERR_DTYPE, "softmax \"op\": input \"codes\" is u8, it must be f32"},
    {u8_add_to_f32, QNN_ERR_DTYPE,
     "add \"op\": input \"codes\" is u8, so the output needs a scale and a zero point"},
    {mixed_add, QNN_ERR_DTYPE,
     "add \"op\": the output is u8, so every input must be u8; \"image\" is f32"},
    {quantize_without_scale, QNN_ERR_ARG,
     "quantize \"op\": the output has no scale and zero point"},
    {dequantize_f32, QNN_ERR_DTYPE, "dequantize \"op\": input \"image\" is f32, it must be u8"},
    {fake_quant_average, QNN_ERR_ARG, "fake_quant \"op\": average 0 is outside (0, 1]"},
};

START_TEST(refusals_name_op_node_and_values)
{
    const refusal *const f = &refusals[_i];
    const qnn_node image = qnn_input(m, "image", 4, 4, 3), row = qnn_input_features(m, "row", 7);

    f->build(image, row, u8_node("codes", image, 0.5f, 10));
    qnn_output(m, "y", image);
    ck_assert_int_eq(qnn_model_check(m), f->status);
    ck_assert_str_eq(qnn_ctx_error(ctx), f->text);
}
END_TEST

START_TEST(max_pool_of_a_huge_window_does_not_train)
{
    const qnn_compile_opts infer = {.max_batch = 1},
                           train = {.max_batch = 1, .is_train = 1, .input_grad = 1};
    qnn_program *p;

    qnn_output(m, "y", qnn_maxpool2d(m, qnn_input(m, "in", 17, 17, 1), "op", 17, 1));
    TU_OK(ctx, qnn_program__compile(&p, ctx, m, &infer));
    qnn_program_free(p);
    ck_assert_int_eq(qnn_program__compile(&p, ctx, m, &train), QNN_ERR_UNSUPPORTED);
    ck_assert_str_eq(qnn_ctx_error(ctx),
                     "maxpool2d \"op\": 17x17 cells are too many to train, the limit is 256");
}
END_TEST

/* ---- bits that depend on nothing else -------------------------------------------------------- */

enum { NET_H = 13, NET_W = 11, NET_C = 37, NET_OUT = 3 * 37 };

/* u8 from its first node to its last, with every operation that computes on codes. */
static qnn_model *u8_network(qnn_ctx *c)
{
    qnn_model *const outer = m;
    qnn_attrs a = qnn_attrs__default();
    qnn_node x, y, pair[2], three[3];
    qnn_model *made;

    TU_OK(c, qnn_model_create(&m, c));
    x = u8_node("q", qnn_input(m, "in", NET_H, NET_W, NET_C), 0.011f, 101);
    a.kh = a.kw = 3;
    a.pt = a.pl = a.pb = a.pr = 1;
    pair[0] = x;
    pair[1] = qnn_model__add_u8(m, QNN_OP_AVGPOOL2D, "average", &x, 1, &a, 0.007f, 120);
    y = qnn_model__add_u8(m, QNN_OP_ADD, "sum", pair, 2, &a, 0.013f, 90);
    y = qnn_clip(m, y, "clip", -0.5f, 0.7f);
    y = qnn_maxpool2d(m, y, "max", 2, 2);
    three[0] = qnn_model__add_u8(m, QNN_OP_GLOBAL_AVGPOOL, "mean", &y, 1, &a, 0.004f, 60);
    three[1] = qnn_maxpool2d_ex(m, y, "top", &(qnn_pool2d_opts){.kernel = 6, .kernel_w = 5});
    three[2] = qnn_model__add_u8(m, QNN_OP_GLOBAL_AVGPOOL, "mean2", &x, 1, &a, 0.003f, 100);
    y = qnn_model__add_u8(m, QNN_OP_CONCAT, "all", three, 3, &a, 0.0041f, 70);
    y = qnn_flatten(m, y, "flat");
    qnn_output(m, "y", qnn_model__add(m, QNN_OP_DEQUANTIZE, "real", &y, 1, &a, 1));
    TU_OK(c, qnn_model_check(m));
    made = m;
    m = outer;
    return made;
}

static void run_u8_network(const char *isa, int threads, int batch, const float *x, int n, float *y)
{
    qnn_ctx *const c = tu_ctx_isa(threads, isa);
    qnn_model *const net = u8_network(c);
    qnn_program *p;

    TU_OK(c, qnn_program_compile(&p, c, net, &(qnn_program_opts){.max_batch = batch}));
    for (int i = 0; i < n; i += batch) {
        const int size = n - i < batch ? n - i : batch;

        TU_OK(c,
              qnn_run(p, c, x + (size_t)i * NET_H * NET_W * NET_C, size, y + (size_t)i * NET_OUT));
    }
    qnn_program_free(p);
    qnn_model_free(net);
    qnn_ctx_free(c);
}

START_TEST(u8_bits_on_every_isa_thread_count_and_batch)
{
    enum { N = 7 };
    const size_t n_in = (size_t)N * NET_H * NET_W * NET_C;
    static const int threads[3] = {1, 2, 5}, batches[3] = {1, 3, 7};
    float *const x = tu_alloc(n_in * sizeof *x), want[N * NET_OUT], got[N * NET_OUT];
    double spread = 0.0;
    int n_run = 0;

    tu_fill_uniform(x, n_in, -1.3f, 1.9f, 12);
    run_u8_network("ref", 1, N, x, N, want);
    for (int i = 1; i < N * NET_OUT; i++)
        spread += fabs((double)want[i] - (double)want[i - 1]);
    ck_assert(spread > 1.0); /* not a constant */
    for (int i = 0; qnn_isa_name(i) != NULL; i++) {
        if (!qnn_isa_supported(i))
            continue;
        for (int k = 0; k < 9; k++) {
            memset(got, 0, sizeof got);
            run_u8_network(qnn_isa_name(i), threads[k / 3], batches[k % 3], x, N, got);
            ck_assert_msg(memcmp(got, want, sizeof want) == 0,
                          "%s, %d threads, batches of %d differ from ref", qnn_isa_name(i),
                          threads[k / 3], batches[k % 3]);
            n_run++;
        }
    }
    ck_assert_int_ge(n_run, 9);
    free(x);
}
END_TEST

static qnn_model *f32_network(qnn_ctx *c)
{
    qnn_node x, y;
    qnn_model *net;

    TU_OK(c, qnn_model_create(&net, c));
    x = qnn_input(net, "in", 12, 10, 33);
    y = qnn_relu(net, qnn_batchnorm2d(net, x, "bn", NULL), "relu");
    y = qnn_dropout(net, y, "drop", 0.25f);
    y = qnn_add(
        net, y,
        qnn_maxpool2d_ex(net, y, "wide", &(qnn_pool2d_opts){.kernel = 3, .stride = 1, .pad = 1}),
        "sum");
    y = qnn_avgpool2d(net, qnn_clip(net, y, "clip", -1.0f, 2.0f), "average", 2, 2);
    y = qnn_batchnorm2d(net, y, "bn2", NULL);
    y = qnn_concat(net, (qnn_node[2]){y, y}, 2, "twice");
    y = qnn_softmax(net, qnn_flatten(net, qnn_global_avgpool(net, y, "mean"), "flat"), "softmax");
    qnn_output(net, "y", y);
    TU_OK(c, qnn_model_check(net));
    return net;
}

enum { F32_IN = 12 * 10 * 33, F32_OUT = 66, F32_N = 21 };

/* One training pass; y, d(input), then the gradient of bn.weight and the running variance, all in
 * out. */
static void train_f32_network(int threads, int keep_all, const float *x, float *out)
{
    qnn_ctx *const c = tu_ctx(threads);
    qnn_model *const net = f32_network(c);
    const qnn_node bn = qnn_model_find(net, "bn"), in = qnn_model_input(net, 0), y = net->output[0];
    float *grad[32 * QNN_MAX_PARAMS] = {0};
    float *const dy_end = out + F32_N * F32_OUT + F32_N * F32_IN;
    run r;

    memset(dy_end, 0, 33 * sizeof *dy_end);
    grad[bn * QNN_MAX_PARAMS + QNN_P_WEIGHT] = dy_end;
    open_run(&r, c, net, F32_N,
             (qnn_compile_opts){.is_train = 1, .input_grad = 1, .keep_all = keep_all});
    r.src[0] = x;
    r.x.grad = grad;
    r.x.seed = 3;
    TU_OK(c, qnn_exec__forward(&r.x));
    memcpy(out, qnn_exec__value(&r.x, y), F32_N * F32_OUT * sizeof *out);
    tu_fill_uniform(qnn_exec__dvalue(&r.x, y), F32_N * F32_OUT, -1.0f, 1.0f, 8);
    TU_OK(c, qnn_exec__backward(&r.x));
    memcpy(out + F32_N * F32_OUT, qnn_exec__dvalue(&r.x, in), F32_N * F32_IN * sizeof *out);
    memcpy(dy_end + 33, net->node[bn]->param[QNN_P_VAR].data, 33 * sizeof *dy_end);
    close_run(&r);
    qnn_model_free(net);
    qnn_ctx_free(c);
}

START_TEST(training_bits_depend_on_neither_threads_nor_memory)
{
    const size_t n = F32_N * F32_OUT + F32_N * F32_IN + 66;
    float *const x = tu_alloc(F32_N * F32_IN * sizeof *x);
    float *const want = tu_alloc(n * sizeof *want), *const got = tu_alloc(n * sizeof *got);

    tu_fill_uniform(x, F32_N * F32_IN, -2.0f, 3.0f, 1);
    train_f32_network(1, 1, x, want);
    for (int threads = 1; threads <= 5; threads += 2) {
        train_f32_network(threads, 0, x, got);
        ck_assert_msg(memcmp(got, want, n * sizeof *got) == 0,
                      "%d threads in shared memory differ from one in memory of its own", threads);
    }
    free(x);
    free(want);
    free(got);
}
END_TEST

/* Inference in place against inference with a block for each value, and one item at a time against
 * all. */
START_TEST(inference_in_place_and_by_item)
{
    float *const x = tu_alloc(F32_N * F32_IN * sizeof *x);
    float y[F32_N * F32_OUT], one[F32_OUT];
    qnn_program *p;
    run r;

    tu_fill_uniform(x, F32_N * F32_IN, -2.0f, 3.0f, 1);
    qnn_model_free(m);
    m = f32_network(ctx);
    forward(&r, F32_N, x);
    TU_OK(ctx, qnn_program_compile(&p, ctx, m, &(qnn_program_opts){.max_batch = F32_N}));
    ck_assert(qnn_program_workspace(p) < qnn_program_workspace(r.p));
    TU_OK(ctx, qnn_run(p, ctx, x, F32_N, y));
    ck_assert_mem_eq(y, qnn_exec__value(&r.x, m->output[0]), sizeof y);
    for (int i = 0; i < F32_N; i++) {
        TU_OK(ctx, qnn_run(p, ctx, x + i * F32_IN, 1, one));
        ck_assert_mem_eq(one, y + i * F32_OUT, sizeof one);
    }
    qnn_program_free(p);
    close_run(&r);
    free(x);
}
END_TEST

static TCase *group(Suite *s, const char *name)
{
    TCase *const t = tcase_create(name);

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    suite_add_tcase(s, t);
    return t;
}

Suite *ops_suite(void)
{
    Suite *const s = suite_create("ops");
    TCase *t = group(s, "u8");

    tcase_add_test(t, u8_max_pool_keeps_codes);
    tcase_add_test(t, u8_max_pool_ignores_padding);
    tcase_add_test(t, u8_clip_works_on_codes);
    tcase_add_test(t, u8_add_rounds_once);
    tcase_add_test(t, u8_concat_requantises_each_input_once);
    tcase_add_test(t, u8_average_rounds_once);
    tcase_add_test(t, u8_average_pads_with_zero);

    t = group(s, "f32");
    tcase_add_loop_test(t, max_pool_chooses_as_pytorch, 0, 2);
    tcase_add_test(t, max_pool_infers_without_choices);
    tcase_add_test(t, average_counts_padding_or_not);
    tcase_add_test(t, softmax_known_values);
    tcase_add_test(t, batchnorm_moves_running_statistics);
    tcase_add_test(t, dropout_drops_a_share_and_scales);
    tcase_add_test(t, fake_quant_follows_batches_and_freezes);

    t = group(s, "refusals");
    tcase_add_loop_test(t, refusals_name_op_node_and_values, 0, sizeof refusals / sizeof *refusals);
    tcase_add_test(t, max_pool_of_a_huge_window_does_not_train);

    t = group(s, "bits");
    tcase_add_test(t, u8_bits_on_every_isa_thread_count_and_batch);
    tcase_add_test(t, training_bits_depend_on_neither_threads_nor_memory);
    tcase_add_test(t, inference_in_place_and_by_item);
    return s;
}
