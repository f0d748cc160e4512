/*
 * gemm_u8s8 against a naive triple loop, exact. Of a case's seed, bit 0 is the guarded side, bit 1
 * accumulate, bit 2 a transposed B, bits 3-4 the data: 255 x -128, 255 x 127, or (0, 3) mixtures.
 */
#include "tests/kcheck/kcheck.h"

#include <stdio.h>
#include <string.h>

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* b[p * row + j * col] */
static void naive(size_t m, size_t n, size_t k, const uint8_t *a, size_t lda, const int8_t *b,
                  size_t row, size_t col, int32_t *c, size_t ldc, int accumulate)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            int32_t sum = accumulate ? c[i * ldc + j] : 0;
            for (size_t p = 0; p < k; p++)
                sum += a[i * lda + p] * b[p * row + j * col];
            c[i * ldc + j] = sum;
        }
}

/* Packing must leave zeros, and only zeros, past k and n. */
static int check_padding(const qnn_gemm_u8s8_kernel *ker, size_t k, size_t n, const int8_t *panel,
                         const int8_t *b, size_t row, size_t col)
{
    const size_t bytes = (k + ker->kr - 1) / ker->kr * ker->kr * ker->nr;
    size_t n_want = 0, n_got = 0;
    for (size_t p = 0; p < k; p++)
        for (size_t j = 0; j < n; j++)
            n_want += b[p * row + j * col] != 0;
    for (size_t i = 0; i < bytes; i++)
        n_got += panel[i] != 0;
    if (n_want != n_got)
        return kc_note("packed panel has %zu nonzero codes, B has %zu", n_got, n_want);
    return 0;
}

static int run(const kc_case *t)
{
    const qnn_gemm_u8s8_kernel *const ker = t->kernel;
    const size_t m = t->m, n = t->n, k = t->k, nr = ker->nr;
    const int accumulate = t->seed >> 1 & 1, is_transposed = t->seed >> 2 & 1;
    const unsigned data = t->seed >> 3 & 3;
    const size_t lda = kc_next_prime(k + 1), ldc = kc_next_prime(n + 1);
    const size_t row = is_transposed ? 1 : kc_next_prime(n + 1);
    const size_t col = is_transposed ? kc_next_prime(k + 1) : 1;
    const size_t n_panels = (n + nr - 1) / nr;
    const size_t panel = (k + ker->kr - 1) / ker->kr * ker->kr * nr;
    const size_t stride = (panel + 63) / 64 * 64 + 64 * kc_random_below(2);

    const size_t a_size = (m - 1) * lda + k, b_size = (k - 1) * row + (n - 1) * col + 1;
    const size_t c_size = (m - 1) * ldc + n;
    uint8_t *const a = kc_take(a_size, 1);
    int8_t *const b = kc_take(b_size, 1);
    int8_t *const packed = kc_take((n_panels - 1) * stride + panel, 64);
    int32_t *const c = kc_take(c_size * sizeof *c, sizeof *c);
    int32_t *const want = kc_take(c_size * sizeof *c, sizeof *c);
    int32_t *const start = kc_take(c_size * sizeof *c, sizeof *c);

    if (data == 1 || data == 2) {
        memset(a, 255, a_size);
        memset(b, data == 1 ? -128 : 127, b_size);
    } else {
        kc_fill_u8(a, a_size);
        kc_fill_s8(b, b_size);
    }
    for (size_t i = 0; i < c_size; i++) /* the longest sums leave 8 million below the limits */
        start[i] = (int32_t)(kc_random() % 2000001) - 1000000;
    memcpy(c, start, c_size * sizeof *c);
    memcpy(want, start, c_size * sizeof *c);

    int bad = 0;
    for (size_t j = 0; j < n_panels; j++) {
        const size_t width = smaller(nr, n - j * nr);
        ker->pack_panel(k, width, b + j * nr * col, row, col, packed + j * stride);
        bad |= check_padding(ker, k, width, packed + j * stride, b + j * nr * col, row, col);
    }
    for (size_t j = 0; j + 1 < n_panels; j++) /* between panels: nothing a kernel may use */
        memset(packed + j * stride + panel, 0x77, stride - panel);

    naive(m, n, k, a, lda, b, row, col, want, ldc, accumulate);
    ker->gemm(m, n, k, a, lda, packed, stride, c, ldc, accumulate);
    bad |= kc_same("C", want, c, c_size * sizeof *c, sizeof *c);
    memcpy(c, start, c_size * sizeof *c);
    ker->gemm(m, n, k, a, lda, packed, stride, c, ldc, accumulate);
    bad |= kc_same("C of the second run", want, c, c_size * sizeof *c, sizeof *c);
    return bad;
}

/* Two products with known sums: where pairs saturate, and the extreme pair. */
static int run_pairs(const kc_case *t)
{
    static const struct {
        uint8_t a[2];
        int8_t b[2];
        int32_t want;
    } pairs[] = {{{211, 171}, {71, 107}, 33278},
                 {{255, 255}, {-128, -128}, -65280},
                 {{255, 255}, {127, 127}, 64770},
                 {{128, 255}, {64, 64}, 24512}};
    const qnn_gemm_u8s8_kernel *const ker = t->kernel;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        uint8_t *const a = kc_take(2, 1);
        int8_t *const packed = kc_take((size_t)ker->nr * (ker->kr > 2 ? ker->kr : 2), 64);
        int32_t *const c = kc_take(sizeof *c, sizeof *c);
        memcpy(a, pairs[i].a, 2);
        ker->pack_panel(2, 1, pairs[i].b, 1, 2, packed);
        ker->gemm(1, 1, 2, a, 2, packed, 0, c, 1, 0);
        if (*c != pairs[i].want)
            return kc_note("pair %zu: want %d, got %d", i, pairs[i].want, *c);
    }
    return 0;
}

static int run_shape(const qnn_gemm_u8s8_kernel *ker, kc_case_fn *fn, size_t m, size_t n, size_t k,
                     uint32_t seed)
{
    const kc_case c = {.family = "gemm_u8s8",
                       .kernel_name = ker->name,
                       .kernel = ker,
                       .m = m,
                       .n = n,
                       .k = k,
                       .seed = seed};
    return kc_run_case(fn, &c);
}

int kc_check_gemm_u8s8_one(const kc_options *o, const qnn_gemm_u8s8_kernel *ker)
{
    if (o->m != 0) {
        if (o->m > ker->mr || o->n == 0 || o->k == 0 || o->k > QNN_GEMM_MAX_K)
            return 0;
        for (uint32_t s = 0; s < (o->has_seed ? 1 : 64); s++)
            if (run_shape(ker, run, o->m, o->n, o->k, o->seed + s))
                return 1;
        return 0;
    }

    const size_t ks[] = {1,  ker->kr > 1 ? ker->kr - 1u : 2u, ker->kr, ker->kr + 1u, 63, 64, 65,
                         257};
    const uint32_t n_seeds = o->is_long ? 32 : 4;
    uint32_t seed = o->seed;
    for (size_t m = 1; m <= ker->mr; m++)
        for (size_t n = 1; n <= 2u * ker->nr + 1; n++)
            for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
                for (uint32_t s = 0; s < n_seeds; s++)
                    if (run_shape(ker, run, m, n, ks[i], seed + s))
                        return 1;
                seed += 5; /* both sides and both accumulates each time, every other bit in turn */
            }
    /* longest k: four seeds with data 255 x -128 (8..), 255 x 127 (16..) and mixtures (0..) */
    for (uint32_t s = 0; s < 24; s += o->is_long ? 1 : 5)
        if (run_shape(ker, run, ker->mr, ker->nr + 1u, QNN_GEMM_MAX_K, s))
            return 1;
    return run_shape(ker, run_pairs, 1, 1, 2, 0) || run_shape(ker, run_pairs, 1, 1, 2, 1);
}

int kc_check_gemm_u8s8(const kc_options *o)
{
    int n_failed = 0;
    for (const qnn_gemm_u8s8_kernel *const *l = qnn_gemm_u8s8_list; *l != NULL; l++) {
        if (!kc_is_wanted(o, "gemm_u8s8", (*l)->name, (*l)->isa))
            continue;
        const size_t before = kc_n_cases();
        const int failed = kc_check_gemm_u8s8_one(o, *l);
        printf("%-24s %s, %zu cases\n", (*l)->name, failed ? "FAILED" : "ok",
               kc_n_cases() - before);
        n_failed += failed;
    }
    return n_failed;
}
