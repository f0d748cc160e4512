/* Quantisation: the formulas on hand-computed values, and each pass on small networks.
 * docs/numerics.md is what they must obey. */
#include "suites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <qnn.h>

#include "lib/qmath.h"
#include "quant_fixture.h"
#include "tests/common/testutil.h"

/* ---- formulas -------------------------------------------------------------------------------- */

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

/* 0 is exactly representable whatever the range, and so is the end that a range without the other
 * sign has. */
START_TEST(zero_and_the_far_end_are_exact)
{
    static const float x[2] = {2.0f, 0.0f};
    float scale, back[2];
    uint8_t q[2];
    int32_t zp;

    qnn_qparams_u8(2.0f, 2.0f, &scale, &zp);
    qnn_quantize_u8(x, 2, scale, zp, q);
    qnn_dequantize_u8(q, 2, scale, zp, back);
    ck_assert_int_eq(q[0], 255);
    ck_assert_float_eq(back[0], 2.0f);
    ck_assert_float_eq(back[1], 0.0f);
    for (int i = 0; i < 200; i++) {
        float ends[2];

        tu_fill_uniform(ends, 2, -3.0f, 3.0f, (uint64_t)i);
        qnn_qparams_u8(fminf(ends[0], ends[1]), fmaxf(ends[0], ends[1]), &scale, &zp);
        qnn_quantize_u8(&x[1], 1, scale, zp, q);
        qnn_dequantize_u8(q, 1, scale, zp, back);
        ck_assert_msg(q[0] == zp && back[0] == 0.0f, "range %g and %g: 0 becomes %g",
                      (double)ends[0], (double)ends[1], (double)back[0]);
    }
}
END_TEST

START_TEST(one_value_has_the_same_code_as_arrays)
{
    float x[64];
    uint8_t q[64];

    tu_fill_uniform(x, 62, -4.0f, 4.0f, 4);
    x[62] = INFINITY;
    x[63] = -INFINITY;
    qnn_quantize_u8(x, 64, 0.02f, 77, q);
    for (int i = 0; i < 64; i++)
        ck_assert_int_eq(qnn_qmath__code(x[i], 0.02f, 77, 0, 255), q[i]);
    ck_assert_int_eq(qnn_qmath__code(6.0f, 0.05f, 3, 10, 100), 100);
    ck_assert_int_eq(qnn_qmath__code(-6.0f, 0.05f, 3, 10, 100), 10);
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
    ck_assert_float_eq_tol(qnn_qparams_symmetric(2.533506f, 7), 0.361929f, 1e-6f);
    ck_assert_int_eq(qnn_qmath__code(2.533506f, qnn_qparams_symmetric(2.533506f, 7), 0, -8, 7), 7);
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

/* What training sees is what conversion stores. */
START_TEST(fake_weights_are_scale_times_code)
{
    enum { CHANNELS = 5, PER = 37 };
    qnn_ctx *const ctx = tu_ctx(2);
    float w[CHANNELS * PER], fakes[CHANNELS * PER], scales[CHANNELS], again[CHANNELS];
    int8_t codes[CHANNELS * PER];

    tu_fill_uniform(w, CHANNELS * PER, -3.0f, 2.0f, 6);
    for (int i = 0; i < 4; i++) {
        const int32_t qmax = i % 2 == 0 ? 127 : 7;
        const int per_channel = i / 2;

        qnn_qmath__weight_scales(ctx, w, CHANNELS, PER, qmax, per_channel, scales);
        qnn_qmath__weight_codes(ctx, w, CHANNELS, PER, qmax, per_channel, scales, codes);
        qnn_qmath__fake_weights(ctx, w, CHANNELS, PER, qmax, per_channel, again, fakes);
        ck_assert_mem_eq(scales, again, (per_channel ? CHANNELS : 1) * sizeof *scales);
        for (int k = 0; k < CHANNELS * PER; k++) {
            ck_assert_int_le(abs(codes[k]), qmax);
            ck_assert_float_eq(fakes[k], scales[per_channel ? k / PER : 0] * (float)codes[k]);
        }
    }
    qnn_ctx_free(ctx);
}
END_TEST

/* [1, -2, 3, -7, 3.5] in groups of four: scales [1, 0.5], the tail's its own; codes 1 -2 3 -7 7. */
START_TEST(four_bit_groups)
{
    static const float w[5] = {1, -2, 3, -7, 3.5f};
    static const int8_t want[5] = {1, -2, 3, -7, 7};
    qnn_ctx *const ctx = tu_ctx(1);
    float scales[2];
    int8_t codes[5];

    qnn_qmath__weight_scales(ctx, w, 1, 4, 7, 1, &scales[0]);
    qnn_qmath__weight_scales(ctx, w + 4, 1, 1, 7, 1, &scales[1]);
    qnn_qmath__weight_codes(ctx, w, 1, 4, 7, 1, &scales[0], codes);
    qnn_qmath__weight_codes(ctx, w + 4, 1, 1, 7, 1, &scales[1], codes + 4);
    ck_assert_float_eq(scales[0], 1.0f);
    ck_assert_float_eq(scales[1], 0.5f);
    ck_assert_mem_eq(codes, want, sizeof want);
    qnn_ctx_free(ctx);
}
END_TEST

/* Every count, odd ones too; nothing past the last byte is touched. */
START_TEST(four_bit_codes_come_back)
{
    int8_t codes[33], back[34];
    uint8_t packed[18];

    for (int i = 0; i < 33; i++)
        codes[i] = (int8_t)(i * 4 % 15 - 7);
    for (size_t n = 1; n <= 33; n++) {
        memset(packed, 0xee, sizeof packed);
        memset(back, 0x55, sizeof back);
        qnn_qmath__pack_s4(codes, n, packed);
        qnn_qmath__unpack_s4(packed, n, back);
        ck_assert_mem_eq(back, codes, n);
        ck_assert_int_eq(back[n], 0x55);
        ck_assert_uint_eq(packed[(n + 1) / 2], 0xee);
        if (n % 2 == 1)
            ck_assert_uint_eq(packed[n / 2] & 15, 8);
    }
}
END_TEST

/* ---- passes ---------------------------------------------------------------------------------- */

START_TEST(fusing_changes_no_bit)
{
    qf_fixture f = qf_open(0);
    float *const y = qf_run(f.ctx, f.fused, f.x);

    ck_assert_mem_eq(y, f.y, QF_BATCH * QF_CLASSES * sizeof *y);
    ck_assert_int_eq(qnn_model_find(f.fused, "relu1"), QNN_NODE_NONE);
    ck_assert_int_eq(qnn_model_find(f.fused, "drop"), QNN_NODE_NONE);
    ck_assert_int_ne(qnn_model_find(f.fused, "relu3"), QNN_NODE_NONE); /* after an add: stays */
    free(y);
    qf_close(&f);
}
END_TEST

/* Chains of clips that bind on both sides; clips with nothing in common stay two nodes. */
START_TEST(fused_clips_keep_both_ends)
{
    static const float ends[][4] = {
        {-0.1f, 0.2f, -1, 1}, {-1, 1, -0.1f, 0.2f}, {0, 6, -1, 0.1f}, {0.1f, 1, -1, 0}};
    const float *const e = ends[_i];
    const int is_disjoint = _i == 3;
    qnn_ctx *const ctx = tu_ctx(1);
    float *const x = tu_alloc(QF_BATCH * 5 * sizeof *x), *y, *fused_y;
    qnn_model *m, *fused;
    qnn_node n;

    tu_fill_uniform(x, QF_BATCH * 5, -2.0f, 2.0f, 8);
    TU_OK(ctx, qnn_model_create(&m, ctx));
    n = qnn_linear(m, qnn_input_features(m, "x", 5), "fc", QF_CLASSES);
    n = qnn_clip(m, qnn_clip(m, n, "clip1", e[0], e[1]), "clip2", e[2], e[3]);
    qnn_output(m, "y", n);
    TU_OK(ctx, qnn_fuse(&fused, ctx, m));
    ck_assert_int_eq(qnn_model_n_nodes(fused), is_disjoint ? 3 : 2);
    y = qf_run(ctx, m, x);
    fused_y = qf_run(ctx, fused, x);
    ck_assert_mem_eq(y, fused_y, QF_BATCH * QF_CLASSES * sizeof *y);
    free(y);
    free(fused_y);
    free(x);
    qnn_model_free(fused);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

static int count_op(const qnn_model *m, qnn_ctx *ctx, const char *op)
{
    int count = 0;

    for (int i = 0; i < qnn_model_n_nodes(m); i++) {
        qnn_node_info n;

        TU_OK(ctx, qnn_model_node_info(m, i, &n));
        count += strcmp(n.op, op) == 0;
    }
    return count;
}

START_TEST(ranges_do_not_depend_on_batches)
{
    qf_fixture f = qf_open(0);
    qnn_stats *one;

    TU_OK(f.ctx, qnn_stats_observe(f.st, f.ctx, f.x, QF_BATCH));
    TU_OK(f.ctx, qnn_stats_create(&one, f.ctx, f.fused, NULL));
    for (int i = QF_BATCH - 1; i >= 0; i--)
        TU_OK(f.ctx, qnn_stats_observe(one, f.ctx, f.x + i * QF_ITEM, 1));
    ck_assert_int_eq(qnn_stats_images(one), QF_BATCH);
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
    qf_close(&f);
}
END_TEST

static const struct static_case {
    qnn_quant_opts opts;
    double least_db;
} static_cases[] = {
    {{0}, 32}, {{.per_tensor = 1}, 28}, {{.quantize_output = 1}, 30}, {{.skip = "conv2, fc1"}, 32}};

/* One value that is not finite is counted and left out of the range. */
START_TEST(values_that_are_not_finite_are_counted)
{
    static const float x[2][3] = {{INFINITY, 1, 2}, {NAN, 1, 2}};
    const qnn_node in = 0;

    for (int i = 0; i < 2; i++) {
        qnn_ctx *const ctx = tu_ctx(1);
        qnn_model *m;
        qnn_stats *st;
        float lo, hi, scale;
        int64_t non_finite;
        int32_t zp;

        TU_OK(ctx, qnn_model_create(&m, ctx));
        qnn_output(m, "y", qnn_linear(m, qnn_input_features(m, "x", 3), "fc", 1));
        TU_OK(ctx, qnn_stats_create(&st, ctx, m, NULL));
        TU_OK(ctx, qnn_stats_observe(st, ctx, x[i], 1));
        TU_OK(ctx, qnn_stats_range(st, ctx, in, &lo, &hi, &non_finite));
        qnn_qparams_u8(lo, hi, &scale, &zp);
        ck_assert_int_eq(non_finite, 1);
        ck_assert_float_eq(hi, 2.0f);
        ck_assert_float_eq(scale, 2.0f / 255);
        ck_assert_int_eq(zp, 0);
        qnn_stats_free(st);
        qnn_model_free(m);
        qnn_ctx_free(ctx);
    }
}
END_TEST

/* The first batch sets the range, the others move it by a hundredth of the difference. */
START_TEST(moving_average_of_ranges)
{
    static const float x[3][2] = {{-1, 4}, {-3, 2}, {1, 104}};
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *m;
    qnn_stats *st;
    float lo, hi;

    TU_OK(ctx, qnn_model_create(&m, ctx));
    qnn_output(m, "y", qnn_linear(m, qnn_input_features(m, "x", 2), "fc", 1));
    TU_OK(ctx, qnn_stats_create(&st, ctx, m,
                                &(qnn_stats_opts){.observer = QNN_OBSERVER_MOVING_AVERAGE}));
    for (int i = 0; i < 3; i++)
        TU_OK(ctx, qnn_stats_observe(st, ctx, x[i], 1));
    TU_OK(ctx, qnn_stats_range(st, ctx, 0, &lo, &hi, NULL));
    ck_assert_float_eq_tol(lo, -1.02f + 0.01f * 2.02f, 1e-6f);
    ck_assert_float_eq_tol(hi, 3.98f + 0.01f * 100.02f, 1e-5f);
    qnn_stats_free(st);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

enum { N_STATIC_CASES = sizeof static_cases / sizeof *static_cases };

/* _i: network and options. */
START_TEST(static_int8_is_close_to_float)
{
    const struct static_case *const c = &static_cases[_i % N_STATIC_CASES];
    qf_fixture f = qf_open(_i / N_STATIC_CASES);
    qnn_model *q;
    float *y;
    double db;

    TU_OK(f.ctx, qnn_stats_observe(f.st, f.ctx, f.x, QF_BATCH));
    TU_OK(f.ctx, qnn_quantize_static(&q, f.ctx, f.fused, f.st, &c->opts));
    qf_check_coverage(f.ctx, q);
    if (c->opts.skip == NULL) { /* codes from the image to the scores */
        ck_assert_int_eq(count_op(q, f.ctx, "quantize"), 1);
        ck_assert_int_eq(count_op(q, f.ctx, "dequantize"), c->opts.quantize_output);
    }
    y = qf_run(f.ctx, q, f.x);
    db = qf_sqnr(f.y, y);
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
    qf_close(&f);
}
END_TEST

START_TEST(weight_only_passes_are_close_to_float)
{
    qf_fixture f = qf_open(0);
    qnn_model *q[4];
    static const double least_db[4] = {32, 12, 55, 38};

    TU_OK(f.ctx, qnn_quantize_dynamic(&q[0], f.ctx, f.fused, NULL));
    TU_OK(f.ctx, qnn_quantize_int4_sim(&q[1], f.ctx, f.fused));
    TU_OK(f.ctx, qnn_lower_half(&q[2], f.ctx, f.fused, QNN_DTYPE_F16));
    TU_OK(f.ctx, qnn_lower_half(&q[3], f.ctx, f.fused, QNN_DTYPE_BF16));
    for (int i = 0; i < 4; i++) {
        float *const y = qf_run(f.ctx, q[i], f.x);
        const double db = qf_sqnr(f.y, y);

        ck_assert_msg(db > least_db[i], "pass %d: SQNR %.1f dB", i, db);
        free(y);
        qnn_model_free(q[i]);
    }
    qf_close(&f);
}
END_TEST

START_TEST(sums_that_could_leave_int32_raise_the_scale)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *m, *q;
    qnn_stats *st;
    qnn_param_info w, b;
    float x[4] = {1e-6f, 0, 5e-7f, 1e-6f}, y;
    qnn_program *p;

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
    TU_OK(ctx, qnn_program_compile(&p, ctx, q, NULL));
    TU_OK(ctx, qnn_run(p, ctx, x, 1, &y));
    ck_assert_float_eq_tol(y, 1e6f, 1.0f); /* the bias; the products are nothing beside it */
    qnn_program_free(p);
    qnn_model_free(q);
    qnn_stats_free(st);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(mistakes_are_named)
{
    qf_fixture f = qf_open(0);
    qnn_model *q = NULL;
    qnn_param_info p;
    float old;

    ck_assert_int_eq(qnn_quantize_static(&q, f.ctx, f.fused, f.st, NULL),
                     QNN_ERR_STATE); /* no image yet */
    TU_OK(f.ctx, qnn_stats_observe(f.st, f.ctx, f.x, QF_BATCH));
    ck_assert_int_eq(qnn_stats_observe(f.st, f.ctx, f.x, QF_BATCH + 1), QNN_ERR_ARG);
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
    qf_close(&f);
}
END_TEST

Suite *quant_suite(void)
{
    Suite *const s = suite_create("quant");
    TCase *const formulas = tcase_create("formulas"), *const passes = tcase_create("passes");

    tcase_add_loop_test(formulas, u8_ranges_hold_zero, 0,
                        (int)(sizeof range_cases / sizeof *range_cases));
    tcase_add_test(formulas, zero_and_the_far_end_are_exact);
    tcase_add_test(formulas, one_value_has_the_same_code_as_arrays);
    tcase_add_test(formulas, degenerate_scales_stay_usable);
    tcase_add_test(formulas, rounding_is_to_even_and_ends_clamp);
    tcase_add_test(formulas, healthy_error_is_a_step_over_root_twelve);
    tcase_add_test(formulas, per_channel_keeps_a_small_channel);
    tcase_add_test(formulas, empty_channels_give_codes_of_zero);
    tcase_add_test(formulas, four_bit_codes_pack_high_nibble_first);
    tcase_add_test(formulas, fake_weights_are_scale_times_code);
    tcase_add_test(formulas, four_bit_groups);
    tcase_add_test(formulas, four_bit_codes_come_back);
    tcase_set_timeout(passes, 60);
    tcase_add_test(passes, fusing_changes_no_bit);
    tcase_add_loop_test(passes, fused_clips_keep_both_ends, 0, 4);
    tcase_add_test(passes, ranges_do_not_depend_on_batches);
    tcase_add_test(passes, values_that_are_not_finite_are_counted);
    tcase_add_test(passes, moving_average_of_ranges);
    tcase_add_loop_test(passes, static_int8_is_close_to_float, 0, QF_NETWORKS * N_STATIC_CASES);
    tcase_add_test(passes, weight_only_passes_are_close_to_float);
    tcase_add_test(passes, sums_that_could_leave_int32_raise_the_scale);
    tcase_add_test(passes, mistakes_are_named);
    suite_add_tcase(s, formulas);
    suite_add_tcase(s, passes);
    return s;
}
