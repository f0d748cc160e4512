/*
 * What every test program needs: a context under the instruction set that QNN_ISA names, a loud end
 * on errors, repeatable data.
 */
#ifndef QNN_TESTS_TESTUTIL_H
#define QNN_TESTS_TESTUTIL_H

#include <stddef.h>
#include <stdint.h>

#include <qnn/ctx.h>

/*
 * QNN_ISA ("ref", "avx2", ...) caps the instruction set; threads 0: all. Exits with a message when
 * it cannot be made.
 */
qnn_ctx *tu_ctx(int threads);
/* isa NULL: as tu_ctx(). */
qnn_ctx *tu_ctx_isa(int threads, const char *isa);

/* Uniform in [lo, hi), the same for the same seed everywhere. */
void tu_fill_uniform(float *x, size_t n, float lo, float hi, uint64_t seed);
void tu_fill_u8(uint8_t *x, size_t n, uint64_t seed);

/* malloc that ends the program instead of failing. */
void *tu_alloc(size_t bytes);
/* 64-byte aligned, for workspaces. Released with free(). */
void *tu_alloc_aligned(size_t bytes);

/*
 * Ends the program with file, line, expression, status and the context's text unless expr is
 * QNN_OK.
 */
#define TU_OK(ctx, expr) tu_check((ctx), (expr), #expr, __FILE__, __LINE__)
void tu_check(const qnn_ctx *ctx, qnn_status status, const char *expr, const char *file, int line);

#endif
