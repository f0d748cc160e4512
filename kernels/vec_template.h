/*
 * The element-wise family of one ISA; included once by each vec_<isa>.c, which defines first:
 *
 *   VEC_SYMBOL     the descriptor's name, e.g. qnn_vec_avx2
 *   VEC_NAME       its string, e.g. "vec_avx2"
 *   VEC_ISA        its ISA bits
 *   VEC_OWN_CODES  (optional) the file has its own quantize_u8 and requantize_u8
 *   VEC_OWN_F16    (optional) the file has its own f32_to_f16 and f16_to_f32
 *
 * Everything is plain C written so that gcc and clang vectorise it at -O3; the ISA comes from the
 * flags of the including file. The own versions exist where that fails: narrowing to bytes, and
 * half conversion. No product and sum are fused (-ffp-contract=off) and no sum is reordered, hence
 * equal bits on every ISA.
 */
#if !defined(VEC_SYMBOL) || !defined(VEC_NAME) || !defined(VEC_ISA)
#error "define VEC_SYMBOL, VEC_NAME and VEC_ISA before including vec_template.h"
#endif

#include "kernels/kernels.h"
#include "kernels/vec_scalar.h"

#include <math.h>

/* Before a loop whose arrays may be the same array: each element is read before it is written. */
#if defined(__clang__)
/* below -O2 it would warn that nothing was vectorised */
#pragma clang diagnostic ignored "-Wpass-failed"
#define VEC_IN_PLACE _Pragma("clang loop vectorize(assume_safety)")
#else
#define VEC_IN_PLACE _Pragma("GCC ivdep")
#endif

/* ---- quantisation -------------------------------------------------------------------------- */

#if !defined(VEC_OWN_CODES)

static void quantize_u8(size_t n, const float *x, float inv_scale, int32_t zp, int32_t qmin,
                        int32_t qmax, uint8_t *restrict q)
{
    const float lo = (float)(qmin - zp), hi = (float)(qmax - zp);
    for (size_t i = 0; i < n; i++)
        q[i] = vec_quantize(x[i], inv_scale, lo, hi, zp);
}

static void requantize_u8(size_t rows, size_t n, const int32_t *c, size_t ldc, const int32_t *bias,
                          const float *mult, int32_t zp, int32_t qmin, int32_t qmax,
                          uint8_t *restrict dst, size_t ldd)
{
    const float lo = (float)(qmin - zp), hi = (float)(qmax - zp);
    for (size_t i = 0; i < rows; i++, c += ldc, dst += ldd)
        for (size_t j = 0; j < n; j++)
            dst[j] = vec_code((float)vec_biased(c[j], bias[j]) * mult[j], lo, hi, zp);
}

#endif

static void dequantize_u8(size_t n, const uint8_t *q, float scale, int32_t zp, float *restrict x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = scale * (float)(q[i] - zp);
}

static void fake_quant(size_t n, const float *x, float scale, float inv_scale, int32_t zp,
                       int32_t qmin, int32_t qmax, float *y)
{
    const float lo = (float)(qmin - zp), hi = (float)(qmax - zp);
    VEC_IN_PLACE
    for (size_t i = 0; i < n; i++) {
        const float v = x[i] * inv_scale;
        y[i] = scale * vec_round(vec_bring(v == v ? v : 0.0f, lo, hi));
    }
}

static void fake_quant_bwd(size_t n, const float *x, float inv_scale, int32_t zp, int32_t qmin,
                           int32_t qmax, const float *dy, int beta, float *dx)
{
    const float lo = (float)(qmin - zp), hi = (float)(qmax - zp);
    /* one past each bound, so that outside stays outside; NaN goes there too */
    const float below = lo - 1.0f, above = hi + 1.0f;
    if (beta) {
        VEC_IN_PLACE
        for (size_t i = 0; i < n; i++) {
            const float r = vec_round(vec_bring(x[i] * inv_scale, below, above));
            const float passed = dy[i]; /* loaded always, or the loop keeps its branch */
            dx[i] += r >= lo && r <= hi ? passed : 0.0f;
        }
    } else {
        VEC_IN_PLACE
        for (size_t i = 0; i < n; i++) {
            const float r = vec_round(vec_bring(x[i] * inv_scale, below, above));
            const float passed = dy[i];
            dx[i] = r >= lo && r <= hi ? passed : 0.0f;
        }
    }
}

static void dequantize_s32(size_t rows, size_t n, const int32_t *c, size_t ldc, const int32_t *bias,
                           const float *mult, const float *fbias, float lo, float hi,
                           float *restrict dst, size_t ldd)
{
    for (size_t i = 0; i < rows; i++, c += ldc, dst += ldd) {
        if (fbias != NULL) {
            for (size_t j = 0; j < n; j++)
                dst[j] = vec_clip((float)vec_biased(c[j], bias[j]) * mult[j] + fbias[j], lo, hi);
        } else {
            for (size_t j = 0; j < n; j++)
                dst[j] = vec_clip((float)vec_biased(c[j], bias[j]) * mult[j], lo, hi);
        }
    }
}

/* ---- ranges -------------------------------------------------------------------------------- */

/*
 * Floats as integers of the same order (-0 below +0): minimum and maximum over integers are
 * associative, which lets the compiler use vectors without being told that floats are.
 */
static inline int32_t ordered(uint32_t bits)
{
    return (int32_t)(bits ^ ((uint32_t)((int32_t)bits >> 31) & 0x7fffffff));
}

static size_t min_max(size_t n, const float *x, float *lo, float *hi)
{
    const int32_t plus_inf = 0x7f800000, minus_inf = ordered(0xff800000);
    int32_t low = plus_inf, high = minus_inf;
    size_t n_bad = 0;
    while (n > 0) { /* blocks, so that the inner count is as wide as the other lanes */
        const size_t block = n < 65536 ? n : 65536;
        uint32_t bad = 0;
        for (size_t i = 0; i < block; i++) {
            const uint32_t bits = vec_bits(x[i]);
            const int is_finite = (bits & 0x7f800000) != 0x7f800000;
            const int32_t key = ordered(bits);
            const int32_t key_low = is_finite ? key : plus_inf;
            const int32_t key_high = is_finite ? key : minus_inf;
            low = key_low < low ? key_low : low;
            high = key_high > high ? key_high : high;
            bad += is_finite ? 0 : 1;
        }
        n_bad += bad;
        x += block;
        n -= block;
    }
    *lo = vec_from_bits((uint32_t)ordered((uint32_t)low));
    *hi = vec_from_bits((uint32_t)ordered((uint32_t)high));
    return n_bad;
}

/* ---- float rows ---------------------------------------------------------------------------- */

static void bias_clip(size_t rows, size_t n, float *restrict c, size_t ldc, const float *bias,
                      float lo, float hi)
{
    for (size_t i = 0; i < rows; i++, c += ldc) {
        if (bias != NULL) {
            for (size_t j = 0; j < n; j++)
                c[j] = vec_clip(c[j] + bias[j], lo, hi);
        } else {
            for (size_t j = 0; j < n; j++)
                c[j] = vec_clip(c[j], lo, hi);
        }
    }
}

static void clip(size_t n, const float *x, float lo, float hi, float *y)
{
    VEC_IN_PLACE
    for (size_t i = 0; i < n; i++)
        y[i] = vec_clip(x[i], lo, hi);
}

static void clip_bwd(size_t n, const float *y, float lo, float hi, const float *dy, int beta,
                     float *dx)
{
    if (beta) {
        VEC_IN_PLACE
        for (size_t i = 0; i < n; i++) {
            const float passed = dy[i];
            dx[i] += y[i] > lo && y[i] < hi ? passed : 0.0f;
        }
    } else {
        VEC_IN_PLACE
        for (size_t i = 0; i < n; i++) {
            const float passed = dy[i];
            dx[i] = y[i] > lo && y[i] < hi ? passed : 0.0f;
        }
    }
}

static void axpby(size_t n, float alpha, const float *x, int beta, float *restrict y)
{
    if (beta) {
        for (size_t i = 0; i < n; i++)
            y[i] += alpha * x[i];
    } else {
        for (size_t i = 0; i < n; i++)
            y[i] = alpha * x[i];
    }
}

static void col_sum(size_t rows, size_t n, const float *x, size_t ldx, float *restrict y)
{
    for (size_t i = 0; i < rows; i++, x += ldx)
        for (size_t j = 0; j < n; j++)
            y[j] += x[j];
}

static double sum_squares(size_t n, const float *x)
{
    double sum[8] = {0};
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t l = 0; l < 8; l++)
            sum[l] += (double)x[i + l] * (double)x[i + l];
    for (size_t l = 0; i + l < n; l++)
        sum[l] += (double)x[i + l] * (double)x[i + l];
    double total = 0.0;
    for (size_t l = 0; l < 8; l++)
        total += sum[l];
    return total;
}

/* ---- optimisers ---------------------------------------------------------------------------- */

static void adam(size_t n, float *restrict w, float *restrict m, float *restrict v,
                 const float *restrict grad, float g_scale, float b1, float b2, float eps,
                 float weight_decay, float step_size, float sqrt_bc2)
{
    const float rest1 = 1.0f - b1, rest2 = 1.0f - b2;
    for (size_t i = 0; i < n; i++) {
        const float g = grad[i] * g_scale + weight_decay * w[i];
        const float mi = b1 * m[i] + rest1 * g;
        const float vi = b2 * v[i] + rest2 * g * g;
        m[i] = mi;
        v[i] = vi;
        w[i] -= step_size * mi / (sqrtf(vi) / sqrt_bc2 + eps);
    }
}

static void sgd(size_t n, float *restrict w, float *restrict buf, const float *restrict grad,
                float g_scale, float momentum, float weight_decay, float lr, int first,
                int nesterov)
{
    for (size_t i = 0; i < n; i++) {
        const float g = grad[i] * g_scale + weight_decay * w[i];
        const float old = buf[i];
        const float b = first ? g : momentum * old + g;
        const float ahead = g + momentum * b;
        buf[i] = b;
        w[i] -= lr * (nesterov ? ahead : b);
    }
}

/* ---- maximum ------------------------------------------------------------------------------- */

static void max_u8(size_t n, const uint8_t *x, uint8_t *restrict dst)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = x[i] > dst[i] ? x[i] : dst[i];
}

static void max_f32(size_t n, const float *x, float *restrict dst)
{
    for (size_t i = 0; i < n; i++) {
        const float a = x[i], d = dst[i];
        const float larger = a > d ? a : d; /* a NaN in d stays: the comparison fails */
        dst[i] = a == a ? larger : a;
    }
}

/* ---- conversions --------------------------------------------------------------------------- */

#if !defined(VEC_OWN_F16)

static void f32_to_f16(size_t n, const float *x, uint16_t *restrict h)
{
    for (size_t i = 0; i < n; i++)
        h[i] = vec_f32_to_f16(x[i]);
}

static void f16_to_f32(size_t n, const uint16_t *h, float *restrict x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = vec_f16_to_f32(h[i]);
}

#endif

static void f32_to_bf16(size_t n, const float *x, uint16_t *restrict h)
{
    for (size_t i = 0; i < n; i++)
        h[i] = vec_f32_to_bf16(x[i]);
}

static void bf16_to_f32(size_t n, const uint16_t *h, float *restrict x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = vec_bf16_to_f32(h[i]);
}

static void normalize_rgb(size_t n, const uint8_t *rgb, const float *scale, const float *shift,
                          float *restrict x)
{
    enum { BLOCK = 48 }; /* sixteen pixels: the pattern of three channels fits whole vectors */
    float scales[BLOCK], shifts[BLOCK];
    for (size_t l = 0; l < BLOCK; l++) {
        scales[l] = scale[l % 3];
        shifts[l] = shift[l % 3];
    }
    const size_t total = 3 * n;
    size_t i = 0;
    for (; i + BLOCK <= total; i += BLOCK)
        for (size_t l = 0; l < BLOCK; l++)
            x[i + l] = (float)rgb[i + l] * scales[l] + shifts[l];
    for (size_t l = 0; i + l < total; l++)
        x[i + l] = (float)rgb[i + l] * scales[l] + shifts[l];
}

const qnn_vec_kernel VEC_SYMBOL = {
    .name = VEC_NAME,
    .isa = VEC_ISA,
    .quantize_u8 = quantize_u8,
    .dequantize_u8 = dequantize_u8,
    .fake_quant = fake_quant,
    .fake_quant_bwd = fake_quant_bwd,
    .min_max = min_max,
    .requantize_u8 = requantize_u8,
    .dequantize_s32 = dequantize_s32,
    .bias_clip = bias_clip,
    .clip = clip,
    .clip_bwd = clip_bwd,
    .axpby = axpby,
    .col_sum = col_sum,
    .sum_squares = sum_squares,
    .adam = adam,
    .sgd = sgd,
    .max_u8 = max_u8,
    .max_f32 = max_f32,
    .f32_to_f16 = f32_to_f16,
    .f16_to_f32 = f16_to_f32,
    .f32_to_bf16 = f32_to_bf16,
    .bf16_to_f32 = bf16_to_f32,
    .normalize_rgb = normalize_rgb,
};

#undef VEC_IN_PLACE
