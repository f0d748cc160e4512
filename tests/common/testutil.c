/* What every test program needs: see the header. */
#define _POSIX_C_SOURCE 200809L
#include "tests/common/testutil.h"

#include <stdio.h>
#include <stdlib.h>

qnn_ctx *tu_ctx_isa(int threads, const char *isa)
{
    const qnn_ctx_opts opts = {.n_threads = threads, .isa = isa != NULL ? isa : getenv("QNN_ISA")};
    qnn_ctx *ctx;
    const qnn_status status = qnn_ctx_create(&ctx, &opts);

    if (status != QNN_OK) {
        fprintf(stderr, "context with %d threads and instruction set \"%s\": %s\n", threads,
                opts.isa != NULL ? opts.isa : "best", qnn_status_name(status));
        exit(1);
    }
    return ctx;
}

qnn_ctx *tu_ctx(int threads) { return tu_ctx_isa(threads, NULL); }

/* SplitMix64: one value per call, the state is a counter. */
static uint64_t next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void tu_fill_uniform(float *x, size_t n, float lo, float hi, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = lo + (hi - lo) * ((float)(next(&seed) >> 40) * 0x1p-24f);
}

void tu_fill_u8(uint8_t *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (uint8_t)(next(&seed) >> 56);
}

void *tu_alloc(size_t bytes)
{
    void *const p = malloc(bytes > 0 ? bytes : 1);

    if (p == NULL) {
        fprintf(stderr, "out of memory: %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

void *tu_alloc_aligned(size_t bytes)
{
    void *p;

    if (posix_memalign(&p, 64, bytes > 0 ? bytes : 1) != 0) {
        fprintf(stderr, "out of memory: %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

void tu_check(const qnn_ctx *ctx, qnn_status status, const char *expr, const char *file, int line)
{
    if (status == QNN_OK)
        return;
    fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, expr, qnn_status_name(status),
            ctx != NULL ? qnn_ctx_error(ctx) : "");
    abort();
}
