/*
 * The list of variants per kernel family, best first and the reference last, and the choice of one
 * each. Dispatcher, tests and benches walk these lists, so a variant cannot exist untested.
 */
#include "kernels/kernels.h"

extern const qnn_gemm_f32_kernel qnn_gemm_f32_ref, qnn_gemm_f32_avx2, qnn_gemm_f32_avx512;
extern const qnn_gemm_u8s8_kernel qnn_gemm_u8s8_ref, qnn_gemm_u8s8_avx2, qnn_gemm_u8s8_avx512,
    qnn_gemm_u8s8_avx512vnni;
extern const qnn_vec_kernel qnn_vec_ref, qnn_vec_avx2, qnn_vec_avx512;

const qnn_gemm_f32_kernel *const qnn_gemm_f32_list[] = {
#if defined(QNN_BUILD_AVX512)
    &qnn_gemm_f32_avx512,
#endif
#if defined(QNN_BUILD_AVX2)
    &qnn_gemm_f32_avx2,
#endif
    &qnn_gemm_f32_ref,
    NULL,
};

const qnn_gemm_u8s8_kernel *const qnn_gemm_u8s8_list[] = {
#if defined(QNN_BUILD_AVX512VNNI)
    &qnn_gemm_u8s8_avx512vnni,
#endif
#if defined(QNN_BUILD_AVX512)
    &qnn_gemm_u8s8_avx512,
#endif
#if defined(QNN_BUILD_AVX2)
    &qnn_gemm_u8s8_avx2,
#endif
    &qnn_gemm_u8s8_ref,
    NULL,
};

const qnn_vec_kernel *const qnn_vec_list[] = {
#if defined(QNN_BUILD_AVX512)
    &qnn_vec_avx512,
#endif
#if defined(QNN_BUILD_AVX2)
    &qnn_vec_avx2,
#endif
    &qnn_vec_ref,
    NULL,
};

void qnn_kernels_init(qnn_kernels *k, qnn_isa isa)
{
    const qnn_gemm_f32_kernel *const *gemm_f32 = qnn_gemm_f32_list;
    const qnn_gemm_u8s8_kernel *const *gemm_u8s8 = qnn_gemm_u8s8_list;
    const qnn_vec_kernel *const *vec = qnn_vec_list;

    /* each walk ends at the reference, which needs no bit */
    while (((*gemm_f32)->isa & ~isa) != 0)
        gemm_f32++;
    while (((*gemm_u8s8)->isa & ~isa) != 0)
        gemm_u8s8++;
    while (((*vec)->isa & ~isa) != 0)
        vec++;

    k->isa = isa;
    k->gemm_f32 = *gemm_f32;
    k->gemm_u8s8 = *gemm_u8s8;
    k->vec = *vec;
}
