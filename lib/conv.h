/*
 * Convolution as implicit GEMM, shared by conv2d and linear (a 1x1 convolution of a 1x1 image).
 *
 * Letters: n images; ih iw ic input; oh ow oc output; kh kw kernel; sh sw stride; dh dw dilation;
 * pt pl padding on top and left; groups. Weights are [oc][kh][kw][ic / groups]; one row of the
 * virtual im2col matrix is [kh][kw][ic / groups].
 */
#ifndef QNN_LIB_CONV_H
#define QNN_LIB_CONV_H

#include "lib/gemm.h"
#include "lib/exec.h"

typedef struct qnn_conv {
    size_t ih, iw, ic, oh, ow, oc, kh, kw, sh, sw, dh, dw, pt, pl, groups;
} qnn_conv;

/* Output channels and input channels of one group, and the length of a row of the virtual matrix.
 */
static inline size_t qnn_conv__ocg(const qnn_conv *c) { return c->oc / c->groups; }
static inline size_t qnn_conv__icg(const qnn_conv *c) { return c->ic / c->groups; }
static inline size_t qnn_conv__k(const qnn_conv *c) { return c->kh * c->kw * qnn_conv__icg(c); }

/*
 * A window sliding over an image of any element size: the virtual im2col matrix of one group.
 * Backward by data slides over the output's gradient with zeros put between its pixels (up =
 * stride).
 */
typedef struct qnn_conv_view {
    const unsigned char *data; /* [n][h][w][c] elements, at the group's first channel */
    size_t size;               /* bytes of an element */
    int fill;                  /* byte that padding is made of: 0, or the zero point of u8 */
    size_t h, w, c, cg;        /* image; channels of the group */
    size_t oh, ow, kh, kw, sh, sw, dh, dw, up_h, up_w;
    ptrdiff_t pt, pl;
} qnn_conv_view;
qnn_conv_view qnn_conv__view(const qnn_conv *c, const void *src, size_t size, int fill,
                             size_t group);
void qnn_conv__gather_f32(const void *view, size_t r0, size_t nr, size_t c0, size_t nc, float *dst,
                          size_t ld);
void qnn_conv__gather_u8(const void *view, size_t r0, size_t nr, size_t c0, size_t nc, uint8_t *dst,
                         size_t ld);
/* 1 when a row of the matrix is a pixel as it lies in memory: no gather is needed. */
int qnn_conv__is_plain(const qnn_conv *c);

/* lib/conv_depthwise.c: one filter for each channel, weights packed [kh * kw][channels]. Views are
 * of group 0. */
int qnn_conv__is_depthwise(const qnn_conv *c);
typedef struct qnn_depthwise_f32_args {
    qnn_conv_view view;
    size_t n;       /* images */
    const float *w; /* packed */
    float *dst;     /* clip((beta ? dst : 0) + sums + bias, lo, hi); bias NULL: none */
    int beta;
    const float *bias;
    float lo, hi;
} qnn_depthwise_f32_args;
/* is_flipped: last tap first, for backward by data. */
void qnn_depthwise__pack_f32(const qnn_conv *c, const float *w, int is_flipped, float *dst);
void qnn_depthwise__f32(qnn_ctx *ctx, const qnn_vec_kernel *vec, const qnn_depthwise_f32_args *a);
/* dw [c][kh * kw] += the gradient; summed per shard of whole images into partial [n_shards][kh *
 * kw][c], added in order. */
void qnn_depthwise__weights_f32(qnn_ctx *ctx, const qnn_conv_view *v, size_t n, size_t n_shards,
                                const float *dout, float *partial, float *dw);
void qnn_depthwise__pack_s8(const qnn_conv *c, const int8_t *w, int16_t *dst);
/* Of out, only what becomes of the sums is read: bias, mult, dst_u8 or dst_f32 and their limits,
 * ldd. */
void qnn_depthwise__u8s8(qnn_ctx *ctx, const qnn_vec_kernel *vec, const qnn_conv_view *v, size_t n,
                         const int16_t *w, const qnn_gemm_u8s8_args *out);

/* The whole of an op's prepare, forward and backward, by its node's wq and the program's kind. */
qnn_status qnn_conv__prepare(qnn_step *s, const qnn_conv *c);
void qnn_conv__forward(qnn_exec *x, const qnn_step *s, const qnn_conv *c);
void qnn_conv__backward(qnn_exec *x, const qnn_step *s, const qnn_conv *c);

/* lib/conv_int8.c: wq STATIC and DYNAMIC, inference programs only. */
qnn_status qnn_conv__prepare_int8(qnn_step *s, const qnn_conv *c);
void qnn_conv__forward_int8(qnn_exec *x, const qnn_step *s, const qnn_conv *c);

/* Declares weight and bias of a conv2d or linear by its wq, checks what both have in common. */
qnn_status qnn_conv__declare(qnn_model *m, qnn_node_data *n, int rank, const int64_t *weight_dim);

#endif
