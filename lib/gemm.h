/*
 * Matrix products around the microkernels: blocking, packing, threads, edges.
 *
 * An operand that is not a plain matrix is a "gather": a callback that writes any rectangle of the
 * virtual matrix. Convolution passes its image that way (implicit GEMM): no im2col buffer exists,
 * only blocks in each thread's scratch. Nothing here depends on the thread count: work is split
 * over rows and columns of C, never over K; K is cut at fixed places.
 */
#ifndef QNN_LIB_GEMM_H
#define QNN_LIB_GEMM_H

#include "lib/internal.h"

/* Writes rows r0..r0+nr-1, columns c0..c0+nc-1 to dst (row-major, ld elements). Called from many
 * threads. */
typedef void qnn_gather_f32_fn(const void *arg, size_t r0, size_t nr, size_t c0, size_t nc,
                               float *dst, size_t ld);
typedef void qnn_gather_u8_fn(const void *arg, size_t r0, size_t nr, size_t c0, size_t nc,
                              uint8_t *dst, size_t ld);

/* A virtual f32 matrix [rows][cols]: plain when gather is NULL. Element (r, c) at data[r * rs + c *
 * cs]. */
typedef struct qnn_mat {
    const float *data;
    size_t rs, cs;
    qnn_gather_f32_fn *gather;
    const void *arg;
} qnn_mat;

/* Floats that the whole of B [k][n], packed for kernel, takes. */
size_t qnn_gemm__packed_f32(const qnn_gemm_f32_kernel *ker, size_t k, size_t n);
/* Packs B [k][n] (either stride may be 1: row- or column-major) on the context's threads. dst
 * 64-byte aligned. */
void qnn_gemm__pack_f32(qnn_ctx *ctx, const qnn_gemm_f32_kernel *ker, size_t k, size_t n,
                        const qnn_mat *b, float *dst);

/*
 * C[m][n] = clip((beta ? C : 0) + A[m][k] * B + bias, lo, hi), B packed by the call above; bias
 * NULL: none; lo -inf and hi +inf: open. A is [m][k]: plain with cs == 1 (rows are used where they
 * lie), or a gather.
 */
typedef struct qnn_gemm_f32_args {
    size_t m, n, k;
    qnn_mat a;
    const float *b;
    float *c;
    size_t ldc;
    int beta;
    const float *bias;
    float lo, hi;
} qnn_gemm_f32_args;
void qnn_gemm__f32(qnn_ctx *ctx, const qnn_gemm_f32_kernel *ker, const qnn_vec_kernel *vec,
                   const qnn_gemm_f32_args *g);

/*
 * C[m][n] += A^T * B over k rows of both: A is stored [k][m] (plain, cs == 1), B [k][n] plain (cs
 * == 1) or a gather. The weights' gradient. k is cut into n_shards pieces of whole groups of `unit`
 * rows (an image's pixels); each is summed on its own into partial, and pieces are added to C in
 * order, so that the bits depend neither on threads nor on blocking. partial:
 * qnn_gemm__at_b_scratch() floats; split over C's tiles too when n_shards is small or C is large.
 */
size_t qnn_gemm__at_b_scratch(size_t m, size_t n, size_t n_shards);
void qnn_gemm__at_b(qnn_ctx *ctx, const qnn_gemm_f32_kernel *ker, size_t m, size_t n, size_t k,
                    size_t unit, size_t n_shards, const float *a, size_t lda, const qnn_mat *b,
                    float *c, size_t ldc, float *partial);

/* ---- u8 x s8
 * --------------------------------------------------------------------------------------------------------
 */

/* Bytes that B [k][n] takes packed. */
size_t qnn_gemm__packed_u8s8(const qnn_gemm_u8s8_kernel *ker, size_t k, size_t n);
/* B element (p, j) at b[p * rs + j * cs]. */
void qnn_gemm__pack_u8s8(qnn_ctx *ctx, const qnn_gemm_u8s8_kernel *ker, size_t k, size_t n,
                         const int8_t *b, size_t rs, size_t cs, int8_t *dst);

/* What becomes of the int32 sums; exactly one of dst_u8 and dst_f32 is set. */
typedef struct qnn_gemm_u8s8_args {
    size_t m, n, k;
    const uint8_t *a; /* [m][k], lda elements; or gather */
    size_t lda;
    qnn_gather_u8_fn *gather;
    const void *arg;
    const int8_t *b;
    const int32_t
        *bias;         /* [n], added to the sums; never NULL (holds -zp_in * sum of weights too) */
    const float *mult; /* [n] */
    uint8_t *dst_u8;   /* clamp(rne((float)sum * mult[j]) + zp, qmin, qmax) */
    int32_t zp, qmin, qmax;
    float *dst_f32; /* clip((float)sum * mult[j] + fbias[j], lo, hi); fbias NULL: none */
    const float *fbias;
    float lo, hi;
    const float *row_scale; /* dst_f32 only, optional [m]: sum * (row_scale[i] * mult[j]) (dynamic
                               quantisation) */
    const int32_t *row_zp;  /* with row_scale: [m] zero point of row i of A ... */
    const int32_t *col_sum; /* ... and [n] sum of B's column: the sum is corrected by -row_zp[i] *
                               col_sum[j] */
    size_t ldd;
} qnn_gemm_u8s8_args;
void qnn_gemm__u8s8(qnn_ctx *ctx, const qnn_gemm_u8s8_kernel *ker, const qnn_vec_kernel *vec,
                    const qnn_gemm_u8s8_args *g);

#endif
