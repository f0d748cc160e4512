/* What every file of lib/ shares: the context's inside, error macros, allocation, threads, random
 * numbers. */
#ifndef QNN_LIB_INTERNAL_H
#define QNN_LIB_INTERNAL_H

#include <qnn/ctx.h>

#include <assert.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

#define QNN_ERROR_MAX   512
#define QNN_ALIGN       64 /* of every allocation: one cache line, one zmm register */
#define QNN_MAX_THREADS 256
#define QNN_THREAD_SCRATCH                                                                         \
    ((size_t)1 << 20) /* bytes each thread owns for packing blocks of operands */

struct qnn_pool;

struct qnn_ctx {
    qnn_allocator allocator;
    qnn_log_fn *log;
    void *log_user;
    uint64_t seed;
    qnn_kernels k; /* one pointer per kernel family, chosen once */
    struct qnn_pool *pool;
    int n_threads;
    unsigned char *scratch; /* [n_threads][QNN_THREAD_SCRATCH] */
    void *run_ws;           /* qnn_run()'s own workspace, grown on demand */
    size_t run_ws_bytes;
    char error[QNN_ERROR_MAX];
};

/* ---- errors: lib/status.c
 * -------------------------------------------------------------------------- */

/* Writes the message and returns status. Message style: the values, no function name, no full stop.
 */
qnn_status qnn_ctx__fail(qnn_ctx *ctx, qnn_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void qnn_ctx__log(qnn_ctx *ctx, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define QNN_RETURN_IF(ctx, cond, status, ...)                                                      \
    do {                                                                                           \
        if (cond)                                                                                  \
            return qnn_ctx__fail((ctx), (status), __VA_ARGS__);                                    \
    } while (0)

/* Passes a callee's failure on, message untouched. */
#define QNN_TRY(expr)                                                                              \
    do {                                                                                           \
        const qnn_status try_status_ = (expr);                                                     \
        if (try_status_ != QNN_OK)                                                                 \
            return try_status_;                                                                    \
    } while (0)

#define QNN_STATIC_ASSERT(cond, text) _Static_assert(cond, text)

/* ---- memory: lib/alloc.c
 * ----------------------------------------------------------------------------- */

/* *out = a * b (or a + b); 0 when it overflowed. */
int qnn_mul_size(size_t a, size_t b, size_t *out);
int qnn_add_size(size_t a, size_t b, size_t *out);
size_t qnn_round_up(size_t n, size_t multiple);

/* QNN_ALIGN-aligned, NOT cleared; message "out of memory: N bytes for WHAT" on failure; bytes 0
 * gives a valid pointer. */
qnn_status qnn_ctx__alloc(qnn_ctx *ctx, void **out, size_t bytes, const char *what);
qnn_status qnn_ctx__zalloc(qnn_ctx *ctx, void **out, size_t bytes, const char *what);
/* Copies of caller's text. */
qnn_status qnn_ctx__strdup(qnn_ctx *ctx, char **out, const char *text);
/* NULL is fine. The size is kept by the library in front of the block, so none is asked for here.
 */
void qnn_ctx__release(qnn_ctx *ctx, void *ptr);
/* Grows *array (elements of size bytes, *cap of them) to hold at least need; contents kept. */
qnn_status qnn_ctx__grow(qnn_ctx *ctx, void **array, size_t *cap, size_t need, size_t size,
                         const char *what);

/* ---- threads: lib/threads.c
 * ---------------------------------------------------------------------------- */

/* Task i of n on pool thread `thread` (0 is the caller). Must not call qnn_ctx__parallel or fail.
 */
typedef void qnn_task_fn(void *arg, size_t i, int thread);
/* Runs fn for i = 0..n-1, in any order, on the context's threads; returns when all are done. Which
   thread runs which task must never change a result. */
void qnn_ctx__parallel(qnn_ctx *ctx, size_t n, qnn_task_fn *fn, void *arg);
/* The QNN_THREAD_SCRATCH bytes of one thread. */
void *qnn_ctx__scratch(qnn_ctx *ctx, int thread);
qnn_status qnn_pool__create(qnn_ctx *ctx);
void qnn_pool__free(qnn_ctx *ctx);

/* ---- random numbers: lib/rng.c
 * ---------------------------------------------------------------------------- */

/* A stream is a pure function of (seed, stream); the same everywhere. SplitMix64 seeding,
 * xoshiro256**. */
typedef struct qnn_rng {
    uint64_t s[4];
} qnn_rng;
void qnn_rng__init(qnn_rng *r, uint64_t seed, uint64_t stream);
uint64_t qnn_rng__u64(qnn_rng *r);
uint64_t qnn_rng__below(qnn_rng *r, uint64_t n); /* uniform in 0..n-1, unbiased */
double qnn_rng__uniform(qnn_rng *r);             /* [0, 1), 53 bits */
double qnn_rng__normal(qnn_rng *r);        /* mean 0, variance 1 (Box-Muller, one of the pair) */
uint64_t qnn_hash__text(const char *text); /* FNV-1a 64 */

#endif
