/*
 * f32 GEMM microkernel in plain C, 4 x 8, for any processor: the contract of kernels.h spelled out.
 * The inner loop over a panel's columns is what a compiler's baseline vectors can use.
 */
#include "kernels/kernels.h"

enum { MR = 4, NR = 8 };

/* Element (i, p) of A is a[i * row_step + p * p_step]. */
static void gemm(size_t m, size_t n, size_t k, const float *a, size_t row_step, size_t p_step,
                 const float *b, size_t panel_stride, float *c, size_t ldc, int accumulate)
{
    for (size_t j0 = 0; j0 < n; j0 += NR, b += panel_stride) {
        const size_t width = n - j0 < NR ? n - j0 : NR;
        for (size_t i = 0; i < m; i++) {
            float *const row = c + i * ldc + j0;
            float sum[NR] = {0};
            if (accumulate)
                for (size_t j = 0; j < width; j++)
                    sum[j] = row[j];
            for (size_t p = 0; p < k; p++) {
                const float value = a[i * row_step + p * p_step];
                for (size_t j = 0; j < NR; j++)
                    sum[j] += value * b[p * NR + j];
            }
            for (size_t j = 0; j < width; j++)
                row[j] = sum[j];
        }
    }
}

static void gemm_rows(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b,
                      size_t panel_stride, float *c, size_t ldc, int accumulate)
{
    gemm(m, n, k, a, lda, 1, b, panel_stride, c, ldc, accumulate);
}

static void gemm_cols(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b,
                      size_t panel_stride, float *c, size_t ldc, int accumulate)
{
    (void)lda;
    gemm(m, n, k, a, 1, MR, b, panel_stride, c, ldc, accumulate);
}

const qnn_gemm_f32_kernel qnn_gemm_f32_ref = {
    .name = "gemm_f32_ref",
    .isa = QNN_ISA_REF,
    .mr = MR,
    .nr = NR,
    .gemm = {[QNN_A_ROWS] = gemm_rows, [QNN_A_COLS] = gemm_cols},
};
