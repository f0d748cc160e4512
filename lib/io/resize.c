/*
 * Antialiased bilinear resize: a triangle filter whose support grows with the reduction, horizontal
 * pass, then vertical, 8-bit values between them and 22-bit fixed-point weights: the arithmetic
 * that Pillow documents for 8-bit images, so that results agree.
 */
#include <qnn/image.h>

#include <math.h>
#include <string.h>

#include "lib/internal.h"

#define PRECISION 22

/* For each output coordinate: first source coordinate, how many, and their weights at weights[i *
 * max]. */
typedef struct taps {
    int n_max;
    int *first, *count;
    int32_t *weight;
} taps;

static double triangle(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static int support_taps(int in, int out)
{
    const double scale = (double)in / out;

    return (int)ceil(scale < 1.0 ? 1.0 : scale) * 2 + 1;
}

static size_t taps_bytes(int in, int out)
{
    return (size_t)out * (2 + (size_t)support_taps(in, out)) * sizeof(int32_t);
}

static taps make_taps(int in, int out, void *memory, double *scratch)
{
    const double scale = (double)in / out, support = scale < 1.0 ? 1.0 : scale,
                 shrink = 1.0 / support; /* a product, not a division: the last bit counts */
    taps t;

    t.n_max = support_taps(in, out);
    t.first = memory;
    t.count = t.first + out;
    t.weight = t.count + out;
    for (int i = 0; i < out; i++) {
        const double centre = (i + 0.5) * scale;
        int first = (int)(centre - support + 0.5), last = (int)(centre + support + 0.5);
        double sum = 0.0;

        first = first < 0 ? 0 : first;
        last = last > in ? in : last;
        for (int k = first; k < last; k++) {
            scratch[k - first] = triangle((k - centre + 0.5) * shrink);
            sum += scratch[k - first];
        }
        t.first[i] = first;
        t.count[i] = last - first;
        for (int k = 0; k < last - first; k++) {
            const double w = sum != 0.0 ? scratch[k] / sum : scratch[k];

            t.weight[(size_t)i * (size_t)t.n_max + (size_t)k] =
                (int32_t)(w < 0.0 ? w * (1 << PRECISION) - 0.5 : w * (1 << PRECISION) + 0.5);
        }
    }
    return t;
}

static uint8_t narrow(int32_t sum)
{
    const int32_t v = sum >> PRECISION;

    return v < 0 ? 0 : v > 255 ? 255 : (uint8_t)v;
}

static void horizontal(uint8_t *dst, int dw, const uint8_t *src, int h, int sw, const taps *t)
{
    for (int y = 0; y < h; y++, src += (size_t)sw * 3)
        for (int x = 0; x < dw; x++, dst += 3) {
            const int32_t *const w = t->weight + (size_t)x * (size_t)t->n_max;
            const uint8_t *p = src + (size_t)t->first[x] * 3;
            int32_t r = 1 << (PRECISION - 1), g = r, b = r;

            for (int k = 0; k < t->count[x]; k++, p += 3) {
                r += p[0] * w[k];
                g += p[1] * w[k];
                b += p[2] * w[k];
            }
            dst[0] = narrow(r);
            dst[1] = narrow(g);
            dst[2] = narrow(b);
        }
}

static void vertical(uint8_t *dst, int dh, const uint8_t *src, int w, const taps *t, int32_t *sums)
{
    const size_t row = (size_t)w * 3;

    for (int y = 0; y < dh; y++, dst += row) {
        const int32_t *const weight = t->weight + (size_t)y * (size_t)t->n_max;

        for (size_t i = 0; i < row; i++)
            sums[i] = 1 << (PRECISION - 1);
        for (int k = 0; k < t->count[y]; k++) {
            const uint8_t *const p = src + (size_t)(t->first[y] + k) * row;

            for (size_t i = 0; i < row; i++)
                sums[i] += p[i] * weight[k];
        }
        for (size_t i = 0; i < row; i++)
            dst[i] = narrow(sums[i]);
    }
}

qnn_status qnn_image_resize(uint8_t *dst, int dh, int dw, const uint8_t *src, int sh, int sw,
                            qnn_ctx *ctx)
{
    const int longest = sh > sw ? sh : sw;
    size_t middle, across, down, at_sums;
    unsigned char *memory;
    void *block;
    double *scratch;
    taps t;

    if (ctx == NULL)
        return QNN_ERR_ARG;
    QNN_RETURN_IF(ctx, dst == NULL || src == NULL, QNN_ERR_ARG, "resize: an image is NULL");
    QNN_RETURN_IF(ctx,
                  dh < 1 || dw < 1 || sh < 1 || sw < 1 || dh > QNN_IMAGE_MAX_SIDE ||
                      dw > QNN_IMAGE_MAX_SIDE || longest > QNN_IMAGE_MAX_SIDE,
                  QNN_ERR_ARG, "resize from %dx%d to %dx%d: sides must be 1..%d", sw, sh, dw, dh,
                  QNN_IMAGE_MAX_SIDE);
    /* One block: the image between the passes, both tables, the vertical pass's sums, weights
     * before they are rounded. */
    middle = qnn_round_up((size_t)sh * (size_t)dw * 3, QNN_ALIGN);
    across = middle + qnn_round_up(taps_bytes(sw, dw), QNN_ALIGN);
    down = across + qnn_round_up(taps_bytes(sh, dh), QNN_ALIGN);
    at_sums = down + qnn_round_up((size_t)dw * 3 * sizeof(int32_t), QNN_ALIGN);
    QNN_TRY(qnn_ctx__alloc(ctx, &block, at_sums + ((size_t)longest + 8) * sizeof(double),
                           "resizing an image"));
    memory = block;
    scratch = (double *)(void *)(memory + at_sums);
    /* A pass whose size does not change is the identity, as the weights say, so it is left out. */
    if (sw != dw) {
        t = make_taps(sw, dw, memory + middle, scratch);
        horizontal(memory, dw, src, sh, sw, &t);
        src = memory;
    }
    if (sh != dh) {
        t = make_taps(sh, dh, memory + across, scratch);
        vertical(dst, dh, src, dw, &t, (int32_t *)(void *)(memory + down));
    } else {
        memcpy(dst, src, (size_t)dh * (size_t)dw * 3);
    }
    qnn_ctx__release(ctx, block);
    return QNN_OK;
}
