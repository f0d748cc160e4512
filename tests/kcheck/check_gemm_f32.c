/*
 * gemm_f32 against naive loops. Of a case's seed, bit 0 is the guarded side, bit 1 accumulate, bit
 * 2 the layout of A; every eighth seed puts infinities and NaN into A and B.
 *
 * Two comparisons. Against sums in double: |error| <= (k + 1) * eps * (|c| + sum |a * b|). And bit
 * for bit against the one chain of additions that the contract states, which no choice of m, n or
 * tile may change.
 */
#include "tests/kcheck/kcheck.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct problem {
    size_t m, n, k, lda, ldb, ldc;
    const float *a; /* element (i, p) at i * lda + p */
    const float *b; /* element (p, j) at p * ldb + j */
    int accumulate, is_fused;
} problem;

/* Element (i, j) as the contract's chain. */
static float chain(const problem *q, size_t i, size_t j, float sum)
{
    for (size_t p = 0; p < q->k; p++) {
        const float a = q->a[i * q->lda + p], b = q->b[p * q->ldb + j];
        sum = q->is_fused ? fmaf(a, b, sum) : sum + a * b;
    }
    return sum;
}

static int check_error(const problem *q, size_t i, size_t j, float start, float got)
{
    double sum = start, magnitude = fabs((double)start);
    for (size_t p = 0; p < q->k; p++) {
        const double product = (double)q->a[i * q->lda + p] * (double)q->b[p * q->ldb + j];
        sum += product;
        magnitude += fabs(product);
    }
    const double bound = (double)(q->k + 1) * (double)FLT_EPSILON * magnitude;
    if (isfinite(sum) && !(fabs((double)got - sum) <= bound))
        return kc_note("C[%zu][%zu]: want %.9g within %.3g, got %.9g", i, j, sum, bound,
                       (double)got);
    return 0;
}

static void add_specials(float *x, size_t n)
{
    for (size_t i = 0; i < 1 + n / 64; i++)
        x[kc_random_below(n)] = kc_random() & 1 ? INFINITY : kc_random() & 1 ? -INFINITY : NAN;
}

static int run(const kc_case *t)
{
    const qnn_gemm_f32_kernel *const ker = t->kernel;
    const size_t nr = ker->nr, mr = ker->mr;
    const qnn_a_layout layout = t->seed >> 2 & 1 ? QNN_A_COLS : QNN_A_ROWS;
    problem q = {.m = t->m,
                 .n = t->n,
                 .k = t->k,
                 .accumulate = t->seed >> 1 & 1,
                 .is_fused = (ker->isa & QNN_ISA_AVX2) != 0};
    q.lda = kc_next_prime(q.k + 1);
    q.ldb = q.n;
    q.ldc = kc_next_prime(q.n + 1);
    const size_t n_panels = (q.n + nr - 1) / nr, panel = q.k * nr;
    const size_t stride = (panel + 15) / 16 * 16 + 16 * kc_random_below(2);
    const size_t a_size = (q.m - 1) * q.lda + q.k, c_size = (q.m - 1) * q.ldc + q.n;

    float *const a = kc_take(a_size * sizeof *a, sizeof *a);
    float *const b = kc_take(q.k * q.n * sizeof *b, sizeof *b);
    float *const packed = kc_take(((n_panels - 1) * stride + panel) * sizeof *b, 64);
    float *const c = kc_take(c_size * sizeof *c, sizeof *c);
    float *const want = kc_take(c_size * sizeof *c, sizeof *c);
    float *const start = kc_take(c_size * sizeof *c, sizeof *c);
    q.a = a;
    q.b = b;
    kc_fill_f32(a, a_size);
    kc_fill_f32(b, q.k * q.n);
    kc_fill_f32(start, c_size);
    if (t->seed % 8 == 7) {
        add_specials(a, a_size);
        add_specials(b, q.k * q.n);
    }
    if (!q.accumulate) /* what was there must not matter */
        for (size_t i = 0; i < c_size; i++)
            start[i] = i % 3 == 0 ? NAN : start[i];
    memcpy(c, start, c_size * sizeof *c);
    memcpy(want, start, c_size * sizeof *c);

    for (size_t j0 = 0; j0 < n_panels; j0++) {
        float *const to = packed + j0 * stride;
        for (size_t p = 0; p < q.k; p++)
            for (size_t j = 0; j < nr; j++)
                to[p * nr + j] = j0 * nr + j < q.n ? b[p * q.ldb + j0 * nr + j] : 0.0f;
        if (j0 + 1 < n_panels)
            memset(to + panel, 0xff, (stride - panel) * sizeof *to); /* NaN between panels */
    }
    const float *passed = a;
    size_t lda = q.lda;
    if (layout == QNN_A_COLS) { /* whole groups of mr; rows past m are NaN */
        float *const groups = kc_take(q.k * mr * sizeof *a, sizeof *a);
        for (size_t p = 0; p < q.k; p++)
            for (size_t i = 0; i < mr; i++)
                groups[p * mr + i] = i < q.m ? a[i * q.lda + p] : NAN;
        passed = groups;
        lda = 0;
    }

    int bad = 0;
    ker->gemm[layout](q.m, q.n, q.k, passed, lda, packed, stride, c, q.ldc, q.accumulate);
    for (size_t i = 0; i < q.m; i++)
        for (size_t j = 0; j < q.n; j++) {
            const float from = q.accumulate ? start[i * q.ldc + j] : 0.0f;
            want[i * q.ldc + j] = chain(&q, i, j, from);
            bad |= check_error(&q, i, j, from, c[i * q.ldc + j]);
        }
    bad |= kc_same_f32("C", want, c, c_size);
    float *const again = kc_take(c_size * sizeof *c, sizeof *c);
    memcpy(again, start, c_size * sizeof *c);
    ker->gemm[layout](q.m, q.n, q.k, passed, lda, packed, stride, again, q.ldc, q.accumulate);
    bad |= kc_same("C of the second run", c, again, c_size * sizeof *c, sizeof *c);
    return bad;
}

static int run_shape(const qnn_gemm_f32_kernel *ker, size_t m, size_t n, size_t k, uint32_t seed)
{
    const kc_case c = {.family = "gemm_f32",
                       .kernel_name = ker->name,
                       .kernel = ker,
                       .m = m,
                       .n = n,
                       .k = k,
                       .seed = seed};
    return kc_run_case(run, &c);
}

int kc_check_gemm_f32_one(const kc_options *o, const qnn_gemm_f32_kernel *ker)
{
    if (o->m != 0) {
        if (o->m > ker->mr || o->n == 0 || o->k == 0)
            return 0;
        for (uint32_t s = 0; s < (o->has_seed ? 1 : 64); s++)
            if (run_shape(ker, o->m, o->n, o->k, o->seed + s))
                return 1;
        return 0;
    }

    const size_t ks[] = {1, 2, 3, 63, 64, 65, 257};
    uint32_t seed = o->seed;
    for (size_t m = 1; m <= ker->mr; m++)
        for (size_t n = 1; n <= 2u * ker->nr + 1; n++)
            for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
                for (uint32_t s = 0; s < (o->is_long ? 16u : 4u); s++)
                    if (run_shape(ker, m, n, ks[i], seed + s))
                        return 1;
                seed += 5;
            }
    for (uint32_t s = 0; s < 8; s++)
        if (run_shape(ker, ker->mr, ker->nr + 1u, o->is_long ? 16384 : 2049, o->seed + s))
            return 1;
    return 0;
}

int kc_check_gemm_f32(const kc_options *o)
{
    int n_failed = 0;
    for (const qnn_gemm_f32_kernel *const *l = qnn_gemm_f32_list; *l != NULL; l++) {
        if (!kc_is_wanted(o, "gemm_f32", (*l)->name, (*l)->isa))
            continue;
        const size_t before = kc_n_cases();
        const int failed = kc_check_gemm_f32_one(o, *l);
        printf("%-24s %s, %zu cases\n", (*l)->name, failed ? "FAILED" : "ok",
               kc_n_cases() - before);
        n_failed += failed;
    }
    return n_failed;
}
