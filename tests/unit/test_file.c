/* Model files: round trips of every op and type, hostile bytes, what is refused in which words. */
#define _POSIX_C_SOURCE 200809L
#include "suites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <qnn.h>

#include "lib/graph.h"
#include "lib/io/safetensors.h"
#include "lib/op.h"
#include "tests/common/testutil.h"

enum { SIDE = 8, CLASSES = 5, N_ITEMS = 3 };

/* ---- helpers --------------------------------------------------------------------------------- */

typedef struct bytes {
    unsigned char *data;
    size_t n;
} bytes;

static void temporary(char *path, size_t size, const char *name)
{
    const char *const folder = getenv("TMPDIR");

    snprintf(path, size, "%s/qnn-file-%ld-%s", folder != NULL ? folder : "/tmp", (long)getpid(),
             name);
}

static bytes read_file(const char *path)
{
    FILE *const f = fopen(path, "rb");
    bytes b;

    ck_assert_msg(f != NULL, "cannot open %s", path);
    fseek(f, 0, SEEK_END);
    b.n = (size_t)ftell(f);
    rewind(f);
    b.data = tu_alloc(b.n);
    ck_assert_uint_eq(fread(b.data, 1, b.n, f), b.n);
    fclose(f);
    return b;
}

static bytes save_to_bytes(qnn_ctx *ctx, const qnn_model *m)
{
    char path[256];
    bytes b;

    temporary(path, sizeof path, "model.safetensors");
    TU_OK(ctx, qnn_model_save(m, path));
    b = read_file(path);
    unlink(path);
    return b;
}

/* Every op that a program can build: most attributes away from their defaults. */
static qnn_model *make_every_op(qnn_ctx *ctx)
{
    qnn_model *m;
    qnn_node x, a, b, two[2];

    TU_OK(ctx, qnn_model_create(&m, ctx));
    x = qnn_input(m, "image", SIDE, SIDE, 4);
    a = qnn_conv2d(m, x, "conv",
                   &(qnn_conv2d_opts){.filters = 6,
                                      .kernel = 3,
                                      .kernel_w = 2,
                                      .stride = 2,
                                      .stride_w = 1,
                                      .dilation = 2,
                                      .groups = 2,
                                      .pad = 1,
                                      .pads = {1, 0, 2, 3}});
    a = qnn_relu(
        m, qnn_batchnorm2d(m, a, "bn", &(qnn_batchnorm2d_opts){.eps = 3e-4f, .momentum = 0.3f}),
        "relu");
    a = qnn_maxpool2d_ex(m, a, "max",
                         &(qnn_pool2d_opts){.kernel = 3, .kernel_w = 2, .stride = 1, .pad = 1});
    a = qnn_avgpool2d_ex(m, a, "avg",
                         &(qnn_pool2d_opts){.kernel = 2, .stride = 1, .pad = 1, .exclude_pad = 1});
    b = qnn_conv2d(m, a, "plain", &(qnn_conv2d_opts){.filters = 6, .kernel = 1, .no_bias = 1});
    a = qnn_add(m, a, b, "add");
    two[0] = a;
    two[1] = qnn_clip(m, b, "clip", -0.1f, 1.0f / 3.0f);
    a = qnn_concat(m, two, 2, "concat");
    b = qnn_global_avgpool(m, qnn_relu6(m, a, "relu6"), "gap");
    b = qnn_dropout(m, qnn_flatten(m, b, "flat"), "drop", 0.1f);
    b = qnn_linear_ex(m, b, "fc", &(qnn_linear_opts){.units = CLASSES, .no_bias = 1});
    qnn_output(m, "logits", qnn_linear(m, b, "fc2", CLASSES));
    qnn_output(m, "probabilities", qnn_softmax(m, qnn_model_output(m, 0), "softmax"));
    TU_OK(ctx, qnn_model_check(m));
    TU_OK(ctx, qnn_model_set_meta(m, "classes", "caf\xc3\xa9\nline \"two\" \\ \xf0\x9f\x98\x80"));
    TU_OK(ctx, qnn_model_set_meta(m, "empty", ""));
    return m;
}

/* Small, and with all that the quantising passes want. */
static qnn_model *make_small(qnn_ctx *ctx)
{
    qnn_model *m;
    qnn_node x;

    TU_OK(ctx, qnn_model_create(&m, ctx));
    x = qnn_input(m, "image", SIDE, SIDE, 1);
    x = qnn_relu(m,
                 qnn_conv2d(m, x, "conv", &(qnn_conv2d_opts){.filters = 3, .kernel = 3, .pad = 1}),
                 "relu");
    x = qnn_flatten(m, qnn_maxpool2d(m, x, "pool", 4, 4), "flat");
    qnn_output(m, "logits", qnn_linear(m, x, "fc", CLASSES));
    TU_OK(ctx, qnn_model_check(m));
    return m;
}

/* The small model as each pass makes it; NULL past the end. */
static qnn_model *make_variant(qnn_ctx *ctx, int which, const char **name)
{
    static const char *const names[] = {"f32",
                                        "fused",
                                        "f16",
                                        "bf16",
                                        "int4",
                                        "dynamic",
                                        "static",
                                        "static with output",
                                        "static per tensor",
                                        "qat"};
    qnn_model *const m = make_small(ctx), *out = NULL, *fused = NULL;
    qnn_stats *st = NULL;
    float x[4 * SIDE * SIDE];

    if (which >= (int)(sizeof names / sizeof *names)) {
        qnn_model_free(m);
        return NULL;
    }
    *name = names[which];
    switch (which) {
    case 0:
        TU_OK(ctx, qnn_model_clone(&out, ctx, m));
        break;
    case 1:
        TU_OK(ctx, qnn_fuse(&out, ctx, m));
        break;
    case 2:
        TU_OK(ctx, qnn_lower_half(&out, ctx, m, QNN_DTYPE_F16));
        break;
    case 3:
        TU_OK(ctx, qnn_lower_half(&out, ctx, m, QNN_DTYPE_BF16));
        break;
    case 4:
        TU_OK(ctx, qnn_quantize_int4_sim(&out, ctx, m));
        break;
    case 5:
        TU_OK(ctx, qnn_quantize_dynamic(&out, ctx, m, NULL));
        break;
    case 9:
        TU_OK(ctx, qnn_qat_prepare(&out, ctx, m, NULL));
        break;
    default:
        TU_OK(ctx, qnn_fuse(&fused, ctx, m));
        TU_OK(ctx, qnn_stats_create(&st, ctx, fused, NULL));
        tu_fill_uniform(x, 4 * SIDE * SIDE, -1, 2, 8);
        TU_OK(ctx, qnn_stats_observe(st, ctx, x, 4));
        TU_OK(ctx, qnn_quantize_static(
                       &out, ctx, fused, st,
                       &(qnn_quant_opts){.quantize_output = which == 7, .per_tensor = which == 8}));
        qnn_stats_free(st);
        qnn_model_free(fused);
    }
    qnn_model_free(m);
    return out;
}

static void assert_same_nodes(const qnn_node_data *a, const qnn_node_data *b)
{
    ck_assert_str_eq(a->name, b->name);
    ck_assert_int_eq(a->kind, b->kind);
    ck_assert_int_eq(a->n_in, b->n_in);
    if (a->n_in > 0)
        ck_assert_mem_eq(a->in, b->in, (size_t)a->n_in * sizeof *a->in);
    for (const qnn_attr_field *f = qnn_ops[a->kind]->fields; f != NULL && f->name != NULL; f++)
        ck_assert_msg(memcmp((const char *)&a->a + f->offset, (const char *)&b->a + f->offset, 4) ==
                          0,
                      "%s of %s", f->name, a->name);
    ck_assert(qnn_shape__equal(&a->shape, &b->shape));
    ck_assert_int_eq(a->dtype, b->dtype);
    ck_assert_float_eq(a->scale, b->scale);
    ck_assert_int_eq(a->zero_point, b->zero_point);
    ck_assert_int_eq(a->n_param, b->n_param);
    ck_assert_pstr_eq(a->note, b->note);
    for (int k = 0; k < a->n_param; k++) {
        const qnn_param *const p = &a->param[k], *const q = &b->param[k];

        ck_assert_uint_eq(p->count, q->count);
        if (p->count == 0)
            continue;
        ck_assert_str_eq(p->full_name, q->full_name);
        ck_assert_int_eq(p->dtype, q->dtype);
        if (a->a.wq !=
            QNN_WQ_DYNAMIC) /* its bias came from a trainable layer; nothing int8 is trained */
            ck_assert_int_eq(p->is_trainable, q->is_trainable);
        ck_assert_uint_eq(p->bytes, q->bytes);
        ck_assert_mem_eq(p->data, q->data, p->bytes);
        ck_assert_uint_eq(p->n_scale, q->n_scale);
        if (p->n_scale > 0)
            ck_assert_mem_eq(p->scale, q->scale, p->n_scale * sizeof *p->scale);
    }
}

static void assert_same_models(const qnn_model *a, const qnn_model *b)
{
    ck_assert_int_eq(a->n_nodes, b->n_nodes);
    for (int i = 0; i < a->n_nodes; i++)
        assert_same_nodes(a->node[i], b->node[i]);
    ck_assert_int_eq(a->n_outputs, b->n_outputs);
    for (int i = 0; i < a->n_outputs; i++) {
        ck_assert_int_eq(a->output[i], b->output[i]);
        ck_assert_str_eq(a->output_name[i], b->output_name[i]);
    }
    ck_assert_int_eq(a->n_meta, b->n_meta);
    for (int i = 0; i < a->n_meta; i++)
        ck_assert_str_eq(qnn_model_meta(b, a->meta[i].key), a->meta[i].value);
}

/* ---- round trips ----------------------------------------------------------------------------- */

static void check_round_trip(qnn_ctx *ctx, const qnn_model *m, const char *what)
{
    const bytes first = save_to_bytes(ctx, m);
    bytes second;
    qnn_model *loaded;
    const qnn_status status = qnn_model_load_mem(&loaded, ctx, first.data, first.n);

    ck_assert_msg(status == QNN_OK, "%s: %s", what, qnn_ctx_error(ctx));
    assert_same_models(m, loaded);
    second = save_to_bytes(ctx, loaded);
    ck_assert_uint_eq(first.n, second.n);
    ck_assert_mem_eq(first.data, second.data, first.n);
    ck_assert_uint_eq((first.data[0] | (unsigned)first.data[1] << 8) % 8,
                      0); /* data is aligned in the file */
    free(first.data);
    free(second.data);
    qnn_model_free(loaded);
}

START_TEST(every_op_round_trips)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *const m = make_every_op(ctx);

    check_round_trip(ctx, m, "every op");
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(every_type_round_trips_and_runs_alike)
{
    qnn_ctx *const ctx = tu_ctx(1);
    const char *name;
    qnn_model *m;
    float x[N_ITEMS * SIDE * SIDE], want[N_ITEMS * CLASSES], got[N_ITEMS * CLASSES];

    tu_fill_uniform(x, N_ITEMS * SIDE * SIDE, -1, 2, 5);
    for (int which = 0; (m = make_variant(ctx, which, &name)) != NULL; which++) {
        const qnn_program_opts opts = {.max_batch = N_ITEMS};
        bytes b;
        qnn_model *loaded;
        qnn_program *p;

        check_round_trip(ctx, m, name);
        TU_OK(ctx, qnn_program_compile(&p, ctx, m, &opts));
        TU_OK(ctx, qnn_run(p, ctx, x, N_ITEMS, want));
        qnn_program_free(p);
        b = save_to_bytes(ctx, m);
        TU_OK(ctx, qnn_model_load_mem(&loaded, ctx, b.data, b.n));
        TU_OK(ctx, qnn_program_compile(&p, ctx, loaded, &opts));
        TU_OK(ctx, qnn_run(p, ctx, x, N_ITEMS, got));
        ck_assert_msg(memcmp(want, got, sizeof got) == 0,
                      "%s: the loaded model computes something else", name);
        qnn_program_free(p);
        qnn_model_free(loaded);
        qnn_model_free(m);
        free(b.data);
    }
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(awkward_floats_round_trip)
{
    static const float awkward[] = {1e-45f,          3.4028235e38f, 0.1f,       1.0f / 3.0f,
                                    1.17549435e-38f, 16777217.0f,   8388609.0f, 0x1.fffffep-1f};
    qnn_ctx *const ctx = tu_ctx(1);

    for (size_t i = 0; i < sizeof awkward / sizeof *awkward; i++) {
        qnn_model *m;

        TU_OK(ctx, qnn_model_create(&m, ctx));
        qnn_output(m, "y",
                   qnn_clip(m, qnn_input_features(m, "x", 2), "clip", -awkward[i], awkward[i]));
        TU_OK(ctx, qnn_model_check(m));
        check_round_trip(ctx, m, "clip");
        qnn_model_free(m);
    }
    qnn_ctx_free(ctx);
}
END_TEST

/* A file whose data section is not aligned in memory: the header's length is odd, the block too. */
START_TEST(unaligned_bytes_load)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *const m = make_small(ctx), *loaded;
    const bytes b = save_to_bytes(ctx, m);
    const size_t header = b.data[0] | (size_t)b.data[1] << 8;

    for (size_t shift = 1; shift < 8; shift++) {
        unsigned char *const moved = tu_alloc(b.n + 2 * shift);

        memcpy(moved + shift, b.data, 8 + header);
        moved[shift] = (unsigned char)((header + shift) & 255);
        moved[shift + 1] = (unsigned char)((header + shift) >> 8);
        memset(moved + shift + 8 + header, ' ', shift);
        memcpy(moved + 2 * shift + 8 + header, b.data + 8 + header, b.n - 8 - header);
        TU_OK(ctx, qnn_model_load_mem(&loaded, ctx, moved + shift, b.n + shift));
        assert_same_models(m, loaded);
        qnn_model_free(loaded);
        free(moved);
    }
    free(b.data);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- hostile bytes --------------------------------------------------------------------------- */

/* Loads, and runs what loads, inside a workspace of at most 16 MB. */
static qnn_status load_and_run(qnn_ctx *ctx, const unsigned char *data, size_t n)
{
    qnn_model *m;
    qnn_program *p;
    const qnn_status status = qnn_model_load_mem(&m, ctx, data, n);

    if (status != QNN_OK) {
        ck_assert_ptr_null(m);
        ck_assert_msg(status == QNN_ERR_FORMAT, "status %s", qnn_status_name(status));
        ck_assert_int_ne(qnn_ctx_error(ctx)[0], '\0');
        return status;
    }
    if (qnn_program_compile(&p, ctx, m, NULL) == QNN_OK) {
        const qnn_node_data *const in = m->node[qnn_model_input(m, 0)], *const out =
                                                                            m->node[m->output[0]];

        if (qnn_program_workspace(p) <= 16u << 20 && qnn_model_n_inputs(m) == 1 &&
            m->n_outputs == 1) {
            float *const x = calloc((size_t)qnn_shape__count(&in->shape), sizeof *x);
            float *const y = tu_alloc((size_t)qnn_shape__count(&out->shape) * sizeof *y);

            ck_assert_ptr_nonnull(x);
            TU_OK(ctx, qnn_run(p, ctx, x, 1, y));
            free(x);
            free(y);
        }
        qnn_program_free(p);
    }
    qnn_model_free(m);
    return QNN_OK;
}

START_TEST(truncation_at_every_byte)
{
    qnn_ctx *const ctx = tu_ctx(1);
    const char *name;
    qnn_model *const m = make_variant(ctx, 6, &name);
    const bytes b = save_to_bytes(ctx, m);

    for (size_t n = 0; n < b.n; n++) {
        unsigned char *const exact =
            tu_alloc(n); /* so that the address sanitizer sees a byte too many */

        memcpy(exact, b.data, n);
        ck_assert_msg(load_and_run(ctx, exact, n) == QNN_ERR_FORMAT, "%zu of %zu bytes load", n,
                      b.n);
        free(exact);
    }
    ck_assert_int_eq(load_and_run(ctx, b.data, b.n), QNN_OK);
    ck_assert_int_eq(qnn_model_load_mem(&(qnn_model *){NULL}, ctx, NULL, 10), QNN_ERR_ARG);
    free(b.data);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(bit_flips)
{
    qnn_ctx *const ctx = tu_ctx(1);
    enum { N_VARIANTS = 4, N_FLIPS = 5000 };
    static const int variants[N_VARIANTS] = {0, 4, 5, 6};
    int n_loaded = 0, n_refused = 0;

    for (int v = 0; v < N_VARIANTS; v++) {
        const char *name;
        qnn_model *const m = make_variant(ctx, variants[v], &name);
        const bytes b = save_to_bytes(ctx, m);
        qnn_rng r;

        qnn_rng__init(&r, 20260101, (uint64_t)v);
        for (int i = 0; i < N_FLIPS; i++) {
            /* most in the header: a bit of the weights is as good as another */
            const size_t header = 8 + (b.data[0] | (size_t)b.data[1] << 8);
            const size_t bit = qnn_rng__below(&r, 8 * (i % 4 == 0 ? b.n : header));

            b.data[bit / 8] ^= (unsigned char)(1u << bit % 8);
            if (load_and_run(ctx, b.data, b.n) == QNN_OK)
                n_loaded++;
            else
                n_refused++;
            b.data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
        free(b.data);
        qnn_model_free(m);
    }
    ck_assert_int_gt(n_loaded, 100);
    ck_assert_int_gt(n_refused, 1000);
    qnn_ctx_free(ctx);
}
END_TEST

/*
 * The fuzzer's seeds: files that an earlier version of the library wrote, so this is also the test
 * that old files keep loading. QNN_WRITE_SEEDS=1 writes them afresh.
 */
static void check_seed(qnn_ctx *ctx, const qnn_model *m, const char *name)
{
    char path[256];
    bytes b;

    snprintf(path, sizeof path, "tests/fuzz/corpus/model/%s.safetensors", name);
    for (char *c = path; *c != '\0'; c++)
        *c = *c == ' ' ? '_' : *c;
    if (getenv("QNN_WRITE_SEEDS") != NULL)
        TU_OK(ctx, qnn_model_save(m, path));
    b = read_file(path);
    ck_assert_uint_lt(b.n, 6000);
    ck_assert_msg(load_and_run(ctx, b.data, b.n) == QNN_OK, "%s: %s", path, qnn_ctx_error(ctx));
    free(b.data);
}

START_TEST(fuzz_seeds_load)
{
    qnn_ctx *const ctx = tu_ctx(1);
    const char *name;
    qnn_model *m;

    for (int which = 0; (m = make_variant(ctx, which, &name)) != NULL; which++) {
        check_seed(ctx, m, name);
        qnn_model_free(m);
    }
    m = make_every_op(ctx);
    check_seed(ctx, m, "every op");
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- what is refused, and in which words
 * ------------------------------------------------------------------------------------ */

static bytes make_file(const char *header, size_t n_data)
{
    const size_t n = strlen(header);
    const bytes b = {tu_alloc(8 + n + n_data), 8 + n + n_data};

    for (int i = 0; i < 8; i++)
        b.data[i] = (unsigned char)(n >> (8 * i));
    memcpy(b.data + 8, header, n);
    for (size_t i = 0; i < n_data; i++)
        b.data[8 + n + i] = 1;
    return b;
}

#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end   \
    "]}"

START_TEST(malformed_headers)
{
    static const struct {
        const char *header;
        size_t n_data;
        const char *message;
    } cases[] = {
        {"", 0, "does not begin with {"},
        {"[]", 0, "does not begin with {"},
        {" {}", 0, "does not begin with {"},
        {"{", 0, "header: "},
        {"{}x", 0, "header: "},
        {"{} {}", 0, "header: "},
        {"{},{}", 0, "not one JSON value"},
        {"{}],[1", 0, "header: "},
        {"{\"a\":1,\"a\":1}", 0, "duplicate object key"},
        {"{" T("a", "F32", "[1]", "0", "4") "," T("a", "F32", "[1]", "0", "4") "}", 4,
         "duplicate object key"},
        {"{\"a\":1}", 0, "tensor \"a\" is not an object"},
        {"{" T("", "F32", "[1]", "0", "4") "}", 4, "name is empty"},
        {"{\"a\\u0000b\":1}", 0, "header: "},
        {"{\"\xff\":1}", 0, "header: "},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets is not two integers"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape is not an array"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype is not a string"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4,
         "unknown field \"more\""},
        {"{" T("a", "F33", "[1]", "0", "4") "}", 4, "unknown dtype \"F33\""},
        {"{" T("a", "F32", "[-1]", "0", "4") "}", 4, "dimension 0 is not a count"},
        {"{" T("a", "F32", "[1.0]", "0", "4") "}", 4, "dimension 0 is not a count"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, "9 dimensions"},
        {"{" T("a", "F32", "[4611686018427387904,4]", "0", "4") "}", 4, "overflows"},
        {"{" T("a", "F32", "[9223372036854775808]", "0", "4") "}", 4, "header: "},
        {"{" T("a", "F32", "[2]", "0", "4") "}", 4, "4 bytes of data, its type and shape need 8"},
        {"{" T("a", "F32", "[1]", "0", "8") "}", 4, "not inside the 4 bytes"},
        {"{" T("a", "F32", "[1]", "4", "0") "}", 4, "not inside the 4 bytes"},
        {"{" T("a", "F32", "[1]", "-4", "0") "}", 4, "not inside the 4 bytes"},
        {"{" T("a", "F32", "[1]", "0", "4.5") "}", 4, "data_offsets is not two integers"},
        {"{" T("a", "F32", "[1]", "0", "4,5") "}", 4, "data_offsets is not two integers"},
        {"{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[1]", "4", "8") "}", 8,
         "overlaps \"a\""},
        {"{" T("a", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "8", "12") "}", 12,
         "bytes 4 to 8 of the data belong to no tensor"},
        {"{" T("a", "F32", "[1]", "0", "4") "}", 8, "bytes 4 to 8 of the data belong to no tensor"},
        {"{" T("a", "F32", "[1]", "4", "8") "}", 8, "bytes 0 to 4 of the data belong to no tensor"},
        {"{}", 1, "bytes 0 to 1 of the data belong to no tensor"},
        {"{\"__metadata__\":1}", 0, "__metadata__ is not an object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "\"a\" is not a string"},
        {"{" T("a", "F32", "[1]", "0", "4") "}", 4, "not a qnn model"},
    };
    qnn_ctx *const ctx = tu_ctx(1);
    static const unsigned char huge[16] = {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'};
    static const unsigned char beyond[16] = {200, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    qnn_model *m;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bytes b = make_file(cases[i].header, cases[i].n_data);

        ck_assert_msg(qnn_model_load_mem(&m, ctx, b.data, b.n) == QNN_ERR_FORMAT,
                      "case %zu loads: %s", i, cases[i].header);
        ck_assert_msg(strstr(qnn_ctx_error(ctx), cases[i].message) != NULL,
                      "case %zu: \"%s\" lacks \"%s\"", i, qnn_ctx_error(ctx), cases[i].message);
        free(b.data);
    }
    ck_assert_int_eq(qnn_model_load_mem(&m, ctx, huge, sizeof huge), QNN_ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "the format's limit"));
    ck_assert_int_eq(qnn_model_load_mem(&m, ctx, beyond, sizeof beyond), QNN_ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "the file has 8 after its length"));
    qnn_ctx_free(ctx);
}
END_TEST

/* A graph in the metadata, its quotes escaped; tensors are appended as they are. */
static bytes make_model_file(const char *graph, const char *tensors, size_t n_data)
{
    char header[4096] = "{\"__metadata__\":{\"qnn.graph\":\"";
    size_t n = strlen(header);
    bytes b;

    for (; *graph != '\0'; graph++) {
        if (*graph == '"')
            header[n++] = '\\';
        header[n++] = *graph;
        ck_assert_uint_lt(n, sizeof header - 512);
    }
    snprintf(header + n, sizeof header - n, "\"}%s}", tensors);
    b = make_file(header, n_data);
    return b;
}

#define GRAPH(nodes)                                                                               \
    "{\"version\":1,\"nodes\":[" nodes "],\"outputs\":[{\"name\":\"y\",\"node\":\"n\"}]}"
#define IN         "{\"name\":\"x\",\"op\":\"input\",\"inputs\":[],\"attrs\":{\"channels\":2}}"
#define NODE(rest) "{\"name\":\"n\"," rest "}"
#define RELU       "\"op\":\"clip\",\"inputs\":[\"x\"]"
#define FC         "\"op\":\"linear\",\"inputs\":[\"x\"],\"attrs\":{\"units\":1,\"no_bias\":1}"
#define FC_W       ",\"params\":{\"weight\":{\"dtype\":\"f32\"}}"
#define QUANT      "\"op\":\"quantize\",\"inputs\":[\"x\"],\"dtype\":\"u8\""
#define DEQ        "{\"name\":\"y\",\"op\":\"dequantize\",\"inputs\":[\"n\"]}"
#define INT8(attrs)                                                                                \
    IN ",{\"name\":\"q\",\"op\":\"quantize\",\"inputs\":[\"x\"],\"dtype\":\"u8\",\"scale\":0.5,"   \
       "\"zero_point\":3},"                                                                        \
       "{\"name\":\"n\",\"op\":\"linear\",\"inputs\":[\"q\"],\"attrs\":{\"units\":1,\"no_bias\":"  \
       "1,\"weight_quant\":2" attrs "},"                                                           \
       "\"params\":{\"weight\":{\"dtype\":\"i8\"}}}"

START_TEST(malformed_graphs)
{
    static const char w[] = "," T("n.weight", "F32", "[1,2]", "0", "8");
    static const struct {
        const char *graph, *tensors;
        size_t n_data;
        const char *message; /* NULL: it loads */
    } cases[] = {
        {GRAPH(IN "," NODE(RELU)), "", 0, NULL},
        {GRAPH(IN "," NODE(FC FC_W)), w, 8, NULL},
        {"{", "", 0, "qnn.graph: "},
        {"[]", "", 0, "\"version\" is not an integer"},
        {"{\"version\":2}", "", 0, "version 2, this library reads version 1"},
        {"{\"version\":1}", "", 0, "\"nodes\" is not an array"},
        {"{\"version\":1,\"nodes\":[],\"outputs\":[]}", "", 0, "\"nodes\" is not an array of 1 to"},
        {"{\"version\":1,\"nodes\":[" IN "],\"outputs\":[]}", "", 0,
         "\"outputs\" is not an array of 1 to"},
        {"{\"version\":1,\"nodes\":[" IN "],\"outputs\":[{\"name\":\"y\",\"node\":\"z\"}]}", "", 0,
         "no node is called \"z\""},
        {"{\"version\":1,\"nodes\":[" IN "],\"outputs\":[{\"name\":\"y\"}]}", "", 0,
         "\"node\" is not a string"},
        {"{\"version\":1,\"nodes\":[" IN "],\"outputs\":[{\"name\":\"\",\"node\":\"x\"}]}", "", 0,
         "has no name"},
        {"{\"version\":1,\"more\":1,\"nodes\":[" IN "],\"outputs\":[]}", "", 0,
         "unknown field \"more\""},
        {GRAPH("1"), "", 0, "node 0 is not an object"},
        {GRAPH(IN ",{\"op\":\"clip\"}"), "", 0, "\"name\" is not a string"},
        {GRAPH(IN "," NODE("\"inputs\":[\"x\"]")), "", 0, "\"op\" is not a string"},
        {GRAPH(IN "," NODE("\"op\":\"gelu\",\"inputs\":[\"x\"]")), "", 0, "unknown op \"gelu\""},
        {GRAPH(IN "," NODE("\"op\":\"clip\"")), "", 0, "\"inputs\" is not an array"},
        {GRAPH(IN "," NODE("\"op\":\"clip\",\"inputs\":[\"n\"]")), "", 0,
         "input 0 is not the name of an earlier node"},
        {GRAPH(IN "," NODE("\"op\":\"clip\",\"inputs\":[0]")), "", 0,
         "input 0 is not the name of an earlier node"},
        {GRAPH(IN "," NODE("\"op\":\"clip\",\"inputs\":[]")), "", 0, "inputs, got 0"},
        {GRAPH(IN "," IN), "", 0, "another node has this name"},
        {GRAPH(IN "," NODE(RELU ",\"attrs\":1")), "", 0, "\"attrs\" is not an object"},
        {GRAPH(IN "," NODE(RELU ",\"attrs\":{\"slope\":1}")), "", 0,
         "clip has no attribute \"slope\""},
        {GRAPH(IN "," NODE(RELU ",\"attrs\":{\"lo\":\"big\"}")), "", 0,
         "\"lo\" is not a 32-bit real number"},
        {GRAPH(IN "," NODE(RELU ",\"attrs\":{\"lo\":1e39}")), "", 0,
         "\"lo\" is not a 32-bit real number"},
        {GRAPH(IN "," NODE(RELU ",\"attrs\":{\"lo\":2,\"hi\":1}")), "", 0,
         "is not below upper bound"},
        {GRAPH("{\"name\":\"n\",\"op\":\"input\",\"inputs\":[],\"attrs\":{\"channels\":2.5}}"), "",
         0, "\"channels\" is not a 32-bit integer"},
        {GRAPH(
             "{\"name\":\"n\",\"op\":\"input\",\"inputs\":[],\"attrs\":{\"channels\":2147483648}}"),
         "", 0, "\"channels\" is not a 32-bit integer"},
        {GRAPH("{\"name\":\"n\",\"op\":\"input\",\"inputs\":[],\"attrs\":{\"channels\":-2}}"), "",
         0, "channels -2"},
        {GRAPH("{\"name\":\"n\",\"op\":\"input\",\"inputs\":[],\"attrs\":{\"height\":2147483647,"
               "\"width\":2147483647,\"channels\":2}}"),
         "", 0, "elements"},
        {GRAPH(IN "," NODE(RELU ",\"note\":1")), "", 0, "\"note\" is not a string"},
        {GRAPH(IN "," NODE(RELU ",\"extra\":1")), "", 0, "unknown field \"extra\""},
        {GRAPH(IN "," NODE(RELU ",\"scale\":1.0")), "", 0, "without a dtype"},
        {GRAPH(IN "," NODE(RELU ",\"dtype\":\"u8\",\"scale\":1.0,\"zero_point\":0")), "", 0,
         "the file says another type"},
        {GRAPH(IN "," NODE(QUANT ",\"zero_point\":0") "," DEQ), "", 0,
         "\"scale\" is not a 32-bit real number"},
        {GRAPH(IN "," NODE(QUANT ",\"scale\":1.0") "," DEQ), "", 0,
         "\"zero_point\" is not a 32-bit integer"},
        {GRAPH(IN "," NODE(QUANT ",\"scale\":0.0,\"zero_point\":0") "," DEQ), "", 0,
         "not positive and finite"},
        {GRAPH(IN "," NODE(QUANT ",\"scale\":\"inf\",\"zero_point\":0") "," DEQ), "", 0,
         "not positive and finite"},
        {GRAPH(IN "," NODE(QUANT ",\"scale\":1e-45,\"zero_point\":0") "," DEQ), "", 0,
         "not positive and finite"},
        {GRAPH(IN "," NODE(QUANT ",\"scale\":1.0,\"zero_point\":256") "," DEQ), "", 0,
         "outside 0..255"},
        {GRAPH(IN "," NODE(FC)), w, 8, "params of node \"n\" is not an object"},
        {GRAPH(IN "," NODE(FC ",\"params\":{}")), w, 8, "parameter \"n.weight\" is missing"},
        {GRAPH(IN "," NODE(
             FC ",\"params\":{\"weight\":{\"dtype\":\"f32\"},\"bias\":{\"dtype\":\"f32\"}}")),
         w, 8, "unknown field \"bias\""},
        {GRAPH(IN "," NODE(FC ",\"params\":{\"weight\":{\"dtype\":\"f64\"}}")), w, 8,
         "cannot be f64"},
        {GRAPH(IN "," NODE(FC ",\"params\":{\"weight\":{\"dtype\":\"i8\"}}")), w, 8,
         "cannot be i8"},
        {GRAPH(IN "," NODE(FC ",\"params\":{\"weight\":{\"dtype\":\"f16\"}}")), w, 8,
         "has not the type"},
        {GRAPH(IN "," NODE(FC FC_W)), "", 0, "tensor \"n.weight\" is missing"},
        {GRAPH(IN "," NODE(FC FC_W)), "," T("n.weight", "F32", "[2,1]", "0", "8"), 8,
         "has not the shape"},
        {GRAPH(IN "," NODE(FC FC_W)), "," T("n.weight", "F32", "[2]", "0", "8"), 8,
         "has not the shape"},
        {GRAPH(IN "," NODE(FC FC_W)),
         "," T("n.weight", "F32", "[1,2]", "0", "8") "," T("z", "U8", "[1]", "8", "9"), 9,
         "2 tensors in the file, the graph uses 1"},
        {GRAPH(IN "," NODE(FC ",\"params\":{\"weight\":{\"dtype\":\"s4\",\"shape\":[1,2]}}")),
         "," T("n.weight", "U8", "[1]", "4", "5") "," T("n.weight.scale", "F32", "[1]", "0", "4"),
         5, "holds code -8"},
        {GRAPH(IN "," NODE(FC ",\"params\":{\"weight\":{\"dtype\":\"s4\",\"shape\":[2,1]}}")),
         "," T("n.weight", "U8", "[1]", "4", "5") "," T("n.weight.scale", "F32", "[1]", "0", "4"),
         5, "has not the shape"},
        {GRAPH(IN "," NODE(FC ",\"params\":{\"weight\":{\"dtype\":\"s4\"}}")),
         "," T("n.weight", "U8", "[1]", "4", "5") "," T("n.weight.scale", "F32", "[1]", "0", "4"),
         5, "has not the shape"},
        {GRAPH(INT8("")),
         "," T("n.weight", "I8", "[1,2]", "4", "6") "," T("n.weight.scale", "F32", "[1]", "0", "4"),
         6, NULL},
        {GRAPH(INT8("")), "," T("n.weight", "I8", "[1,2]", "0", "2"), 2,
         "tensor \"n.weight.scale\" is missing"},
        {GRAPH(INT8("")),
         "," T("n.weight", "I8", "[1,2]", "0", "2") "," T("n.weight.scale", "F32", "[0]", "2", "2"),
         2, "has not one scale"},
        {GRAPH(INT8("")),
         "," T("n.weight", "I8", "[1,2]", "8", "10") "," T("n.weight.scale", "F32", "[2]", "0",
                                                           "8"),
         10, "has not one scale"},
        {GRAPH(INT8(",\"weight_bits\":5")), "," T("n.weight", "I8", "[1,2]", "0", "2"), 2,
         "5-bit weights"},
    };
    qnn_ctx *const ctx = tu_ctx(1);

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bytes b = make_model_file(cases[i].graph, cases[i].tensors, cases[i].n_data);
        qnn_model *m;
        const qnn_status status = qnn_model_load_mem(&m, ctx, b.data, b.n);

        ck_assert_msg(status == (cases[i].message != NULL ? QNN_ERR_FORMAT : QNN_OK),
                      "case %zu: %s, \"%s\": %s", i, qnn_status_name(status), qnn_ctx_error(ctx),
                      cases[i].graph);
        if (cases[i].message != NULL)
            ck_assert_msg(strstr(qnn_ctx_error(ctx), cases[i].message) != NULL,
                          "case %zu: \"%s\" lacks \"%s\"", i, qnn_ctx_error(ctx), cases[i].message);
        qnn_model_free(m);
        free(b.data);
    }
    qnn_ctx_free(ctx);
}
END_TEST

/* Values that only the tensors' bytes can have. */
START_TEST(malformed_values)
{
    qnn_ctx *const ctx = tu_ctx(1);
    const char *name;
    qnn_model *const m = make_variant(ctx, 6, &name);
    qnn_node_data *const fc = m->node[qnn_model_find(m, "fc")];
    int8_t *const codes = fc->param[QNN_P_WEIGHT].data;
    float *const scale = fc->param[QNN_P_WEIGHT].scale;
    static const float bad[] = {0.0f, -1.0f, NAN, INFINITY};
    const float good = scale[1];
    const int8_t code = codes[2];
    bytes b;

    codes[2] = -128;
    b = save_to_bytes(ctx, m);
    ck_assert_int_eq(load_and_run(ctx, b.data, b.n), QNN_ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "\"fc.weight\": code 2 is -128"));
    free(b.data);
    codes[2] = code;
    for (int i = 0; i < 4; i++) {
        scale[1] = bad[i];
        b = save_to_bytes(ctx, m);
        ck_assert_int_eq(load_and_run(ctx, b.data, b.n), QNN_ERR_FORMAT);
        ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "\"fc.weight.scale\": scale 1 is"));
        free(b.data);
    }
    scale[1] =
        3e38f; /* times the input's scale it may leave the floats; where it does not, it loads */
    m->node[fc->in[0]]->scale = 1e5f;
    b = save_to_bytes(ctx, m);
    ck_assert_int_eq(load_and_run(ctx, b.data, b.n), QNN_ERR_FORMAT);
    free(b.data);
    scale[1] = good;
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- the file system ------------------------------------------------------------------------- */

START_TEST(what_the_system_refuses)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *const m = make_small(ctx);
    qnn_model *loaded = m;
    char path[256], inner[300], pipe_path[256];
    bytes before, after;

    ck_assert_int_eq(qnn_model_load(&loaded, ctx, "/nonexistent-folder/model.safetensors"),
                     QNN_ERR_IO);
    ck_assert_ptr_null(loaded);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "/nonexistent-folder/model.safetensors"));
    ck_assert_int_eq(qnn_model_load(&loaded, ctx, "/"), QNN_ERR_IO);
    ck_assert_int_eq(qnn_model_load(&loaded, ctx, "/dev/zero"), QNN_ERR_IO);
    ck_assert_int_eq(qnn_model_load(&loaded, ctx, NULL), QNN_ERR_ARG);
    temporary(pipe_path, sizeof pipe_path, "pipe");
    ck_assert_int_eq(mkfifo(pipe_path, 0600), 0);
    ck_assert_int_eq(qnn_model_load(&loaded, ctx, pipe_path),
                     QNN_ERR_IO); /* at once: nobody writes to it */
    unlink(pipe_path);

    ck_assert_int_eq(qnn_model_save(m, "/nonexistent-folder/model.safetensors"), QNN_ERR_IO);
    ck_assert_int_eq(qnn_model_save(m, ""), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_model_save(m, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_model_save(NULL, "x"), QNN_ERR_ARG);

    /* A save that fails leaves the old file and nothing else: renaming a file over a folder is
     * refused even to root. */
    temporary(path, sizeof path, "folder");
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(qnn_model_save(m, path), QNN_ERR_IO);
    snprintf(inner, sizeof inner, "%s/model.safetensors", path);
    TU_OK(ctx, qnn_model_save(m, inner));
    before = read_file(inner);
    TU_OK(ctx, qnn_model_save(m, inner)); /* over an existing one */
    after = read_file(inner);
    ck_assert_uint_eq(before.n, after.n);
    ck_assert_mem_eq(before.data, after.data, after.n);
    TU_OK(ctx, qnn_model_load(&loaded, ctx, inner));
    assert_same_models(m, loaded);
    qnn_model_free(loaded);
    unlink(inner);
    ck_assert_int_eq(rmdir(path), 0); /* empty: no temporary file was left behind */
    free(before.data);
    free(after.data);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(names_that_cannot_be_written)
{
    qnn_ctx *const ctx = tu_ctx(1);
    static const char *const bad[] = {"\xff",         "a\xc0\x80",        "\xe0\x80\x80",
                                      "\xed\xa0\x80", "\xf4\x90\x80\x80", "ab\xc3"};
    char path[256];

    temporary(path, sizeof path, "names.safetensors");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qnn_model *m;

        TU_OK(ctx, qnn_model_create(&m, ctx));
        qnn_output(m, "y", qnn_relu(m, qnn_input_features(m, "x", 2), bad[i]));
        TU_OK(ctx, qnn_model_check(m));
        ck_assert_int_eq(qnn_model_save(m, path), QNN_ERR_ARG);
        ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "UTF-8"));
        ck_assert_int_ne(access(path, F_OK), 0);
        qnn_model_free(m);
        m = make_small(ctx);
        TU_OK(ctx, qnn_model_set_meta(m, "key", bad[i]));
        ck_assert_int_eq(qnn_model_save(m, path), QNN_ERR_ARG);
        qnn_model_free(m);
    }
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- safetensors on its own ------------------------------------------------------------------ */

START_TEST(tensors_of_every_type)
{
    qnn_ctx *const ctx = tu_ctx(1);
    static const size_t size[QNN_ST_COUNT] = {4, 2, 2, 4, 8, 1, 1, 8};
    const int64_t dim[2] = {3, 1}, none = 0;
    unsigned char data[QNN_ST_COUNT][24];
    char path[256], name[16];
    qnn_st out, in;

    temporary(path, sizeof path, "tensors.safetensors");
    qnn_st__init(&out, ctx);
    for (int i = 0; i < QNN_ST_COUNT; i++) {
        tu_fill_u8(data[i], sizeof data[i], (uint64_t)i);
        snprintf(name, sizeof name, "t%d", i);
        TU_OK(ctx, qnn_st__add(&out, name, (qnn_st_dtype)i, 2, dim, data[i]));
    }
    TU_OK(ctx, qnn_st__add(&out, "empty", QNN_ST_F32, 1, &none, NULL));
    TU_OK(ctx, qnn_st__add(&out, "scalar", QNN_ST_I32, 0, NULL, data[0]));
    ck_assert_int_eq(qnn_st__add(&out, "t0", QNN_ST_F32, 2, dim, data[0]), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_st__add(&out, "", QNN_ST_F32, 2, dim, data[0]), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_st__add(&out, "__metadata__", QNN_ST_F32, 2, dim, data[0]), QNN_ERR_ARG);
    TU_OK(ctx, qnn_st__add_meta(&out, "key", "value"));
    ck_assert_int_eq(qnn_st__add_meta(&out, "key", "again"), QNN_ERR_ARG);
    TU_OK(ctx, qnn_st__write(&out, path));
    qnn_st__free(&out);
    TU_OK(ctx, qnn_st__read(&in, ctx, path));
    ck_assert_uint_eq(in.n_tensors, QNN_ST_COUNT + 2);
    ck_assert_str_eq(qnn_st__meta(&in, "key"), "value");
    ck_assert_ptr_null(qnn_st__meta(&in, "other"));
    ck_assert_ptr_null(qnn_st__find(&in, "other"));
    for (int i = 0; i < QNN_ST_COUNT; i++) {
        const qnn_st_tensor *t;

        snprintf(name, sizeof name, "t%d", i);
        t = qnn_st__find(&in, name);
        ck_assert_ptr_nonnull(t);
        ck_assert_int_eq((int)t->dtype, i);
        ck_assert_int_eq(t->rank, 2);
        ck_assert_uint_eq(t->bytes, 3 * size[i]);
        ck_assert_uint_eq((uintptr_t)t->data % size[i], 0);
        ck_assert_mem_eq(t->data, data[i], t->bytes);
    }
    ck_assert_uint_eq(qnn_st__find(&in, "empty")->bytes, 0);
    ck_assert_int_eq(qnn_st__find(&in, "scalar")->rank, 0);
    qnn_st__free(&in);
    unlink(path);
    qnn_ctx_free(ctx);
}
END_TEST

Suite *file_suite(void)
{
    Suite *const s = suite_create("file");
    TCase *const good = tcase_create("round trips"), *const bad = tcase_create("hostile");

    tcase_add_test(good, every_op_round_trips);
    tcase_add_test(good, every_type_round_trips_and_runs_alike);
    tcase_add_test(good, awkward_floats_round_trip);
    tcase_add_test(good, unaligned_bytes_load);
    tcase_add_test(good, tensors_of_every_type);
    tcase_add_test(good, what_the_system_refuses);
    tcase_add_test(good, names_that_cannot_be_written);
    tcase_set_timeout(good, 120);
    suite_add_tcase(s, good);
    tcase_add_test(bad, truncation_at_every_byte);
    tcase_add_test(bad, bit_flips);
    tcase_add_test(bad, fuzz_seeds_load);
    tcase_add_test(bad, malformed_headers);
    tcase_add_test(bad, malformed_graphs);
    tcase_add_test(bad, malformed_values);
    tcase_set_timeout(bad, 300);
    suite_add_tcase(s, bad);
    return s;
}
