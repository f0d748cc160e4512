/*
 * The element-wise family for AVX-512. Formulas and most routines: vec_template.h. Here:
 * conversion to bytes (vpmovdb, sixteen codes at a time) and half precision, with masked tails.
 */
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__) || !defined(__BMI2__) ||         \
    !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) ||                   \
    !defined(__AVX512VL__)
#error "kernels/avx512 must be compiled with ISA_CFLAGS_avx512 (see Makefile)"
#endif
#include "kernels/kernels.h"
#include "kernels/vec_scalar.h"

#include <immintrin.h>

enum { LANES = 16 };

/* The lanes of a vector that starts at i of n elements. */
static inline __mmask16 lanes(size_t i, size_t n)
{
    return (__mmask16)(n - i >= LANES ? 0xffffu : 0xffffu >> (LANES - (n - i)));
}

/* Sixteen codes: see vec_code. */
static inline __m128i codes(__m512 v, __m512 lo, __m512 hi, __m512i zp)
{
    v = _mm512_min_ps(_mm512_max_ps(v, lo), hi);
    const __m512i code = _mm512_castps_si512(_mm512_add_ps(v, _mm512_set1_ps(vec_round_magic)));
    return _mm512_cvtepi32_epi8(_mm512_add_epi32(code, zp));
}

static void quantize_u8(size_t n, const float *x, float inv_scale, int32_t zp, int32_t qmin,
                        int32_t qmax, uint8_t *q)
{
    const __m512 lo = _mm512_set1_ps((float)(qmin - zp)), hi = _mm512_set1_ps((float)(qmax - zp));
    const __m512 vinv = _mm512_set1_ps(inv_scale);
    const __m512i vzp = _mm512_set1_epi32(zp);
    for (size_t i = 0; i < n; i += LANES) {
        const __mmask16 mask = lanes(i, n);
        const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), vinv);
        const __m512 number =
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, v, _CMP_ORD_Q), v); /* NaN: 0 */
        _mm_mask_storeu_epi8(q + i, mask, codes(number, lo, hi, vzp));
    }
}

static void requantize_u8(size_t rows, size_t n, const int32_t *c, size_t ldc, const int32_t *bias,
                          const float *mult, int32_t zp, int32_t qmin, int32_t qmax, uint8_t *dst,
                          size_t ldd)
{
    const __m512 lo = _mm512_set1_ps((float)(qmin - zp)), hi = _mm512_set1_ps((float)(qmax - zp));
    const __m512i vzp = _mm512_set1_epi32(zp);
    for (size_t i = 0; i < rows; i++, c += ldc, dst += ldd)
        for (size_t j = 0; j < n; j += LANES) {
            const __mmask16 mask = lanes(j, n);
            const __m512i acc = _mm512_add_epi32(_mm512_maskz_loadu_epi32(mask, c + j),
                                                 _mm512_maskz_loadu_epi32(mask, bias + j));
            const __m512 v =
                _mm512_mul_ps(_mm512_cvtepi32_ps(acc), _mm512_maskz_loadu_ps(mask, mult + j));
            _mm_mask_storeu_epi8(dst + j, mask, codes(v, lo, hi, vzp));
        }
}

static void f32_to_f16(size_t n, const float *x, uint16_t *h)
{
    for (size_t i = 0; i < n; i += LANES) {
        const __mmask16 mask = lanes(i, n);
        _mm256_mask_storeu_epi16(
            h + i, mask,
            _mm512_cvtps_ph(_mm512_maskz_loadu_ps(mask, x + i), _MM_FROUND_TO_NEAREST_INT));
    }
}

static void f16_to_f32(size_t n, const uint16_t *h, float *x)
{
    for (size_t i = 0; i < n; i += LANES) {
        const __mmask16 mask = lanes(i, n);
        _mm512_mask_storeu_ps(x + i, mask, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, h + i)));
    }
}

#define VEC_SYMBOL qnn_vec_avx512
#define VEC_NAME   "vec_avx512"
#define VEC_ISA    (QNN_ISA_AVX2 | QNN_ISA_AVX512)
#define VEC_OWN_CODES
#define VEC_OWN_F16
#include "kernels/vec_template.h"
