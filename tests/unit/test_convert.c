/*
 * What the passes of quantisation decide: which nodes run in codes, which stay float and why, and
 * that calibration, conversion and training decide alike.
 */
#include "suites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <qnn.h>

#include "quant_fixture.h"
#include "tests/common/testutil.h"

enum { SIDE = 8, ITEM = SIDE * SIDE * 3, BATCH = 8 };

static qnn_node conv(qnn_model *m, qnn_node x, const char *name)
{
    return qnn_conv2d(m, x, name, &(qnn_conv2d_opts){.filters = 4, .kernel = 3, .pad = 1});
}

static qnn_model *image_model(qnn_ctx *ctx, qnn_node *x)
{
    qnn_model *m;

    TU_OK(ctx, qnn_model_create(&m, ctx));
    *x = qnn_input(m, "image", SIDE, SIDE, 3);
    return m;
}

/* One linear "fc" whose output is y. */
static qnn_model *linear_model(qnn_ctx *ctx, int64_t features, int64_t units)
{
    qnn_model *m;

    TU_OK(ctx, qnn_model_create(&m, ctx));
    qnn_output(m, "y", qnn_linear(m, qnn_input_features(m, "x", features), "fc", units));
    TU_OK(ctx, qnn_model_check(m));
    return m;
}

/* m to int8 by the ranges of n items x. */
static qnn_model *quantize(qnn_ctx *ctx, const qnn_model *m, const float *x, int n,
                           const qnn_quant_opts *opts)
{
    qnn_stats *st;
    qnn_model *q;

    TU_OK(ctx, qnn_stats_create(&st, ctx, m, NULL));
    TU_OK(ctx, qnn_stats_observe(st, ctx, x, n));
    TU_OK(ctx, qnn_quantize_static(&q, ctx, m, st, opts));
    qnn_stats_free(st);
    return q;
}

static qnn_model *quantize_images(qnn_ctx *ctx, const qnn_model *m, const qnn_quant_opts *opts)
{
    float x[BATCH * ITEM];

    tu_fill_uniform(x, BATCH * ITEM, -1.0f, 1.0f, 3);
    return quantize(ctx, m, x, BATCH, opts);
}

static qnn_node_info info(qnn_ctx *ctx, const qnn_model *m, const char *name)
{
    qnn_node_info n;

    ck_assert_msg(qnn_model_find(m, name) != QNN_NODE_NONE, "the model has no \"%s\"", name);
    TU_OK(ctx, qnn_model_node_info(m, qnn_model_find(m, name), &n));
    return n;
}

static void *param(qnn_ctx *ctx, const qnn_model *m, const char *name)
{
    qnn_param_info p;

    ck_assert_msg(qnn_model_find_param(m, name) >= 0, "the model has no \"%s\"", name);
    TU_OK(ctx, qnn_model_param(m, qnn_model_find_param(m, name), &p));
    return p.data;
}

static void check_note(qnn_ctx *ctx, const qnn_model *m, const char *name, const char *part)
{
    const qnn_node_info n = info(ctx, m, name);

    ck_assert_msg(n.dtype == QNN_DTYPE_F32 && strstr(n.note, part) != NULL,
                  "\"%s\" is %s, its note is \"%s\", expected f32 and \"%s\"", name,
                  qnn_dtype_name(n.dtype), n.note, part);
}

static void check_refused(const qnn_ctx *ctx, qnn_status got, qnn_status want, const char *part)
{
    ck_assert_int_eq(got, want);
    ck_assert_msg(strstr(qnn_ctx_error(ctx), part) != NULL, "\"%s\" does not say \"%s\"",
                  qnn_ctx_error(ctx), part);
}

/* ---- fusion ---------------------------------------------------------------------------------- */

/* Clips meet, a dropout between does not part them, and what is read elsewhere stays. */
START_TEST(fusion_takes_in_what_only_it_feeds)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_node x, both[2];
    qnn_model *const m = image_model(ctx, &x);
    qnn_model *fused;
    float y[2][SIDE * SIDE * 4 + 4], images[ITEM];
    const qnn_model *models[2] = {m, NULL};

    x = qnn_dropout(m, qnn_relu(m, conv(m, x, "c1"), "r1"), "d1", 0.5f);
    x = qnn_clip(m, x, "narrow", -0.5f, 0.25f);
    x = qnn_clip(m, x, "apart", 0.5f, 1.0f); /* disjoint: a constant, left alone */
    both[0] = conv(m, x, "c2");              /* read twice */
    both[1] = qnn_relu(m, both[0], "r2");
    x = conv(m, qnn_add(m, both[0], both[1], "sum"), "c3");
    qnn_output(m, "mid", x); /* an output */
    x = qnn_flatten(m, qnn_global_avgpool(m, qnn_relu(m, x, "r3"), "mean"), "flat");
    qnn_output(m, "y", x);
    TU_OK(ctx, qnn_model_check(m));
    TU_OK(ctx, qnn_fuse(&fused, ctx, m));
    models[1] = fused;
    ck_assert_int_eq(qnn_model_find(fused, "r1"), QNN_NODE_NONE);
    ck_assert_int_eq(qnn_model_find(fused, "d1"), QNN_NODE_NONE);
    ck_assert_int_eq(qnn_model_find(fused, "narrow"), QNN_NODE_NONE);
    ck_assert_int_ne(qnn_model_find(fused, "apart"), QNN_NODE_NONE);
    ck_assert_int_ne(qnn_model_find(fused, "r2"), QNN_NODE_NONE);
    ck_assert_int_ne(qnn_model_find(fused, "r3"), QNN_NODE_NONE);
    tu_fill_uniform(images, ITEM, -1.0f, 1.0f, 4);
    for (int i = 0; i < 2; i++) {
        const float *const src = images;
        float *const dst[2] = {y[i], y[i] + SIDE * SIDE * 4};
        qnn_program *p;
        void *ws;

        TU_OK(ctx, qnn_program_compile(&p, ctx, models[i], NULL));
        ws = tu_alloc_aligned(qnn_program_workspace(p));
        TU_OK(ctx, qnn_run_in(p, ctx, &src, 1, dst, ws, qnn_program_workspace(p)));
        free(ws);
        qnn_program_free(p);
    }
    ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
    qnn_model_free(fused);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- what runs in codes ---------------------------------------------------------------------- */

START_TEST(skipped_nodes_stay_float)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_node x;
    qnn_model *const m = image_model(ctx, &x);
    qnn_model *q;

    x = qnn_flatten(m, qnn_maxpool2d(m, conv(m, x, "c1"), "pool", 2, 2), "flat");
    qnn_output(m, "y", qnn_linear(m, x, "fc", 3));
    TU_OK(ctx, qnn_model_check(m));

    q = quantize_images(ctx, m, &(qnn_quant_opts){.skip = "pool"}); /* keeps codes otherwise */
    check_note(ctx, q, "pool", "skip");
    ck_assert_int_eq(info(ctx, q, "c1").dtype, QNN_DTYPE_U8);
    ck_assert_float_eq(info(ctx, q, "c1").scale, info(ctx, q, "flat.quant").scale);
    ck_assert_int_eq(info(ctx, q, "fc").weight_dtype, QNN_DTYPE_I8);
    qnn_model_free(q);

    /* Nobody reads codes of c1: it gives float straight from its sums. */
    q = quantize_images(ctx, m, &(qnn_quant_opts){.skip = "fc"});
    check_note(ctx, q, "fc", "skip");
    ck_assert_int_eq(info(ctx, q, "c1").dtype, QNN_DTYPE_F32);
    ck_assert_int_eq(info(ctx, q, "c1").weight_dtype, QNN_DTYPE_I8);
    ck_assert_int_eq(qnn_model_n_nodes(q), qnn_model_n_nodes(m) + 1); /* only image.quant */
    qnn_model_free(q);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(a_last_pool_has_codes_only_when_outputs_do)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_node x;
    qnn_model *const m = image_model(ctx, &x);
    qnn_model *q;

    qnn_output(m, "y", qnn_flatten(m, qnn_global_avgpool(m, conv(m, x, "c1"), "mean"), "flat"));
    TU_OK(ctx, qnn_model_check(m));
    q = quantize_images(ctx, m, NULL);
    check_note(ctx, q, "mean", "nothing that reads it");
    ck_assert_int_eq(info(ctx, q, "c1").dtype, QNN_DTYPE_F32);
    qnn_model_free(q);
    q = quantize_images(ctx, m, &(qnn_quant_opts){.quantize_output = 1});
    ck_assert_int_eq(info(ctx, q, "c1").dtype, QNN_DTYPE_U8);
    ck_assert_int_eq(info(ctx, q, "mean").dtype, QNN_DTYPE_U8);
    ck_assert_str_eq(info(ctx, q, "flat.dequant").op, "dequantize");
    qnn_model_free(q);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

/* Sums of more than 65,536 products stay float, with the reason, in every pass. */
START_TEST(long_sums_stay_float)
{
    enum { LONG = 65537 };
    qnn_ctx *const ctx = tu_ctx(1);
    float *const x = tu_alloc(LONG * sizeof *x);

    tu_fill_uniform(x, LONG, -1.0f, 1.0f, 3);
    for (int extra = 0; extra < 2; extra++) {
        qnn_model *const m = linear_model(ctx, LONG - 1 + extra, 1);
        qnn_model *const q = quantize(ctx, m, x, 1, NULL);
        qnn_model *d;
        qnn_program *p;

        TU_OK(ctx, qnn_quantize_dynamic(&d, ctx, m, NULL));
        ck_assert_int_eq(info(ctx, q, "fc").weight_dtype, extra ? QNN_DTYPE_F32 : QNN_DTYPE_I8);
        ck_assert_int_eq(info(ctx, d, "fc").weight_dtype, extra ? QNN_DTYPE_F32 : QNN_DTYPE_I8);
        if (extra) {
            check_note(ctx, q, "fc", "too long");
            check_note(ctx, d, "fc", "too long");
        }
        TU_OK(ctx, qnn_program_compile(&p, ctx, d, NULL));
        qnn_program_free(p);
        qnn_model_free(d);
        qnn_model_free(q);
        qnn_model_free(m);
    }
    free(x);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- biases ---------------------------------------------------------------------------------- */

START_TEST(raised_channels_are_counted)
{
    static const float x[4] = {-1, 1, 0.5f, 0.25f};
    static const float biases[4] = {1e9f, -1e9f, 0, 1e9f};

    for (int per_tensor = 0; per_tensor < 2; per_tensor++) {
        qnn_ctx *const ctx = tu_ctx(1);
        qnn_model *const m = linear_model(ctx, 4, 4);
        qnn_model *q;
        qnn_program *p;
        float y[4];

        memcpy(param(ctx, m, "fc.bias"), biases, sizeof biases);
        q = quantize(ctx, m, x, 1, &(qnn_quant_opts){.per_tensor = per_tensor});
        ck_assert_str_eq(qnn_model_meta(q, "quant.raised"), per_tensor ? "4" : "3");
        ck_assert_ptr_nonnull(strstr(info(ctx, q, "fc").note, per_tensor ? "4 channels" : "3 ch"));
        TU_OK(ctx, qnn_program_compile(&p, ctx, q, NULL));
        TU_OK(ctx, qnn_run(p, ctx, x, 1, y));
        for (int i = 0; i < 4; i++)
            ck_assert_float_eq_tol(y[i], biases[i], biases[i] != 0.0f ? 1e3f : 2.0f);
        qnn_program_free(p);
        qnn_model_free(q);
        qnn_model_free(m);
        qnn_ctx_free(ctx);
    }
}
END_TEST

/* A bias that no finite weight scale can hold: the layer stays float; just below, it does not. */
START_TEST(no_scale_becomes_infinite)
{
    static const float x[2] = {1e-38f, 0.0f}, biases[2] = {3e38f, 5e8f};

    for (int i = 0; i < 2; i++) {
        qnn_ctx *const ctx = tu_ctx(1);
        qnn_model *const m = linear_model(ctx, 2, 1);
        qnn_model *q;
        qnn_program *p;
        float y;

        *(float *)param(ctx, m, "fc.bias") = biases[i];
        q = quantize(ctx, m, x, 1, NULL);
        if (i == 0)
            check_note(ctx, q, "fc", "bias");
        else
            ck_assert_int_eq(info(ctx, q, "fc").weight_dtype, QNN_DTYPE_I8);
        for (int k = 0; k < qnn_model_n_params(q); k++) {
            qnn_param_info w;

            TU_OK(ctx, qnn_model_param(q, k, &w));
            for (size_t c = 0; c < w.n_scales; c++)
                ck_assert_msg(w.scales[c] > 0.0f && isfinite(w.scales[c]), "%s: scale %g", w.name,
                              (double)w.scales[c]);
        }
        TU_OK(ctx, qnn_program_compile(&p, ctx, q, NULL));
        TU_OK(ctx, qnn_run(p, ctx, x, 1, &y));
        ck_assert_float_eq_tol(y, biases[i], biases[i] * 1e-6f);
        qnn_program_free(p);
        qnn_model_free(q);
        qnn_model_free(m);
        qnn_ctx_free(ctx);
    }
}
END_TEST

/* ---- training and calibration decide alike --------------------------------------------------- */

static const qnn_quant_opts cases[] = {
    {0},
    {.per_tensor = 1},
    {.quantize_output = 1},
    {.skip = "conv2"},
    {.skip = "fc1, conv3", .quantize_output = 1},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* fake's observers get what st saw; how many there are. */
static int copy_ranges(qnn_ctx *ctx, const qnn_model *fake, const qnn_model *fused,
                       const qnn_stats *st)
{
    int n = 0;

    for (int i = 0; i < qnn_model_n_nodes(fake); i++) {
        char name[160];
        qnn_node_info fq;
        float *range;

        TU_OK(ctx, qnn_model_node_info(fake, i, &fq));
        if (strcmp(fq.op, "fake_quant") != 0)
            continue;
        snprintf(name, sizeof name, "%s.range", fq.name);
        range = param(ctx, fake, name);
        TU_OK(ctx, qnn_model_node_info(fake, fq.inputs[0], &fq));
        TU_OK(ctx,
              qnn_stats_range(st, ctx, qnn_model_find(fused, fq.name), &range[0], &range[1], NULL));
        range[2] = 1.0f; /* batches seen */
        n++;
    }
    return n;
}

static void check_same(qnn_ctx *ctx, const qnn_model *a, const qnn_model *b)
{
    ck_assert_int_eq(qnn_model_n_nodes(a), qnn_model_n_nodes(b));
    ck_assert_int_eq(qnn_model_n_params(a), qnn_model_n_params(b));
    for (int i = 0; i < qnn_model_n_nodes(a); i++) {
        qnn_node_info n[2];

        TU_OK(ctx, qnn_model_node_info(a, i, &n[0]));
        TU_OK(ctx, qnn_model_node_info(b, i, &n[1]));
        ck_assert_msg(strcmp(n[0].name, n[1].name) == 0 && n[0].dtype == n[1].dtype &&
                          n[0].scale == n[1].scale && n[0].zero_point == n[1].zero_point &&
                          strcmp(n[0].note, n[1].note) == 0,
                      "\"%s\" %s %g %d \"%s\", but \"%s\" %s %g %d \"%s\"", n[0].name,
                      qnn_dtype_name(n[0].dtype), (double)n[0].scale, (int)n[0].zero_point,
                      n[0].note, n[1].name, qnn_dtype_name(n[1].dtype), (double)n[1].scale,
                      (int)n[1].zero_point, n[1].note);
    }
    for (int i = 0; i < qnn_model_n_params(a); i++) {
        qnn_param_info p[2];

        TU_OK(ctx, qnn_model_param(a, i, &p[0]));
        TU_OK(ctx, qnn_model_param(b, i, &p[1]));
        ck_assert_str_eq(p[0].name, p[1].name);
        ck_assert_uint_eq(p[0].bytes, p[1].bytes);
        ck_assert_mem_eq(p[0].data, p[1].data, p[0].bytes);
        ck_assert_uint_eq(p[0].n_scales, p[1].n_scales);
        for (size_t k = 0; k < p[0].n_scales; k++)
            ck_assert_float_eq(p[0].scales[k], p[1].scales[k]);
    }
}

static int count_ops(qnn_ctx *ctx, const qnn_model *m, const char *op)
{
    int n = 0;

    for (int i = 0; i < qnn_model_n_nodes(m); i++) {
        qnn_node_info node;

        TU_OK(ctx, qnn_model_node_info(m, i, &node));
        n += strcmp(node.op, op) == 0;
    }
    return n;
}

/* The same ranges give the same int8 model by calibration and by training. _i: network, options. */
START_TEST(both_ways_to_int8_give_the_same_model)
{
    const qnn_quant_opts *const opts = &cases[_i % N_CASES];
    qf_fixture f = qf_open(_i / N_CASES);
    qnn_model *fake, *by_training, *by_calibration;
    qnn_quant_opts o = *opts;

    if (_i / N_CASES == 1 && o.skip != NULL) /* its names differ */
        o.skip = "conv3, mean";
    TU_OK(f.ctx, qnn_stats_observe(f.st, f.ctx, f.x, QF_BATCH));
    TU_OK(f.ctx, qnn_quantize_static(&by_calibration, f.ctx, f.fused, f.st, &o));
    TU_OK(f.ctx, qnn_qat_prepare(&fake, f.ctx, f.m, &o));
    ck_assert_int_gt(copy_ranges(f.ctx, fake, f.fused, f.st), 0);
    TU_OK(f.ctx, qnn_qat_convert(&by_training, f.ctx, fake, &o));
    check_same(f.ctx, by_calibration, by_training);
    qf_check_coverage(f.ctx, by_calibration);
    qnn_model_free(by_training);
    qnn_model_free(fake);
    qnn_model_free(by_calibration);
    qf_close(&f);
}
END_TEST

/* What training saw of an output is what the int8 model gives: codes where codes are read too. */
START_TEST(outputs_in_training_are_those_of_int8)
{
    for (int quantize_output = 0; quantize_output < 2; quantize_output++) {
        const qnn_quant_opts opts = {.quantize_output = quantize_output};
        qnn_ctx *const ctx = tu_ctx(1);
        qnn_node x, last;
        qnn_model *const m = image_model(ctx, &x);
        qnn_model *fake, *q;
        qnn_node_info n;

        x = conv(m, x, "c1");
        qnn_output(m, "mid", x); /* read by c2 as well */
        x = conv(m, x, "c2");
        qnn_output(m, "end", x); /* read by a softmax as well */
        qnn_output(m, "odds", qnn_softmax(m, x, "odds"));
        TU_OK(ctx, qnn_model_check(m));
        q = quantize_images(ctx, m, &opts);
        TU_OK(ctx, qnn_qat_prepare(&fake, ctx, m, &opts));
        for (int k = 0; k < 3; k++) {
            last = qnn_model_output(fake, k);
            TU_OK(ctx, qnn_model_node_info(fake, last, &n));
            const int is_fake = strcmp(n.op, "fake_quant") == 0;

            TU_OK(ctx, qnn_model_node_info(q, qnn_model_output(q, k), &n));
            ck_assert_msg(is_fake == (strcmp(n.op, "dequantize") == 0),
                          "output %d, quantize_output %d: %s in training, %s in int8", k,
                          quantize_output, is_fake ? "codes" : "float", n.op);
            ck_assert_int_eq(is_fake, k == 0 || (k == 1 && quantize_output));
        }
        ck_assert_int_eq(count_ops(ctx, fake, "fake_quant"), 2 + quantize_output);
        qnn_model_free(fake);
        qnn_model_free(q);
        qnn_model_free(m);
        qnn_ctx_free(ctx);
    }
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(a_quantised_model_is_refused)
{
    static const float x[4] = {-1, 1, 0.5f, 0.25f};
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *const m = linear_model(ctx, 4, 2), *const q = quantize(ctx, m, x, 1, NULL);
    qnn_model *again = NULL;
    qnn_stats *st = NULL;

    check_refused(ctx, qnn_stats_create(&st, ctx, q, NULL), QNN_ERR_UNSUPPORTED, "x.quant");
    check_refused(ctx, qnn_qat_prepare(&again, ctx, q, NULL), QNN_ERR_UNSUPPORTED, "x.quant");
    ck_assert_ptr_null(st);
    ck_assert_ptr_null(again);
    qnn_model_free(q);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(numbers_that_are_not_finite_are_refused)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_node x;
    qnn_model *const m = image_model(ctx, &x);
    qnn_model *fake, *q = NULL;
    float *range;

    x = qnn_batchnorm2d(m, conv(m, x, "c1"), "bn", NULL);
    qnn_output(m, "y", conv(m, x, "c2"));
    TU_OK(ctx, qnn_model_check(m));
    TU_OK(ctx, qnn_qat_prepare(&fake, ctx, m, NULL));
    range = param(ctx, fake, "image.fq.range");
    range[0] = -INFINITY;
    range[1] = 1.0f;
    range[2] = 1.0f;
    check_refused(ctx, qnn_qat_convert(&q, ctx, fake, NULL), QNN_ERR_ARG, "image.fq");
    ck_assert_ptr_null(q);
    ((float *)param(ctx, m, "bn.running_var"))[2] = NAN;
    check_refused(ctx, qnn_quantize_int4_sim(&q, ctx, m), QNN_ERR_ARG, "bn.running_var");
    ck_assert_ptr_null(q);
    qnn_model_free(fake);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

/* The last value that rounds to a finite one, and the first that does not. */
START_TEST(half_types_end_where_they_round_to_infinity)
{
    static const struct {
        qnn_dtype dtype;
        float last, first;
        uint16_t largest;
    } ends[] = {{QNN_DTYPE_F16, 0x1.ffdffep15f, 65520.0f, 0x7bff},
                {QNN_DTYPE_BF16, 0x1.fefffep127f, 0x1.ffp127f, 0x7f7f}};

    for (int i = 0; i < 4; i++) {
        const float sign = i / 2 ? -1.0f : 1.0f;
        qnn_ctx *const ctx = tu_ctx(1);
        qnn_model *const m = linear_model(ctx, 2, 1);
        float *const w = param(ctx, m, "fc.weight");
        qnn_model *half = NULL;

        w[1] = sign * ends[i % 2].last;
        TU_OK(ctx, qnn_lower_half(&half, ctx, m, ends[i % 2].dtype));
        ck_assert_uint_eq(((const uint16_t *)param(ctx, half, "fc.weight"))[1] & 0x7fff,
                          ends[i % 2].largest);
        qnn_model_free(half);
        w[1] = sign * ends[i % 2].first;
        check_refused(ctx, qnn_lower_half(&half, ctx, m, ends[i % 2].dtype), QNN_ERR_ARG,
                      "fc.weight");
        ck_assert_ptr_null(half);
        qnn_model_free(m);
        qnn_ctx_free(ctx);
    }
}
END_TEST

START_TEST(passes_say_what_they_did)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *const m = linear_model(ctx, 4, 2);
    qnn_model *q[3];

    TU_OK(ctx, qnn_quantize_dynamic(&q[0], ctx, m, NULL));
    TU_OK(ctx, qnn_quantize_dynamic(&q[1], ctx, m, &(qnn_quant_opts){.per_tensor = 1}));
    TU_OK(ctx, qnn_quantize_int4_sim(&q[2], ctx, m));
    for (int i = 0; i < 3; i++) {
        ck_assert_str_eq(qnn_model_meta(q[i], "quant.method"), i < 2 ? "dynamic" : "int4-sim");
        ck_assert_str_eq(qnn_model_meta(q[i], "quant.weights"),
                         i == 0 ? "per-channel" : "per-tensor");
        qnn_model_free(q[i]);
    }
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

Suite *convert_suite(void)
{
    Suite *const s = suite_create("convert");
    TCase *const decisions = tcase_create("decisions"), *const refusals = tcase_create("refusals");

    tcase_set_timeout(decisions, 60);
    tcase_add_test(decisions, fusion_takes_in_what_only_it_feeds);
    tcase_add_test(decisions, skipped_nodes_stay_float);
    tcase_add_test(decisions, a_last_pool_has_codes_only_when_outputs_do);
    tcase_add_test(decisions, long_sums_stay_float);
    tcase_add_test(decisions, raised_channels_are_counted);
    tcase_add_test(decisions, no_scale_becomes_infinite);
    tcase_add_loop_test(decisions, both_ways_to_int8_give_the_same_model, 0, QF_NETWORKS * N_CASES);
    tcase_add_test(decisions, outputs_in_training_are_those_of_int8);
    tcase_add_test(decisions, passes_say_what_they_did);
    tcase_add_test(refusals, a_quantised_model_is_refused);
    tcase_add_test(refusals, numbers_that_are_not_finite_are_refused);
    tcase_add_test(refusals, half_types_end_where_they_round_to_infinity);
    suite_add_tcase(s, decisions);
    suite_add_tcase(s, refusals);
    return s;
}
