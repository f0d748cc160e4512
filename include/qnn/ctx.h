/*
 * Context: threads, instruction set, allocator, log, seed and the text of the last error.
 *
 *     qnn_ctx *ctx;
 *     if (qnn_ctx_create(&ctx, NULL) != QNN_OK) return 1;
 *     ...
 *     qnn_ctx_free(ctx);
 *
 * Threads: one context is used by one thread at a time; different contexts are independent.
 */
#ifndef QNN_CTX_H
#define QNN_CTX_H

#include <qnn/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qnn_ctx qnn_ctx;

/** Allocation hooks. alloc returns NULL when out of memory; align is a power of two >= 16.
 *  release gets the pointer and the size that was asked for. Both may be called from several of
 *  the library's threads at once. */
typedef struct qnn_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*release)(void *user, void *ptr, size_t bytes);
    void *user;
} qnn_allocator;

/** Gets one line without a newline. */
typedef void qnn_log_fn(void *user, const char *line);

/** All fields may be zero. */
typedef struct qnn_ctx_opts {
    int n_threads; /**< worker threads incl. the caller; 0: the processors this process may use */
    const char
        *isa; /**< cap: "ref", "avx2", "avx512", "avx512vnni"; NULL: the best this machine has */
    uint64_t seed;           /**< of parameter initialisation */
    qnn_allocator allocator; /**< alloc == NULL: the C library's */
    qnn_log_fn *log;         /**< NULL: silent */
    void *log_user;
} qnn_ctx_opts;

/**
 * @param[out] out  the caller's; release with qnn_ctx_free(). NULL on failure
 * @param opts      NULL: all defaults
 * @return QNN_OK
 *         QNN_ERR_ARG          unknown ISA name, n_threads outside 0..256, one allocator hook
 * without the other QNN_ERR_UNSUPPORTED  the machine lacks the named ISA QNN_ERR_NOMEM        out
 * of memory or of threads
 */
QNN_API QNN_NODISCARD qnn_status qnn_ctx_create(qnn_ctx **out, const qnn_ctx_opts *opts);
/** NULL is fine. Objects made with the context must be freed before it. */
QNN_API void qnn_ctx_free(qnn_ctx *ctx);
/** Text of the last failure in this context, "" if none. Borrowed; overwritten by the next failure.
 */
QNN_API const char *qnn_ctx_error(const qnn_ctx *ctx);
/** Name of the instruction set in use: "avx512vnni". Static storage. */
QNN_API const char *qnn_ctx_isa(const qnn_ctx *ctx);
QNN_API int qnn_ctx_threads(const qnn_ctx *ctx);

/** ISAs this build knows, weakest first: i = 0 is "ref"; NULL past the end. */
QNN_API const char *qnn_isa_name(int i);
/** 1 when this machine (processor and operating system) can run qnn_isa_name(i). */
QNN_API int qnn_isa_supported(int i);

#ifdef __cplusplus
}
#endif
#endif
