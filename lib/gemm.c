/*
 * f32 matrix products: blocking, packing and threads around the microkernels.
 *
 * K is cut every KC values, always at the same places. A task owns a rectangle of C and runs over
 * all of K, so that no result depends on the thread count. Blocks of A are copied to the thread's
 * scratch with a padded row stride (a power of two would put all rows of a tile into one cache
 * set); they and a panel of B stay in the L2 cache while the microkernel runs over them.
 */
#include "lib/gemm.h"

#include <math.h>
#include <string.h>

#define KC          256
#define LDA         (KC + 16)
#define MC_FLOATS   ((size_t)120 * LDA) /* A block of a forward product */
#define AT_KC       192
#define AT_A_FLOATS ((size_t)96 * 1024) /* scratch of gemm__at_b: packed A, then packed B */
#define AT_B_FLOATS ((size_t)128 * 1024)
QNN_STATIC_ASSERT(MC_FLOATS * sizeof(float) <= QNN_THREAD_SCRATCH,
                  "the A block must fit the scratch");
QNN_STATIC_ASSERT((AT_A_FLOATS + AT_B_FLOATS) * sizeof(float) <= QNN_THREAD_SCRATCH,
                  "both blocks must fit the scratch");

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

static size_t div_up(size_t a, size_t b) { return (a + b - 1) / b; }

static void mat_block(const qnn_mat *a, size_t r0, size_t nr, size_t c0, size_t nc, float *dst,
                      size_t ld)
{
    if (a->gather != NULL) {
        a->gather(a->arg, r0, nr, c0, nc, dst, ld);
        return;
    }
    for (size_t i = 0; i < nr; i++)
        memcpy(dst + i * ld, a->data + (r0 + i) * a->rs + c0, nc * sizeof *dst);
}

/* ---- packing B ------------------------------------------------------------------------------- */

size_t qnn_gemm__packed_f32(const qnn_gemm_f32_kernel *ker, size_t k, size_t n)
{
    return k * qnn_round_up(n, ker->nr);
}

typedef struct pack_job {
    size_t k, n, nr, n_panels;
    const qnn_mat *b;
    float *dst;
} pack_job;

/* Task i: one panel of one K block. */
static void pack_task(void *arg, size_t i, int thread)
{
    const pack_job *const j = arg;
    const size_t kb = i / j->n_panels, panel = i % j->n_panels;
    const size_t k0 = kb * KC, kc = min_size(KC, j->k - k0), c0 = panel * j->nr,
                 nc = min_size(j->nr, j->n - c0);
    float *const dst = j->dst + k0 * j->n_panels * j->nr + panel * kc * j->nr;

    (void)thread;
    if (nc < j->nr)
        memset(dst, 0, kc * j->nr * sizeof *dst);
    if (j->b->gather != NULL || j->b->cs == 1) {
        mat_block(j->b, k0, kc, c0, nc, dst, j->nr);
        return;
    }
    for (size_t c = 0; c < nc; c++) {
        const float *const col = j->b->data + (c0 + c) * j->b->cs + k0 * j->b->rs;

        for (size_t p = 0; p < kc; p++)
            dst[p * j->nr + c] = col[p * j->b->rs];
    }
}

void qnn_gemm__pack_f32(qnn_ctx *ctx, const qnn_gemm_f32_kernel *ker, size_t k, size_t n,
                        const qnn_mat *b, float *dst)
{
    pack_job j = {k, n, ker->nr, div_up(n, ker->nr), b, dst};

    qnn_ctx__parallel(ctx, div_up(k, KC) * j.n_panels, pack_task, &j);
}

/* ---- C = A * B ------------------------------------------------------------------------------- */

typedef struct f32_job {
    qnn_ctx *ctx;
    const qnn_gemm_f32_kernel *ker;
    const qnn_vec_kernel *vec;
    const qnn_gemm_f32_args *g;
    size_t mc, n_panels, panels_per_task, n_tasks_n;
} f32_job;

/* Rows m0.. of A, columns k0..: where they lie, or copied to scratch. */
static const float *a_block(const qnn_gemm_f32_args *g, size_t m0, size_t m, size_t k0, size_t kc,
                            float *scratch, size_t *lda)
{
    /* One or two rows are streamed once; copying them would only cost. */
    if (g->a.gather == NULL && (m <= 2 || g->a.rs % 512 != 0)) {
        *lda = g->a.rs;
        return g->a.data + m0 * g->a.rs + k0;
    }
    mat_block(&g->a, m0, m, k0, kc, scratch, LDA);
    *lda = LDA;
    return scratch;
}

static void f32_task(void *arg, size_t task, int thread)
{
    const f32_job *const j = arg;
    const qnn_gemm_f32_args *const g = j->g;
    const size_t nr = j->ker->nr, mr = j->ker->mr;
    const size_t m0 = task / j->n_tasks_n * j->mc, m = min_size(j->mc, g->m - m0);
    const size_t panel0 = task % j->n_tasks_n * j->panels_per_task;
    const size_t n0 = panel0 * nr, n = min_size(j->panels_per_task * nr, g->n - n0);
    const int has_epilogue = g->bias != NULL || g->lo > -INFINITY || g->hi < INFINITY;
    float *const scratch = qnn_ctx__scratch(j->ctx, thread);

    for (size_t k0 = 0; k0 < g->k; k0 += KC) {
        const size_t kc = min_size(KC, g->k - k0);
        const float *const b = g->b + k0 * j->n_panels * nr + panel0 * kc * nr;
        const int is_last = k0 + kc == g->k;
        size_t lda;
        const float *const a = a_block(g, m0, m, k0, kc, scratch, &lda);

        for (size_t i = 0; i < m; i += mr) {
            const size_t mt = min_size(mr, m - i);
            float *const c = g->c + (m0 + i) * g->ldc + n0;

            j->ker->gemm[QNN_A_ROWS](mt, n, kc, a + i * lda, lda, b, kc * nr, c, g->ldc,
                                     k0 > 0 || g->beta);
            if (is_last && has_epilogue)
                j->vec->bias_clip(mt, n, c, g->ldc, g->bias != NULL ? g->bias + n0 : NULL, g->lo,
                                  g->hi);
        }
    }
}

/* Rows of one block: whole tiles, few enough for the scratch, and enough blocks that threads end
 * together. */
static size_t block_rows(size_t m, size_t mr, size_t limit, int n_threads)
{
    const size_t most = limit / mr * mr;
    const size_t even = qnn_round_up(div_up(m, 4 * (size_t)n_threads), mr);

    return even < most ? even : most;
}

/* When there are few row blocks, columns are split too; each task then gathers A anew, so no more
 * than needed. */
static size_t column_tasks(size_t n_row_blocks, size_t n_panels, int n_threads)
{
    const size_t wanted = 2 * (size_t)n_threads;

    return n_row_blocks >= wanted ? 1 : min_size(n_panels, div_up(wanted, n_row_blocks));
}

void qnn_gemm__f32(qnn_ctx *ctx, const qnn_gemm_f32_kernel *ker, const qnn_vec_kernel *vec,
                   const qnn_gemm_f32_args *g)
{
    f32_job j = {.ctx = ctx, .ker = ker, .vec = vec, .g = g, .n_panels = div_up(g->n, ker->nr)};
    size_t n_row_blocks;

    j.mc = g->m <= MC_FLOATS / LDA && g->n >= 4 * (size_t)ker->nr && g->k > 4 * KC
               ? g->m
               : block_rows(g->m, ker->mr, MC_FLOATS / LDA, ctx->n_threads);
    n_row_blocks = div_up(g->m, j.mc);
    j.panels_per_task = div_up(j.n_panels, column_tasks(n_row_blocks, j.n_panels, ctx->n_threads));
    j.n_tasks_n = div_up(j.n_panels, j.panels_per_task);
    qnn_ctx__parallel(ctx, n_row_blocks * j.n_tasks_n, f32_task, &j);
}

/* ---- C += A^T * B ---------------------------------------------------------------------------- */

typedef struct at_b_job {
    qnn_ctx *ctx;
    const qnn_gemm_f32_kernel *ker;
    size_t m, n, k, unit, n_shards;
    const float *a;
    size_t lda;
    const qnn_mat *b;
    float *c;
    size_t ldc;
    float *partial;
    size_t nb, n_blocks, mb; /* columns of a task, tasks per shard, rows of A packed at a time */
} at_b_job;

size_t qnn_gemm__at_b_scratch(size_t m, size_t n, size_t n_shards)
{
    return n_shards > 1 ? n_shards * m * n : 0;
}

/* Columns m0..m0+m-1 of A, rows k0..: groups of [kc][mr]. */
static void pack_a_cols(const at_b_job *j, size_t k0, size_t kc, size_t m0, size_t m, float *dst)
{
    const size_t mr = j->ker->mr;

    for (size_t i = 0; i < m; i += mr) {
        const size_t mt = min_size(mr, m - i);
        float *const group = dst + i * kc;

        for (size_t p = 0; p < kc; p++) {
            const float *const row = j->a + (k0 + p) * j->lda + m0 + i;

            for (size_t q = 0; q < mt; q++)
                group[p * mr + q] = row[q];
            for (size_t q = mt; q < mr; q++)
                group[p * mr + q] = 0.0f;
        }
    }
}

static void at_b_task(void *arg, size_t task, int thread)
{
    const at_b_job *const j = arg;
    const size_t shard = task / j->n_blocks, n0 = task % j->n_blocks * j->nb,
                 n = min_size(j->nb, j->n - n0);
    const size_t n_units = j->k / j->unit;
    const size_t first = shard * n_units / j->n_shards * j->unit,
                 last = (shard + 1) * n_units / j->n_shards * j->unit;
    const size_t nr = j->ker->nr, mr = j->ker->mr;
    float *const a_pack = qnn_ctx__scratch(j->ctx, thread), *const b_pack = a_pack + AT_A_FLOATS;
    float *const c = j->n_shards > 1 ? j->partial + shard * j->m * j->n + n0 : j->c + n0;
    const size_t ldc = j->n_shards > 1 ? j->n : j->ldc;

    if (first == last) { /* fewer units than shards: this one adds nothing */
        for (size_t i = 0; i < j->m; i++)
            memset(c + i * ldc, 0, n * sizeof *c);
        return;
    }
    for (size_t k0 = first; k0 < last; k0 += AT_KC) {
        const size_t kc = min_size(AT_KC, last - k0);

        for (size_t col = 0; col < n; col += nr) {
            const size_t nc = min_size(nr, n - col);

            if (nc < nr)
                memset(b_pack + col * kc, 0, kc * nr * sizeof *b_pack);
            mat_block(j->b, k0, kc, n0 + col, nc, b_pack + col * kc, nr);
        }
        for (size_t m0 = 0; m0 < j->m; m0 += j->mb) {
            const size_t m = min_size(j->mb, j->m - m0);

            pack_a_cols(j, k0, kc, m0, m, a_pack);
            for (size_t i = 0; i < m; i += mr)
                j->ker->gemm[QNN_A_COLS](min_size(mr, m - i), n, kc, a_pack + i * kc, 0, b_pack,
                                         kc * nr, c + (m0 + i) * ldc, ldc,
                                         k0 > first || j->n_shards == 1);
        }
    }
}

static void add_shards(void *arg, size_t row, int thread)
{
    const at_b_job *const j = arg;
    float *const c = j->c + row * j->ldc;

    (void)thread;
    for (size_t s = 0; s < j->n_shards; s++) {
        const float *const p = j->partial + (s * j->m + row) * j->n;

        for (size_t i = 0; i < j->n; i++)
            c[i] += p[i];
    }
}

void qnn_gemm__at_b(qnn_ctx *ctx, const qnn_gemm_f32_kernel *ker, size_t m, size_t n, size_t k,
                    size_t unit, size_t n_shards, const float *a, size_t lda, const qnn_mat *b,
                    float *c, size_t ldc, float *partial)
{
    at_b_job j = {ctx, ker, m, n, k, unit, n_shards, a, lda, b, c, ldc, partial, 0, 0, 0};
    const size_t panels = div_up(n, ker->nr), most = AT_B_FLOATS / AT_KC / ker->nr;

    /* The columns are cut into equal blocks, small enough for the scratch and, without shards,
     * enough of them for the threads. */
    j.n_blocks = div_up(panels, most);
    if (n_shards < 2 * (size_t)ctx->n_threads)
        j.n_blocks = min_size(
            panels, j.n_blocks * div_up(2 * (size_t)ctx->n_threads, n_shards * j.n_blocks));
    j.nb = div_up(panels, j.n_blocks) * ker->nr;
    j.n_blocks = div_up(n, j.nb);
    j.mb = AT_A_FLOATS / AT_KC / ker->mr * ker->mr;
    qnn_ctx__parallel(ctx, n_shards * j.n_blocks, at_b_task, &j);
    if (n_shards > 1)
        qnn_ctx__parallel(ctx, m, add_shards, &j);
}
