/* Quantisation: the formulas on hand-computed values, and each pass on small networks.
 * docs/numerics.md is what they must obey. */
#include "suites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <qnn.h>

#include "lib/exec.h"
#include "lib/qmath.h"
#include "tests/common/testutil.h"

#define SIZE  16
#define ITEM  (SIZE * SIZE * 3)
#define BATCH 16

/* ---- formulas
 * ----------------------------------------------------------------------------------------------------------------------
 */

static const struct range_case {
    float lo, hi, scale;
    int32_t zp;
} range_cases[] = {
    {3, 5, 5.0f / 255, 0}, {-5, -3, 5.0f / 255, 255},
    {2, 2, 2.0f / 255, 0}, {-1, 3, 4.0f / 255, 64},
    {0, 0, 1, 0},          {-0.5f, 2, 2.5f / 255, 51},
};

START_TEST(u8_ranges_hold_zero)
{
    const struct range_case *const c = &range_cases[_i];
    float scale;
    int32_t zp;

    qnn_qparams_u8(c->lo, c->hi, &scale, &zp);
    ck_assert_float_eq_tol(scale, c->scale, c->scale * 1e-6f);
    ck_assert_int_eq(zp, c->zp);
}
END_TEST

START_TEST(degenerate_scales_stay_usable)
{
    static const float tiny[] = {1e-40f, 1e-45f, 0.0f, 1e-38f, 3e38f, 1.0f};
    float scale;
    int32_t zp;

    for (size_t i = 0; i < sizeof tiny / sizeof *tiny; i++) {
        const float s = qnn_qparams_symmetric(tiny[i], 127);

        ck_assert_msg(s > 0 && isfinite(s) && isfinite(1.0f / s), "symmetric scale of %g is %g",
                      (double)tiny[i], (double)s);
        qnn_qparams_u8(-tiny[i], tiny[i], &scale, &zp);
        ck_assert_msg(scale > 0 && isfinite(scale) && isfinite(1.0f / scale), "scale of +-%g is %g",
                      (double)tiny[i], (double)scale);
        ck_assert(zp >= 0 && zp <= 255);
    }
    ck_assert_float_eq(qnn_qparams_symmetric(0.0f, 7), 1.0f);
    ck_assert_float_eq(qnn_qparams_symmetric(2.533506f, 7), 2.533506f / 7);
    qnn_qparams_u8(-3e38f, 3e38f, &scale, &zp);
    ck_assert(isfinite(scale));
}
END_TEST

START_TEST(rounding_is_to_even_and_ends_clamp)
{
    static const float x[] = {0.5f,     1.5f,      2.5f, -0.5f, -1.5f,  -2.5f,
                              INFINITY, -INFINITY, NAN,  1e30f, 254.5f, 255.5f};
    static const uint8_t want[] = {100, 102, 102, 100, 98, 98, 255, 0, 100, 255, 255, 255};
    uint8_t q[12];
    float back[12];

    qnn_quantize_u8(x, 12, 1.0f, 100, q);
    ck_assert_mem_eq(q, want, sizeof want);
    qnn_dequantize_u8(q, 12, 0.5f, 100, back);
    ck_assert_float_eq(back[1], 1.0f);
    ck_assert_float_eq(back[7], -50.0f);
}
END_TEST

START_TEST(healthy_error_is_a_step_over_root_twelve)
{
    enum { N = 100000 };
    float *const x = tu_alloc(N * sizeof *x), *const back = tu_alloc(N * sizeof *back);
    uint8_t *const q = tu_alloc(N);
    float scale;
    int32_t zp;
    double sum = 0;

    tu_fill_uniform(x, N, -1.0f, 3.0f, 5);
    qnn_qparams_u8(-1.0f, 3.0f, &scale, &zp);
    qnn_quantize_u8(x, N, scale, zp, q);
    qnn_dequantize_u8(q, N, scale, zp, back);
    for (int i = 0; i < N; i++)
        sum += (double)(x[i] - back[i]) * (double)(x[i] - back[i]);
    ck_assert_double_eq_tol(sqrt(sum / N) / (double)scale, 0.2887, 0.2887 * 0.02);
    free(q);
    free(back);
    free(x);
}
END_TEST

START_TEST(per_channel_keeps_a_small_channel)
{
    static const float w[2] = {0.01f, 10.0f};
    qnn_ctx *const ctx = tu_ctx(1);
    float scales[2];
    int8_t codes[2];

    qnn_qmath__weight_scales(ctx, w, 2, 1, 127, 1, scales);
    qnn_qmath__weight_codes(ctx, w, 2, 1, 127, 1, scales, codes);
    ck_assert_int_eq(codes[0], 127);
    ck_assert_int_eq(codes[1], 127);
    qnn_qmath__weight_scales(ctx, w, 2, 1, 127, 0, scales);
    qnn_qmath__weight_codes(ctx, w, 2, 1, 127, 0, scales, codes);
    ck_assert_int_eq(codes[0], 0);
    ck_assert_int_eq(codes[1], 127);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(empty_channels_give_codes_of_zero)
{
    static const float nothing[4] = {0.0f, -0.0f, 1e-40f, NAN};
    qnn_ctx *const ctx = tu_ctx(1);
    float scales[4], fakes[4];
    int8_t codes[4];

    qnn_qmath__weight_scales(ctx, nothing, 4, 1, 127, 1, scales);
    qnn_qmath__weight_codes(ctx, nothing, 4, 1, 127, 1, scales, codes);
    qnn_qmath__fake_weights(ctx, nothing, 4, 1, 127, 1, scales, fakes);
    for (int i = 0; i < 4; i++)
        ck_assert_msg(codes[i] == 0 && scales[i] > 0.0f && isfinite(scales[i]) && fakes[i] == 0.0f,
                      "channel %d: code %d, scale %g, value %g", i, codes[i], (double)scales[i],
                      (double)fakes[i]);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(four_bit_codes_pack_high_nibble_first)
{
    static const int8_t codes[5] = {1, -2, 3, -7, 7};
    uint8_t packed[3];
    int8_t back[5];

    qnn_qmath__pack_s4(codes, 5, packed);
    ck_assert_uint_eq(packed[0], 0x96);
    ck_assert_uint_eq(packed[1], 0xb1);
    ck_assert_uint_eq(packed[2], 0xf8);
    qnn_qmath__unpack_s4(packed, 5, back);
    ck_assert_mem_eq(back, codes, sizeof codes);
}
END_TEST

/* ---- passes
 * -------------------------------------------------------------------------------------------------------------------------
 */

static qnn_model *network(qnn_ctx *ctx)
{
    qnn_model *m;
    qnn_node x, a, both[2];

    TU_OK(ctx, qnn_model_create(&m, ctx));
    x = qnn_input(m, "image", SIZE, SIZE, 3);
    x = qnn_maxpool2d(m,
                      qnn_relu(m,
                               qnn_conv2d(m, x, "conv1",
                                          &(qnn_conv2d_opts){.filters = 12, .kernel = 3, .pad = 1}),
                               "relu1"),
                      "pool1", 2, 2);
    a = qnn_relu(
        m, qnn_conv2d(m, x, "conv2", &(qnn_conv2d_opts){.filters = 12, .kernel = 3, .pad = 1}),
        "relu2");
    x = qnn_relu6(m, qnn_add(m, x, a, "sum"), "relu3");
    both[0] = x;
    both[1] = qnn_relu(
        m, qnn_conv2d(m, x, "conv3", &(qnn_conv2d_opts){.filters = 8, .kernel = 1, .no_bias = 1}),
        "relu4");
    x = qnn_avgpool2d(m, qnn_concat(m, both, 2, "cat"), "pool2", 2, 2);
    x = qnn_dropout(m, qnn_flatten(m, x, "flat"), "drop", 0.2f);
    x = qnn_relu(m, qnn_linear(m, x, "fc1", 24), "relu5");
    qnn_output(m, "scores", qnn_linear(m, x, "fc2", 6));
    TU_OK(ctx, qnn_model_check(m));
    return m;
}

static float *run(qnn_ctx *ctx, const qnn_model *m, const float *x)
{
    float *const y = tu_alloc(BATCH * 6 * sizeof *y);
    qnn_program *p;

    TU_OK(ctx, qnn_program_compile(&p, ctx, m, &(qnn_program_opts){.max_batch = BATCH}));
    TU_OK(ctx, qnn_run(p, ctx, x, BATCH, y));
    qnn_program_free(p);
    return y;
}

static double sqnr(const float *want, const float *got)
{
    double signal = 0, error = 0;

    for (int i = 0; i < BATCH * 6; i++) {
        signal += (double)want[i] * (double)want[i];
        error += (double)(want[i] - got[i]) * (double)(want[i] - got[i]);
    }
    return 10 * log10(signal / (error + 1e-30));
}

typedef struct fixture {
    qnn_ctx *ctx;
    qnn_model *m, *fused;
    qnn_stats *st;
    float *x, *y;
} fixture;

static fixture open_fixture(void)
{
    fixture f = {.ctx = tu_ctx(2)};

    f.m = network(f.ctx);
    f.x = tu_alloc(BATCH * ITEM * sizeof *f.x);
    tu_fill_uniform(f.x, BATCH * ITEM, -2, 2, 9);
    f.y = run(f.ctx, f.m, f.x);
    TU_OK(f.ctx, qnn_fuse(&f.fused, f.ctx, f.m));
    TU_OK(f.ctx, qnn_stats_create(&f.st, f.ctx, f.fused, &(qnn_stats_opts){.max_batch = BATCH}));
    return f;
}

static void close_fixture(fixture *f)
{
    qnn_stats_free(f->st);
    qnn_model_free(f->fused);
    qnn_model_free(f->m);
    free(f->y);
    free(f->x);
    qnn_ctx_free(f->ctx);
}

START_TEST(fusing_changes_no_bit)
{
    fixture f = open_fixture();
    float *const y = run(f.ctx, f.fused, f.x);

    ck_assert_mem_eq(y, f.y, BATCH * 6 * sizeof *y);
    ck_assert_int_eq(qnn_model_find(f.fused, "relu1"), QNN_NODE_NONE);
    ck_assert_int_eq(qnn_model_find(f.fused, "drop"), QNN_NODE_NONE);
    ck_assert_int_ne(qnn_model_find(f.fused, "relu3"), QNN_NODE_NONE); /* after an add: stays */
    free(y);
    close_fixture(&f);
}
END_TEST

START_TEST(ranges_do_not_depend_on_batches)
{
    fixture f = open_fixture();
    qnn_stats *one;

    TU_OK(f.ctx, qnn_stats_observe(f.st, f.ctx, f.x, BATCH));
    TU_OK(f.ctx, qnn_stats_create(&one, f.ctx, f.fused, NULL));
    for (int i = BATCH - 1; i >= 0; i--)
        TU_OK(f.ctx, qnn_stats_observe(one, f.ctx, f.x + i * ITEM, 1));
    ck_assert_int_eq(qnn_stats_images(one), BATCH);
    for (int i = 0; i < qnn_model_n_nodes(f.fused); i++) {
        float lo[2], hi[2];
        const qnn_status status = qnn_stats_range(f.st, f.ctx, i, &lo[0], &hi[0], NULL);

        ck_assert_int_eq(status, qnn_stats_range(one, f.ctx, i, &lo[1], &hi[1], NULL));
        if (status == QNN_OK) {
            ck_assert_float_eq(lo[0], lo[1]);
            ck_assert_float_eq(hi[0], hi[1]);
        }
    }
    qnn_stats_free(one);
    close_fixture(&f);
}
END_TEST

/* Nothing is skipped silently: a node runs in codes, or is an input, a quantize or dequantize, or
 * carries its reason. */
static void check_coverage(qnn_ctx *ctx, const qnn_model *m)
{
    for (int i = 0; i < qnn_model_n_nodes(m); i++) {
        qnn_node_info n, in;
        int reads_u8 = 0;

        TU_OK(ctx, qnn_model_node_info(m, i, &n));
        for (int k = 0; k < n.n_inputs; k++) {
            TU_OK(ctx, qnn_model_node_info(m, n.inputs[k], &in));
            reads_u8 |= in.dtype == QNN_DTYPE_U8;
        }
        ck_assert_msg(n.dtype == QNN_DTYPE_U8 || reads_u8 || strcmp(n.op, "input") == 0 ||
                          n.note[0] != '\0',
                      "%s \"%s\" is f32 without a reason", n.op, n.name);
    }
}

static const struct static_case {
    qnn_quant_opts opts;
    double least_db;
} static_cases[] = {
    {{0}, 32}, {{.per_tensor = 1}, 28}, {{.quantize_output = 1}, 30}, {{.skip = "conv2, fc1"}, 32}};

START_TEST(static_int8_is_close_to_float)
{
    const struct static_case *const c = &static_cases[_i];
    fixture f = open_fixture();
    qnn_model *q;
    float *y;
    double db;

    TU_OK(f.ctx, qnn_stats_observe(f.st, f.ctx, f.x, BATCH));
    TU_OK(f.ctx, qnn_quantize_static(&q, f.ctx, f.fused, f.st, &c->opts));
    check_coverage(f.ctx, q);
    y = run(f.ctx, q, f.x);
    db = sqnr(f.y, y);
    ck_assert_msg(db > c->least_db, "case %d: SQNR %.1f dB", _i, db);
    ck_assert_str_eq(qnn_model_meta(q, "quant.method"), "static");
    ck_assert_str_eq(qnn_model_meta(q, "quant.weights"),
                     c->opts.per_tensor ? "per-tensor" : "per-channel");
    if (c->opts.skip != NULL) {
        qnn_node_info n;

        TU_OK(f.ctx, qnn_model_node_info(q, qnn_model_find(q, "conv2"), &n));
        ck_assert_int_eq(n.weight_dtype, QNN_DTYPE_F32);
        ck_assert_ptr_nonnull(strstr(n.note, "skip"));
    }
    free(y);
    qnn_model_free(q);
    close_fixture(&f);
}
END_TEST

START_TEST(weight_only_passes_are_close_to_float)
{
    fixture f = open_fixture();
    qnn_model *q[4];
    static const double least_db[4] = {32, 12, 55, 38};

    TU_OK(f.ctx, qnn_quantize_dynamic(&q[0], f.ctx, f.fused, NULL));
    TU_OK(f.ctx, qnn_quantize_int4_sim(&q[1], f.ctx, f.fused));
    TU_OK(f.ctx, qnn_lower_half(&q[2], f.ctx, f.fused, QNN_DTYPE_F16));
    TU_OK(f.ctx, qnn_lower_half(&q[3], f.ctx, f.fused, QNN_DTYPE_BF16));
    for (int i = 0; i < 4; i++) {
        float *const y = run(f.ctx, q[i], f.x);
        const double db = sqnr(f.y, y);

        ck_assert_msg(db > least_db[i], "pass %d: SQNR %.1f dB", i, db);
        free(y);
        qnn_model_free(q[i]);
    }
    close_fixture(&f);
}
END_TEST

START_TEST(qat_model_and_its_int8_twin_agree)
{
    fixture f = open_fixture();
    int32_t labels[BATCH];
    qnn_model *fake, *int8;
    qnn_trainer *t;
    qnn_program *pf, *pq;
    const void *src[1] = {f.x};
    qnn_param_info p;
    long n_codes = 0, n_off = 0, worst = 0;

    for (int i = 0; i < BATCH; i++)
        labels[i] = i % 6;
    TU_OK(f.ctx, qnn_qat_prepare(&fake, f.ctx, f.m, NULL));
    ck_assert_int_eq(qnn_qat_convert(&int8, f.ctx, fake, NULL), QNN_ERR_STATE);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(f.ctx), ".fq"));
    TU_OK(f.ctx,
          qnn_trainer_create(&t, f.ctx, fake, &(qnn_trainer_opts){.batch = BATCH, .lr = 2e-3f}));
    for (int i = 0; i < 30; i++)
        TU_OK(f.ctx, qnn_trainer_step(t, f.x, labels, BATCH, NULL));
    /* The int8 twin rounds biases to units of its sums, which the fake-quant model does not: that,
       not the arithmetic, would be most of what differs. */
    for (int i = 0; i < qnn_model_n_params(fake); i++) {
        TU_OK(f.ctx, qnn_model_param(fake, i, &p));
        if (strstr(p.name, ".bias") != NULL)
            memset(p.data, 0, p.bytes);
    }
    TU_OK(f.ctx, qnn_qat_convert(&int8, f.ctx, fake, NULL));
    check_coverage(f.ctx, int8);
    TU_OK(f.ctx, qnn_program__compile(&pf, f.ctx, fake,
                                      &(qnn_compile_opts){.max_batch = BATCH, .keep_all = 1}));
    TU_OK(f.ctx, qnn_program__compile(&pq, f.ctx, int8,
                                      &(qnn_compile_opts){.max_batch = BATCH, .keep_all = 1}));

    void *const wf = tu_alloc_aligned(qnn_program_workspace(pf)), *const wq = tu_alloc_aligned(
                                                                      qnn_program_workspace(pq));
    qnn_exec ef = {.ctx = f.ctx, .p = pf, .k = pf->k, .n = BATCH, .ws = wf, .src = src};
    qnn_exec eq = {.ctx = f.ctx, .p = pq, .k = pq->k, .n = BATCH, .ws = wq, .src = src};

    TU_OK(f.ctx, qnn_exec__forward(&ef));
    TU_OK(f.ctx, qnn_exec__forward(&eq));
    for (int i = 0; i < fake->n_nodes;
         i++) { /* each fake-quant against the codes of the node it stands behind */
        const qnn_node_data *const n = fake->node[i];
        char name[QNN_NAME_MAX];
        qnn_node twin;
        const float *value;
        const uint8_t *codes;
        size_t count;

        if (n->kind != QNN_OP_FAKE_QUANT)
            continue;
        snprintf(name, sizeof name, "%s", fake->node[n->in[0]]->name);
        twin = qnn_model_find(int8, name);
        ck_assert_int_ne(twin, QNN_NODE_NONE);
        if (int8->node[twin]->dtype !=
            QNN_DTYPE_U8) { /* the input: its codes are the quantize node's */
            strcat(name, ".quant");
            twin = qnn_model_find(int8, name);
            ck_assert_int_ne(twin, QNN_NODE_NONE);
        }
        count = BATCH * (size_t)qnn_shape__count(&n->shape);
        value = qnn_exec__value(&ef, i);
        codes = qnn_exec__value(&eq, twin);
        for (size_t k = 0; k < count; k++) {
            const long code =
                lrintf(value[k] / int8->node[twin]->scale) + int8->node[twin]->zero_point;
            const long off = labs(code - codes[k]);

            n_codes++;
            n_off += off != 0;
            worst = off > worst ? off : worst;
        }
    }
    ck_assert_int_gt(n_codes, 10000);
    ck_assert_msg(worst <= 1 && n_off * 10000 < n_codes, "%ld of %ld codes differ, by up to %ld",
                  n_off, n_codes, worst);
    free(wf);
    free(wq);
    qnn_program_free(pf);
    qnn_program_free(pq);
    qnn_trainer_free(t);
    qnn_model_free(int8);
    qnn_model_free(fake);
    close_fixture(&f);
}
END_TEST

START_TEST(sums_that_could_leave_int32_raise_the_scale)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *m, *q;
    qnn_stats *st;
    qnn_param_info w, b;
    float x[4] = {1e-6f, 0, 5e-7f, 1e-6f};

    TU_OK(ctx, qnn_model_create(&m, ctx));
    qnn_output(m, "y", qnn_linear(m, qnn_input_features(m, "x", 4), "fc", 1));
    TU_OK(ctx, qnn_model_param(m, 0, &w));
    TU_OK(ctx, qnn_model_param(m, 1, &b));
    for (int i = 0; i < 4; i++)
        ((float *)w.data)[i] = 1e-4f;
    ((float *)b.data)[0] = 1e6f; /* in units of S_in S_w far past int32 */
    TU_OK(ctx, qnn_stats_create(&st, ctx, m, NULL));
    TU_OK(ctx, qnn_stats_observe(st, ctx, x, 1));
    TU_OK(ctx, qnn_quantize_static(&q, ctx, m, st, NULL));
    ck_assert_str_eq(qnn_model_meta(q, "quant.raised"), "1");
    qnn_model_free(q);
    qnn_stats_free(st);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(mistakes_are_named)
{
    fixture f = open_fixture();
    qnn_model *q = NULL;
    qnn_param_info p;
    float old;

    ck_assert_int_eq(qnn_quantize_static(&q, f.ctx, f.fused, f.st, NULL),
                     QNN_ERR_STATE); /* no image yet */
    TU_OK(f.ctx, qnn_stats_observe(f.st, f.ctx, f.x, BATCH));
    ck_assert_int_eq(qnn_stats_observe(f.st, f.ctx, f.x, BATCH + 1), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_quantize_static(&q, f.ctx, f.m, f.st, NULL),
                     QNN_ERR_ARG); /* another model */
    ck_assert_int_eq(
        qnn_quantize_static(&q, f.ctx, f.fused, f.st, &(qnn_quant_opts){.skip = "conv2,conv9"}),
        QNN_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(f.ctx), "conv9"));
    ck_assert_ptr_null(q);
    ck_assert_int_eq(qnn_lower_half(&q, f.ctx, f.fused, QNN_DTYPE_I8), QNN_ERR_ARG);
    TU_OK(f.ctx, qnn_model_param(f.fused, qnn_model_find_param(f.fused, "conv2.weight"), &p));
    old = ((float *)p.data)[7];
    ((float *)p.data)[7] = 70000.0f;
    ck_assert_int_eq(qnn_lower_half(&q, f.ctx, f.fused, QNN_DTYPE_F16), QNN_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(f.ctx), "conv2.weight"));
    ((float *)p.data)[7] = NAN;
    ck_assert_int_eq(qnn_quantize_static(&q, f.ctx, f.fused, f.st, NULL), QNN_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(f.ctx), "conv2.weight"));
    ck_assert_int_eq(qnn_quantize_int4_sim(&q, f.ctx, f.fused), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_quantize_dynamic(&q, f.ctx, f.fused, NULL), QNN_ERR_ARG);
    ((float *)p.data)[7] = old;
    close_fixture(&f);
}
END_TEST

Suite *quant_suite(void)
{
    Suite *const s = suite_create("quant");
    TCase *const formulas = tcase_create("formulas"), *const passes = tcase_create("passes");

    tcase_add_loop_test(formulas, u8_ranges_hold_zero, 0,
                        (int)(sizeof range_cases / sizeof *range_cases));
    tcase_add_test(formulas, degenerate_scales_stay_usable);
    tcase_add_test(formulas, rounding_is_to_even_and_ends_clamp);
    tcase_add_test(formulas, healthy_error_is_a_step_over_root_twelve);
    tcase_add_test(formulas, per_channel_keeps_a_small_channel);
    tcase_add_test(formulas, empty_channels_give_codes_of_zero);
    tcase_add_test(formulas, four_bit_codes_pack_high_nibble_first);
    tcase_set_timeout(passes, 60);
    tcase_add_test(passes, fusing_changes_no_bit);
    tcase_add_test(passes, ranges_do_not_depend_on_batches);
    tcase_add_loop_test(passes, static_int8_is_close_to_float, 0,
                        (int)(sizeof static_cases / sizeof *static_cases));
    tcase_add_test(passes, weight_only_passes_are_close_to_float);
    tcase_add_test(passes, qat_model_and_its_int8_twin_agree);
    tcase_add_test(passes, sums_that_could_leave_int32_raise_the_scale);
    tcase_add_test(passes, mistakes_are_named);
    suite_add_tcase(s, formulas);
    suite_add_tcase(s, passes);
    return s;
}
