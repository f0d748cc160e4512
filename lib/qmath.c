/* Scales, zero points and weight codes. */
#include "lib/qmath.h"

#include <float.h>
#include <math.h>

/* The next float32 above 2^-128: the smallest whose reciprocal is finite. */
#define SMALLEST_SCALE 0x1.000008p-128f

static float guard(double scale)
{
    const float s = (float)scale;

    return s < SMALLEST_SCALE ? SMALLEST_SCALE : s > FLT_MAX ? FLT_MAX : s;
}

float qnn_qparams__symmetric(float max_abs, int32_t qmax)
{
    /* The quotient in float32, as the definition has it; NaN and 0 both give 1. */
    return max_abs > 0.0f ? guard((double)(max_abs / (float)qmax)) : 1.0f;
}

void qnn_qparams__affine(float lo, float hi, int32_t qmin, int32_t qmax, float *scale, int32_t *zp)
{
    const float low = lo < 0.0f ? lo : 0.0f, high = hi > 0.0f ? hi : 0.0f;
    float z;

    /* In double only so that the width of the range cannot overflow. */
    *scale = high > low ? guard(((double)high - (double)low) / (double)(qmax - qmin)) : 1.0f;
    z = rintf(-low / *scale) + (float)qmin;
    *zp = z > (float)qmax ? qmax : z < (float)qmin ? qmin : (int32_t)z;
}

int32_t qnn_qmath__code(float x, float scale, int32_t zp, int32_t qmin, int32_t qmax)
{
    const float q = rintf(x * (1.0f / scale)) + (float)zp;

    return q >= (float)qmax ? qmax : q <= (float)qmin ? qmin : (int32_t)q;
}

/* ---- weights
 * ---------------------------------------------------------------------------------------------------------
 */

typedef struct weight_job {
    const qnn_vec_kernel *vec;
    const float *w;
    size_t per;
    int32_t qmax;
    int per_channel;
    float *scales;
    const float *given;
    int8_t *codes;
    float *dst;
} weight_job;

static float channel_max(const weight_job *j, size_t c)
{
    float lo, hi;

    (void)j->vec->min_max(j->per, j->w + c * j->per, &lo, &hi);
    return lo > hi ? 0.0f : fmaxf(fabsf(lo), fabsf(hi)); /* lo > hi: no finite value at all */
}

static void scale_task(void *arg, size_t c, int thread)
{
    const weight_job *const j = arg;

    (void)thread;
    j->scales[c] = qnn_qparams__symmetric(channel_max(j, c), j->qmax);
}

void qnn_qmath__weight_scales(qnn_ctx *ctx, const float *w, size_t channels, size_t per,
                              int32_t qmax, int per_channel, float *scales)
{
    weight_job j = {.vec = ctx->k.vec, .w = w, .per = per, .qmax = qmax, .scales = scales};
    float largest = 0.0f;

    if (per_channel) {
        qnn_ctx__parallel(ctx, channels, scale_task, &j);
        return;
    }
    for (size_t c = 0; c < channels; c++)
        largest = fmaxf(largest, channel_max(&j, c));
    scales[0] = qnn_qparams__symmetric(largest, qmax);
}

static void code_task(void *arg, size_t c, int thread)
{
    const weight_job *const j = arg;
    const float *const w = j->w + c * j->per;
    const float inv_scale = 1.0f / j->given[j->per_channel ? c : 0];
    const float limit = (float)j->qmax;

    (void)thread;
    for (size_t i = 0; i < j->per; i++) {
        float v = w[i] * inv_scale;

        v = v > limit ? limit : v;
        v = v < -limit ? -limit : v;
        j->codes[c * j->per + i] = isnan(v) ? 0 : (int8_t)lrintf(v);
    }
}

void qnn_qmath__weight_codes(qnn_ctx *ctx, const float *w, size_t channels, size_t per,
                             int32_t qmax, int per_channel, const float *scales, int8_t *codes)
{
    weight_job j = {.w = w,
                    .per = per,
                    .qmax = qmax,
                    .per_channel = per_channel,
                    .given = scales,
                    .codes = codes};

    qnn_ctx__parallel(ctx, channels, code_task, &j);
}

static void fake_task(void *arg, size_t c, int thread)
{
    const weight_job *const j = arg;
    const float scale = j->given[j->per_channel ? c : 0];

    (void)thread;
    j->vec->fake_quant(j->per, j->w + c * j->per, scale, 1.0f / scale, 0, -j->qmax, j->qmax,
                       j->dst + c * j->per);
}

void qnn_qmath__fake_weights(qnn_ctx *ctx, const float *w, size_t channels, size_t per,
                             int32_t qmax, int per_channel, float *scales, float *dst)
{
    weight_job j = {.vec = ctx->k.vec,
                    .w = w,
                    .per = per,
                    .qmax = qmax,
                    .per_channel = per_channel,
                    .given = scales,
                    .dst = dst};

    qnn_qmath__weight_scales(ctx, w, channels, per, qmax, per_channel, scales);
    qnn_ctx__parallel(ctx, channels, fake_task, &j);
}

void qnn_qmath__pack_s4(const int8_t *codes, size_t n, uint8_t *packed)
{
    for (size_t i = 0; i < n; i += 2) {
        const int second = i + 1 < n ? codes[i + 1] + 8 : 8;

        packed[i / 2] = (uint8_t)((codes[i] + 8) << 4 | second);
    }
}

void qnn_qmath__unpack_s4(const uint8_t *packed, size_t n, int8_t *codes)
{
    for (size_t i = 0; i < n; i++)
        codes[i] = (int8_t)((i % 2 == 0 ? packed[i / 2] >> 4 : packed[i / 2] & 15) - 8);
}
