/* The shared routines behind every quantised number: scales, zero points, weight codes.
 * docs/numerics.md is their contract. */
#ifndef QNN_LIB_QMATH_H
#define QNN_LIB_QMATH_H

#include "lib/internal.h"

/* max_abs / qmax; 1 when max_abs is 0; never below the smallest value whose reciprocal is finite.
 */
float qnn_qparams__symmetric(float max_abs, int32_t qmax);
/* Affine parameters of [lo, hi], first widened to hold 0, for codes qmin..qmax. */
void qnn_qparams__affine(float lo, float hi, int32_t qmin, int32_t qmax, float *scale, int32_t *zp);
/* clamp(rne(x / scale) + zp, qmin, qmax) of one value: bounds of a fused clip as codes. Infinities
 * give the end of the range. */
int32_t qnn_qmath__code(float x, float scale, int32_t zp, int32_t qmin, int32_t qmax);

/*
 * Symmetric codes of weights w [channels][per] in [-qmax, qmax], by the given scales (1 or
 * [channels] of them). qnn_qmath__weight_scales computes those: largest magnitude of each channel,
 * or of all.
 */
void qnn_qmath__weight_scales(qnn_ctx *ctx, const float *w, size_t channels, size_t per,
                              int32_t qmax, int per_channel, float *scales);
void qnn_qmath__weight_codes(qnn_ctx *ctx, const float *w, size_t channels, size_t per,
                             int32_t qmax, int per_channel, const float *scales, int8_t *codes);
/* dst = scale * code of w, with scales computed afresh: what QAT's forward pass uses. scales:
 * scratch, 1 or [channels]. */
void qnn_qmath__fake_weights(qnn_ctx *ctx, const float *w, size_t channels, size_t per,
                             int32_t qmax, int per_channel, float *scales, float *dst);

/* Two codes -7..7 a byte, first in the high nibble, code + 8; an odd last byte has 8 (zero) in its
 * low nibble. */
void qnn_qmath__pack_s4(const int8_t *codes, size_t n, uint8_t *packed);
void qnn_qmath__unpack_s4(const uint8_t *packed, size_t n, int8_t *codes);

#endif
