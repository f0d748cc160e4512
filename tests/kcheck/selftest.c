/*
 * Kernels that are wrong on purpose, each of which the checks must catch; and the references under
 * the same options, which must pass. Each fault is one that a real kernel could have.
 */
#include "tests/kcheck/kcheck.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The references, last in their lists; the broken kernels are these with one thing changed. */
static const qnn_gemm_u8s8_kernel *ref_u8s8(void)
{
    size_t i = 0;
    while (qnn_gemm_u8s8_list[i + 1] != NULL)
        i++;
    return qnn_gemm_u8s8_list[i];
}

static const qnn_gemm_f32_kernel *ref_f32(void)
{
    size_t i = 0;
    while (qnn_gemm_f32_list[i + 1] != NULL)
        i++;
    return qnn_gemm_f32_list[i];
}

static const qnn_vec_kernel *ref_vec(void)
{
    size_t i = 0;
    while (qnn_vec_list[i + 1] != NULL)
        i++;
    return qnn_vec_list[i];
}

/* ---- gemm_u8s8 ----------------------------------------------------------------------------- */

#define U8S8_ARGS                                                                                  \
    size_t m, size_t n, size_t k, const uint8_t *a, size_t lda, const int8_t *b, size_t stride,    \
        int32_t *c, size_t ldc, int accumulate

static void u8s8_writes_past_end(U8S8_ARGS)
{
    ref_u8s8()->gemm(m, n, k, a, lda, b, stride, c, ldc, accumulate);
    c[(m - 1) * ldc + n] = 0;
}

static void u8s8_writes_before(U8S8_ARGS)
{
    ref_u8s8()->gemm(m, n, k, a, lda, b, stride, c, ldc, accumulate);
    c[-1] = 0;
}

static void u8s8_writes_gap(U8S8_ARGS)
{
    ref_u8s8()->gemm(m, n, k, a, lda, b, stride, c, ldc, accumulate);
    if (m > 1)
        c[n] = 0;
}

static void u8s8_reads_past_a(U8S8_ARGS)
{
    (void)*(const volatile uint8_t *)&a[(m - 1) * lda + k];
    ref_u8s8()->gemm(m, n, k, a, lda, b, stride, c, ldc, accumulate);
}

static void u8s8_reads_before_a(U8S8_ARGS)
{
    (void)*((const volatile uint8_t *)a - 1);
    ref_u8s8()->gemm(m, n, k, a, lda, b, stride, c, ldc, accumulate);
}

static void u8s8_reads_past_b(U8S8_ARGS)
{
    const size_t nr = ref_u8s8()->nr;
    (void)*(const volatile int8_t *)&b[(n - 1) / nr * stride + (k + 7) / 8 * 8 * nr + 63];
    ref_u8s8()->gemm(m, n, k, a, lda, b, stride, c, ldc, accumulate);
}

static void u8s8_ignores_ldc(U8S8_ARGS)
{
    (void)ldc;
    ref_u8s8()->gemm(m, n, k, a, lda, b, stride, c, n, accumulate);
}

static void u8s8_ignores_lda(U8S8_ARGS)
{
    (void)lda;
    ref_u8s8()->gemm(m, n, k, a, k, b, stride, c, ldc, accumulate);
}

static void u8s8_ignores_stride(U8S8_ARGS)
{
    (void)stride;
    ref_u8s8()->gemm(m, n, k, a, lda, b, k * ref_u8s8()->nr, c, ldc, accumulate);
}

static void u8s8_ignores_accumulate(U8S8_ARGS)
{
    (void)accumulate;
    ref_u8s8()->gemm(m, n, k, a, lda, b, stride, c, ldc, 0);
}

static void u8s8_drops_last_k(U8S8_ARGS)
{
    ref_u8s8()->gemm(m, n, k > 256 ? k - 1 : k, a, lda, b, stride, c, ldc, accumulate);
}

/* What vpmaddubsw does: each pair of products saturates to 16 bits. */
static void u8s8_saturates(U8S8_ARGS)
{
    const size_t nr = ref_u8s8()->nr;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            const int8_t *const col = b + j / nr * stride + j % nr;
            int32_t sum = accumulate ? c[i * ldc + j] : 0;
            for (size_t p = 0; p < k; p += 2) {
                int32_t pair = a[i * lda + p] * col[p * nr];
                if (p + 1 < k)
                    pair += a[i * lda + p + 1] * col[(p + 1) * nr];
                sum += pair > 32767 ? 32767 : pair < -32768 ? -32768 : pair;
            }
            c[i * ldc + j] = sum;
        }
}

static void u8s8_differs_second_time(U8S8_ARGS)
{
    static unsigned n_calls;
    ref_u8s8()->gemm(m, n, k, a, lda, b, stride, c, ldc, accumulate);
    c[0] += n_calls++ % 2 != 0;
}

static void u8s8_illegal_instruction(U8S8_ARGS)
{
    ref_u8s8()->gemm(m, n, k, a, lda, b, stride, c, ldc, accumulate);
    __builtin_trap();
}

static void pack_leaves_junk(size_t k, size_t n, const int8_t *b, size_t row, size_t col,
                             int8_t *panel)
{
    const size_t nr = ref_u8s8()->nr;
    for (size_t p = 0; p < k; p++)
        for (size_t j = 0; j < nr; j++)
            panel[p * nr + j] = j < n ? b[p * row + j * col] : 1;
}

static void pack_reads_past_n(size_t k, size_t n, const int8_t *b, size_t row, size_t col,
                              int8_t *panel)
{
    (void)*(const volatile int8_t *)&b[(k - 1) * row + n * col];
    ref_u8s8()->pack_panel(k, n, b, row, col, panel);
}

/* ---- gemm_f32 ------------------------------------------------------------------------------ */

#define F32_ARGS                                                                                   \
    size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t stride,       \
        float *c, size_t ldc, int accumulate

static void f32_writes_past_end(F32_ARGS)
{
    ref_f32()->gemm[QNN_A_ROWS](m, n, k, a, lda, b, stride, c, ldc, accumulate);
    c[(m - 1) * ldc + n] = 0.0f;
}

static void f32_writes_gap(F32_ARGS)
{
    ref_f32()->gemm[QNN_A_ROWS](m, n, k, a, lda, b, stride, c, ldc, accumulate);
    if (m > 1)
        c[n] = 0.0f;
}

static void f32_reads_past_a(F32_ARGS)
{
    (void)*(const volatile float *)&a[(m - 1) * lda + k];
    ref_f32()->gemm[QNN_A_ROWS](m, n, k, a, lda, b, stride, c, ldc, accumulate);
}

/* Adds C last instead of first: inside the tolerance, but another chain. */
static void f32_adds_c_last(F32_ARGS)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            const float before = accumulate ? c[i * ldc + j] : 0.0f;
            ref_f32()->gemm[QNN_A_ROWS](1, 1, k, a + i * lda, lda,
                                        b + j / ref_f32()->nr * stride + j % ref_f32()->nr, stride,
                                        c + i * ldc + j, ldc, 0);
            c[i * ldc + j] += before;
        }
}

/* Rounds products to bfloat16: wrong in the third digit. */
static void f32_is_imprecise(F32_ARGS)
{
    ref_f32()->gemm[QNN_A_ROWS](m, n, k, a, lda, b, stride, c, ldc, accumulate);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            c[i * ldc + j] = kc_float(kc_bits(c[i * ldc + j]) & 0xffff0000u);
}

/* Takes the rows of a group as mr = m. */
static void f32_cols_wrong_group(F32_ARGS)
{
    const size_t nr = ref_f32()->nr;
    (void)lda;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            float sum = accumulate ? c[i * ldc + j] : 0.0f;
            for (size_t p = 0; p < k; p++)
                sum += a[p * m + i] * b[j / nr * stride + p * nr + j % nr];
            c[i * ldc + j] = sum;
        }
}

/* ---- vec ----------------------------------------------------------------------------------- */

#define QUANTIZE_ARGS                                                                              \
    size_t n, const float *x, float inv_scale, int32_t zp, int32_t qmin, int32_t qmax, uint8_t *q

static uint8_t half_away(float x, float inv_scale, int32_t zp, int32_t qmin, int32_t qmax)
{
    const float v = x * inv_scale;
    if (isnan(v))
        return (uint8_t)zp;
    const double code = (double)roundf(v) + zp;
    return (uint8_t)(code < qmin ? qmin : code > qmax ? qmax : code);
}

static void quantize_rounds_half_away(QUANTIZE_ARGS)
{
    for (size_t i = 0; i < n; i++)
        q[i] = half_away(x[i], inv_scale, zp, qmin, qmax);
}

static void quantize_nan_to_qmin(QUANTIZE_ARGS)
{
    ref_vec()->quantize_u8(n, x, inv_scale, zp, qmin, qmax, q);
    for (size_t i = 0; i < n; i++)
        if (isnan(x[i]))
            q[i] = (uint8_t)qmin;
}

static void quantize_writes_whole_vectors(QUANTIZE_ARGS)
{
    ref_vec()->quantize_u8(n, x, inv_scale, zp, qmin, qmax, q);
    if (n % 8 != 0)
        memset(q + n, 0, 8 - n % 8);
}

static void max_ignores_tail(size_t n, const uint8_t *x, uint8_t *dst)
{
    ref_vec()->max_u8(n / 16 * 16, x, dst);
}

static double sum_squares_in_order(size_t n, const float *x)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

static void f16_truncates(size_t n, const float *x, uint16_t *h)
{
    ref_vec()->f32_to_f16(n, x, h);
    for (size_t i = 0; i < n; i++)
        if (fabsf(x[i]) > 0x1p-14f && fabsf(x[i]) < 65504.0f)
            h[i] = (uint16_t)((h[i] & 0x8000) | ((kc_bits(x[i]) & 0x7fffffff) - 0x38000000) >> 13);
}

/* ---- the test ------------------------------------------------------------------------------ */

/* Says whether a broken kernel went unnoticed. */
static int must_fail(const char *name, int failed)
{
    if (failed)
        return 0;
    printf("FAIL self-test: %s was not caught\n", name);
    return 1;
}

static int must_pass(const char *name, int failed)
{
    if (!failed)
        return 0;
    printf("FAIL self-test: %s should pass: %s\n", name, kc_last_note());
    return 1;
}

static int check_u8s8(const kc_options *o)
{
    static const struct {
        const char *name;
        qnn_gemm_u8s8_fn *gemm;
        qnn_pack_u8s8_fn *pack;
    } broken[] = {
        {"u8s8_writes_past_end", u8s8_writes_past_end, NULL},
        {"u8s8_writes_before", u8s8_writes_before, NULL},
        {"u8s8_writes_gap", u8s8_writes_gap, NULL},
        {"u8s8_reads_past_a", u8s8_reads_past_a, NULL},
        {"u8s8_reads_before_a", u8s8_reads_before_a, NULL},
        {"u8s8_reads_past_b", u8s8_reads_past_b, NULL},
        {"u8s8_ignores_ldc", u8s8_ignores_ldc, NULL},
        {"u8s8_ignores_lda", u8s8_ignores_lda, NULL},
        {"u8s8_ignores_stride", u8s8_ignores_stride, NULL},
        {"u8s8_ignores_accumulate", u8s8_ignores_accumulate, NULL},
        {"u8s8_drops_last_k", u8s8_drops_last_k, NULL},
        {"u8s8_saturates", u8s8_saturates, NULL},
        {"u8s8_differs_second_time", u8s8_differs_second_time, NULL},
        {"u8s8_illegal_instruction", u8s8_illegal_instruction, NULL},
        {"pack_leaves_junk", NULL, pack_leaves_junk},
        {"pack_reads_past_n", NULL, pack_reads_past_n},
    };
    int n_missed = 0;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        qnn_gemm_u8s8_kernel ker = *ref_u8s8();
        ker.name = broken[i].name;
        ker.gemm = broken[i].gemm != NULL ? broken[i].gemm : ker.gemm;
        ker.pack_panel = broken[i].pack != NULL ? broken[i].pack : ker.pack_panel;
        n_missed += must_fail(ker.name, kc_check_gemm_u8s8_one(o, &ker));
    }
    return n_missed + must_pass("gemm_u8s8_ref", kc_check_gemm_u8s8_one(o, ref_u8s8()));
}

static int check_f32(const kc_options *o)
{
    static const struct {
        const char *name;
        qnn_gemm_f32_fn *rows, *cols;
    } broken[] = {
        {"f32_writes_past_end", f32_writes_past_end, NULL},
        {"f32_writes_gap", f32_writes_gap, NULL},
        {"f32_reads_past_a", f32_reads_past_a, NULL},
        {"f32_adds_c_last", f32_adds_c_last, NULL},
        {"f32_is_imprecise", f32_is_imprecise, NULL},
        {"f32_cols_wrong_group", NULL, f32_cols_wrong_group},
    };
    int n_missed = 0;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        qnn_gemm_f32_kernel ker = *ref_f32();
        ker.name = broken[i].name;
        ker.gemm[QNN_A_ROWS] = broken[i].rows != NULL ? broken[i].rows : ker.gemm[QNN_A_ROWS];
        ker.gemm[QNN_A_COLS] = broken[i].cols != NULL ? broken[i].cols : ker.gemm[QNN_A_COLS];
        n_missed += must_fail(ker.name, kc_check_gemm_f32_one(o, &ker));
    }
    return n_missed + must_pass("gemm_f32_ref", kc_check_gemm_f32_one(o, ref_f32()));
}

static int check_vec(const kc_options *o)
{
    qnn_vec_kernel away = *ref_vec(), nan = away, whole = away;
    qnn_vec_kernel tail = away, order = away, half = away;
    away.quantize_u8 = quantize_rounds_half_away;
    nan.quantize_u8 = quantize_nan_to_qmin;
    whole.quantize_u8 = quantize_writes_whole_vectors;
    tail.max_u8 = max_ignores_tail;
    order.sum_squares = sum_squares_in_order;
    half.f32_to_f16 = f16_truncates;
    const struct {
        const char *name, *routine;
        const qnn_vec_kernel *kernel;
    } broken[] = {
        {"quantize_rounds_half_away", "quantize_u8", &away},
        {"quantize_nan_to_qmin", "quantize_u8", &nan},
        {"quantize_writes_whole_vectors", "quantize_u8", &whole},
        {"max_ignores_tail", "max_u8", &tail},
        {"sum_squares_in_order", "sum_squares", &order},
        {"f16_truncates", "f32_to_f16", &half},
    };
    int n_missed = 0;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        kc_options one = *o;
        one.routine = broken[i].routine;
        n_missed += must_fail(broken[i].name, kc_check_vec_one(&one, broken[i].kernel));
        n_missed += must_pass(one.routine, kc_check_vec_one(&one, ref_vec()));
    }
    return n_missed;
}

int kc_selftest(const kc_options *o)
{
    const kc_options plain = {.seed = o->seed, .host = o->host};
    const size_t before = kc_n_cases();
    kc_set_quiet(1);
    const int n_missed = check_u8s8(&plain) + check_f32(&plain) + check_vec(&plain);
    kc_set_quiet(0);
    printf("%-24s %s, %zu cases\n", "selftest", n_missed ? "FAILED" : "ok", kc_n_cases() - before);
    return n_missed;
}
