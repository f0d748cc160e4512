/*
 * f32 GEMM microkernel for AVX2 and FMA, 6 x 16.
 *
 * Registers: 12 accumulators, 2 vectors of B, 1 broadcast of A. Each step over p is 12 FMAs
 * against 8 loads, so two FMA ports are the bound. One chain of FMAs per element over p, started
 * from C or 0. A last panel narrower than its vectors goes through a tile on the stack; at most 8
 * columns compute one vector instead of two.
 * Measured on one core of a Xeon (family 6, model 207), gcc 12, December 2026: 44 GMAC/s at 6 x
 * 256 x 256, 92% of a registers-only FMA loop.
 */
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__) || !defined(__BMI2__)
#error "kernels/avx2 must be compiled with ISA_CFLAGS_avx2 (see Makefile)"
#endif
#include "kernels/kernels.h"
#include "kernels/microkernel.h"

#include <immintrin.h>

enum {
    MR = 6,
    LANES = 8,
    NR = 2 * LANES,
    AHEAD = 16 * NR /* floats of B fetched ahead: sixteen steps, about a hundred cycles */
};

/* m x (nv vectors) of C; m, nv and layout are constants. */
QNN_INLINE void tile(const size_t m, const size_t nv, const qnn_a_layout layout, size_t k,
                     const float *a, size_t lda, const float *b, float *c, size_t ldc,
                     int accumulate)
{
    const float *row[(MR + 2) / 3]; /* every third row, see QNN_OPAQUE */
    __m256 acc[MR][2];

    QNN_UNROLL
    for (size_t i = 0; i < m; i += 3)
        row[i / 3] = a + i * lda;

    QNN_UNROLL
    for (size_t i = 0; i < m; i++) {
        QNN_UNROLL
        for (size_t v = 0; v < nv; v++)
            acc[i][v] = accumulate ? _mm256_loadu_ps(c + i * ldc + v * LANES) : _mm256_setzero_ps();
    }

    for (; k > 0; k--) {
        __m256 bv[2];
        QNN_UNROLL
        for (size_t v = 0; v < nv; v++)
            bv[v] = _mm256_loadu_ps(b + v * LANES);
        _mm_prefetch((const char *)(b + AHEAD), _MM_HINT_T0);
        if (layout == QNN_A_ROWS) {
            QNN_UNROLL
            for (size_t i = 0; i < m; i += 3)
                QNN_OPAQUE(row[i / 3]);
        }
        QNN_UNROLL
        for (size_t i = 0; i < m; i++) {
            const __m256 av =
                _mm256_set1_ps(layout == QNN_A_ROWS ? row[i / 3][(i % 3) * lda] : a[i]);
            QNN_UNROLL
            for (size_t v = 0; v < nv; v++)
                acc[i][v] = _mm256_fmadd_ps(av, bv[v], acc[i][v]);
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
            _mm256_storeu_ps(c + i * ldc + v * LANES, acc[i][v]);
    }
}

QNN_INLINE void walk_panels(const size_t m, const qnn_a_layout layout, size_t n, size_t k,
                            const float *a, size_t lda, const float *b, size_t panel_stride,
                            float *c, size_t ldc, int accumulate)
{
    for (; n >= NR; n -= NR, b += panel_stride, c += NR)
        tile(m, 2, layout, k, a, lda, b, c, ldc, accumulate);
    if (n == 0)
        return;

    float edge[MR * NR] = {0};
    if (accumulate)
        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j < n; j++)
                edge[i * NR + j] = c[i * ldc + j];
    if (n > LANES)
        tile(m, 2, layout, k, a, lda, b, edge, NR, accumulate);
    else
        tile(m, 1, layout, k, a, lda, b, edge, NR, accumulate);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            c[i * ldc + j] = edge[i * NR + j];
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
#undef WALK

static walk_fn *const rows_by_m[MR] = {rows_1, rows_2, rows_3, rows_4, rows_5, rows_6};
static walk_fn *const cols_by_m[MR] = {cols_1, cols_2, cols_3, cols_4, cols_5, cols_6};

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

const qnn_gemm_f32_kernel qnn_gemm_f32_avx2 = {
    .name = "gemm_f32_avx2",
    .isa = QNN_ISA_AVX2,
    .mr = MR,
    .nr = NR,
    .gemm = {[QNN_A_ROWS] = gemm_rows, [QNN_A_COLS] = gemm_cols},
};
