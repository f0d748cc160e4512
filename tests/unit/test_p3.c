/*
 * Promise P3: an int8 program gives the same output bits on every instruction set, thread count and
 * batch size. P6: any number of threads run one program at once.
 */
#define _POSIX_C_SOURCE 200809L
#include "suites.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <qnn.h>

#include "tests/common/testutil.h"

#define SIZE      32
#define N_IMAGES  64
#define N_CLASSES 10
#define ITEM      (SIZE * SIZE * 3)

static qnn_node study_network(qnn_model *m, qnn_node x)
{
    static const char *const names[3][3] = {
        {"conv1", "relu1", "pool1"}, {"conv2", "relu2", "pool2"}, {"conv3", "relu3", "pool3"}};

    for (int i = 0; i < 3; i++) {
        x = qnn_conv2d(m, x, names[i][0],
                       &(qnn_conv2d_opts){.filters = 32 << i, .kernel = 3, .pad = 1});
        x = qnn_maxpool2d(m, qnn_relu(m, x, names[i][1]), names[i][2], 2, 2);
    }
    x = qnn_relu(m, qnn_linear(m, qnn_flatten(m, x, "flat"), "fc1", 64), "relu4");
    return qnn_linear(m, x, "fc2", N_CLASSES);
}

/* Everything that has an int8 form: branches, depthwise, stride, dilation, odd padding, both
 * average pools. */
static qnn_node mixed_network(qnn_model *m, qnn_node x)
{
    qnn_node a, b, both[2];

    x = qnn_relu6(m,
                  qnn_conv2d(m, x, "stem",
                             &(qnn_conv2d_opts){
                                 .filters = 13, .kernel = 3, .stride = 2, .pads = {0, 1, 1, 0}}),
                  "relu_stem");
    a = qnn_relu(m,
                 qnn_conv2d(m, x, "depthwise",
                            &(qnn_conv2d_opts){.filters = 13, .kernel = 3, .groups = 13, .pad = 1}),
                 "relu_a");
    b = qnn_conv2d(m, x, "dilated",
                   &(qnn_conv2d_opts){.filters = 13, .kernel = 3, .dilation = 2, .pad = 2});
    x = qnn_relu(m, qnn_add(m, a, b, "sum"), "relu_sum");
    both[0] = qnn_maxpool2d(m, x, "max", 2, 2);
    both[1] = qnn_avgpool2d_ex(m, x, "avg", &(qnn_pool2d_opts){.kernel = 2});
    x = qnn_concat(m, both, 2, "cat");
    x = qnn_relu(
        m, qnn_conv2d(m, x, "grouped", &(qnn_conv2d_opts){.filters = 20, .kernel = 1, .groups = 2}),
        "relu_g");
    x = qnn_flatten(m, qnn_global_avgpool(m, x, "mean"), "flat");
    return qnn_linear(m, x, "fc", N_CLASSES);
}

static qnn_node (*const networks[])(qnn_model *m, qnn_node x) = {study_network, mixed_network};

static float *images(void)
{
    float *const x = tu_alloc((size_t)N_IMAGES * ITEM * sizeof *x);

    tu_fill_uniform(x, (size_t)N_IMAGES * ITEM, -2.0f, 2.0f, 77);
    return x;
}

/* The int8 model, made on one thread with the reference kernels so that it is the same whatever is
 * tested. */
static qnn_model *int8_model(qnn_ctx *ctx, int network, const float *x)
{
    qnn_model *m, *fused, *int8;
    qnn_stats *st;

    TU_OK(ctx, qnn_model_create(&m, ctx));
    qnn_output(m, "scores", networks[network](m, qnn_input(m, "image", SIZE, SIZE, 3)));
    TU_OK(ctx, qnn_model_check(m));
    TU_OK(ctx, qnn_fuse(&fused, ctx, m));
    TU_OK(ctx, qnn_stats_create(&st, ctx, fused, NULL));
    TU_OK(ctx, qnn_stats_observe(st, ctx, x, 32));
    TU_OK(ctx, qnn_quantize_static(&int8, ctx, fused, st, NULL));
    for (int i = 0; i < qnn_model_n_nodes(int8); i++) {
        qnn_node_info info;

        TU_OK(ctx, qnn_model_node_info(int8, i, &info));
        ck_assert_msg(strcmp(info.op, "input") == 0 || info.note[0] == '\0',
                      "%s was not quantised: %s", info.name, info.note);
    }
    qnn_stats_free(st);
    qnn_model_free(fused);
    qnn_model_free(m);
    return int8;
}

/* All images through a program in batches of `batch`. */
static void run_all(qnn_ctx *ctx, const qnn_model *m, const float *x, int batch, float *scores)
{
    qnn_program *p;

    TU_OK(ctx, qnn_program_compile(&p, ctx, m, &(qnn_program_opts){.max_batch = batch}));
    for (int i = 0; i < N_IMAGES; i += batch) {
        const int n = N_IMAGES - i < batch ? N_IMAGES - i : batch;

        TU_OK(ctx, qnn_run(p, ctx, x + (size_t)i * ITEM, n, scores + i * N_CLASSES));
    }
    qnn_program_free(p);
}

START_TEST(int8_bits_are_the_same_everywhere)
{
    static const int threads[] = {1, 2, 5}, batches[] = {1, 3, 64};
    static float want[N_IMAGES * N_CLASSES], got[N_IMAGES * N_CLASSES];
    qnn_ctx *const ref = tu_ctx_isa(1, "ref");
    float *const x = images();
    qnn_model *const m = int8_model(ref, _i, x);
    int n_checked = 0;

    run_all(ref, m, x, 64, want);
    for (int isa = 0; qnn_isa_name(isa) != NULL; isa++)
        for (int t = 0; qnn_isa_supported(isa) && t < 3; t++) {
            qnn_ctx *const ctx = tu_ctx_isa(threads[t], qnn_isa_name(isa));

            for (int b = 0; b < 3; b++) {
                memset(got, 0x7f, sizeof got);
                run_all(ctx, m, x, batches[b], got);
                ck_assert_msg(
                    memcmp(want, got, sizeof want) == 0,
                    "network %d: %s, %d threads, batch %d differs from ref, 1 thread, batch 64", _i,
                    qnn_isa_name(isa), threads[t], batches[b]);
                n_checked++;
            }
            qnn_ctx_free(ctx);
        }
    ck_assert_int_ge(n_checked, 9);
    qnn_model_free(m);
    free(x);
    qnn_ctx_free(ref);
}
END_TEST

START_TEST(float_bits_do_not_depend_on_threads)
{
    static float want[N_IMAGES * N_CLASSES], got[N_IMAGES * N_CLASSES];
    float *const x = images();

    for (int threads = 1; threads <= 5; threads += 2) {
        qnn_ctx *const ctx = tu_ctx(threads);
        qnn_model *m;

        TU_OK(ctx, qnn_model_create(&m, ctx));
        qnn_output(m, "scores", networks[_i](m, qnn_input(m, "image", SIZE, SIZE, 3)));
        run_all(ctx, m, x, 64, threads == 1 ? want : got);
        if (threads > 1)
            ck_assert_msg(memcmp(want, got, sizeof want) == 0,
                          "network %d: %d threads differ from one", _i, threads);
        qnn_model_free(m);
        qnn_ctx_free(ctx);
    }
    free(x);
}
END_TEST

/* ---- P6
 * ------------------------------------------------------------------------------------------------------------------------------
 */

typedef struct runner {
    const qnn_program *p;
    const float *x;
    float scores[N_IMAGES * N_CLASSES];
    int n_failed;
} runner;

static void *run_program(void *arg)
{
    runner *const r = arg;
    qnn_ctx *const ctx = tu_ctx(2);
    void *const ws = tu_alloc_aligned(qnn_program_workspace(r->p));

    for (int i = 0; i < N_IMAGES; i += 16) {
        const float *const src = r->x + (size_t)i * ITEM;
        float *const dst = r->scores + i * N_CLASSES;

        r->n_failed +=
            qnn_run_in(r->p, ctx, &src, 16, &dst, ws, qnn_program_workspace(r->p)) != QNN_OK;
    }
    free(ws);
    qnn_ctx_free(ctx);
    return NULL;
}

START_TEST(eight_threads_run_one_program)
{
    qnn_ctx *const ctx = tu_ctx(1);
    float *const x = images();
    qnn_model *const m = int8_model(ctx, 1, x);
    static float want[N_IMAGES * N_CLASSES];
    static runner runners[8];
    pthread_t threads[8];
    qnn_program *p;

    run_all(ctx, m, x, 16, want);
    TU_OK(ctx, qnn_program_compile(&p, ctx, m, &(qnn_program_opts){.max_batch = 16}));
    for (int i = 0; i < 8; i++) {
        runners[i] = (runner){.p = p, .x = x};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_program, &runners[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_int_eq(runners[i].n_failed, 0);
        ck_assert_msg(memcmp(want, runners[i].scores, sizeof want) == 0, "thread %d has other bits",
                      i);
    }
    qnn_program_free(p);
    qnn_model_free(m);
    free(x);
    qnn_ctx_free(ctx);
}
END_TEST

Suite *p3_suite(void)
{
    Suite *const s = suite_create("p3");
    TCase *const bits = tcase_create("bits"), *const sharing = tcase_create("sharing");

    tcase_set_timeout(bits, 120);
    tcase_set_timeout(sharing, 120);
    tcase_add_loop_test(bits, int8_bits_are_the_same_everywhere, 0, 2);
    tcase_add_loop_test(bits, float_bits_do_not_depend_on_threads, 0, 2);
    tcase_add_test(sharing, eight_threads_run_one_program);
    suite_add_tcase(s, bits);
    suite_add_tcase(s, sharing);
    return s;
}
