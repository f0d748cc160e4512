/* The ground: contexts, threads, random numbers, allocation; the model builder's errors; programs,
 * their workspace and memory plan. */
#define _POSIX_C_SOURCE 200809L
#include "suites.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <qnn.h>

#include "lib/exec.h"
#include "tests/common/testutil.h"

/* ---- counting allocator
 * ---------------------------------------------------------------------------------------------------
 */

typedef struct counter {
    atomic_long calls, live_bytes;
} counter;

static void *count_alloc(void *user, size_t bytes, size_t align)
{
    counter *const c = user;
    void *p;

    atomic_fetch_add(&c->calls, 1);
    if (posix_memalign(&p, align, bytes) != 0)
        return NULL;
    atomic_fetch_add(&c->live_bytes, (long)bytes);
    return p;
}

static void count_release(void *user, void *ptr, size_t bytes)
{
    counter *const c = user;

    atomic_fetch_sub(&c->live_bytes, (long)bytes);
    free(ptr);
}

static qnn_ctx *counted_ctx(counter *c)
{
    qnn_ctx *ctx;

    ck_assert_int_eq(
        qnn_ctx_create(&ctx, &(qnn_ctx_opts){.n_threads = 2,
                                             .isa = getenv("QNN_ISA"),
                                             .allocator = {count_alloc, count_release, c}}),
        QNN_OK);
    return ctx;
}

/* ---- context
 * ----------------------------------------------------------------------------------------------------------------
 */

START_TEST(ctx_refuses_bad_options)
{
    qnn_ctx *ctx = (qnn_ctx *)(uintptr_t)1;

    ck_assert_int_eq(qnn_ctx_create(NULL, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_ctx_create(&ctx, &(qnn_ctx_opts){.isa = "avx9000"}), QNN_ERR_ARG);
    ck_assert_ptr_null(ctx);
    ck_assert_int_eq(qnn_ctx_create(&ctx, &(qnn_ctx_opts){.n_threads = -1}), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_ctx_create(&ctx, &(qnn_ctx_opts){.n_threads = 257}), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_ctx_create(&ctx, &(qnn_ctx_opts){.allocator = {count_alloc, NULL, NULL}}),
                     QNN_ERR_ARG);
}
END_TEST

START_TEST(ctx_runs_every_supported_isa_by_name)
{
    int n_supported = 0;

    ck_assert_str_eq(qnn_isa_name(0), "ref");
    ck_assert_ptr_null(qnn_isa_name(-1));
    ck_assert_ptr_null(qnn_isa_name(100));
    for (int i = 0; qnn_isa_name(i) != NULL; i++) {
        qnn_ctx *ctx;
        const qnn_status status =
            qnn_ctx_create(&ctx, &(qnn_ctx_opts){.isa = qnn_isa_name(i), .n_threads = 1});

        ck_assert_int_eq(status, qnn_isa_supported(i) ? QNN_OK : QNN_ERR_UNSUPPORTED);
        if (status != QNN_OK)
            continue;
        ck_assert_str_eq(qnn_ctx_isa(ctx), qnn_isa_name(i));
        qnn_ctx_free(ctx);
        n_supported++;
    }
    ck_assert_int_ge(n_supported, 1);
}
END_TEST

START_TEST(ctx_gives_back_every_byte)
{
    counter c = {0};
    qnn_ctx *const ctx = counted_ctx(&c);

    ck_assert_int_gt(atomic_load(&c.live_bytes), 0);
    qnn_ctx_free(ctx);
    ck_assert_int_eq(atomic_load(&c.live_bytes), 0);
    qnn_ctx_free(NULL);
}
END_TEST

/* ---- threads
 * ------------------------------------------------------------------------------------------------------------------
 */

typedef struct tally {
    atomic_int count[1000];
    atomic_int bad_thread;
    int n_threads;
} tally;

static void tally_task(void *arg, size_t i, int thread)
{
    tally *const t = arg;

    atomic_fetch_add(&t->count[i], 1);
    if (thread < 0 || thread >= t->n_threads)
        atomic_fetch_add(&t->bad_thread, 1);
}

START_TEST(parallel_runs_each_task_once)
{
    static const int threads[] = {1, 2, 5};

    for (size_t k = 0; k < 3; k++) {
        qnn_ctx *const ctx = tu_ctx(threads[k]);
        tally *const t = calloc(1, sizeof *t);

        t->n_threads = threads[k];
        for (size_t n = 0; n < 1000; n += 37) {
            for (size_t i = 0; i < 1000; i++)
                atomic_store(&t->count[i], 0);
            qnn_ctx__parallel(ctx, n, tally_task, t);
            for (size_t i = 0; i < 1000; i++)
                ck_assert_int_eq(atomic_load(&t->count[i]), i < n);
        }
        ck_assert_int_eq(atomic_load(&t->bad_thread), 0);
        free(t);
        qnn_ctx_free(ctx);
    }
}
END_TEST

/* ---- random numbers
 * --------------------------------------------------------------------------------------------------------------
 */

START_TEST(rng_is_reproducible_and_spread)
{
    qnn_rng a, b;
    double sum = 0, squares = 0;
    int seen[7] = {0};

    qnn_rng__init(&a, 1, 2);
    qnn_rng__init(&b, 1, 2);
    for (int i = 0; i < 100; i++)
        ck_assert_uint_eq(qnn_rng__u64(&a), qnn_rng__u64(&b));
    qnn_rng__init(&b, 2, 1);
    ck_assert_uint_ne(qnn_rng__u64(&a), qnn_rng__u64(&b));
    for (int i = 0; i < 70000; i++)
        seen[qnn_rng__below(&a, 7)]++;
    for (int i = 0; i < 7; i++)
        ck_assert_int_lt(abs(seen[i] - 10000), 500); /* five standard deviations */
    for (int i = 0; i < 100000; i++) {
        const double x = qnn_rng__normal(&a);

        sum += x;
        squares += x * x;
    }
    ck_assert_double_lt(fabs(sum / 100000), 0.02);
    ck_assert_double_lt(fabs(squares / 100000 - 1), 0.03);
}
END_TEST

/* ---- builder
 * ------------------------------------------------------------------------------------------------------------------------
 */

START_TEST(builder_reports_its_first_error_once)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *m;
    qnn_node x;

    TU_OK(ctx, qnn_model_create(&m, ctx));
    ck_assert_int_eq(qnn_model_check(m), QNN_ERR_STATE); /* no output */
    x = qnn_input(m, "image", 8, 8, 3);
    x = qnn_conv2d(m, x, "conv1", &(qnn_conv2d_opts){.filters = 4, .kernel = 3, .groups = 2});
    ck_assert_int_eq(x, QNN_NODE_NONE);
    x = qnn_relu(m, x, "relu1");
    qnn_output(m, "y", x);
    ck_assert_int_eq(qnn_model_check(m), QNN_ERR_SHAPE);
    ck_assert_msg(strstr(qnn_ctx_error(ctx), "\"conv1\"") != NULL, "%s", qnn_ctx_error(ctx));
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "3"));
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

static void two_same(qnn_model *m, qnn_node x) { (void)qnn_relu(m, qnn_relu(m, x, "a"), "a"); }
static void no_name(qnn_model *m, qnn_node x) { (void)qnn_relu(m, x, ""); }
static void null_name(qnn_model *m, qnn_node x) { (void)qnn_relu(m, x, NULL); }
static void foreign_node(qnn_model *m, qnn_node x)
{
    (void)x;
    (void)qnn_relu(m, 77, "r");
}
static void null_opts(qnn_model *m, qnn_node x) { (void)qnn_conv2d(m, x, "c", NULL); }
static void no_filters(qnn_model *m, qnn_node x)
{
    (void)qnn_conv2d(m, x, "c", &(qnn_conv2d_opts){.kernel = 3});
}
static void huge_kernel(qnn_model *m, qnn_node x)
{
    (void)qnn_conv2d(m, x, "c", &(qnn_conv2d_opts){.filters = 2, .kernel = 9});
}
static void negative_pad(qnn_model *m, qnn_node x)
{
    (void)qnn_conv2d(m, x, "c", &(qnn_conv2d_opts){.filters = 2, .kernel = 3, .pad = -1});
}
static void huge_pad(qnn_model *m, qnn_node x)
{
    (void)qnn_conv2d(
        m, x, "c",
        &(qnn_conv2d_opts){
            .filters = 2, .kernel = 3, .pad = INT32_MAX, .pads = {INT32_MAX, 0, 0, 0}});
}
static void linear_on_image(qnn_model *m, qnn_node x) { (void)qnn_linear(m, x, "fc", 3); }
static void no_units(qnn_model *m, qnn_node x)
{
    (void)qnn_linear(m, qnn_flatten(m, x, "f"), "fc", 0);
}
static void huge_units(qnn_model *m, qnn_node x)
{
    (void)qnn_linear(m, qnn_flatten(m, x, "f"), "fc", (int64_t)1 << 40);
}
static void clip_reversed(qnn_model *m, qnn_node x) { (void)qnn_clip(m, x, "c", 1.0f, 0.0f); }
static void add_shapes(qnn_model *m, qnn_node x)
{
    (void)qnn_add(m, x, qnn_maxpool2d(m, x, "p", 2, 2), "sum");
}
static void concat_shapes(qnn_model *m, qnn_node x)
{
    const qnn_node in[2] = {x, qnn_maxpool2d(m, x, "p", 2, 2)};

    (void)qnn_concat(m, in, 2, "cat");
}
static void concat_none(qnn_model *m, qnn_node x)
{
    (void)x;
    (void)qnn_concat(m, NULL, 3, "cat");
}
static void pool_pad(qnn_model *m, qnn_node x)
{
    (void)qnn_maxpool2d_ex(m, x, "p", &(qnn_pool2d_opts){.kernel = 2, .pad = 2});
}
static void dropout_one(qnn_model *m, qnn_node x) { (void)qnn_dropout(m, x, "d", 1.0f); }
static void output_twice(qnn_model *m, qnn_node x)
{
    qnn_output(m, "y", x);
    qnn_output(m, "y", x);
}
static void input_zero(qnn_model *m, qnn_node x)
{
    (void)x;
    (void)qnn_input(m, "empty", 0, 4, 3);
}

static const struct bad_build {
    const char *what;
    void (*build)(qnn_model *m, qnn_node x);
    const char *message; /* a part of it */
} bad_builds[] = {
    {"two nodes of one name", two_same, "\"a\""},
    {"an empty name", no_name, "name"},
    {"a NULL name", null_name, "name"},
    {"a node of no model", foreign_node, "77"},
    {"NULL options", null_opts, "\"c\""},
    {"no filters", no_filters, "\"c\""},
    {"a kernel larger than the image", huge_kernel, "9"},
    {"negative padding", negative_pad, "\"c\""},
    {"padding that overflows", huge_pad, "\"c\""},
    {"linear on an image", linear_on_image, "\"fc\""},
    {"no units", no_units, "\"fc\""},
    {"units past 32 bits", huge_units, "\"fc\""},
    {"a clip with lo above hi", clip_reversed, "\"c\""},
    {"add of two shapes", add_shapes, "\"sum\""},
    {"concat of two shapes", concat_shapes, "\"cat\""},
    {"concat of nothing", concat_none, "\"cat\""},
    {"a pool padded past half its kernel", pool_pad, "\"p\""},
    {"dropout of everything", dropout_one, "\"d\""},
    {"two outputs of one name", output_twice, "\"y\""},
    {"an input without pixels", input_zero, "\"empty\""},
};

START_TEST(builder_names_the_node_and_value)
{
    const struct bad_build *const b = &bad_builds[_i];
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *m;
    qnn_node x;

    TU_OK(ctx, qnn_model_create(&m, ctx));
    x = qnn_input(m, "image", 6, 6, 3);
    b->build(m, x);
    qnn_output(m, "last", x);
    ck_assert_msg(qnn_model_check(m) != QNN_OK, "%s was accepted", b->what);
    ck_assert_msg(strstr(qnn_ctx_error(ctx), b->message) != NULL, "%s: \"%s\" does not name %s",
                  b->what, qnn_ctx_error(ctx), b->message);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- programs
 * ---------------------------------------------------------------------------------------------------------------------------
 */

/* A network with a view, in-place ops, a branch and two readers of one value. */
static qnn_model *branchy(qnn_ctx *ctx)
{
    qnn_model *m;
    qnn_node x, a, b, in[2];

    TU_OK(ctx, qnn_model_create(&m, ctx));
    x = qnn_input(m, "image", 8, 8, 3);
    x = qnn_relu(m,
                 qnn_conv2d(m, x, "conv1", &(qnn_conv2d_opts){.filters = 6, .kernel = 3, .pad = 1}),
                 "relu1");
    a = qnn_conv2d(m, x, "conv2", &(qnn_conv2d_opts){.filters = 6, .kernel = 1});
    b = qnn_relu6(m, qnn_add(m, x, a, "sum"), "relu2");
    in[0] = qnn_maxpool2d(m, b, "pool1", 2, 2);
    in[1] = qnn_avgpool2d(m, b, "pool2", 2, 2);
    x = qnn_concat(m, in, 2, "cat");
    x = qnn_dropout(m, qnn_flatten(m, x, "flat"), "drop", 0.5f);
    x = qnn_relu(m, qnn_linear(m, x, "fc1", 20), "relu3");
    qnn_output(m, "features", x);
    qnn_output(m, "scores", qnn_softmax(m, qnn_linear(m, x, "fc2", 5), "softmax"));
    TU_OK(ctx, qnn_model_check(m));
    return m;
}

START_TEST(program_is_the_same_with_and_without_shared_memory)
{
    qnn_ctx *const ctx = tu_ctx(2);
    qnn_model *const m = branchy(ctx);
    qnn_program *planned, *kept;
    float x[4 * 8 * 8 * 3], features[4 * 20], scores[4 * 5];
    const float *const src[1] = {x};
    const void *const kept_src[1] = {x};
    float *const dst[2] = {features, scores};
    void *ws, *kept_ws;

    tu_fill_uniform(x, sizeof x / sizeof *x, -2, 2, 1);
    TU_OK(ctx, qnn_program_compile(&planned, ctx, m, &(qnn_program_opts){.max_batch = 4}));
    TU_OK(ctx,
          qnn_program__compile(&kept, ctx, m, &(qnn_compile_opts){.max_batch = 4, .keep_all = 1}));
    ck_assert_uint_lt(qnn_program_workspace(planned), qnn_program_workspace(kept));
    TU_OK(ctx, qnn_ctx__alloc(ctx, &ws, qnn_program_workspace(planned), "test"));
    TU_OK(ctx, qnn_ctx__alloc(ctx, &kept_ws, qnn_program_workspace(kept), "test"));
    memset(ws, 0x7f, qnn_program_workspace(planned));
    memset(kept_ws, 0x7f, qnn_program_workspace(kept));
    TU_OK(ctx, qnn_run_in(planned, ctx, src, 4, dst, ws, qnn_program_workspace(planned)));

    qnn_exec e = {.ctx = ctx, .p = kept, .k = kept->k, .n = 4, .ws = kept_ws, .src = kept_src};

    TU_OK(ctx, qnn_exec__forward(&e));
    ck_assert_mem_eq(features, qnn_exec__value(&e, qnn_model_output(m, 0)), sizeof features);
    ck_assert_mem_eq(scores, qnn_exec__value(&e, qnn_model_output(m, 1)), sizeof scores);
    for (int i = 0; i < 4; i++) {
        float sum = 0;

        for (int k = 0; k < 5; k++)
            sum += scores[i * 5 + k];
        ck_assert_float_eq_tol(sum, 1.0f, 1e-5f);
    }
    qnn_ctx__release(ctx, ws);
    qnn_ctx__release(ctx, kept_ws);
    qnn_program_free(planned);
    qnn_program_free(kept);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(run_allocates_nothing_and_keeps_to_its_workspace)
{
    counter c = {0};
    qnn_ctx *const ctx = counted_ctx(&c);
    qnn_model *const m = branchy(ctx);
    qnn_program *p;
    float x[3 * 8 * 8 * 3], features[3 * 20], scores[3 * 5];
    const float *const src[1] = {x};
    float *const dst[2] = {features, scores};
    unsigned char *ws;
    size_t bytes;
    long calls;
    void *block;

    tu_fill_uniform(x, sizeof x / sizeof *x, -2, 2, 2);
    TU_OK(ctx, qnn_program_compile(&p, ctx, m, &(qnn_program_opts){.max_batch = 3}));
    qnn_model_free(m); /* a program keeps what it needs */
    bytes = qnn_program_workspace(p);
    ck_assert_int_eq(posix_memalign(&block, 64, bytes + 64), 0);
    ws = block;
    memset(ws + bytes, 0xa5, 64);
    calls = atomic_load(&c.calls);
    for (int n = 1; n <= 3; n++)
        TU_OK(ctx, qnn_run_in(p, ctx, src, n, dst, ws, bytes));
    ck_assert_int_eq(atomic_load(&c.calls), calls);
    for (int i = 0; i < 64; i++)
        ck_assert_uint_eq(ws[bytes + (size_t)i], 0xa5);
    ck_assert_int_eq(qnn_run_in(p, ctx, src, 1, dst, ws, bytes - 1), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_run_in(p, ctx, src, 1, dst, ws + 4, bytes), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_run_in(p, ctx, src, 4, dst, ws, bytes), QNN_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "4"));
    ck_assert_int_eq(qnn_run_in(p, ctx, src, 0, dst, ws, bytes), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_run_in(p, ctx, src, 1, dst, NULL, bytes), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_run(p, ctx, x, 1, scores), QNN_ERR_ARG); /* two outputs */
    free(block);
    qnn_program_free(p);
    qnn_ctx_free(ctx);
    ck_assert_int_eq(atomic_load(&c.live_bytes), 0);
}
END_TEST

START_TEST(clone_has_the_same_answers_and_its_own_parameters)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *const m = branchy(ctx);
    qnn_model *copy;
    qnn_param_info a, b;
    int n;

    TU_OK(ctx, qnn_model_set_meta(m, "classes", "cat dog"));
    TU_OK(ctx, qnn_model_clone(&copy, ctx, m));
    ck_assert_str_eq(qnn_model_meta(copy, "classes"), "cat dog");
    ck_assert_ptr_null(qnn_model_meta(copy, "other"));
    ck_assert_int_eq(qnn_model_n_nodes(copy), qnn_model_n_nodes(m));
    n = qnn_model_n_params(m);
    ck_assert_int_eq(n, 8);
    for (int i = 0; i < n; i++) {
        TU_OK(ctx, qnn_model_param(m, i, &a));
        TU_OK(ctx, qnn_model_param(copy, i, &b));
        ck_assert_str_eq(a.name, b.name);
        ck_assert_ptr_ne(a.data, b.data);
        ck_assert_mem_eq(a.data, b.data, a.bytes);
        memset(b.data, 0, b.bytes);
    }
    TU_OK(ctx, qnn_model_copy_params(copy, m));
    TU_OK(ctx, qnn_model_param(m, 3, &a));
    TU_OK(ctx, qnn_model_param(copy, 3, &b));
    ck_assert_mem_eq(a.data, b.data, a.bytes);
    ck_assert_int_eq(qnn_model_find_param(m, "fc1.weight"), 4);
    ck_assert_int_eq(qnn_model_find_param(m, "fc9.weight"), -1);
    ck_assert_int_eq(qnn_model_param(m, n, &a), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_model_macs(m), 64 * (6 * 27 + 36) + 192 * 20 + 100);
    qnn_model_free(copy);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(initial_parameters_follow_the_seed)
{
    float first[2][36];

    for (int k = 0; k < 3; k++) {
        qnn_ctx *ctx;
        qnn_model *m;
        qnn_param_info p;

        ck_assert_int_eq(
            qnn_ctx_create(&ctx, &(qnn_ctx_opts){.seed = k == 2 ? 9 : 4, .n_threads = 1 + k}),
            QNN_OK);
        m = branchy(ctx);
        TU_OK(ctx, qnn_model_param(m, qnn_model_find_param(m, "conv2.weight"), &p));
        for (size_t i = 0; i < p.count; i++)
            ck_assert_float_le(fabsf(((float *)p.data)[i]), 1.0f / sqrtf(6.0f));
        if (k < 2)
            memcpy(first[k], p.data, sizeof first[k]);
        else
            ck_assert_int_ne(memcmp(first[0], p.data, sizeof first[0]), 0);
        qnn_model_free(m);
        qnn_ctx_free(ctx);
    }
    ck_assert_mem_eq(first[0], first[1], sizeof first[0]);
}
END_TEST

START_TEST(devices_say_why_they_are_missing)
{
    const char *why = NULL;

    ck_assert_str_eq(qnn_device_name(0), "cpu");
    ck_assert_int_eq(qnn_device_available(0, NULL), 1);
    ck_assert_ptr_null(qnn_device_name(99));
    for (int i = 1; qnn_device_name(i) != NULL; i++)
        if (!qnn_device_available(i, &why)) {
            ck_assert_ptr_nonnull(why);
            ck_assert_int_gt((int)strlen(why), 10);
        }
    ck_assert_int_eq(qnn_device_available(99, &why), 0);
}
END_TEST

Suite *core_suite(void)
{
    Suite *const s = suite_create("core");
    TCase *const ground = tcase_create("ground"), *const builder = tcase_create("builder"),
                 *const programs = tcase_create("programs");

    tcase_add_test(ground, ctx_refuses_bad_options);
    tcase_add_test(ground, ctx_runs_every_supported_isa_by_name);
    tcase_add_test(ground, ctx_gives_back_every_byte);
    tcase_add_test(ground, parallel_runs_each_task_once);
    tcase_add_test(ground, rng_is_reproducible_and_spread);
    tcase_add_test(builder, builder_reports_its_first_error_once);
    tcase_add_loop_test(builder, builder_names_the_node_and_value, 0,
                        (int)(sizeof bad_builds / sizeof *bad_builds));
    tcase_add_test(programs, program_is_the_same_with_and_without_shared_memory);
    tcase_add_test(programs, run_allocates_nothing_and_keeps_to_its_workspace);
    tcase_add_test(programs, clone_has_the_same_answers_and_its_own_parameters);
    tcase_add_test(programs, initial_parameters_follow_the_seed);
    tcase_add_test(programs, devices_say_why_they_are_missing);
    suite_add_tcase(s, ground);
    suite_add_tcase(s, builder);
    suite_add_tcase(s, programs);
    return s;
}
