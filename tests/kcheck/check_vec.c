/*
 * The element-wise family against straightforward models in double and with rint(), bit for bit:
 * equal to the model means equal on every ISA. A shape is rows x n x variant; the variant chooses
 * code ranges, flags and in-place use. Routines without rows run with rows = 1.
 */
#include "tests/kcheck/kcheck.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct code_range {
    int32_t zp, qmin, qmax;
} code_range;

static const code_range byte_ranges[] = {{0, 0, 255}, {128, 0, 255}, {255, 0, 255},
                                         {7, 7, 199}, {100, 3, 100}, {1, 1, 1}};
static const code_range wide_ranges[] = {
    {0, 0, 255},    {128, 0, 255},       {0, -128, 127},        {0, -7, 7},
    {0, -127, 127}, {-3, -32768, 32767}, {32767, -32768, 32767}};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const float scales[] = {1.0f, 0.1f, 0.0377f, 37.5f, 1e-30f};

/* n elements that are filled with anything; limit is where the interesting values lie. */
static float *take_any(size_t n, float limit)
{
    float *const x = kc_take(n * sizeof *x, sizeof *x);
    kc_fill_f32_any(x, n, limit);
    return x;
}

static float *take_copy(const float *from, size_t n)
{
    float *const x = kc_take(n * sizeof *x, sizeof *x);
    memcpy(x, from, n * sizeof *x);
    return x;
}

static float *take_moderate(size_t n)
{
    float *const x = kc_take(n * sizeof *x, sizeof *x);
    kc_fill_f32(x, n);
    return x;
}

/* rne(v) + zp before clamping, in double; v is never NaN here */
static double unclamped(float v, int32_t zp)
{
    return rint((double)v) + zp;
}

static int32_t model_code(float v, const code_range *r)
{
    if (isnan(v))
        return r->zp;
    const double q = unclamped(v, r->zp);
    return q < r->qmin ? r->qmin : q > r->qmax ? r->qmax : (int32_t)q;
}

static int test_quantize_u8(const qnn_vec_kernel *v, const kc_case *t)
{
    const code_range *const r = &byte_ranges[t->k % COUNT(byte_ranges)];
    const float inv = 1.0f / scales[t->k % COUNT(scales)];
    const float *const x = take_any(t->n, 300.0f / inv);
    uint8_t *const q = kc_take(t->n, 1), *const want = kc_take(t->n, 1);
    for (size_t i = 0; i < t->n; i++)
        want[i] = (uint8_t)model_code(x[i] * inv, r);
    v->quantize_u8(t->n, x, inv, r->zp, r->qmin, r->qmax, q);
    return kc_same("q", want, q, t->n, 1);
}

static int test_dequantize_u8(const qnn_vec_kernel *v, const kc_case *t)
{
    const float scale = scales[t->k % COUNT(scales)];
    const int32_t zp = (int32_t)kc_random_below(256);
    uint8_t *const q = kc_take(t->n, 1);
    float *const x = kc_take(t->n * sizeof *x, sizeof *x), *const want = take_moderate(t->n);
    kc_fill_u8(q, t->n);
    for (size_t i = 0; i < t->n; i++)
        want[i] = scale * (float)((int)q[i] - zp);
    v->dequantize_u8(t->n, q, scale, zp, x);
    return kc_same_f32("x", want, x, t->n);
}

static int test_fake_quant(const qnn_vec_kernel *v, const kc_case *t)
{
    const code_range *const r = &wide_ranges[t->k % COUNT(wide_ranges)];
    const float scale = scales[t->k % COUNT(scales)], inv = 1.0f / scale;
    const float *const x = take_any(t->n, (r->qmax > 255 ? 40000.0f : 300.0f) * scale);
    float *const want = take_moderate(t->n);
    float *const y = t->k & 1 ? take_copy(x, t->n) : take_moderate(t->n);
    for (size_t i = 0; i < t->n; i++)
        want[i] = scale * (float)(model_code(x[i] * inv, r) - r->zp);
    v->fake_quant(t->n, t->k & 1 ? y : x, scale, inv, r->zp, r->qmin, r->qmax, y);
    return kc_same_f32("y", want, y, t->n);
}

static int test_fake_quant_bwd(const qnn_vec_kernel *v, const kc_case *t)
{
    const code_range *const r = &wide_ranges[t->k % COUNT(wide_ranges)];
    const float scale = scales[t->k % COUNT(scales)], inv = 1.0f / scale;
    const int beta = t->k >> 1 & 1, in_place = !beta && (t->k & 1);
    const float *const x = take_any(t->n, (r->qmax > 255 ? 40000.0f : 300.0f) * scale);
    const float *const dy = take_any(t->n, 2.0f);
    float *const dx = in_place ? take_copy(dy, t->n) : take_moderate(t->n);
    float *const want = take_copy(dx, t->n);
    for (size_t i = 0; i < t->n; i++) {
        const float level = x[i] * inv;
        const int inside = !isnan(level) && unclamped(level, r->zp) >= r->qmin &&
                           unclamped(level, r->zp) <= r->qmax;
        const float passed = inside ? dy[i] : 0.0f;
        want[i] = beta ? want[i] + passed : passed;
    }
    v->fake_quant_bwd(t->n, x, inv, r->zp, r->qmin, r->qmax, in_place ? dx : dy, beta, dx);
    return kc_same_f32("dx", want, dx, t->n);
}

static int test_min_max(const qnn_vec_kernel *v, const kc_case *t)
{
    float *const x = take_any(t->n, 50.0f);
    if (t->k % 4 == 1) /* nothing finite */
        for (size_t i = 0; i < t->n; i++)
            x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
    if (t->k % 4 == 2) /* zeros of both signs only */
        for (size_t i = 0; i < t->n; i++)
            x[i] = kc_random() & 1 ? 0.0f : -0.0f;
    float want[2] = {INFINITY, -INFINITY}, *const got = take_moderate(2);
    size_t n_bad = 0;
    for (size_t i = 0; i < t->n; i++) {
        if (!isfinite(x[i])) {
            n_bad++;
            continue;
        }
        if (x[i] < want[0] || (x[i] == want[0] && signbit(x[i])))
            want[0] = x[i];
        if (x[i] > want[1] || (x[i] == want[1] && !signbit(x[i])))
            want[1] = x[i];
    }
    const size_t n_got = v->min_max(t->n, x, &got[0], &got[1]);
    if (n_got != n_bad)
        return kc_note("want %zu values that are not finite, got %zu", n_bad, n_got);
    return kc_same_f32("lo, hi", want, got, 2);
}

typedef struct accumulators {
    size_t ldc, ldd;
    int32_t *c, *bias;
    float *mult;
} accumulators;

/* Sums whose product with mult covers codes, their ties and far beyond. */
static accumulators take_accumulators(const kc_case *t)
{
    accumulators s = {.ldc = kc_next_prime(t->n + 1), .ldd = kc_next_prime(t->n + 3)};
    const size_t size = (t->m - 1) * s.ldc + t->n;
    s.c = kc_take(size * sizeof *s.c, sizeof *s.c);
    s.bias = kc_take(t->n * sizeof *s.bias, sizeof *s.bias);
    s.mult = kc_take(t->n * sizeof *s.mult, sizeof *s.mult);
    for (size_t j = 0; j < t->n; j++) {
        s.bias[j] = (int32_t)kc_random() >> (8 + kc_random_below(20));
        s.mult[j] = kc_random() & 1 ? ldexpf(0.5f, -(int)kc_random_below(16))
                                    : 1.0f / (float)(1 + kc_random_below(100000));
    }
    for (size_t i = 0; i < size; i++) {
        const int shift = 2 + (int)kc_random_below(28);
        s.c[i] = i % 17 == 0   ? INT32_MAX - (1 << 24)
                 : i % 19 == 0 ? INT32_MIN + (1 << 24)
                               : (int32_t)kc_random() >> shift;
    }
    return s;
}

static int test_requantize_u8(const qnn_vec_kernel *v, const kc_case *t)
{
    const code_range *const r = &byte_ranges[t->k % COUNT(byte_ranges)];
    const accumulators s = take_accumulators(t);
    const size_t size = (t->m - 1) * s.ldd + t->n;
    uint8_t *const dst = kc_take(size, 1), *const want = kc_take(size, 1);
    kc_fill_same(dst, want, size);
    for (size_t i = 0; i < t->m; i++)
        for (size_t j = 0; j < t->n; j++) {
            const float level = (float)(s.c[i * s.ldc + j] + s.bias[j]) * s.mult[j];
            want[i * s.ldd + j] = (uint8_t)model_code(level, r);
        }
    v->requantize_u8(t->m, t->n, s.c, s.ldc, s.bias, s.mult, r->zp, r->qmin, r->qmax, dst, s.ldd);
    return kc_same("dst", want, dst, size, 1);
}

static float model_clip(float x, float lo, float hi)
{
    if (isnan(x))
        return x;
    return x < lo ? lo : x > hi ? hi : x;
}

/* Bounds by variant: relu, relu6, a two-sided one, none. */
static void clip_bounds(size_t variant, float *lo, float *hi)
{
    static const float los[] = {0.0f, 0.0f, -1.5f, -INFINITY};
    static const float his[] = {INFINITY, 6.0f, 2.5f, INFINITY};
    *lo = los[variant % 4];
    *hi = his[variant % 4];
}

static int test_dequantize_s32(const qnn_vec_kernel *v, const kc_case *t)
{
    const accumulators s = take_accumulators(t);
    const size_t size = (t->m - 1) * s.ldd + t->n;
    const float *const fbias = t->k >> 2 & 1 ? take_moderate(t->n) : NULL;
    float *const dst = take_any(size, 1.0f), *const want = take_copy(dst, size);
    float lo, hi;
    clip_bounds(t->k, &lo, &hi);
    for (size_t i = 0; i < t->m; i++)
        for (size_t j = 0; j < t->n; j++) {
            float y = (float)(s.c[i * s.ldc + j] + s.bias[j]) * s.mult[j];
            if (fbias != NULL)
                y += fbias[j];
            want[i * s.ldd + j] = model_clip(y, lo, hi);
        }
    v->dequantize_s32(t->m, t->n, s.c, s.ldc, s.bias, s.mult, fbias, lo, hi, dst, s.ldd);
    return kc_same_f32("dst", want, dst, size);
}

static int test_bias_clip(const qnn_vec_kernel *v, const kc_case *t)
{
    const size_t ldc = kc_next_prime(t->n + 1), size = (t->m - 1) * ldc + t->n;
    const float *const bias = t->k >> 2 & 1 ? take_moderate(t->n) : NULL;
    float *const c = take_any(size, 10.0f), *const want = take_copy(c, size);
    float lo, hi;
    clip_bounds(t->k, &lo, &hi);
    for (size_t i = 0; i < t->m; i++)
        for (size_t j = 0; j < t->n; j++) {
            const float y = want[i * ldc + j];
            want[i * ldc + j] = model_clip(bias != NULL ? y + bias[j] : y, lo, hi);
        }
    v->bias_clip(t->m, t->n, c, ldc, bias, lo, hi);
    return kc_same_f32("c", want, c, size);
}

static int test_clip(const qnn_vec_kernel *v, const kc_case *t)
{
    const float *const x = take_any(t->n, 10.0f);
    float *const want = take_moderate(t->n);
    float *const y = t->k >> 2 & 1 ? take_copy(x, t->n) : take_moderate(t->n);
    float lo, hi;
    clip_bounds(t->k, &lo, &hi);
    for (size_t i = 0; i < t->n; i++)
        want[i] = model_clip(x[i], lo, hi);
    v->clip(t->n, t->k >> 2 & 1 ? y : x, lo, hi, y);
    return kc_same_f32("y", want, y, t->n);
}

static int test_clip_bwd(const qnn_vec_kernel *v, const kc_case *t)
{
    const int beta = t->k >> 2 & 1, in_place = !beta && (t->k & 1);
    float lo, hi;
    clip_bounds(t->k, &lo, &hi);
    float *const y = take_any(t->n, 10.0f);
    for (size_t i = 0; i < t->n; i += 5) /* exactly at a bound: nothing passes */
        y[i] = kc_random() & 1 ? lo : hi;
    const float *const dy = take_any(t->n, 2.0f);
    float *const dx = in_place ? take_copy(dy, t->n) : take_moderate(t->n);
    float *const want = take_copy(dx, t->n);
    for (size_t i = 0; i < t->n; i++) {
        const float passed = y[i] > lo && y[i] < hi ? dy[i] : 0.0f;
        want[i] = beta ? want[i] + passed : passed;
    }
    v->clip_bwd(t->n, y, lo, hi, in_place ? dx : dy, beta, dx);
    return kc_same_f32("dx", want, dx, t->n);
}

static int test_axpby(const qnn_vec_kernel *v, const kc_case *t)
{
    const int beta = t->k & 1;
    const float *const x = take_any(t->n, 10.0f);
    float *const y = take_any(t->n, 10.0f), *const want = take_copy(y, t->n);
    for (size_t i = 0; i < t->n; i++) {
        const float product = -0.37f * x[i];
        want[i] = beta ? want[i] + product : product;
    }
    v->axpby(t->n, -0.37f, x, beta, y);
    return kc_same_f32("y", want, y, t->n);
}

static int test_col_sum(const qnn_vec_kernel *v, const kc_case *t)
{
    const size_t ldx = kc_next_prime(t->n + 1);
    const float *const x = take_moderate((t->m - 1) * ldx + t->n);
    float *const y = take_moderate(t->n), *const want = take_copy(y, t->n);
    for (size_t j = 0; j < t->n; j++)
        for (size_t i = 0; i < t->m; i++)
            want[j] += x[i * ldx + j];
    v->col_sum(t->m, t->n, x, ldx, y);
    return kc_same_f32("y", want, y, t->n);
}

static int test_sum_squares(const qnn_vec_kernel *v, const kc_case *t)
{
    const float *const x = take_moderate(t->n);
    double partial[8] = {0}, want = 0.0;
    for (size_t i = 0; i < t->n; i++)
        partial[i % 8] += (double)x[i] * (double)x[i];
    for (size_t l = 0; l < 8; l++)
        want += partial[l];
    const double got = v->sum_squares(t->n, x);
    return kc_same("sum", &want, &got, sizeof want, sizeof want);
}

static int test_adam(const qnn_vec_kernel *v, const kc_case *t)
{
    const float g_scale = t->k & 1 ? 0.125f : 1.0f, decay = t->k & 2 ? 0.01f : 0.0f;
    const float b1 = 0.9f, b2 = 0.999f, eps = 1e-8f, step = 0.003f, bc2 = 0.0316f;
    const float *const grad = take_moderate(t->n);
    float *const w = take_moderate(t->n), *const m = take_moderate(t->n);
    float *const s = take_moderate(t->n);
    for (size_t i = 0; i < t->n; i++)
        s[i] = fabsf(s[i]);
    float *const want_w = take_copy(w, t->n), *const want_m = take_copy(m, t->n);
    float *const want_s = take_copy(s, t->n);
    for (size_t i = 0; i < t->n; i++) {
        const float scaled = grad[i] * g_scale, decayed = decay * want_w[i];
        const float g = scaled + decayed;
        want_m[i] = b1 * want_m[i] + (1.0f - b1) * g;
        want_s[i] = b2 * want_s[i] + ((1.0f - b2) * g) * g;
        want_w[i] -= (step * want_m[i]) / (sqrtf(want_s[i]) / bc2 + eps);
    }
    v->adam(t->n, w, m, s, grad, g_scale, b1, b2, eps, decay, step, bc2);
    return kc_same_f32("w", want_w, w, t->n) | kc_same_f32("m", want_m, m, t->n) |
           kc_same_f32("v", want_s, s, t->n);
}

static int test_sgd(const qnn_vec_kernel *v, const kc_case *t)
{
    const int first = t->k & 1, nesterov = t->k >> 1 & 1;
    const float g_scale = 0.5f, momentum = 0.9f, decay = t->k >> 2 & 1 ? 0.01f : 0.0f, lr = 0.03f;
    const float *const grad = take_moderate(t->n);
    float *const w = take_moderate(t->n);
    float *const buf = first ? take_any(t->n, 1.0f) : take_moderate(t->n); /* first: not read */
    float *const want_w = take_copy(w, t->n), *const want_buf = take_copy(buf, t->n);
    for (size_t i = 0; i < t->n; i++) {
        const float g = grad[i] * g_scale + decay * want_w[i];
        want_buf[i] = first ? g : momentum * want_buf[i] + g;
        want_w[i] -= lr * (nesterov ? g + momentum * want_buf[i] : want_buf[i]);
    }
    v->sgd(t->n, w, buf, grad, g_scale, momentum, decay, lr, first, nesterov);
    return kc_same_f32("w", want_w, w, t->n) | kc_same_f32("buf", want_buf, buf, t->n);
}

static int test_max_u8(const qnn_vec_kernel *v, const kc_case *t)
{
    uint8_t *const x = kc_take(t->n, 1), *const dst = kc_take(t->n, 1);
    uint8_t *const want = kc_take(t->n, 1);
    kc_fill_u8(x, t->n);
    kc_fill_u8(dst, t->n);
    for (size_t i = 0; i < t->n; i++)
        want[i] = x[i] > dst[i] ? x[i] : dst[i];
    v->max_u8(t->n, x, dst);
    return kc_same("dst", want, dst, t->n, 1);
}

static int test_max_f32(const qnn_vec_kernel *v, const kc_case *t)
{
    const float *const x = take_any(t->n, 10.0f);
    float *const dst = take_any(t->n, 10.0f), *const want = take_copy(dst, t->n);
    for (size_t i = 0; i < t->n; i++) /* a NaN on either side stays; equal values keep dst */
        if (isnan(x[i]) || (!isnan(want[i]) && x[i] > want[i]))
            want[i] = x[i];
    v->max_f32(t->n, x, dst);
    return kc_same_f32("dst", want, dst, t->n);
}

/* The value of a half, by its definition. */
static double half_value(uint16_t h)
{
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const double magnitude =
        exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

/* Nearest half, ties to even: the quotient by the spacing at |x|, rounded. */
static uint16_t model_half(float x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x))
        return (uint16_t)(sign | 0x7e00 | (kc_bits(x) >> 13 & 0x3ff));
    const double magnitude = fabs((double)x);
    if (magnitude >= 65520.0)
        return (uint16_t)(sign | 0x7c00);
    const int exponent = magnitude < 0x1p-14 ? -14 : ilogb(magnitude);
    /* 1024..2048, less when subnormal */
    const double steps = rint(ldexp(magnitude, 10 - exponent));
    return (uint16_t)(sign + (uint16_t)steps + (exponent + 14) * 1024);
}

static int test_f32_to_f16(const qnn_vec_kernel *v, const kc_case *t)
{
    float *const x = take_any(t->n, t->k & 1 ? 70000.0f : 1e-4f);
    /* every second: a half, the middle to the next, or beside it */
    for (size_t i = 0; i < t->n; i++)
        if (kc_random() & 1) {
            const uint32_t middle = kc_bits((float)half_value((uint16_t)(kc_random() % 0x7c00)));
            x[i] = kc_float(middle + 0x1000 * (kc_random() & 1) + kc_random() % 3 - 1);
        }
    uint16_t *const h = kc_take(t->n * 2, 2), *const want = kc_take(t->n * 2, 2);
    for (size_t i = 0; i < t->n; i++)
        want[i] = model_half(x[i]);
    v->f32_to_f16(t->n, x, h);
    return kc_same("h", want, h, t->n * 2, 2);
}

static int test_f16_to_f32(const qnn_vec_kernel *v, const kc_case *t)
{
    uint16_t *const h = kc_take(t->n * 2, 2);
    float *const x = kc_take(t->n * sizeof *x, sizeof *x), *const want = take_moderate(t->n);
    const uint32_t from = kc_random();
    for (size_t i = 0; i < t->n; i++) {
        h[i] = (uint16_t)(from + i);
        if ((h[i] & 0x7fff) > 0x7c00)
            want[i] = kc_float((uint32_t)(h[i] & 0x8000) << 16 | 0x7fc00000 |
                               (uint32_t)(h[i] & 0x3ff) << 13);
        else if ((h[i] & 0x7fff) == 0x7c00)
            want[i] = h[i] & 0x8000 ? -INFINITY : INFINITY;
        else
            want[i] = (float)half_value(h[i]);
    }
    v->f16_to_f32(t->n, h, x);
    return kc_same("x", want, x, t->n * sizeof *x, sizeof *x);
}

/* The nearer of the two bfloat16 around x, the even one of equals. */
static uint16_t model_bfloat(float x)
{
    const uint32_t below = kc_bits(x) >> 16;
    if (isnan(x))
        return (uint16_t)(below | 0x40);
    if (isinf(x))
        return (uint16_t)below;
    const double low = (double)kc_float(below << 16);
    const double high_finite = (double)kc_float((below + 1) << 16);
    /* past the largest the next step is infinity; its distance counts as that of the next power */
    const double high = isinf(high_finite) ? copysign(0x1p128, low) : high_finite;
    const double to_low = fabs((double)x - low), to_high = fabs(high - (double)x);
    const int is_up = to_high < to_low || (to_high == to_low && (below & 1));
    return (uint16_t)(is_up ? below + 1 : below);
}

static int test_f32_to_bf16(const qnn_vec_kernel *v, const kc_case *t)
{
    float *const x = take_any(t->n, 1000.0f);
    for (size_t i = 0; i < t->n; i += 3) /* middles and their neighbours */
        x[i] = kc_float(((kc_random() & 0xffff) << 16) + 0x8000 + kc_random() % 3 - 1);
    uint16_t *const h = kc_take(t->n * 2, 2), *const want = kc_take(t->n * 2, 2);
    for (size_t i = 0; i < t->n; i++)
        want[i] = model_bfloat(x[i]);
    v->f32_to_bf16(t->n, x, h);
    return kc_same("h", want, h, t->n * 2, 2);
}

static int test_bf16_to_f32(const qnn_vec_kernel *v, const kc_case *t)
{
    uint16_t *const h = kc_take(t->n * 2, 2);
    float *const x = kc_take(t->n * sizeof *x, sizeof *x), *const want = take_moderate(t->n);
    const uint32_t from = kc_random();
    for (size_t i = 0; i < t->n; i++) {
        h[i] = (uint16_t)(from + i);
        uint32_t bits = (uint32_t)h[i] << 16;
        if ((h[i] & 0x7f80) == 0x7f80 && (h[i] & 0x7f) != 0)
            bits |= 0x400000;
        memcpy(&want[i], &bits, sizeof bits);
    }
    v->bf16_to_f32(t->n, h, x);
    return kc_same("x", want, x, t->n * sizeof *x, sizeof *x);
}

static int test_normalize_rgb(const qnn_vec_kernel *v, const kc_case *t)
{
    const size_t size = 3 * t->n;
    uint8_t *const rgb = kc_take(size, 1);
    const float *const scale = take_moderate(3), *const shift = take_moderate(3);
    float *const x = kc_take(size * sizeof *x, sizeof *x), *const want = take_moderate(size);
    kc_fill_u8(rgb, size);
    for (size_t i = 0; i < size; i++) {
        const float product = (float)rgb[i] * scale[i % 3];
        want[i] = product + shift[i % 3];
    }
    v->normalize_rgb(t->n, rgb, scale, shift, x);
    return kc_same_f32("x", want, x, size);
}

/* Ties, infinities and NaN with results worked out by hand; n and the variant do not matter. */
static int test_vectors(const qnn_vec_kernel *v, const kc_case *t)
{
    enum { N = 10 };
    static const float in[N] = {0.5f,  1.5f,     2.5f,      -0.5f, -1.5f,
                                -2.5f, INFINITY, -INFINITY, NAN,   3e38f};
    static const uint8_t codes[N] = {10, 12, 12, 10, 8, 8, 255, 0, 10, 255};
    static const float values[N] = {0, 2, 2, 0, -2, -2, 245, -10, 0, 245};
    static const float grads[N] = {1, 1, 1, 1, 1, 1, 0, 0, 0, 0};
    static const float range[2] = {-2.5f, 3e38f};
    (void)t;

    const float *const x = take_copy(in, N);
    float *const y = take_moderate(N), *const ones = take_moderate(N), *const dx = take_moderate(N);
    float *const got = take_moderate(2);
    uint8_t *const q = kc_take(N, 1);
    for (size_t i = 0; i < N; i++)
        ones[i] = 1.0f;
    v->quantize_u8(N, x, 1.0f, 10, 0, 255, q);
    v->fake_quant(N, x, 1.0f, 1.0f, 10, 0, 255, y);
    v->fake_quant_bwd(N, x, 1.0f, 10, 0, 255, ones, 0, dx);
    const size_t n_bad = v->min_max(N, x, &got[0], &got[1]);
    if (n_bad != 3)
        return kc_note("want 3 values that are not finite, got %zu", n_bad);
    return kc_same("q", codes, q, N, 1) | kc_same_f32("y", values, y, N) |
           kc_same_f32("dx", grads, dx, N) | kc_same_f32("lo, hi", range, got, 2);
}

/*
 * fake_quant with scale 1 over a sweep of all floats is rintf of the clamped value: proof of the
 * rounding by addition. n is the step through the bit patterns.
 */
static int test_rounding(const qnn_vec_kernel *v, const kc_case *t)
{
    enum { BLOCK = 4096 };
    float *const x = take_moderate(BLOCK), *const y = take_moderate(BLOCK);
    for (uint64_t bits = t->seed; bits < (1ull << 32);) {
        size_t count = 0;
        for (; count < BLOCK && bits < (1ull << 32); bits += t->n)
            x[count++] = kc_float((uint32_t)bits);
        v->fake_quant(count, x, 1.0f, 1.0f, 0, -32768, 32767, y);
        for (size_t i = 0; i < count; i++) {
            const float clamped = x[i] < -32768.0f ? -32768.0f : x[i] > 32767.0f ? 32767.0f : x[i];
            const float want = isnan(clamped) ? 0.0f : rintf(clamped) + 0.0f;
            if (kc_bits(want) != kc_bits(y[i]))
                return kc_note("rne(%a): want %a, got %a", (double)x[i], (double)want,
                               (double)y[i]);
        }
    }
    return 0;
}

typedef int routine_fn(const qnn_vec_kernel *v, const kc_case *t);

static const struct {
    const char *name;
    routine_fn *test;
    int has_rows;
} routines[] = {
    {"quantize_u8", test_quantize_u8, 0},
    {"dequantize_u8", test_dequantize_u8, 0},
    {"fake_quant", test_fake_quant, 0},
    {"fake_quant_bwd", test_fake_quant_bwd, 0},
    {"min_max", test_min_max, 0},
    {"requantize_u8", test_requantize_u8, 1},
    {"dequantize_s32", test_dequantize_s32, 1},
    {"bias_clip", test_bias_clip, 1},
    {"clip", test_clip, 0},
    {"clip_bwd", test_clip_bwd, 0},
    {"axpby", test_axpby, 0},
    {"col_sum", test_col_sum, 1},
    {"sum_squares", test_sum_squares, 0},
    {"adam", test_adam, 0},
    {"sgd", test_sgd, 0},
    {"max_u8", test_max_u8, 0},
    {"max_f32", test_max_f32, 0},
    {"f32_to_f16", test_f32_to_f16, 0},
    {"f16_to_f32", test_f16_to_f32, 0},
    {"f32_to_bf16", test_f32_to_bf16, 0},
    {"bf16_to_f32", test_bf16_to_f32, 0},
    {"normalize_rgb", test_normalize_rgb, 0},
    {"vectors", test_vectors, 0},
    {"rounding", test_rounding, 0},
};

static int run(const kc_case *t)
{
    for (size_t i = 0; i < COUNT(routines); i++)
        if (strcmp(routines[i].name, t->routine) == 0)
            return routines[i].test(t->kernel, t);
    return kc_note("no routine %s", t->routine);
}

static int run_shape(const qnn_vec_kernel *v, const char *routine, size_t rows, size_t n,
                     size_t variant, uint32_t seed)
{
    const kc_case c = {.family = "vec",
                       .kernel_name = v->name,
                       .routine = routine,
                       .kernel = v,
                       .m = rows,
                       .n = n,
                       .k = variant,
                       .seed = seed};
    return kc_run_case(run, &c);
}

/* Every n past two of the widest steps, and some beyond; every variant; both guarded sides. */
static int sweep(const kc_options *o, const qnn_vec_kernel *v, const char *routine, int has_rows)
{
    enum { N_SMALL = 100, N_VARIANTS = 8 };
    static const size_t large[] = {255, 256, 257, 1000, 4099, 70001};
    uint32_t seed = o->seed;
    for (size_t i = 1; i <= N_SMALL + COUNT(large); i++) {
        const size_t n = i <= N_SMALL ? i : large[i - N_SMALL - 1];
        for (size_t variant = 0; variant < N_VARIANTS; variant++)
            for (size_t s = 0; s < (o->is_long ? 16u : 2u); s++)
                if (run_shape(v, routine, has_rows ? 1 + (i + s) % 4 : 1, n, variant, seed++))
                    return 1;
    }
    return 0;
}

int kc_check_vec_one(const kc_options *o, const qnn_vec_kernel *v)
{
    int n_failed = 0;
    for (size_t i = 0; i < COUNT(routines); i++) {
        const char *const name = routines[i].name;
        const int is_sweep = routines[i].test == test_rounding; /* n is a step: one case is long */
        if (o->routine != NULL ? strcmp(o->routine, name) != 0 : is_sweep && o->m != 0)
            continue;
        if (is_sweep) {
            const size_t step = o->m != 0 ? o->n : o->is_long ? 17 : 509;
            n_failed += run_shape(v, name, 1, step, 0, o->seed % (uint32_t)step);
        } else if (o->m != 0) {
            for (uint32_t s = 0; s < (o->has_seed ? 1 : 64); s++)
                if (run_shape(v, name, o->m, o->n, o->k, o->seed + s)) {
                    n_failed++;
                    break;
                }
        } else {
            n_failed += sweep(o, v, name, routines[i].has_rows);
        }
    }
    return n_failed != 0;
}

int kc_check_vec(const kc_options *o)
{
    int n_failed = 0;
    for (const qnn_vec_kernel *const *l = qnn_vec_list; *l != NULL; l++) {
        if (!kc_is_wanted(o, "vec", (*l)->name, (*l)->isa))
            continue;
        const size_t before = kc_n_cases();
        const int failed = kc_check_vec_one(o, *l);
        printf("%-24s %s, %zu cases\n", (*l)->name, failed ? "FAILED" : "ok",
               kc_n_cases() - before);
        n_failed += failed;
    }
    return n_failed;
}
