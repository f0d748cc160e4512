/*
 * Matrix products against naive loops: every instruction set, odd sizes around each block's edge,
 * plain and gathered operands, and bits that depend neither on the threads nor on the other rows.
 */
#include "suites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/gemm.h"
#include "tests/common/testutil.h"

#define LEN(a)    (sizeof(a) / sizeof *(a))
#define MAX_ISAS  8
#define N_THREADS 3
#define GUARD     5 /* floats past each row of C */

static const int thread_counts[N_THREADS] = {1, 2, 5};
static qnn_ctx *ctxs[MAX_ISAS][N_THREADS];
static int n_isas;

/* One context for every instruction set that this machine has and QNN_ISA allows, and every thread
 * count. */
static void setup(void)
{
    qnn_ctx *const cap = tu_ctx(1);

    n_isas = 0;
    for (const qnn_isa_info *info = qnn_isa_list; info->name != NULL; info++) {
        if ((info->bits & ~cap->k.isa) != 0)
            continue;
        for (int t = 0; t < N_THREADS; t++)
            ctxs[n_isas][t] = tu_ctx_isa(thread_counts[t], info->name);
        n_isas++;
    }
    qnn_ctx_free(cap);
    ck_assert_int_gt(n_isas, 0);
}

static void teardown(void)
{
    for (int i = 0; i < n_isas; i++)
        for (int t = 0; t < N_THREADS; t++)
            qnn_ctx_free(ctxs[i][t]);
}

static float *floats(size_t n, float lo, float hi, uint64_t seed)
{
    float *const x = tu_alloc_aligned(n * sizeof *x);

    tu_fill_uniform(x, n, lo, hi, seed);
    return x;
}

/* ---- operands that are gathered ----------------------------------------------------------------
 */

typedef struct plain_f32 {
    const float *data;
    size_t ld, rows, cols;
} plain_f32;

static void gather_f32(const void *arg, size_t r0, size_t nr, size_t c0, size_t nc, float *dst,
                       size_t ld)
{
    const plain_f32 *const p = arg;

    if (r0 + nr > p->rows || c0 + nc > p->cols)
        abort(); /* asked for more than there is */
    for (size_t i = 0; i < nr; i++)
        memcpy(dst + i * ld, p->data + (r0 + i) * p->ld + c0, nc * sizeof *dst);
}

typedef struct plain_u8 {
    const uint8_t *data;
    size_t ld, rows, cols;
} plain_u8;

static void gather_u8(const void *arg, size_t r0, size_t nr, size_t c0, size_t nc, uint8_t *dst,
                      size_t ld)
{
    const plain_u8 *const p = arg;

    if (r0 + nr > p->rows || c0 + nc > p->cols)
        abort();
    for (size_t i = 0; i < nr; i++)
        memcpy(dst + i * ld, p->data + (r0 + i) * p->ld + c0, nc);
}

/* ---- f32 ------------------------------------------------------------------------------------- */

typedef struct f32_case {
    size_t m, n, k, lda_extra; /* lda = k + lda_extra */
    int beta, has_bias, has_clip;
} f32_case;

static const f32_case f32_cases[] = {
    {1, 1, 1, 0, 0, 0, 0},        {1, 37, 300, 0, 1, 1, 0},  {2, 64, 512, 0, 0, 0, 1},
    {3, 16, 255, 1, 0, 1, 1},     {7, 5, 256, 0, 1, 0, 0},   {8, 33, 257, 0, 0, 1, 0},
    {13, 48, 27, 3, 1, 1, 1},     {31, 70, 512, 0, 0, 1, 1}, {64, 129, 1024, 0, 1, 0, 1},
    {64, 270, 1100, 0, 0, 1, 0},  {119, 17, 40, 0, 0, 1, 1}, {120, 96, 288, 0, 1, 1, 0},
    {121, 31, 512, 512, 0, 0, 0}, {250, 65, 64, 0, 1, 1, 1}, {1000, 3, 9, 0, 0, 1, 1},
    {5, 600, 2050, 0, 1, 1, 0},
};

enum { B_ROWS, B_COLS, B_GATHER, N_B_KINDS };

/* Packs B as kind says and multiplies; C has GUARD floats of -7 past each row that must stay. */
static void run_f32(qnn_ctx *ctx, const f32_case *c, const float *a, int a_gather, const float *b,
                    int b_kind, const float *bias, float *out)
{
    const qnn_gemm_f32_kernel *const ker = ctx->k.gemm_f32;
    const size_t ldc = c->n + GUARD, lda = c->k + c->lda_extra;
    const plain_f32 pa = {a, lda, c->m, c->k}, pb = {b, c->n, c->k, c->n};
    float *const packed = tu_alloc_aligned(qnn_gemm__packed_f32(ker, c->k, c->n) * sizeof *packed);
    float *const columns = tu_alloc(c->k * c->n * sizeof *columns);
    qnn_mat mb = {.data = b, .rs = c->n, .cs = 1};
    qnn_gemm_f32_args g = {.m = c->m,
                           .n = c->n,
                           .k = c->k,
                           .a = {.data = a, .rs = lda, .cs = 1},
                           .b = packed,
                           .c = out,
                           .ldc = ldc,
                           .beta = c->beta,
                           .bias = bias,
                           .lo = c->has_clip ? -0.5f : -INFINITY,
                           .hi = c->has_clip ? 0.75f : INFINITY};

    for (size_t p = 0; p < c->k; p++)
        for (size_t j = 0; j < c->n; j++)
            columns[j * c->k + p] = b[p * c->n + j];
    if (b_kind == B_COLS)
        mb = (qnn_mat){.data = columns, .rs = 1, .cs = c->k};
    else if (b_kind == B_GATHER)
        mb = (qnn_mat){.gather = gather_f32, .arg = &pb};
    if (a_gather)
        g.a = (qnn_mat){.gather = gather_f32, .arg = &pa};
    for (size_t i = 0; i < c->m * ldc; i++)
        out[i] = i % ldc < c->n ? (float)(i % 11) * 0.125f - 0.5f : -7.0f;
    qnn_gemm__pack_f32(ctx, ker, c->k, c->n, &mb, packed);
    qnn_gemm__f32(ctx, ker, ctx->k.vec, &g);
    for (size_t i = 0; i < c->m * ldc; i++)
        ck_assert_msg(i % ldc < c->n || out[i] == -7.0f, "%s: m %zu n %zu k %zu wrote past row %zu",
                      ker->name, c->m, c->n, c->k, i / ldc);
    free(packed);
    free(columns);
}

static void check_f32(const qnn_ctx *ctx, const f32_case *c, const float *a, const float *b,
                      const float *bias, const float *out)
{
    const size_t ldc = c->n + GUARD, lda = c->k + c->lda_extra;

    for (size_t i = 0; i < c->m; i++)
        for (size_t j = 0; j < c->n; j++) {
            double sum = c->beta ? (double)((float)((i * ldc + j) % 11) * 0.125f - 0.5f) : 0.0;
            double size = fabs(sum), got = (double)out[i * ldc + j];

            for (size_t p = 0; p < c->k; p++) {
                const double v = (double)a[i * lda + p] * (double)b[p * c->n + j];

                sum += v;
                size += fabs(v);
            }
            sum += bias != NULL ? (double)bias[j] : 0.0;
            size += bias != NULL ? fabs((double)bias[j]) : 0.0;
            if (c->has_clip)
                sum = fmin(fmax(sum, -0.5), 0.75);
            ck_assert_msg(
                fabs(got - sum) <= size * (double)(c->k + 2) * 0x1p-24,
                "%s: m %zu n %zu k %zu lda %zu beta %d: C[%zu][%zu] is %.9g, expected %.9g",
                ctx->k.gemm_f32->name, c->m, c->n, c->k, lda, c->beta, i, j, got, sum);
        }
}

START_TEST(f32_against_naive)
{
    const f32_case *const c = &f32_cases[_i];
    const size_t lda = c->k + c->lda_extra, bytes = c->m * (c->n + GUARD) * sizeof(float);
    float *const a = floats(c->m * lda, -1.0f, 1.0f, 1), *const b =
                                                             floats(c->k * c->n, -1.0f, 1.0f, 2);
    float *const bias = floats(c->n, -1.0f, 1.0f, 3);
    float *const out = tu_alloc(bytes), *const other = tu_alloc(bytes);

    for (int isa = 0; isa < n_isas; isa++) {
        run_f32(ctxs[isa][0], c, a, 0, b, B_ROWS, c->has_bias ? bias : NULL, out);
        check_f32(ctxs[isa][0], c, a, b, c->has_bias ? bias : NULL, out);
        for (int kind = 0; kind < 2 * N_B_KINDS; kind++) { /* each on one of the thread counts */
            qnn_ctx *const ctx = ctxs[isa][kind % N_THREADS];

            run_f32(ctx, c, a, kind / N_B_KINDS, b, kind % N_B_KINDS, c->has_bias ? bias : NULL,
                    other);
            ck_assert_msg(
                memcmp(out, other, bytes) == 0,
                "%s: m %zu n %zu k %zu: other bits on %d threads, A gathered %d, B kind %d",
                ctx->k.gemm_f32->name, c->m, c->n, c->k, ctx->n_threads, kind / N_B_KINDS,
                kind % N_B_KINDS);
        }
    }
    free(a);
    free(b);
    free(bias);
    free(out);
    free(other);
}
END_TEST

/* A row's value is the same alone as among others. */
START_TEST(f32_rows_do_not_depend_on_m)
{
    enum { M = 37, N = 70, K = 1100 };
    const f32_case all = {M, N, K, 0, 0, 0, 0}, one = {1, N, K, 0, 0, 0, 0};
    float *const a = floats((size_t)M * K, -1.0f, 1.0f, 4), *const b = floats((size_t)K * N, -1.0f,
                                                                              1.0f, 5);
    float *const out = tu_alloc((size_t)M * (N + GUARD) * sizeof *out);
    float row[N + GUARD];

    for (int isa = 0; isa < n_isas; isa++) {
        run_f32(ctxs[isa][1], &all, a, 0, b, B_ROWS, NULL, out);
        for (size_t i = 0; i < M; i++) {
            run_f32(ctxs[isa][1], &one, a + i * K, 0, b, B_ROWS, NULL, row);
            ck_assert_msg(memcmp(row, out + i * (N + GUARD), N * sizeof *row) == 0, "%s: row %zu",
                          ctxs[isa][1]->k.gemm_f32->name, i);
        }
    }
    free(a);
    free(b);
    free(out);
}
END_TEST

/* ---- A^T B ----------------------------------------------------------------------------------- */

typedef struct at_b_case {
    size_t m, n, unit, n_units, n_shards;
} at_b_case;

static const at_b_case at_b_cases[] = {
    {1, 1, 1, 1, 1},     {5, 9, 7, 3, 1},       {32, 27, 50, 5, 5},
    {33, 70, 193, 4, 3}, {9, 100, 1, 64, 1},    {17, 40, 10, 3, 16},
    {600, 31, 3, 70, 2}, {12, 1500, 20, 20, 4}, {64, 288, 64, 16, 16},
};

static void run_at_b(qnn_ctx *ctx, const at_b_case *c, const float *a, const float *b, int b_gather,
                     float *out)
{
    const size_t k = c->unit * c->n_units, lda = c->m + 3, ldb = c->n + 2, ldc = c->n + GUARD;
    const plain_f32 pb = {b, ldb, k, c->n};
    const qnn_mat plain = {.data = b, .rs = ldb, .cs = 1};
    const qnn_mat gathered = {.gather = gather_f32, .arg = &pb};
    float *const partial =
        tu_alloc_aligned(qnn_gemm__at_b_scratch(c->m, c->n, c->n_shards) * sizeof *partial);

    for (size_t i = 0; i < c->m * ldc; i++)
        out[i] = i % ldc < c->n ? (float)(i % 7) - 3.0f : -7.0f;
    qnn_gemm__at_b(ctx, ctx->k.gemm_f32, c->m, c->n, k, c->unit, c->n_shards, a, lda,
                   b_gather ? &gathered : &plain, out, ldc, partial);
    free(partial);
}

START_TEST(at_b_against_naive)
{
    const at_b_case *const c = &at_b_cases[_i];
    const size_t k = c->unit * c->n_units, lda = c->m + 3, ldb = c->n + 2, ldc = c->n + GUARD;
    const size_t bytes = c->m * ldc * sizeof(float);
    float *const a = floats(k * lda, -1.0f, 1.0f, 6), *const b = floats(k * ldb, -1.0f, 1.0f, 7);
    float *const out = tu_alloc(bytes), *const other = tu_alloc(bytes);

    for (int isa = 0; isa < n_isas; isa++) {
        const char *const name = ctxs[isa][0]->k.gemm_f32->name;

        run_at_b(ctxs[isa][0], c, a, b, 0, out);
        for (size_t i = 0; i < c->m * ldc; i++) {
            double sum = (double)(i % 7) - 3.0, size = 3.0;
            const size_t row = i / ldc, col = i % ldc;

            if (col >= c->n) {
                ck_assert_msg(out[i] == -7.0f, "%s: wrote past row %zu", name, row);
                continue;
            }
            for (size_t p = 0; p < k; p++) {
                const double v = (double)a[p * lda + row] * (double)b[p * ldb + col];

                sum += v;
                size += fabs(v);
            }
            ck_assert_msg(
                fabs((double)out[i] - sum) <= size * (double)(k + 20) * 0x1p-24,
                "%s: m %zu n %zu unit %zu units %zu shards %zu: C[%zu][%zu] is %.9g, expected %.9g",
                name, c->m, c->n, c->unit, c->n_units, c->n_shards, row, col, (double)out[i], sum);
        }
        for (int t = 0; t < N_THREADS; t++) {
            const int gathered = t > 0;

            run_at_b(ctxs[isa][t], c, a, b, gathered, other);
            ck_assert_msg(memcmp(out, other, bytes) == 0,
                          "%s: m %zu n %zu: other bits on %d threads, gathered %d", name, c->m,
                          c->n, thread_counts[t], gathered);
        }
    }
    free(a);
    free(b);
    free(out);
    free(other);
}
END_TEST

/* ---- u8 x s8 --------------------------------------------------------------------------------- */

enum { TO_U8, TO_F32, TO_F32_ROWS, N_KINDS };

typedef struct u8s8_case {
    size_t m, n, k, lda_extra;
    int is_extreme; /* operands at the ends of their ranges: what would saturate 16-bit sums */
} u8s8_case;

static const u8s8_case u8s8_cases[] = {
    {1, 1, 1, 0, 0},       {1, 300, 5000, 0, 0}, {2, 33, 1024, 0, 1},  {3, 16, 3, 1, 1},
    {5, 65, 1025, 0, 0},   {13, 20, 27, 0, 1},   {64, 70, 4200, 0, 0}, {64, 530, 288, 0, 0},
    {113, 48, 1024, 0, 0}, {112, 17, 576, 5, 1}, {250, 40, 64, 0, 1},  {7, 600, 2050, 0, 0},
};

typedef struct u8s8_data {
    uint8_t *a;
    int8_t *b;
    int32_t *bias, *zero_bias, *row_zp, *col_sum;
    float *mult, *fbias, *row_scale;
} u8s8_data;

static u8s8_data make_u8s8(const u8s8_case *c)
{
    const size_t n_a = c->m * (c->k + c->lda_extra), n_b = c->k * c->n;
    u8s8_data d = {tu_alloc(n_a),
                   tu_alloc(n_b),
                   tu_alloc(c->n * 4),
                   tu_alloc(c->n * 4),
                   tu_alloc(c->m * 4),
                   tu_alloc(c->n * 4),
                   floats(c->n, 0.5f, 1.5f, 8),
                   floats(c->n, -2.0f, 2.0f, 9),
                   floats(c->m, 0.01f, 0.1f, 10)};

    tu_fill_u8(d.a, n_a, 11);
    tu_fill_u8((uint8_t *)d.b, n_b, 12);
    for (size_t i = 0; i < n_a && c->is_extreme; i++)
        d.a[i] = d.a[i] < 20 ? 0 : 255;
    for (size_t i = 0; i < n_b && c->is_extreme; i++)
        d.b[i] = i / c->n / 2 % 3 == 0 ? -128 : 127; /* pairs along k of one sign */
    for (size_t j = 0; j < c->n; j++) {
        d.mult[j] *= 100.0f / (128.0f * 64.0f * (float)c->k);
        d.bias[j] = (int32_t)(j * 977) - 3000;
        d.zero_bias[j] = 0;
        d.col_sum[j] = 0;
        for (size_t p = 0; p < c->k; p++)
            d.col_sum[j] += d.b[p * c->n + j];
    }
    for (size_t i = 0; i < c->m; i++)
        d.row_zp[i] = (int32_t)(i * 37 % 256);
    return d;
}

static void free_u8s8(u8s8_data *d)
{
    void *const all[] = {d->a,       d->b,    d->bias,  d->zero_bias, d->row_zp,
                         d->col_sum, d->mult, d->fbias, d->row_scale};

    for (size_t i = 0; i < LEN(all); i++)
        free(all[i]);
}

static void run_u8s8(qnn_ctx *ctx, const u8s8_case *c, const u8s8_data *d, int kind, int is_gather,
                     int b_columns, void *out)
{
    const qnn_gemm_u8s8_kernel *const ker = ctx->k.gemm_u8s8;
    const size_t lda = c->k + c->lda_extra, ldd = c->n + GUARD;
    const plain_u8 pa = {d->a, lda, c->m, c->k};
    int8_t *const packed = tu_alloc_aligned(qnn_gemm__packed_u8s8(ker, c->k, c->n));
    int8_t *const columns = tu_alloc(c->k * c->n);
    qnn_gemm_u8s8_args g = {.m = c->m,
                            .n = c->n,
                            .k = c->k,
                            .a = d->a,
                            .lda = lda,
                            .b = packed,
                            .bias = kind == TO_F32_ROWS ? d->zero_bias : d->bias,
                            .mult = d->mult,
                            .zp = 101,
                            .qmin = 7,
                            .qmax = 250,
                            .fbias = d->fbias,
                            .lo = -40.0f,
                            .hi = 60.0f,
                            .ldd = ldd};

    if (is_gather) {
        g.gather = gather_u8;
        g.arg = &pa;
    }
    if (kind == TO_U8)
        g.dst_u8 = out;
    else
        g.dst_f32 = out;
    if (kind == TO_F32_ROWS) {
        g.row_scale = d->row_scale;
        g.row_zp = d->row_zp;
        g.col_sum = d->col_sum;
    }
    for (size_t p = 0; p < c->k; p++)
        for (size_t j = 0; j < c->n; j++)
            columns[j * c->k + p] = d->b[p * c->n + j];
    memset(out, 0x5a, c->m * ldd * (kind == TO_U8 ? 1 : sizeof(float)));
    if (b_columns)
        qnn_gemm__pack_u8s8(ctx, ker, c->k, c->n, columns, 1, c->k, packed);
    else
        qnn_gemm__pack_u8s8(ctx, ker, c->k, c->n, d->b, c->n, 1, packed);
    qnn_gemm__u8s8(ctx, ker, ctx->k.vec, &g);
    free(packed);
    free(columns);
}

/* The contract's formulas, one element at a time. */
static void naive_u8s8(const u8s8_case *c, const u8s8_data *d, int kind, void *out)
{
    const size_t ldd = c->n + GUARD;

    memset(out, 0x5a, c->m * ldd * (kind == TO_U8 ? 1 : sizeof(float)));
    for (size_t i = 0; i < c->m; i++)
        for (size_t j = 0; j < c->n; j++) {
            int64_t sum = kind == TO_F32_ROWS ? -(int64_t)d->row_zp[i] * d->col_sum[j] : d->bias[j];
            float y;

            for (size_t p = 0; p < c->k; p++)
                sum += (int64_t)d->a[i * (c->k + c->lda_extra) + p] * d->b[p * c->n + j];
            ck_assert(sum >= INT32_MIN && sum <= INT32_MAX);
            if (kind == TO_U8) {
                y = rintf((float)(int32_t)sum * d->mult[j]) + 101.0f;
                ((uint8_t *)out)[i * ldd + j] = (uint8_t)fminf(fmaxf(y, 7.0f), 250.0f);
                continue;
            }
            y = (float)(int32_t)sum * (kind == TO_F32 ? d->mult[j] : d->row_scale[i] * d->mult[j]);
            y += d->fbias[j];
            ((float *)out)[i * ldd + j] = fminf(fmaxf(y, -40.0f), 60.0f);
        }
}

START_TEST(u8s8_is_exact)
{
    const u8s8_case *const c = &u8s8_cases[_i];
    const size_t bytes = c->m * (c->n + GUARD) * sizeof(float);
    void *const want = tu_alloc(bytes), *const out = tu_alloc(bytes);
    u8s8_data d = make_u8s8(c);

    for (int kind = 0; kind < N_KINDS; kind++) {
        naive_u8s8(c, &d, kind, want);
        for (int run = 0; run < n_isas * 4; run++) {
            const int isa = run / 4, t = run % 4 % N_THREADS;

            run_u8s8(ctxs[isa][t], c, &d, kind, run % 2, run / 2 % 2, out);
            ck_assert_msg(memcmp(want, out, kind == TO_U8 ? bytes / sizeof(float) : bytes) == 0,
                          "%s: m %zu n %zu k %zu extreme %d, output kind %d, %d threads, A "
                          "gathered %d, B by columns %d",
                          ctxs[isa][t]->k.gemm_u8s8->name, c->m, c->n, c->k, c->is_extreme, kind,
                          thread_counts[t], run % 2, run / 2 % 2);
        }
    }
    free(want);
    free(out);
    free_u8s8(&d);
}
END_TEST

/* Pairs that saturate where products are added in 16 bits. */
START_TEST(known_pairs)
{
    static const struct {
        uint8_t a[2];
        int8_t b[2];
        float sum;
    } pairs[] = {{{211, 171}, {71, 107}, 33278.0f}, {{255, 255}, {-128, -128}, -65280.0f}};
    const int32_t bias = 0;
    const float mult = 1.0f;

    for (size_t i = 0; i < LEN(pairs); i++)
        for (int isa = 0; isa < n_isas; isa++) {
            qnn_ctx *const ctx = ctxs[isa][0];
            const qnn_gemm_u8s8_kernel *const ker = ctx->k.gemm_u8s8;
            int8_t *const packed = tu_alloc_aligned(qnn_gemm__packed_u8s8(ker, 2, 1));
            float got = 0.0f;
            const qnn_gemm_u8s8_args g = {.m = 1,
                                          .n = 1,
                                          .k = 2,
                                          .a = pairs[i].a,
                                          .lda = 2,
                                          .b = packed,
                                          .bias = &bias,
                                          .mult = &mult,
                                          .dst_f32 = &got,
                                          .lo = -INFINITY,
                                          .hi = INFINITY,
                                          .ldd = 1};

            qnn_gemm__pack_u8s8(ctx, ker, 2, 1, pairs[i].b, 1, 1, packed);
            qnn_gemm__u8s8(ctx, ker, ctx->k.vec, &g);
            ck_assert_msg(got == pairs[i].sum, "%s: %g, expected %g", ker->name, (double)got,
                          (double)pairs[i].sum);
            free(packed);
        }
}
END_TEST

Suite *gemm_suite(void)
{
    Suite *const s = suite_create("gemm");
    TCase *const f32 = tcase_create("f32"), *const u8s8 = tcase_create("u8s8");

    tcase_add_checked_fixture(f32, setup, teardown);
    tcase_add_checked_fixture(u8s8, setup, teardown);
    tcase_add_loop_test(f32, f32_against_naive, 0, LEN(f32_cases));
    tcase_add_test(f32, f32_rows_do_not_depend_on_m);
    tcase_add_loop_test(f32, at_b_against_naive, 0, LEN(at_b_cases));
    tcase_add_loop_test(u8s8, u8s8_is_exact, 0, LEN(u8s8_cases));
    tcase_add_test(u8s8, known_pairs);
    tcase_set_timeout(f32, 60);
    tcase_set_timeout(u8s8, 60);
    suite_add_tcase(s, f32);
    suite_add_tcase(s, u8s8);
    return s;
}
