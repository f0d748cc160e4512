/* The inside of a model: nodes, attributes, parameters. Passes in lib/quant rewrite models through
 * these calls. */
#ifndef QNN_LIB_GRAPH_H
#define QNN_LIB_GRAPH_H

#include <qnn/model.h>

#include "lib/internal.h"

#define QNN_MAX_PARAMS   4
#define QNN_NAME_MAX     128
#define QNN_MAX_ELEMENTS ((int64_t)1 << 31) /* of one item's tensor or one parameter */

typedef enum qnn_op_kind { /* file format uses the names, so the order is free */
                           QNN_OP_INPUT,
                           QNN_OP_CONV2D,
                           QNN_OP_LINEAR,
                           QNN_OP_BATCHNORM2D,
                           QNN_OP_CLIP, /* relu is clip [0, inf] */
                           QNN_OP_MAXPOOL2D,
                           QNN_OP_AVGPOOL2D,
                           QNN_OP_GLOBAL_AVGPOOL,
                           QNN_OP_ADD,
                           QNN_OP_CONCAT,
                           QNN_OP_FLATTEN,
                           QNN_OP_SOFTMAX,
                           QNN_OP_DROPOUT,
                           QNN_OP_QUANTIZE,
                           QNN_OP_DEQUANTIZE,
                           QNN_OP_FAKE_QUANT,
                           QNN_OP_COUNT
} qnn_op_kind;

typedef struct qnn_param {
    const char *suffix; /* "weight", static storage */
    qnn_dtype dtype;
    int rank;
    int64_t dim[4];
    size_t count;
    void *data; /* owned; NULL in a program's private copy of the graph */
    size_t bytes;
    float *scale; /* I8, S4: [n_scale], dim[0] of them or 1; owned */
    size_t n_scale;
    int is_trainable;
    char *full_name; /* "conv1.weight", owned */
} qnn_param;

/* Which parameter slot holds what, for every op that has parameters. */
enum { QNN_P_WEIGHT = 0, QNN_P_BIAS = 1, QNN_P_MEAN = 2, QNN_P_VAR = 3, QNN_P_RANGE = 0 };

/* How a conv2d or linear treats its weights and input. */
typedef enum qnn_wq {
    QNN_WQ_NONE =
        0, /* weights as stored (F32, F16, BF16, S4 widened to f32 when compiled); f32 arithmetic */
    QNN_WQ_FAKE = 1,   /* f32 weights, fake-quantised in every forward pass (QAT) */
    QNN_WQ_STATIC = 2, /* u8 input, I8 weights, I32 bias */
    QNN_WQ_DYNAMIC =
        3 /* f32 input quantised per row at run time, I8 weights, F32 bias (linear only) */
} qnn_wq;

/* All fields 32-bit, named in each op's table of fields, so that save, load and compare are one
 * loop. */
typedef struct qnn_attrs {
    int32_t kh, kw, sh, sw, dh, dw, groups; /* conv2d, pools (dilation and groups 1) */
    int32_t pt, pl, pb, pr;                 /* top, left, bottom, right */
    int32_t exclude_pad;
    int32_t units, no_bias; /* conv2d filters, linear units */
    float lo, hi;           /* clip; conv2d and linear: fused clip, -inf..inf when none */
    int32_t wq, w_bits, w_per_channel; /* conv2d, linear: qnn_wq; 8 or 4; 1 or 0 */
    float eps, momentum;               /* batchnorm2d */
    float p;                           /* dropout */
    float average;                     /* fake_quant: moving-average constant, 0.01 */
} qnn_attrs;

typedef struct qnn_node_data {
    qnn_op_kind kind;
    char *name;
    int n_in;
    qnn_node *in;
    qnn_attrs a;
    qnn_shape shape; /* of the output, batch left out */
    qnn_dtype dtype; /* of the output: F32 or U8 */
    float scale;     /* when U8 */
    int32_t zero_point;
    int n_param;
    qnn_param param[QNN_MAX_PARAMS]; /* absent ones have count 0 */
    char *note;                      /* why a pass did not quantise it, or NULL */
} qnn_node_data;

typedef struct qnn_meta {
    char *key, *value;
} qnn_meta;

struct qnn_model {
    qnn_ctx *ctx;
    int n_nodes;
    size_t cap_nodes;
    qnn_node_data **node; /* [n_nodes], each owned; inputs before users */
    int n_outputs;
    size_t cap_outputs;
    qnn_node *output;
    char **output_name;
    int n_meta;
    size_t cap_meta;
    qnn_meta *meta;
    qnn_status status;         /* first builder error */
    char error[QNN_ERROR_MAX]; /* and its text */
};

/* ---- lib/graph.c
 * ------------------------------------------------------------------------------------------------
 */

int64_t qnn_shape__count(const qnn_shape *s);
int qnn_shape__equal(const qnn_shape *a, const qnn_shape *b);
/* "128x128x3" into buf; returns buf. */
const char *qnn_shape__text(const qnn_shape *s, char *buf, size_t size);
size_t qnn_dtype__bytes(qnn_dtype t, size_t count); /* S4: (count + 1) / 2 */

/* Default attributes: strides, dilations, groups 1; lo -inf, hi +inf; w_bits 8; w_per_channel 1;
 * the rest 0. */
qnn_attrs qnn_attrs__default(void);

/*
 * The one way to add a node: checks name and inputs, runs the op's infer (which checks attributes,
 * sets shape, dtype and declares its parameters), allocates and initialises the parameters. Sticky
 * error and QNN_NODE_NONE on failure. with_params 0 leaves the parameters' data NULL with count,
 * dims and bytes set (loader and passes fill them in).
 */
qnn_node qnn_model__add(qnn_model *m, qnn_op_kind kind, const char *name, const qnn_node *in,
                        int n_in, const qnn_attrs *a, int with_params);
/* As above, for passes: what a U8-producing node needs before its infer runs. */
qnn_node qnn_model__add_u8(qnn_model *m, qnn_op_kind kind, const char *name, const qnn_node *in,
                           int n_in, const qnn_attrs *a, float scale, int32_t zero_point);
/* Makes status the model's first error, with the context's present text; returns it. */
qnn_status qnn_model__stick(qnn_model *m, qnn_status status);
void qnn_node__free(qnn_ctx *ctx, qnn_node_data *n);
/* Declares parameter slot p of a node during infer; data comes later. */
qnn_status qnn_node__declare(qnn_model *m, qnn_node_data *n, int slot, const char *suffix,
                             qnn_dtype dtype, int rank, const int64_t *dim, int is_trainable);
/* Re-types a declared slot and gives it fresh zeroed data (and n_scale scales when > 0). */
qnn_status qnn_node__retype(qnn_model *m, qnn_node_data *n, int slot, qnn_dtype dtype,
                            size_t n_scale);
/* Copies data and scales of src's slot (same dtype and count) into dst's. */
qnn_status qnn_node__copy_param(qnn_model *m, qnn_node_data *dst, int slot, const qnn_param *src);
qnn_status qnn_node__set_note(qnn_model *m, qnn_node_data *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Copies outputs (mapped through map[old] = new) and metadata. */
qnn_status qnn_model__finish_rewrite(qnn_model *dst, const qnn_model *src, const qnn_node *map);
/* Number of nodes that read node i, model outputs counted. */
int qnn_model__n_users(const qnn_model *m, qnn_node i);
int qnn_model__is_output(const qnn_model *m, qnn_node i);
/* Fails with the sticky error's text in the context, QNN_OK otherwise. */
qnn_status qnn_model__usable(const qnn_model *m, qnn_ctx *ctx);

#endif
