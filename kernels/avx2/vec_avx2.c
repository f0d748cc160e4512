/*
 * The element-wise family for AVX2. Formulas and most routines: vec_template.h. Here: conversion
 * to bytes, eight codes at a time through two saturating packs, and half precision through F16C.
 * Tails go one by one (codes) or through eight elements on the stack (halves).
 */
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__) || !defined(__BMI2__)
#error "kernels/avx2 must be compiled with ISA_CFLAGS_avx2 (see Makefile)"
#endif
#include "kernels/kernels.h"
#include "kernels/vec_scalar.h"

#include <immintrin.h>

enum { LANES = 8 };

/* Eight codes: see vec_code. */
static inline void store_codes(uint8_t *dst, __m256 v, __m256 lo, __m256 hi, __m256i zp)
{
    v = _mm256_min_ps(_mm256_max_ps(v, lo), hi);
    __m256i code = _mm256_castps_si256(_mm256_add_ps(v, _mm256_set1_ps(vec_round_magic)));
    code = _mm256_and_si256(_mm256_add_epi32(code, zp), _mm256_set1_epi32(255));
    const __m128i pairs =
        _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
    _mm_storel_epi64((__m128i *)dst, _mm_packus_epi16(pairs, pairs));
}

static void quantize_u8(size_t n, const float *x, float inv_scale, int32_t zp, int32_t qmin,
                        int32_t qmax, uint8_t *q)
{
    const float lo = (float)(qmin - zp), hi = (float)(qmax - zp);
    const __m256 vlo = _mm256_set1_ps(lo), vhi = _mm256_set1_ps(hi);
    const __m256 vinv = _mm256_set1_ps(inv_scale);
    const __m256i vzp = _mm256_set1_epi32(zp);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), vinv);
        const __m256 number = _mm256_and_ps(v, _mm256_cmp_ps(v, v, _CMP_ORD_Q)); /* NaN: 0 */
        store_codes(q + i, number, vlo, vhi, vzp);
    }
    for (; i < n; i++)
        q[i] = vec_quantize(x[i], inv_scale, lo, hi, zp);
}

static void requantize_u8(size_t rows, size_t n, const int32_t *c, size_t ldc, const int32_t *bias,
                          const float *mult, int32_t zp, int32_t qmin, int32_t qmax, uint8_t *dst,
                          size_t ldd)
{
    const float lo = (float)(qmin - zp), hi = (float)(qmax - zp);
    const __m256 vlo = _mm256_set1_ps(lo), vhi = _mm256_set1_ps(hi);
    const __m256i vzp = _mm256_set1_epi32(zp);
    for (size_t i = 0; i < rows; i++, c += ldc, dst += ldd) {
        size_t j = 0;
        for (; j + LANES <= n; j += LANES) {
            const __m256i acc = _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)(c + j)),
                                                 _mm256_loadu_si256((const __m256i *)(bias + j)));
            const __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(acc), _mm256_loadu_ps(mult + j));
            store_codes(dst + j, v, vlo, vhi, vzp);
        }
        for (; j < n; j++)
            dst[j] = vec_code((float)vec_biased(c[j], bias[j]) * mult[j], lo, hi, zp);
    }
}

static void f32_to_f16(size_t n, const float *x, uint16_t *h)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        _mm_storeu_si128((__m128i *)(h + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    if (i < n) {
        float from[LANES] = {0};
        uint16_t to[LANES];
        memcpy(from, x + i, (n - i) * sizeof *x);
        _mm_storeu_si128((__m128i *)to,
                         _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT));
        memcpy(h + i, to, (n - i) * sizeof *h);
    }
}

static void f16_to_f32(size_t n, const uint16_t *h, float *x)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        _mm256_storeu_ps(x + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(h + i))));
    if (i < n) {
        uint16_t from[LANES] = {0};
        float to[LANES];
        memcpy(from, h + i, (n - i) * sizeof *h);
        _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)));
        memcpy(x + i, to, (n - i) * sizeof *x);
    }
}

#define VEC_SYMBOL qnn_vec_avx2
#define VEC_NAME   "vec_avx2"
#define VEC_ISA    QNN_ISA_AVX2
#define VEC_OWN_CODES
#define VEC_OWN_F16
#include "kernels/vec_template.h"
