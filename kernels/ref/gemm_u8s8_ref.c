/*
 * u8 x s8 -> s32 GEMM microkernel in plain C, 4 x 8, for any processor: the contract of kernels.h
 * spelled out. Panels are plain [k][nr] (kr = 1), so no bytes are added past k.
 */
#include "kernels/kernels.h"

enum { MR = 4, NR = 8 };

static void gemm(size_t m, size_t n, size_t k, const uint8_t *a, size_t lda, const int8_t *b,
                 size_t panel_stride, int32_t *c, size_t ldc, int accumulate)
{
    for (size_t j0 = 0; j0 < n; j0 += NR, b += panel_stride) {
        const size_t width = n - j0 < NR ? n - j0 : NR;
        for (size_t i = 0; i < m; i++) {
            int32_t *const row = c + i * ldc + j0;
            int32_t sum[NR] = {0};
            if (accumulate)
                for (size_t j = 0; j < width; j++)
                    sum[j] = row[j];
            for (size_t p = 0; p < k; p++) {
                const int32_t value = a[i * lda + p];
                for (size_t j = 0; j < NR; j++)
                    sum[j] += value * b[p * NR + j];
            }
            for (size_t j = 0; j < width; j++)
                row[j] = sum[j];
        }
    }
}

static void pack_panel(size_t k, size_t n, const int8_t *b, size_t row_stride, size_t col_stride,
                       int8_t *panel)
{
    for (size_t p = 0; p < k; p++)
        for (size_t j = 0; j < NR; j++)
            panel[p * NR + j] = j < n ? b[p * row_stride + j * col_stride] : 0;
}

const qnn_gemm_u8s8_kernel qnn_gemm_u8s8_ref = {
    .name = "gemm_u8s8_ref",
    .isa = QNN_ISA_REF,
    .mr = MR,
    .nr = NR,
    .kr = 1,
    .gemm = gemm,
    .pack_panel = pack_panel,
};
