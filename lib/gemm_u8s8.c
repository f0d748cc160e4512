/*
 * u8 x s8 products: the same frame as gemm.c around the exact integer microkernels. Sums live in
 * the thread's scratch and leave it requantised (or as floats) while they are in cache.
 */
#include "lib/gemm.h"

#include <string.h>

#define KC      1024 /* bytes of a row; a multiple of every kr */
#define LDA     (KC + 64)
#define MC      112
#define NC      512                /* columns of one task */
#define A_BYTES ((size_t)MC * LDA) /* a multiple of 64 */
QNN_STATIC_ASSERT(A_BYTES + (size_t)MC * NC * sizeof(int32_t) <= QNN_THREAD_SCRATCH,
                  "A and the sums must fit the scratch");

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

static size_t div_up(size_t a, size_t b) { return (a + b - 1) / b; }

/* ---- packing B ------------------------------------------------------------------------------- */

size_t qnn_gemm__packed_u8s8(const qnn_gemm_u8s8_kernel *ker, size_t k, size_t n)
{
    return qnn_round_up(k, ker->kr) * qnn_round_up(n, ker->nr);
}

typedef struct pack_job {
    const qnn_gemm_u8s8_kernel *ker;
    size_t k, n, n_panels;
    const int8_t *b;
    size_t rs, cs;
    int8_t *dst;
} pack_job;

static void pack_task(void *arg, size_t i, int thread)
{
    const pack_job *const j = arg;
    const size_t nr = j->ker->nr, panel = i % j->n_panels, k0 = i / j->n_panels * KC,
                 kc = min_size(KC, j->k - k0);
    int8_t *const block =
        j->dst +
        k0 * j->n_panels * nr; /* K blocks before this one are whole, KC being a multiple of kr */

    (void)thread;
    j->ker->pack_panel(kc, min_size(nr, j->n - panel * nr), j->b + k0 * j->rs + panel * nr * j->cs,
                       j->rs, j->cs, block + panel * qnn_round_up(kc, j->ker->kr) * nr);
}

void qnn_gemm__pack_u8s8(qnn_ctx *ctx, const qnn_gemm_u8s8_kernel *ker, size_t k, size_t n,
                         const int8_t *b, size_t rs, size_t cs, int8_t *dst)
{
    pack_job j = {ker, k, n, div_up(n, ker->nr), b, rs, cs, dst};

    qnn_ctx__parallel(ctx, div_up(k, KC) * j.n_panels, pack_task, &j);
}

/* ---- the product ----------------------------------------------------------------------------- */

typedef struct u8s8_job {
    qnn_ctx *ctx;
    const qnn_gemm_u8s8_kernel *ker;
    const qnn_vec_kernel *vec;
    const qnn_gemm_u8s8_args *g;
    size_t mc, n_panels, panels_per_task, n_tasks_n;
} u8s8_job;

/*
 * Rows m0.. of A, columns k0..k0+*kc-1: where they lie, or copied to scratch. Copies end in zeros
 * up to a whole group of kr, and *kc grows to it: B has zeros there too, and kernels are slower on
 * a part of a group.
 */
static const uint8_t *a_block(const u8s8_job *j, size_t m0, size_t m, size_t k0, size_t *kc,
                              uint8_t *scratch, size_t *lda)
{
    const qnn_gemm_u8s8_args *const g = j->g;
    const size_t padded = qnn_round_up(*kc, j->ker->kr);

    /* One or two rows are streamed once; copying them would only cost. */
    if (g->gather == NULL && (m <= 2 || g->lda % 1024 != 0)) {
        *lda = g->lda;
        return g->a + m0 * g->lda + k0;
    }
    *lda = LDA;
    if (g->gather != NULL)
        g->gather(g->arg, m0, m, k0, *kc, scratch, LDA);
    for (size_t i = 0; i < m && g->gather == NULL; i++)
        memcpy(scratch + i * LDA, g->a + (m0 + i) * g->lda + k0, *kc);
    for (size_t i = 0; i < m && padded > *kc; i++)
        memset(scratch + i * LDA + *kc, 0, padded - *kc);
    *kc = padded;
    return scratch;
}

/* Dynamic quantisation: each row has its own scale and zero point. */
static void finish_rows(const qnn_gemm_u8s8_args *g, size_t m0, size_t m, size_t n0, size_t n,
                        const int32_t *sums, size_t ld)
{
    for (size_t i = 0; i < m; i++) {
        const float row_scale = g->row_scale[m0 + i];
        const int32_t zp = g->row_zp[m0 + i];
        float *const dst = g->dst_f32 + (m0 + i) * g->ldd;

        for (size_t c = n0; c < n0 + n; c++) {
            const int32_t sum = sums[i * ld + c - n0] + g->bias[c] - zp * g->col_sum[c];
            float y = (float)sum * (row_scale * g->mult[c]);

            if (g->fbias != NULL)
                y += g->fbias[c];
            y = y < g->lo ? g->lo : y;
            dst[c] = y > g->hi ? g->hi : y;
        }
    }
}

static void finish(const u8s8_job *j, size_t m0, size_t m, size_t n0, size_t n, const int32_t *sums,
                   size_t ld)
{
    const qnn_gemm_u8s8_args *const g = j->g;

    if (g->dst_u8 != NULL)
        j->vec->requantize_u8(m, n, sums, ld, g->bias + n0, g->mult + n0, g->zp, g->qmin, g->qmax,
                              g->dst_u8 + m0 * g->ldd + n0, g->ldd);
    else if (g->row_scale != NULL)
        finish_rows(g, m0, m, n0, n, sums, ld);
    else
        j->vec->dequantize_s32(m, n, sums, ld, g->bias + n0, g->mult + n0,
                               g->fbias != NULL ? g->fbias + n0 : NULL, g->lo, g->hi,
                               g->dst_f32 + m0 * g->ldd + n0, g->ldd);
}

static void u8s8_task(void *arg, size_t task, int thread)
{
    const u8s8_job *const j = arg;
    const qnn_gemm_u8s8_args *const g = j->g;
    const size_t nr = j->ker->nr, mr = j->ker->mr;
    const size_t m0 = task / j->n_tasks_n * j->mc, m = min_size(j->mc, g->m - m0);
    const size_t panel0 = task % j->n_tasks_n * j->panels_per_task;
    const size_t n0 = panel0 * nr, n = min_size(j->panels_per_task * nr, g->n - n0),
                 ld = j->panels_per_task * nr;
    uint8_t *const scratch = qnn_ctx__scratch(j->ctx, thread);
    int32_t *const sums = (int32_t *)(void *)(scratch + A_BYTES);

    for (size_t k0 = 0; k0 < g->k; k0 += KC) {
        const size_t k_end = min_size(k0 + KC, g->k);
        const size_t panel_bytes = qnn_round_up(k_end - k0, j->ker->kr) * nr;
        const int8_t *const b = g->b + k0 * j->n_panels * nr + panel0 * panel_bytes;
        size_t lda, kc = k_end - k0;
        const uint8_t *const a = a_block(j, m0, m, k0, &kc, scratch, &lda);

        for (size_t i = 0; i < m; i += mr) {
            const size_t mt = min_size(mr, m - i);

            j->ker->gemm(mt, n, kc, a + i * lda, lda, b, panel_bytes, sums + i * ld, ld, k0 > 0);
            if (k_end == g->k)
                finish(j, m0 + i, mt, n0, n, sums + i * ld, ld);
        }
    }
}

void qnn_gemm__u8s8(qnn_ctx *ctx, const qnn_gemm_u8s8_kernel *ker, const qnn_vec_kernel *vec,
                    const qnn_gemm_u8s8_args *g)
{
    u8s8_job j = {.ctx = ctx, .ker = ker, .vec = vec, .g = g, .n_panels = div_up(g->n, ker->nr)};
    const size_t wanted = 2 * (size_t)ctx->n_threads, most_rows = MC / ker->mr * ker->mr,
                 most_panels = NC / ker->nr;
    size_t rows = qnn_round_up(div_up(g->m, 2 * wanted), ker->mr), n_row_blocks, n_column_tasks;

    if (g->k > 4 * KC && g->m <= most_rows)
        rows = g->m; /* long rows: the weights are the traffic, so that every block of rows would
                        stream them again */
    j.mc = min_size(rows, most_rows);
    n_row_blocks = div_up(g->m, j.mc);
    n_column_tasks =
        n_row_blocks >= wanted ? 1 : min_size(j.n_panels, div_up(wanted, n_row_blocks));
    j.panels_per_task = min_size(div_up(j.n_panels, n_column_tasks), most_panels);
    j.n_tasks_n = div_up(j.n_panels, j.panels_per_task);
    qnn_ctx__parallel(ctx, n_row_blocks * j.n_tasks_n, u8s8_task, &j);
}
