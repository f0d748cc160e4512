/*
 * Quantisation: passes that take a model and give a new one. docs/numerics.md says what every
 * number means.
 *
 *     qnn_model *fused, *int8;  qnn_stats *st;
 *     qnn_fuse(&fused, ctx, model);
 *     qnn_stats_create(&st, ctx, fused, NULL);
 *     for (each calibration batch) qnn_stats_observe(st, ctx, x, n);
 *     qnn_quantize_static(&int8, ctx, fused, st, NULL);
 *
 * A pass never edits its input. What it did not quantise carries its reason: qnn_node_info.note.
 * Ownership: *out is the caller's; qnn_model_free(), qnn_stats_free().
 */
#ifndef QNN_QUANT_H
#define QNN_QUANT_H

#include <qnn/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the formulas, for callers who quantise their own arrays
 * --------------------------------------------------- */

/** u8 affine parameters of the range [lo, hi], first widened to hold 0. Never gives a scale that is
 * 0 or not finite. */
QNN_API void qnn_qparams_u8(float lo, float hi, float *scale, int32_t *zero_point);
/** Symmetric scale max_abs / qmax (127 for int8, 7 for int4); 1 when max_abs is 0. */
QNN_API float qnn_qparams_symmetric(float max_abs, int32_t qmax);
QNN_API void qnn_quantize_u8(const float *x, size_t n, float scale, int32_t zero_point, uint8_t *q);
QNN_API void qnn_dequantize_u8(const uint8_t *q, size_t n, float scale, int32_t zero_point,
                               float *x);

/* ---- passes
 * ---------------------------------------------------------------------------------------------------------
 */

/** conv2d/linear followed by a single-user clip (relu, relu6) become one node; dropout goes. Same
 * outputs, bit for bit. */
QNN_API QNN_NODISCARD qnn_status qnn_fuse(qnn_model **out, qnn_ctx *ctx, const qnn_model *m);

typedef enum qnn_observer {
    QNN_OBSERVER_MINMAX = 0,        /**< smallest and largest value seen */
    QNN_OBSERVER_MOVING_AVERAGE = 1 /**< of each batch's min and max, constant 0.01 */
} qnn_observer;

typedef struct qnn_stats qnn_stats;
typedef struct qnn_stats_opts {
    qnn_observer observer;
    int max_batch; /**< largest n of qnn_stats_observe(); 0: 32 */
} qnn_stats_opts;
/** Statistics of the tensors that an int8 version of m would quantise. m must outlive them. */
QNN_API QNN_NODISCARD qnn_status qnn_stats_create(qnn_stats **out, qnn_ctx *ctx, const qnn_model *m,
                                                  const qnn_stats_opts *opts);
QNN_API void qnn_stats_free(qnn_stats *st);
/** Runs m on x f32 [n][input shape] and records. One input models only. */
QNN_API QNN_NODISCARD qnn_status qnn_stats_observe(qnn_stats *st, qnn_ctx *ctx, const float *x,
                                                   int n);
QNN_API int64_t qnn_stats_images(const qnn_stats *st);
/** What was recorded of node i's output; QNN_ERR_STATE when nothing was. Pointers may be NULL. */
QNN_API QNN_NODISCARD qnn_status qnn_stats_range(const qnn_stats *st, qnn_ctx *ctx, qnn_node i,
                                                 float *lo, float *hi, int64_t *non_finite);

/** Zero-initialised: per-channel weights, float outputs. */
typedef struct qnn_quant_opts {
    int per_tensor;      /**< weights: one scale for the tensor instead of one per output channel */
    int quantize_output; /**< the network's outputs are requantised to u8 and dequantised; default:
                            float straight from the sums */
    const char *skip;    /**< comma-separated node names that stay float; NULL: none */
} qnn_quant_opts;

/** Static int8: u8 activations by st's ranges, s8 weights, s32 bias. m as given to
 * qnn_stats_create(). */
QNN_API QNN_NODISCARD qnn_status qnn_quantize_static(qnn_model **out, qnn_ctx *ctx,
                                                     const qnn_model *m, const qnn_stats *st,
                                                     const qnn_quant_opts *opts);
/** Dynamic int8: linear nodes keep s8 weights and quantise each row of their input at run time. */
QNN_API QNN_NODISCARD qnn_status qnn_quantize_dynamic(qnn_model **out, qnn_ctx *ctx,
                                                      const qnn_model *m,
                                                      const qnn_quant_opts *opts);
/** Fake-quant on weights and activations of every conv2d and linear, for training; observers are
 * moving averages. m as for qnn_fuse() (it fuses by itself). */
QNN_API QNN_NODISCARD qnn_status qnn_qat_prepare(qnn_model **out, qnn_ctx *ctx, const qnn_model *m,
                                                 const qnn_quant_opts *opts);
/** A trained QAT model to the same int8 execution as qnn_quantize_static(). QNN_ERR_STATE: an
 * observer saw nothing. */
QNN_API QNN_NODISCARD qnn_status qnn_qat_convert(qnn_model **out, qnn_ctx *ctx, const qnn_model *m,
                                                 const qnn_quant_opts *opts);
/** 4-bit weights, symmetric per tensor [-7, 7], packed two a byte; arithmetic stays float on the
 * dequantised weights. */
QNN_API QNN_NODISCARD qnn_status qnn_quantize_int4_sim(qnn_model **out, qnn_ctx *ctx,
                                                       const qnn_model *m);
/** Weights and biases stored as F16 or BF16 (statistics stay F32). QNN_ERR_ARG when a finite value
 * does not fit the type: says which. */
QNN_API QNN_NODISCARD qnn_status qnn_lower_half(qnn_model **out, qnn_ctx *ctx, const qnn_model *m,
                                                qnn_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
