/*
 * Depthwise convolution (one filter for each channel) as direct loops: a matrix product per channel
 * would use one column of every tile and gather single values. Channels are the inner loop, in
 * blocks whose constant length lets the compiler vectorise them.
 */
#include "lib/conv.h"

#include <math.h>
#include <string.h>

#define BLOCK 16
#define SUMS  1024 /* channels whose int32 sums are made at a time */

int qnn_conv__is_depthwise(const qnn_conv *c)
{
    return c->groups > 1 && c->groups == c->ic && c->groups == c->oc;
}

/* sum[i] += x[i] * w[i] */
static void add_product(size_t n, const float *restrict x, const float *restrict w,
                        float *restrict sum)
{
    size_t i = 0;

    for (; i + BLOCK <= n; i += BLOCK)
        for (size_t j = i; j < i + BLOCK; j++)
            sum[j] += x[j] * w[j];
    for (; i < n; i++)
        sum[i] += x[i] * w[i];
}

static void add_product_u8(size_t n, const uint8_t *restrict x, const int16_t *restrict w,
                           int32_t *restrict sum)
{
    size_t i = 0;

    for (; i + BLOCK <= n; i += BLOCK)
        for (size_t j = i; j < i + BLOCK; j++)
            sum[j] += (int16_t)x[j] * w[j];
    for (; i < n; i++)
        sum[i] += x[i] * w[i];
}

/* Position `at` in the view's image, zeros between pixels counted, as a pixel's index; size when
 * there is none. */
static size_t pixel_index(ptrdiff_t at, size_t up, size_t size)
{
    if (at < 0 || (up > 1 && (size_t)at % up != 0) || (size_t)at / up >= size)
        return size;
    return (size_t)at / up;
}

/* The image row under kernel row ky of output row oy; NULL: padding. */
static const unsigned char *source_row(const qnn_conv_view *v, size_t image, size_t oy, size_t ky)
{
    const size_t y = pixel_index((ptrdiff_t)(oy * v->sh + ky * v->dh) - v->pt, v->up_h, v->h);

    return y == v->h ? NULL : v->data + (image * v->h + y) * v->w * v->c * v->size;
}

static size_t source_column(const qnn_conv_view *v, size_t ox, size_t kx)
{
    return pixel_index((ptrdiff_t)(ox * v->sw + kx * v->dw) - v->pl, v->up_w, v->w);
}

/* ---- f32 ------------------------------------------------------------------------------------- */

void qnn_depthwise__pack_f32(const qnn_conv *c, const float *w, int is_flipped, float *dst)
{
    const size_t taps = c->kh * c->kw;

    for (size_t t = 0; t < taps; t++)
        for (size_t ch = 0; ch < c->oc; ch++)
            dst[t * c->oc + ch] = w[ch * taps + (is_flipped ? taps - 1 - t : t)];
}

typedef struct f32_job {
    const qnn_vec_kernel *vec;
    const qnn_depthwise_f32_args *a;
} f32_job;

/* One row of outputs. */
static void f32_task(void *arg, size_t task, int thread)
{
    const qnn_depthwise_f32_args *const a = ((const f32_job *)arg)->a;
    const qnn_conv_view *const v = &a->view;
    const size_t image = task / v->oh, oy = task % v->oh;
    float *const dst = a->dst + task * v->ow * v->c;

    (void)thread;
    if (!a->beta)
        memset(dst, 0, v->ow * v->c * sizeof *dst);
    for (size_t ky = 0; ky < v->kh; ky++) {
        const float *const row = (const float *)(const void *)source_row(v, image, oy, ky);

        for (size_t ox = 0; ox < v->ow && row != NULL; ox++)
            for (size_t kx = 0; kx < v->kw; kx++) {
                const size_t x = source_column(v, ox, kx);

                if (x < v->w)
                    add_product(v->c, row + x * v->c, a->w + (ky * v->kw + kx) * v->c,
                                dst + ox * v->c);
            }
    }
    if (a->bias != NULL || a->lo > -INFINITY || a->hi < INFINITY)
        ((const f32_job *)arg)->vec->bias_clip(v->ow, v->c, dst, v->c, a->bias, a->lo, a->hi);
}

void qnn_depthwise__f32(qnn_ctx *ctx, const qnn_vec_kernel *vec, const qnn_depthwise_f32_args *a)
{
    f32_job j = {vec, a};

    qnn_ctx__parallel(ctx, a->n * a->view.oh, f32_task, &j);
}

/* ---- the weights' gradient ------------------------------------------------------------------- */

typedef struct weights_job {
    const qnn_conv_view *v;
    size_t n, n_shards;
    const float *dout;
    float *partial; /* [n_shards][kh * kw][c] */
} weights_job;

static void weights_task(void *arg, size_t shard, int thread)
{
    const weights_job *const j = arg;
    const qnn_conv_view *const v = j->v;
    const size_t first = shard * j->n / j->n_shards, last = (shard + 1) * j->n / j->n_shards;
    float *const sums = j->partial + shard * v->kh * v->kw * v->c;

    (void)thread;
    memset(sums, 0, v->kh * v->kw * v->c * sizeof *sums);
    for (size_t r = first * v->oh; r < last * v->oh; r++)
        for (size_t ky = 0; ky < v->kh; ky++) {
            const float *const row =
                (const float *)(const void *)source_row(v, r / v->oh, r % v->oh, ky);

            for (size_t ox = 0; ox < v->ow && row != NULL; ox++)
                for (size_t kx = 0; kx < v->kw; kx++) {
                    const size_t x = source_column(v, ox, kx);

                    if (x < v->w)
                        add_product(v->c, row + x * v->c, j->dout + (r * v->ow + ox) * v->c,
                                    sums + (ky * v->kw + kx) * v->c);
                }
        }
}

void qnn_depthwise__weights_f32(qnn_ctx *ctx, const qnn_conv_view *v, size_t n, size_t n_shards,
                                const float *dout, float *partial, float *dw)
{
    const size_t taps = v->kh * v->kw;
    weights_job j = {v, n, n_shards, dout, partial};

    qnn_ctx__parallel(ctx, n_shards, weights_task, &j);
    for (size_t s = 0; s < n_shards; s++)
        for (size_t t = 0; t < taps; t++)
            for (size_t ch = 0; ch < v->c; ch++)
                dw[ch * taps + t] += partial[(s * taps + t) * v->c + ch];
}

/* ---- u8 -------------------------------------------------------------------------------------- */

void qnn_depthwise__pack_s8(const qnn_conv *c, const int8_t *w, int16_t *dst)
{
    const size_t taps = c->kh * c->kw;

    for (size_t t = 0; t < taps; t++)
        for (size_t ch = 0; ch < c->oc; ch++)
            dst[t * c->oc + ch] = w[ch * taps + t];
}

typedef struct u8_job {
    const qnn_vec_kernel *vec;
    const qnn_conv_view *v;
    const int16_t *w;
    const qnn_gemm_u8s8_args *out;
} u8_job;

/* Channels c0.. of one output pixel, requantised or made floats as the int8 products are. */
static void finish(const u8_job *j, size_t pixel, size_t c0, size_t n, const int32_t *sums)
{
    const qnn_gemm_u8s8_args *const o = j->out;
    const size_t at = pixel * o->ldd + c0;

    if (o->dst_u8 != NULL)
        j->vec->requantize_u8(1, n, sums, n, o->bias + c0, o->mult + c0, o->zp, o->qmin, o->qmax,
                              o->dst_u8 + at, n);
    else
        j->vec->dequantize_s32(1, n, sums, n, o->bias + c0, o->mult + c0, NULL, o->lo, o->hi,
                               o->dst_f32 + at, n);
}

/* One row of outputs. Padding is pixels of zero points. */
static void u8_task(void *arg, size_t task, int thread)
{
    const u8_job *const j = arg;
    const qnn_conv_view *const v = j->v;
    const size_t image = task / v->oh, oy = task % v->oh;
    uint8_t padding[SUMS];
    int32_t sums[SUMS];

    (void)thread;
    memset(padding, v->fill, sizeof padding);
    for (size_t ox = 0; ox < v->ow; ox++)
        for (size_t c0 = 0; c0 < v->c; c0 += SUMS) {
            const size_t n = v->c - c0 < SUMS ? v->c - c0 : SUMS;

            memset(sums, 0, n * sizeof *sums);
            for (size_t ky = 0; ky < v->kh; ky++) {
                const uint8_t *const row = source_row(v, image, oy, ky);

                for (size_t kx = 0; kx < v->kw; kx++) {
                    const size_t x = source_column(v, ox, kx);

                    add_product_u8(n, row != NULL && x < v->w ? row + x * v->c + c0 : padding,
                                   j->w + (ky * v->kw + kx) * v->c + c0, sums);
                }
            }
            finish(j, task * v->ow + ox, c0, n, sums);
        }
}

void qnn_depthwise__u8s8(qnn_ctx *ctx, const qnn_vec_kernel *vec, const qnn_conv_view *v, size_t n,
                         const int16_t *w, const qnn_gemm_u8s8_args *out)
{
    u8_job j = {vec, v, w, out};

    qnn_ctx__parallel(ctx, n * v->oh, u8_task, &j);
}
