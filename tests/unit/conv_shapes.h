/* The shapes that convolution is tested on, and their geometry written out once more, naively. */
#ifndef QNN_TESTS_CONV_SHAPES_H
#define QNN_TESTS_CONV_SHAPES_H

#include <stddef.h>
#include <stdint.h>

#include "lib/graph.h"

/* ---- shapes ------------------------------------------------------------------------------------
 */

typedef struct shape {
    const char *name;
    int h, w, c, oc, kh, kw, sh, sw, dh, dw, g, pt, pl, pb, pr;
} shape;

static const shape shapes[] = {
    {"3x3", 7, 9, 3, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {"no padding", 6, 5, 4, 7, 2, 3, 1, 1, 1, 1, 1, 0, 0, 0, 0},
    {"stride", 9, 11, 3, 4, 3, 3, 2, 3, 1, 1, 1, 1, 1, 1, 1},
    {"stride past the kernel", 11, 10, 2, 3, 2, 2, 3, 4, 1, 1, 1, 0, 1, 0, 0},
    {"dilation", 9, 12, 3, 4, 3, 2, 1, 1, 2, 3, 1, 2, 1, 0, 3},
    {"asymmetric padding", 5, 6, 2, 3, 3, 3, 1, 1, 1, 1, 1, 0, 2, 3, 1},
    {"padding past the kernel", 3, 2, 2, 3, 2, 2, 1, 1, 1, 1, 1, 3, 4, 3, 2},
    {"kernel larger than the image", 2, 3, 3, 4, 5, 6, 1, 1, 1, 1, 1, 2, 2, 2, 3},
    {"1x1", 5, 7, 19, 33, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0},
    {"1x1 stride", 5, 7, 6, 3, 1, 1, 2, 2, 1, 1, 1, 0, 0, 0, 0},
    {"1x1 padding", 3, 3, 4, 3, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1},
    {"1x1 groups", 4, 4, 6, 9, 1, 1, 1, 1, 1, 1, 3, 0, 0, 0, 0},
    {"groups", 6, 5, 8, 6, 3, 3, 1, 1, 1, 1, 2, 1, 1, 1, 1},
    {"everything", 8, 9, 6, 9, 3, 2, 2, 1, 1, 2, 3, 1, 2, 0, 1},
    {"many channels", 4, 5, 130, 35, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {"one channel", 8, 8, 1, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {"depthwise", 7, 6, 5, 5, 3, 3, 1, 1, 1, 1, 5, 1, 1, 1, 1},
    {"depthwise stride", 9, 8, 37, 37, 3, 3, 2, 2, 1, 1, 37, 1, 0, 0, 1},
    {"depthwise dilation", 9, 8, 16, 16, 2, 3, 1, 2, 3, 2, 16, 1, 2, 2, 1},
    {"depthwise, wide", 2, 3, 1060, 1060, 2, 2, 1, 1, 1, 1, 1060, 1, 0, 0, 1},
    {"depthwise, two filters each", 5, 5, 6, 12, 3, 3, 1, 1, 1, 1, 6, 1, 1, 1, 1},
};

static int out_h(const shape *s)
{
    return (s->h + s->pt + s->pb - s->dh * (s->kh - 1) - 1) / s->sh + 1;
}
static int out_w(const shape *s)
{
    return (s->w + s->pl + s->pr - s->dw * (s->kw - 1) - 1) / s->sw + 1;
}
static size_t n_src(const shape *s) { return (size_t)s->h * (size_t)s->w * (size_t)s->c; }
static size_t n_dst(const shape *s) { return (size_t)out_h(s) * (size_t)out_w(s) * (size_t)s->oc; }
static size_t per_channel(const shape *s) { return (size_t)(s->kh * s->kw * (s->c / s->g)); }

static qnn_attrs attrs_of(const shape *s)
{
    qnn_attrs a = qnn_attrs__default();

    a.units = s->oc;
    a.kh = s->kh;
    a.kw = s->kw;
    a.sh = s->sh;
    a.sw = s->sw;
    a.dh = s->dh;
    a.dw = s->dw;
    a.groups = s->g;
    a.pt = s->pt;
    a.pl = s->pl;
    a.pb = s->pb;
    a.pr = s->pr;
    return a;
}

/* Calls back for every product of the convolution of BATCH images: indices into dst, src and
 * weights, src -1 for padding. */
typedef void product_fn(void *arg, size_t dst, ptrdiff_t src, size_t wei);

static void each_product(const shape *s, int n, product_fn *fn, void *arg)
{
    const int icg = s->c / s->g, ocg = s->oc / s->g, oh = out_h(s), ow = out_w(s);

    for (int i = 0; i < n * oh * ow * s->oc; i++) {
        const int oc = i % s->oc, ox = i / s->oc % ow, oy = i / s->oc / ow % oh,
                  image = i / s->oc / ow / oh;

        for (int t = 0; t < s->kh * s->kw * icg; t++) {
            const int ic = oc / ocg * icg + t % icg, kx = t / icg % s->kw, ky = t / icg / s->kw;
            const int y = oy * s->sh + ky * s->dh - s->pt, x = ox * s->sw + kx * s->dw - s->pl;
            const int is_inside = y >= 0 && y < s->h && x >= 0 && x < s->w;

            fn(arg, (size_t)i, is_inside ? ((image * s->h + y) * s->w + x) * s->c + ic : -1,
               (size_t)(oc * s->kh * s->kw * icg + t));
        }
    }
}

#endif
