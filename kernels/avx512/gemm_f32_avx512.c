/*
 * f32 GEMM microkernel for AVX-512, 14 x 32.
 *
 * Registers: 28 accumulators, 2 vectors of B, 1 broadcast of A. Each step over p is 28 FMAs
 * against 16 loads, so two FMA ports are the bound. One chain of FMAs per element over p, started
 * from C or 0. Columns past n are masked; a last panel of at most 16 columns computes one vector
 * instead of two.
 * Measured on one core of a Xeon (family 6, model 207), gcc 12, December 2026: 85 GMAC/s at 14
 * x 256 x 256, 96% of a registers-only FMA loop.
 */
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__) || !defined(__BMI2__) ||         \
    !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) ||                   \
    !defined(__AVX512VL__)
#error "kernels/avx512 must be compiled with ISA_CFLAGS_avx512 (see Makefile)"
#endif
#include "kernels/kernels.h"
#include "kernels/microkernel.h"

#include <immintrin.h>

enum {
    MR = 14,
    LANES = 16,
    NR = 2 * LANES,
    AHEAD = 8 * NR /* floats of B fetched ahead: eight steps, about a hundred cycles */
};

/* m x (nv vectors) of C; m, nv, layout are constants; last masks the columns of the last vector. */
QNN_INLINE void tile(const size_t m, const size_t nv, const qnn_a_layout layout, size_t k,
                     const float *a, size_t lda, const float *b, float *c, size_t ldc,
                     __mmask16 last, int accumulate)
{
    const __mmask16 mask[2] = {nv == 1 ? last : 0xffff, last};
    const float *row[(MR + 2) / 3]; /* every third row, see QNN_OPAQUE */
    __m512 acc[MR][2];

    QNN_UNROLL
    for (size_t i = 0; i < m; i += 3)
        row[i / 3] = a + i * lda;

    QNN_UNROLL
    for (size_t i = 0; i < m; i++) {
        QNN_UNROLL
        for (size_t v = 0; v < nv; v++)
            acc[i][v] = accumulate ? _mm512_maskz_loadu_ps(mask[v], c + i * ldc + v * LANES)
                                   : _mm512_setzero_ps();
    }

    for (; k > 0; k--) {
        __m512 bv[2];
        QNN_UNROLL
        for (size_t v = 0; v < nv; v++) {
            bv[v] = _mm512_loadu_ps(b + v * LANES);
            _mm_prefetch((const char *)(b + AHEAD + v * LANES), _MM_HINT_T0);
        }
        if (layout == QNN_A_ROWS) {
            QNN_UNROLL
            for (size_t i = 0; i < m; i += 3)
                QNN_OPAQUE(row[i / 3]);
        }
        QNN_UNROLL
        for (size_t i = 0; i < m; i++) {
            const __m512 av =
                _mm512_set1_ps(layout == QNN_A_ROWS ? row[i / 3][(i % 3) * lda] : a[i]);
            QNN_UNROLL
            for (size_t v = 0; v < nv; v++)
                acc[i][v] = _mm512_fmadd_ps(av, bv[v], acc[i][v]);
        }
        if (layout == QNN_A_ROWS) {
            QNN_UNROLL
            for (size_t i = 0; i < m; i += 3)
                row[i / 3]++;
        } else {
            a += MR;
        }
        b += NR;
    }

    QNN_UNROLL
    for (size_t i = 0; i < m; i++) {
        QNN_UNROLL
        for (size_t v = 0; v < nv; v++)
            _mm512_mask_storeu_ps(c + i * ldc + v * LANES, mask[v], acc[i][v]);
    }
}

QNN_INLINE void walk_panels(const size_t m, const qnn_a_layout layout, size_t n, size_t k,
                            const float *a, size_t lda, const float *b, size_t panel_stride,
                            float *c, size_t ldc, int accumulate)
{
    for (; n > LANES; b += panel_stride, c += NR) {
        const size_t width = n < NR ? n : NR;
        const __mmask16 last = (__mmask16)(0xffffu >> (NR - width));
        tile(m, 2, layout, k, a, lda, b, c, ldc, last, accumulate);
        n -= width;
    }
    if (n > 0)
        tile(m, 1, layout, k, a, lda, b, c, ldc, (__mmask16)(0xffffu >> (LANES - n)), accumulate);
}

typedef void walk_fn(size_t n, size_t k, const float *a, size_t lda, const float *b,
                     size_t panel_stride, float *c, size_t ldc, int accumulate);

#define WALK(m)                                                                                    \
    static void rows_##m(size_t n, size_t k, const float *a, size_t lda, const float *b,           \
                         size_t panel_stride, float *c, size_t ldc, int accumulate)                \
    {                                                                                              \
        walk_panels(m, QNN_A_ROWS, n, k, a, lda, b, panel_stride, c, ldc, accumulate);             \
    }                                                                                              \
    static void cols_##m(size_t n, size_t k, const float *a, size_t lda, const float *b,           \
                         size_t panel_stride, float *c, size_t ldc, int accumulate)                \
    {                                                                                              \
        walk_panels(m, QNN_A_COLS, n, k, a, lda, b, panel_stride, c, ldc, accumulate);             \
    }
WALK(1)
WALK(2)
WALK(3)
WALK(4)
WALK(5)
WALK(6)
WALK(7)
WALK(8)
WALK(9)
WALK(10)
WALK(11)
WALK(12)
WALK(13)
WALK(14)
#undef WALK

static walk_fn *const rows_by_m[MR] = {rows_1, rows_2, rows_3,  rows_4,  rows_5,  rows_6,  rows_7,
                                       rows_8, rows_9, rows_10, rows_11, rows_12, rows_13, rows_14};
static walk_fn *const cols_by_m[MR] = {cols_1, cols_2, cols_3,  cols_4,  cols_5,  cols_6,  cols_7,
                                       cols_8, cols_9, cols_10, cols_11, cols_12, cols_13, cols_14};

static void gemm_rows(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b,
                      size_t panel_stride, float *c, size_t ldc, int accumulate)
{
    rows_by_m[m - 1](n, k, a, lda, b, panel_stride, c, ldc, accumulate);
}

static void gemm_cols(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b,
                      size_t panel_stride, float *c, size_t ldc, int accumulate)
{
    (void)lda;
    cols_by_m[m - 1](n, k, a, 0, b, panel_stride, c, ldc, accumulate);
}

const qnn_gemm_f32_kernel qnn_gemm_f32_avx512 = {
    .name = "gemm_f32_avx512",
    .isa = QNN_ISA_AVX2 | QNN_ISA_AVX512,
    .mr = MR,
    .nr = NR,
    .gemm = {[QNN_A_ROWS] = gemm_rows, [QNN_A_COLS] = gemm_cols},
};
