/*
 * Model: a directed acyclic graph of operations and their parameters. Images are NHWC; shapes leave
 * the batch out.
 *
 *     qnn_model *m;  qnn_model_create(&m, ctx);
 *     qnn_node x = qnn_input(m, "image", 128, 128, 3);
 *     x = qnn_conv2d(m, x, "conv1", &(qnn_conv2d_opts){.filters = 32, .kernel = 3, .pad = 1});
 *     x = qnn_relu(m, x, "relu1");
 *     x = qnn_linear(m, qnn_flatten(m, x, "flat"), "fc", 101);
 *     qnn_output(m, "logits", x);
 *     if (qnn_model_check(m) != QNN_OK) puts(qnn_ctx_error(ctx));
 *
 * Errors: builder calls return QNN_NODE_NONE once anything failed; the first failure sticks to the
 * model and is reported by qnn_model_check() and by every later use of the model. Names must be
 * unique and not empty. Ownership: a model keeps the context it was made with and must be freed
 * before it. Names and options are copied.
 */
#ifndef QNN_MODEL_H
#define QNN_MODEL_H

#include <qnn/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qnn_model qnn_model;
typedef int32_t qnn_node;
#define QNN_NODE_NONE (-1)

/** Values are ABI and file format: append only. */
typedef enum qnn_dtype {
    QNN_DTYPE_F32 = 0,
    QNN_DTYPE_F16 = 1,
    QNN_DTYPE_BF16 = 2,
    QNN_DTYPE_I32 = 3,
    QNN_DTYPE_I8 = 4,
    QNN_DTYPE_U8 = 5,
    QNN_DTYPE_S4 = 6 /**< two codes a byte, first in the high nibble, code + 8 */
} qnn_dtype;
QNN_API const char *qnn_dtype_name(qnn_dtype t); /**< "f32"; "?" when unknown */

/** Shape of one item; image: {H, W, C}, features: {F}. */
typedef struct qnn_shape {
    int rank;
    int64_t dim[4];
} qnn_shape;

QNN_API QNN_NODISCARD qnn_status qnn_model_create(qnn_model **out, qnn_ctx *ctx);
QNN_API void qnn_model_free(qnn_model *m);
/** Deep copy, parameters included. ctx may differ from the source's. */
QNN_API QNN_NODISCARD qnn_status qnn_model_clone(qnn_model **out, qnn_ctx *ctx, const qnn_model *m);
/** QNN_OK, or the first error of building it, its text in the context. Also refuses a model with no
 * output. */
QNN_API QNN_NODISCARD qnn_status qnn_model_check(qnn_model *m);

/* ---- building
 * -------------------------------------------------------------------------------------------- */

/** Image input, f32 [n][h][w][c]. */
QNN_API qnn_node qnn_input(qnn_model *m, const char *name, int64_t h, int64_t w, int64_t c);
/** Feature input, f32 [n][features]. */
QNN_API qnn_node qnn_input_features(qnn_model *m, const char *name, int64_t features);

/** 2-D convolution (cross-correlation, as PyTorch's). Zero means the default written here. */
typedef struct qnn_conv2d_opts {
    int filters; /**< output channels, >= 1 */
    int kernel;  /**< kernel height, and width unless kernel_w is given; >= 1 */
    int kernel_w;
    int stride, stride_w;     /**< 1; stride_w: stride */
    int dilation, dilation_w; /**< 1; dilation_w: dilation */
    int groups;               /**< 1; must divide input channels and filters */
    int pad;                  /**< zeros on all four sides */
    int pads[4];              /**< more on top, left, bottom, right; added to pad */
    int no_bias;
} qnn_conv2d_opts;
/** Weight f32 [filters][kh][kw][c/groups], bias f32 [filters]; Kaiming-uniform(a = sqrt 5) as
 * PyTorch's reset_parameters: both uniform in +-1/sqrt(fan_in). OH = floor((H + pads - dilation (kh
 * - 1) - 1) / stride) + 1. */
QNN_API qnn_node qnn_conv2d(qnn_model *m, qnn_node x, const char *name,
                            const qnn_conv2d_opts *opts);

typedef struct qnn_linear_opts {
    int64_t units;
    int no_bias;
} qnn_linear_opts;
/** x {F} -> {units}. Weight f32 [units][F], bias f32 [units]; initialised as qnn_conv2d's. */
QNN_API qnn_node qnn_linear(qnn_model *m, qnn_node x, const char *name, int64_t units);
QNN_API qnn_node qnn_linear_ex(qnn_model *m, qnn_node x, const char *name,
                               const qnn_linear_opts *opts);

typedef struct qnn_batchnorm2d_opts {
    float eps;      /**< 0: 1e-5 */
    float momentum; /**< of the running statistics, 0: 0.1 */
} qnn_batchnorm2d_opts;
/** Over N, H, W per channel. Parameters weight 1, bias 0; buffers running_mean 0, running_var 1
 * (unbiased, as PyTorch's). */
QNN_API qnn_node qnn_batchnorm2d(qnn_model *m, qnn_node x, const char *name,
                                 const qnn_batchnorm2d_opts *opts);

QNN_API qnn_node qnn_relu(qnn_model *m, qnn_node x, const char *name);
QNN_API qnn_node qnn_relu6(qnn_model *m, qnn_node x, const char *name);
/** min(max(x, lo), hi); lo < hi. */
QNN_API qnn_node qnn_clip(qnn_model *m, qnn_node x, const char *name, float lo, float hi);

typedef struct qnn_pool2d_opts {
    int kernel, kernel_w;
    int stride, stride_w; /**< 0: kernel */
    int pad;              /**< at most half the kernel, as PyTorch's */
    int pads[4];
    int exclude_pad; /**< average pool: divide by the cells inside the image only */
} qnn_pool2d_opts;
QNN_API qnn_node qnn_maxpool2d(qnn_model *m, qnn_node x, const char *name, int kernel, int stride);
QNN_API qnn_node qnn_maxpool2d_ex(qnn_model *m, qnn_node x, const char *name,
                                  const qnn_pool2d_opts *opts);
QNN_API qnn_node qnn_avgpool2d(qnn_model *m, qnn_node x, const char *name, int kernel, int stride);
QNN_API qnn_node qnn_avgpool2d_ex(qnn_model *m, qnn_node x, const char *name,
                                  const qnn_pool2d_opts *opts);
/** {H, W, C} -> {1, 1, C}. */
QNN_API qnn_node qnn_global_avgpool(qnn_model *m, qnn_node x, const char *name);

/** Equal shapes. */
QNN_API qnn_node qnn_add(qnn_model *m, qnn_node a, qnn_node b, const char *name);
/** Along channels (the last axis); the other dimensions equal; 2..64 inputs. */
QNN_API qnn_node qnn_concat(qnn_model *m, const qnn_node *x, int n, const char *name);
QNN_API qnn_node qnn_flatten(qnn_model *m, qnn_node x, const char *name);
/** Over the last axis. */
QNN_API qnn_node qnn_softmax(qnn_model *m, qnn_node x, const char *name);
/** Training: zero with probability p, else times 1/(1-p). Evaluation: identity. 0 <= p < 1. */
QNN_API qnn_node qnn_dropout(qnn_model *m, qnn_node x, const char *name, float p);
/** Marks x as an output called name. Outputs keep the order of these calls. */
QNN_API void qnn_output(qnn_model *m, const char *name, qnn_node x);

/* ---- looking
 * ------------------------------------------------------------------------------------------------
 */

typedef struct qnn_node_info {
    const char *name, *op; /**< borrowed */
    qnn_shape shape;
    qnn_dtype dtype; /**< of its output: F32, or U8 when quantised */
    float scale;     /**< of a U8 output */
    int32_t zero_point;
    int n_inputs;
    const qnn_node *inputs; /**< borrowed [n_inputs] */
    qnn_dtype weight_dtype; /**< of its first parameter; F32 when it has none */
    const char *note;       /**< why a pass did not quantise it; "" if nothing to say */
} qnn_node_info;

/** Nodes are numbered 0..n-1 in an order in which inputs come before their users. */
QNN_API int qnn_model_n_nodes(const qnn_model *m);
QNN_API QNN_NODISCARD qnn_status qnn_model_node_info(const qnn_model *m, qnn_node i,
                                                     qnn_node_info *out);
QNN_API qnn_node qnn_model_find(const qnn_model *m,
                                const char *name); /**< QNN_NODE_NONE if there is none */
QNN_API int qnn_model_n_inputs(const qnn_model *m);
QNN_API int qnn_model_n_outputs(const qnn_model *m);
QNN_API qnn_node qnn_model_input(const qnn_model *m, int i);
QNN_API qnn_node qnn_model_output(const qnn_model *m, int i);
/** Multiply-adds of one item in conv2d and linear nodes. */
QNN_API int64_t qnn_model_macs(const qnn_model *m);

typedef struct qnn_param_info {
    const char *name; /**< "conv1.weight"; borrowed */
    qnn_node node;
    qnn_dtype dtype;
    int rank;
    int64_t dim[4];
    size_t count; /**< elements */
    size_t bytes; /**< of data */
    void *data;   /**< borrowed; may be written by the caller between runs of a trainer, compiled
                     programs keep copies */
    const float *scales; /**< per output channel or one; NULL unless I8 or S4 */
    size_t n_scales;
    int is_trainable; /**< 0: a buffer such as running_mean */
} qnn_param_info;
QNN_API int qnn_model_n_params(const qnn_model *m);
QNN_API QNN_NODISCARD qnn_status qnn_model_param(const qnn_model *m, int i, qnn_param_info *out);
/** Index of the parameter called name, -1 if there is none. */
QNN_API int qnn_model_find_param(const qnn_model *m, const char *name);
/** Copies every parameter and buffer of src to dst. Graphs must have the same parameters (name,
 * dtype, shape). */
QNN_API QNN_NODISCARD qnn_status qnn_model_copy_params(qnn_model *dst, const qnn_model *src);

/** Text kept with the model and in its file (class names, normalisation, provenance). value NULL
 * removes. */
QNN_API QNN_NODISCARD qnn_status qnn_model_set_meta(qnn_model *m, const char *key,
                                                    const char *value);
QNN_API const char *qnn_model_meta(const qnn_model *m,
                                   const char *key); /**< NULL if there is none; borrowed */

/* ---- files: safetensors, see docs/file-format.md
 * ---------------------------------------------------------------- */

/** Atomic: a temporary file beside path, fsync, rename. */
QNN_API QNN_NODISCARD qnn_status qnn_model_save(const qnn_model *m, const char *path);
/** Every byte is checked. QNN_ERR_IO: cannot read; QNN_ERR_FORMAT: what is wrong and where. */
QNN_API QNN_NODISCARD qnn_status qnn_model_load(qnn_model **out, qnn_ctx *ctx, const char *path);
QNN_API QNN_NODISCARD qnn_status qnn_model_load_mem(qnn_model **out, qnn_ctx *ctx,
                                                    const void *bytes, size_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif
