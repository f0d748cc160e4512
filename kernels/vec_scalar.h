/*
 * One-element formulas of the element-wise family (contract: kernels.h), shared by vec_template.h
 * and by the tails of the intrinsic versions, so that a vector and its tail cannot differ.
 */
#ifndef QNN_KERNELS_VEC_SCALAR_H
#define QNN_KERNELS_VEC_SCALAR_H

#include <stdint.h>
#include <string.h>

/*
 * For |v| <= 2^22 the sum v + 1.5 * 2^23 lies in [2^23, 2^24], where floats are the integers: the
 * addition itself rounds to nearest, ties to even, and the low mantissa bits are the integer.
 * Every v is clamped to a range of codes first; clamping before rounding gives the same codes
 * because the bounds are integers.
 */
static const float vec_round_magic = 12582912.0f;

static inline uint32_t vec_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float vec_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* v brought into [lo, hi]; NaN becomes lo. In this order max and min are single instructions. */
static inline float vec_bring(float v, float lo, float hi)
{
    v = v > lo ? v : lo;
    return v < hi ? v : hi;
}

/* v brought into [lo, hi]; NaN stays NaN. */
static inline float vec_clip(float v, float lo, float hi)
{
    v = v < lo ? lo : v;
    return v > hi ? hi : v;
}

static inline float vec_round(float v)
{
    return (v + vec_round_magic) - vec_round_magic;
}

/* rne(v) + zp as a code, where lo = qmin - zp <= v <= hi = qmax - zp after clamping. */
static inline uint8_t vec_code(float v, float lo, float hi, int32_t zp)
{
    return (uint8_t)(vec_bits(vec_bring(v, lo, hi) + vec_round_magic) + (uint32_t)zp);
}

static inline uint8_t vec_quantize(float x, float inv_scale, float lo, float hi, int32_t zp)
{
    const float v = x * inv_scale;
    return vec_code(v == v ? v : 0.0f, lo, hi, zp);
}

/* acc + bias; the caller keeps the sum inside int32, and outside it wraps alike on every ISA. */
static inline int32_t vec_biased(int32_t acc, int32_t bias)
{
    return (int32_t)((uint32_t)acc + (uint32_t)bias);
}

static inline uint16_t vec_f32_to_f16(float x)
{
    const uint32_t bits = vec_bits(x), sign = bits >> 16 & 0x8000, abs = bits & 0x7fffffff;
    uint32_t half;
    if (abs > 0x7f800000) { /* NaN: upper payload bits, quiet */
        half = 0x7e00 | (abs >> 13 & 0x3ff);
    } else if (abs >= 0x477ff000) { /* from half-way above 65504 on: infinity */
        half = 0x7c00;
    } else if (abs >= 0x38800000) { /* normal: rebias, round by carry */
        half = (abs - 0x38000000 + 0xfff + (abs >> 13 & 1)) >> 13;
    } else { /* subnormal: in 0.5f + x the last mantissa bit weighs 2^-24, as in a half */
        half = vec_bits(vec_from_bits(abs) + 0.5f) - 0x3f000000;
    }
    return (uint16_t)(sign | half);
}

static inline float vec_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, abs = h & 0x7fff;
    uint32_t bits;
    if (abs > 0x7c00) /* NaN: made quiet */
        bits = 0x7fc00000 | (abs << 13 & 0x7fffff);
    else if (abs == 0x7c00)
        bits = 0x7f800000;
    else if (abs >= 0x400)
        bits = (abs << 13) + 0x38000000;
    else /* subnormal: abs * 2^-24 */
        bits = vec_bits((float)abs * 5.9604644775390625e-8f);
    return vec_from_bits(sign | bits);
}

static inline uint16_t vec_f32_to_bf16(float x)
{
    const uint32_t bits = vec_bits(x);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t quiet = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

static inline float vec_bf16_to_f32(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    return vec_from_bits((bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : bits);
}

#endif
