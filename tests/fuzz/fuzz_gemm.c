/*
 * u8 x s8 products: every kernel this machine has gives the reference's sums and codes, bit for
 * bit.
 *
 * Input: m - 1, n - 1, k - 1 (two bytes, low first), bytes past the end of a row of A, flags, zero
 * point; then the operands' bytes, used again from the start where they are too few. Flags: bit 0
 * packs B by columns, bit 1 adds to sums that are there, bit 2 gives two threads.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/gemm.h"
#include "tests/common/testutil.h"

enum { HEADER = 7, MAX_M = 40, MAX_N = 150, MAX_K = 2500, BY_COLUMNS = 1, ADD = 2, THREADS = 4 };
#define MAX_PRODUCTS ((size_t)1 << 18)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Blocks of exactly what is used, so that the address sanitizer sees a byte too many. */
typedef struct product {
    size_t m, n, k, lda, rs, cs;
    int flags;
    int32_t zp;
    uint8_t *a;
    int8_t *b;
    int32_t *bias; /* [n] */
    float *mult;   /* [n] */
} product;

static product read_product(const uint8_t *data, size_t size)
{
    const uint8_t *const bytes = data + HEADER;
    const size_t n_bytes = size - HEADER;
    product p = {.m = 1 + data[0] % MAX_M, .n = 1 + data[1] % MAX_N, .flags = data[5]};
    size_t used = 0, a_bytes;

    p.k = 1 + (size_t)(data[2] | data[3] << 8) % MAX_K;
    while (p.m * p.n * p.k > MAX_PRODUCTS) {
        p.m = (p.m + 1) / 2;
        p.n = p.m == 1 ? p.n / 2 : p.n;
    }
    p.lda = p.k + data[4] % 70;
    p.zp = data[6];
    p.rs = (p.flags & BY_COLUMNS) != 0 ? 1 : p.n;
    p.cs = (p.flags & BY_COLUMNS) != 0 ? p.k : 1;
    a_bytes = (p.m - 1) * p.lda + p.k;
    p.a = tu_alloc(a_bytes);
    p.b = tu_alloc(p.k * p.n);
    p.bias = tu_alloc(p.n * sizeof *p.bias);
    p.mult = tu_alloc(p.n * sizeof *p.mult);
    for (size_t i = 0; i < a_bytes; i++)
        p.a[i] = bytes[used++ % n_bytes];
    for (size_t i = 0; i < p.k * p.n; i++)
        p.b[i] = (int8_t)bytes[used++ % n_bytes];
    for (size_t j = 0; j < p.n; j++) {
        p.bias[j] = ((int32_t)bytes[used++ % n_bytes] - 128) * 65537;
        p.mult[j] = (float)(1 + bytes[used++ % n_bytes]) * 0x1p-20f;
    }
    return p;
}

static void free_product(product *p)
{
    free(p->a);
    free(p->b);
    free(p->bias);
    free(p->mult);
}

/* The kernel alone: one block of K, tiles of rows, exact sums [m][n]. */
static void sums(const product *p, const qnn_gemm_u8s8_kernel *ker, int32_t *c)
{
    const size_t panel_bytes = qnn_round_up(p->k, ker->kr) * ker->nr;
    int8_t *const packed = tu_alloc_aligned(qnn_gemm__packed_u8s8(ker, p->k, p->n));

    for (size_t j = 0; j < p->n; j += ker->nr)
        ker->pack_panel(p->k, p->n - j < ker->nr ? p->n - j : ker->nr, p->b + j * p->cs, p->rs,
                        p->cs, packed + j / ker->nr * panel_bytes);
    for (size_t i = 0; i < p->m * p->n; i++)
        c[i] = (int32_t)i - 100;
    for (size_t i = 0; i < p->m; i += ker->mr)
        ker->gemm(p->m - i < ker->mr ? p->m - i : ker->mr, p->n, p->k, p->a + i * p->lda, p->lda,
                  packed, panel_bytes, c + i * p->n, p->n, (p->flags & ADD) != 0);
    free(packed);
}

/* Through blocking, threads and requantisation: codes [m][n]. */
static void codes(const product *p, qnn_ctx *ctx, const qnn_gemm_u8s8_kernel *ker,
                  const qnn_vec_kernel *vec, uint8_t *dst)
{
    int8_t *const packed = tu_alloc_aligned(qnn_gemm__packed_u8s8(ker, p->k, p->n));
    const qnn_gemm_u8s8_args g = {.m = p->m,
                                  .n = p->n,
                                  .k = p->k,
                                  .a = p->a,
                                  .lda = p->lda,
                                  .b = packed,
                                  .bias = p->bias,
                                  .mult = p->mult,
                                  .dst_u8 = dst,
                                  .zp = p->zp,
                                  .qmax = 255,
                                  .ldd = p->n};

    qnn_gemm__pack_u8s8(ctx, ker, p->k, p->n, p->b, p->rs, p->cs, packed);
    qnn_gemm__u8s8(ctx, ker, vec, &g);
    free(packed);
}

static const qnn_gemm_u8s8_kernel *reference(void)
{
    size_t i = 0;

    while (qnn_gemm_u8s8_list[i + 1] != NULL)
        i++;
    return qnn_gemm_u8s8_list[i];
}

static const qnn_vec_kernel *vec_reference(void)
{
    size_t i = 0;

    while (qnn_vec_list[i + 1] != NULL)
        i++;
    return qnn_vec_list[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qnn_ctx *ctx;
    product p;
    int32_t *want, *got;
    uint8_t *want_codes, *got_codes;
    size_t total;

    if (size <= HEADER)
        return 0;
    p = read_product(data, size);
    ctx = tu_ctx((p.flags & THREADS) != 0 ? 2 : 1);
    total = p.m * p.n;
    want = tu_alloc(total * sizeof *want);
    got = tu_alloc(total * sizeof *got);
    want_codes = tu_alloc(total);
    got_codes = tu_alloc(total);
    sums(&p, reference(), want);
    codes(&p, ctx, reference(), vec_reference(), want_codes);
    for (size_t i = 0; qnn_gemm_u8s8_list[i] != reference(); i++) {
        const qnn_gemm_u8s8_kernel *const ker = qnn_gemm_u8s8_list[i];

        if ((ker->isa & ~ctx->k.isa) != 0)
            continue;
        sums(&p, ker, got);
        codes(&p, ctx, ker, ctx->k.vec, got_codes);
        if (memcmp(want, got, total * sizeof *want) != 0 ||
            memcmp(want_codes, got_codes, total) != 0)
            abort();
    }
    free(want);
    free(got);
    free(want_codes);
    free(got_codes);
    free_product(&p);
    qnn_ctx_free(ctx);
    return 0;
}
