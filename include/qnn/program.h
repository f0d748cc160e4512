/*
 * Program: a model compiled for a device and a largest batch. Kernels are chosen, weights packed,
 * memory planned.
 *
 *     qnn_program *p;
 *     qnn_program_compile(&p, ctx, model, &(qnn_program_opts){.max_batch = 64});
 *     qnn_run(p, ctx, images, n, logits);
 *
 * Threads: a program is constant. Any number of threads run it at once, each with its own context
 * and workspace. Numbers: programs that are int8 from input to logits give the same bits on every
 * ISA, thread count and batch size.
 */
#ifndef QNN_PROGRAM_H
#define QNN_PROGRAM_H

#include <qnn/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qnn_program qnn_program;

typedef struct qnn_program_opts {
    int max_batch; /**< 0: 1 */
} qnn_program_opts;

/** Copies what it needs: the model may be changed or freed afterwards. opts NULL: defaults. */
QNN_API QNN_NODISCARD qnn_status qnn_program_compile(qnn_program **out, qnn_ctx *ctx,
                                                     const qnn_model *m,
                                                     const qnn_program_opts *opts);
QNN_API void qnn_program_free(qnn_program *p);
/** Exact bytes of workspace that qnn_run_in() needs, whatever n <= max_batch. */
QNN_API size_t qnn_program_workspace(const qnn_program *p);
/** Bytes the program itself holds (packed weights). */
QNN_API size_t qnn_program_bytes(const qnn_program *p);
QNN_API int qnn_program_max_batch(const qnn_program *p);

/**
 * Run a program with one input and one output.
 * @param src      f32 [n][input shape]
 * @param[out] dst f32 [n][output shape]; must not overlap src
 * @param n        1..max_batch
 * Memory: uses the context's own workspace, which grows when a larger program is run for the first
 * time; nothing is allocated after that.
 * @return QNN_ERR_ARG n out of range, NULL pointer, or the program has several inputs or outputs;
 * QNN_ERR_NOMEM
 */
QNN_API QNN_NODISCARD qnn_status qnn_run(const qnn_program *p, qnn_ctx *ctx, const float *src,
                                         int n, float *dst);
/**
 * Run with several inputs or outputs and the caller's workspace. Allocates nothing.
 * @param src  [n_inputs]  pointers to f32 [n][shape]
 * @param dst  [n_outputs] pointers to f32 [n][shape]
 * @param ws   64-byte aligned, at least qnn_program_workspace() bytes
 */
QNN_API QNN_NODISCARD qnn_status qnn_run_in(const qnn_program *p, qnn_ctx *ctx,
                                            const float *const *src, int n, float *const *dst,
                                            void *ws, size_t ws_bytes);

typedef struct qnn_step_info {
    const char *name, *op, *device; /**< borrowed; device "cpu" */
    const char *kernel;   /**< the kernel it runs, "gemm_u8s8_avx512vnni"; "" when none is named */
    qnn_dtype dtype;      /**< of what it computes on: F32 or U8 */
    size_t offset, bytes; /**< of its output in the workspace */
} qnn_step_info;
QNN_API int qnn_program_n_steps(const qnn_program *p);
QNN_API QNN_NODISCARD qnn_status qnn_program_step(const qnn_program *p, int i, qnn_step_info *out);

/** Devices: "cpu" always; others when built in and present. NULL past the end. */
QNN_API const char *qnn_device_name(int i);
/** 1 when device i can run here; 0 and the reason in *why (static storage) otherwise. why may be
 * NULL. */
QNN_API int qnn_device_available(int i, const char **why);

#ifdef __cplusplus
}
#endif
#endif
