/* Geometry of pooling windows, shared by the pools, and the average over windows. */
#ifndef QNN_LIB_OP_POOL_H
#define QNN_LIB_OP_POOL_H

#include "lib/exec.h"

typedef struct qnn_pool2d_geometry {
    int64_t ih, iw, oh, ow;
    int64_t kh, kw, sh, sw, pt, pl;
    size_t c;
    int exclude_pad;
} qnn_pool2d_geometry;

/*
 * The cells [begin, end) of one window along one axis that lie inside the image, and where the
 * window itself begins.
 */
typedef struct qnn_pool2d_span {
    int64_t begin, end, origin;
} qnn_pool2d_span;

static inline qnn_pool2d_span qnn_pool2d__span(int64_t o, int64_t stride, int64_t pad,
                                               int64_t kernel, int64_t size)
{
    qnn_pool2d_span s;

    s.origin = o * stride - pad;
    s.begin = s.origin > 0 ? s.origin : 0;
    s.end = s.origin + kernel < size ? s.origin + kernel : size;
    return s;
}

/* The windows [first, last] along one axis that hold cell i; none when first > last. */
static inline void qnn_pool2d__windows(int64_t i, int64_t stride, int64_t pad, int64_t kernel,
                                       int64_t n_windows, int64_t *first, int64_t *last)
{
    const int64_t from = i + pad - kernel + 1; /* smallest origin + pad that still reaches i */

    *first = from > 0 ? (from + stride - 1) / stride : 0;
    *last = (i + pad) / stride < n_windows - 1 ? (i + pad) / stride : n_windows - 1;
}

/* Checks the attributes and sets the output's shape. */
qnn_status qnn_pool2d__infer(qnn_model *m, qnn_node_data *n);
qnn_pool2d_geometry qnn_pool2d__geometry(const qnn_step *s);
/* Attributes of both pools in files. */
extern const qnn_attr_field qnn_pool2d__fields[];

/* Sums of a u8 window stay inside int32 up to this many cells. */
#define QNN_POOL2D_MAX_U8_CELLS (INT32_MAX / 255)

/* Averages over windows, f32 and u8, and the gradient. */
void qnn_pool2d__average(qnn_exec *x, const qnn_step *s, const qnn_pool2d_geometry *g);
void qnn_pool2d__average_backward(qnn_exec *x, const qnn_step *s, const qnn_pool2d_geometry *g);

#endif
