/*
 * Kernel families: descriptors, the lists that hold every variant, and the choice of one per
 * family.
 *
 * A kernel owns registers only: no malloc, stdio, threads, errno, context. Blocking, packing
 * buffers and threads belong to lib/. Every ISA gives bit-identical integer results to the
 * reference on the whole stated domain. Numeric contract: docs/numerics.md.
 */
#ifndef QNN_KERNELS_H
#define QNN_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* ---- instruction sets ---------------------------------------------------------------------- */

typedef uint32_t qnn_isa;
enum {
    QNN_ISA_REF = 0,
    QNN_ISA_AVX2 = 1u << 0,       /* AVX2 FMA F16C BMI2                  */
    QNN_ISA_AVX512 = 1u << 1,     /* + AVX512 F BW DQ VL                 */
    QNN_ISA_AVX512VNNI = 1u << 2, /* + AVX512 VNNI                       */
    QNN_ISA_ALL = (1u << 3) - 1
};

typedef struct qnn_isa_info {
    const char *name; /* folder name and symbol suffix */
    qnn_isa bits;     /* all that must be present (bundles below it included) */
} qnn_isa_info;
/* Weakest first; ends with name NULL; only those built in. */
extern const qnn_isa_info qnn_isa_list[];

/* Pure: CPUID and XGETBV, every bit of every bundle checked. */
qnn_isa qnn_isa_detect(void);

/* ---- GEMM f32 ------------------------------------------------------------------------------ */

/*
 * How A is laid out for a microkernel. Both are blocks of at most mr rows:
 *   QNN_A_ROWS  element (i, p) at a[i * lda + p]: rows of K values (forward passes); any lda
 *   QNN_A_COLS  element (i, p) at a[p * mr + i]: one group of mr values per p (A transposed); mr as
 *               in the descriptor, rows i >= m of a group exist and are ignored
 *
 * C[m x n] = (accumulate ? C : 0) + A[m x k] * B[k x n]
 *   b  packed: panels of nr columns; panel j holds [k][nr], columns past n are zero; panel stride
 *      is given in elements
 *   c  row-major, ldc elements; only the m x n rectangle is read or written
 *   1 <= m <= mr, n >= 1 (the kernel walks the panels), k >= 1
 *   b is 64-byte aligned, a and c have any alignment of 4
 *
 * Each element is one chain of additions over p = 0..k-1 in order (fused where the ISA has it),
 * started from C or from 0, so that the value never depends on m, n or on where the tile lies.
 */
typedef enum qnn_a_layout { QNN_A_ROWS, QNN_A_COLS } qnn_a_layout;

typedef void qnn_gemm_f32_fn(size_t m, size_t n, size_t k, const float *a, size_t lda,
                             const float *b, size_t panel_stride, float *c, size_t ldc,
                             int accumulate);

typedef struct qnn_gemm_f32_kernel {
    const char *name;
    qnn_isa isa;
    uint16_t mr, nr;
    qnn_gemm_f32_fn *gemm[2]; /* by qnn_a_layout; lda is ignored for QNN_A_COLS */
} qnn_gemm_f32_kernel;
extern const qnn_gemm_f32_kernel *const qnn_gemm_f32_list[]; /* best first, reference last, NULL */

/* ---- GEMM u8 x s8 -> s32, exact ------------------------------------------------------------ */

/*
 * C[m x n] = (accumulate ? C : 0) + A[m x k] * B[k x n], exact in int32 on every ISA.
 *   a  u8, row-major, lda elements, any alignment; nothing past column k-1 is read
 *   b  packed by pack_panel of the same descriptor: panels of nr columns, each ceil(k / kr) groups
 *      of [nr][kr] codes in the kernel's own order inside a group; bytes past k or n are zero;
 *      panel stride given in bytes; 64-byte aligned
 *   c  s32, row-major; only the m x n rectangle is read or written
 *   1 <= m <= mr, n >= 1, 1 <= k <= QNN_GEMM_MAX_K (255 * 128 * k must stay inside int32; the
 *   caller keeps the sum over all its k-blocks inside too)
 */
#define QNN_GEMM_MAX_K 65536

typedef void qnn_gemm_u8s8_fn(size_t m, size_t n, size_t k, const uint8_t *a, size_t lda,
                              const int8_t *b, size_t panel_stride, int32_t *c, size_t ldc,
                              int accumulate);
/*
 * Packs the k x n block at b, 1 <= n <= nr, into one panel of round_up(k, kr) * nr bytes.
 * Element (p, j) is b[p * row_stride + j * col_stride].
 */
typedef void qnn_pack_u8s8_fn(size_t k, size_t n, const int8_t *b, size_t row_stride,
                              size_t col_stride, int8_t *panel);

typedef struct qnn_gemm_u8s8_kernel {
    const char *name;
    qnn_isa isa;
    uint16_t mr, nr, kr;
    qnn_gemm_u8s8_fn *gemm;
    qnn_pack_u8s8_fn *pack_panel;
} qnn_gemm_u8s8_kernel;
extern const qnn_gemm_u8s8_kernel *const qnn_gemm_u8s8_list[];

/* ---- element-wise family ------------------------------------------------------------------- */

/*
 * One descriptor of streaming routines. Arrays are dense, any alignment of their element, no
 * aliasing unless said. rne = round to nearest, ties to even. Each routine gives the same bits on
 * every ISA (the payload of a NaN apart); products and sums are never fused; the order of
 * additions across elements is stated where they occur. Scales and inverse scales are positive and
 * finite.
 */
typedef struct qnn_vec_kernel {
    const char *name;
    qnn_isa isa;

    /* q = clamp(rne(x * inv_scale) + zp, qmin, qmax); +inf and large -> qmax, -inf -> qmin,
     * NaN -> zp. 0 <= qmin <= zp <= qmax <= 255 */
    void (*quantize_u8)(size_t n, const float *x, float inv_scale, int32_t zp, int32_t qmin,
                        int32_t qmax, uint8_t *q);
    /* x = scale * (q - zp) */
    void (*dequantize_u8)(size_t n, const uint8_t *q, float scale, int32_t zp, float *x);
    /* y = scale * (clamp(rne(x * inv_scale) + zp, qmin, qmax) - zp), NaN -> 0; y may be x.
     * -32768 <= qmin <= zp <= qmax <= 32768 */
    void (*fake_quant)(size_t n, const float *x, float scale, float inv_scale, int32_t zp,
                       int32_t qmin, int32_t qmax, float *y);
    /* dx = (beta ? dx : 0) + (rne(x * inv_scale) + zp inside [qmin, qmax] ? dy : 0); dx may be dy
     * when beta == 0; NaN x passes nothing */
    void (*fake_quant_bwd)(size_t n, const float *x, float inv_scale, int32_t zp, int32_t qmin,
                           int32_t qmax, const float *dy, int beta, float *dx);
    /* min and max over finite values (-0 below +0); returns how many were not finite. No finite
     * value: *lo = +inf, *hi = -inf */
    size_t (*min_max)(size_t n, const float *x, float *lo, float *hi);
    /* rows x n: dst = clamp(rne((float)acc * mult[j]) + zp, qmin, qmax), acc = c[i * ldc + j] +
     * bias[j] (bias never NULL; acc inside int32), ranges as in quantize_u8, mult finite */
    void (*requantize_u8)(size_t rows, size_t n, const int32_t *c, size_t ldc, const int32_t *bias,
                          const float *mult, int32_t zp, int32_t qmin, int32_t qmax, uint8_t *dst,
                          size_t ldd);
    /* rows x n: dst = (float)(c + bias[j]) * mult[j], then + fbias[j] when fbias != NULL, then
     * clamp to [lo, hi] */
    void (*dequantize_s32)(size_t rows, size_t n, const int32_t *c, size_t ldc, const int32_t *bias,
                           const float *mult, const float *fbias, float lo, float hi, float *dst,
                           size_t ldd);
    /* rows x n, in place: c = clamp(c + bias[j], lo, hi); bias NULL: 0. -inf/+inf leave a side
     * open; NaN stays NaN */
    void (*bias_clip)(size_t rows, size_t n, float *c, size_t ldc, const float *bias, float lo,
                      float hi);
    /* y = clamp(x, lo, hi); y may be x; NaN stays NaN */
    void (*clip)(size_t n, const float *x, float lo, float hi, float *y);
    /* dx = (beta ? dx : 0) + (y > lo && y < hi ? dy : 0); dx may be dy when beta == 0 */
    void (*clip_bwd)(size_t n, const float *y, float lo, float hi, const float *dy, int beta,
                     float *dx);
    /* y = (beta ? y : 0) + alpha * x */
    void (*axpby)(size_t n, float alpha, const float *x, int beta, float *y);
    /* y[j] += sum over i of x[i * ldx + j], i in order */
    void (*col_sum)(size_t rows, size_t n, const float *x, size_t ldx, float *y);
    /* sum of squares in double: eight partial sums by index mod 8, added 0..7 in order */
    double (*sum_squares)(size_t n, const float *x);
    /* m = b1 m + (1 - b1) g; v = b2 v + ((1 - b2) g) g; w -= step_size * m / (sqrt(v) / sqrt_bc2 +
     * eps), g = grad * g_scale + weight_decay * w. 1 - b is taken in float, so bias corrections
     * that match start from the float b1 and b2 too. */
    void (*adam)(size_t n, float *w, float *m, float *v, const float *grad, float g_scale, float b1,
                 float b2, float eps, float weight_decay, float step_size, float sqrt_bc2);
    /* buf = momentum * buf + g (first: buf = g); w -= lr * (nesterov ? g + momentum * buf : buf), g
     * as in adam */
    void (*sgd)(size_t n, float *w, float *buf, const float *grad, float g_scale, float momentum,
                float weight_decay, float lr, int first, int nesterov);
    /* element-wise maximum of u8 / f32 rows into dst (dst = max(dst, x)); f32: a NaN on either side
     * stays, equal values keep dst */
    void (*max_u8)(size_t n, const uint8_t *x, uint8_t *dst);
    void (*max_f32)(size_t n, const float *x, float *dst);
    /* IEEE half and bfloat16, rne; NaN stays a quiet NaN with the upper payload; overflow to inf */
    void (*f32_to_f16)(size_t n, const float *x, uint16_t *h);
    void (*f16_to_f32)(size_t n, const uint16_t *h, float *x);
    void (*f32_to_bf16)(size_t n, const float *x, uint16_t *h);
    void (*bf16_to_f32)(size_t n, const uint16_t *h, float *x);
    /* x = (pixel * scale[c] + shift[c]), c = channel 0..2 of interleaved RGB; n pixels */
    void (*normalize_rgb)(size_t n, const uint8_t *rgb, const float *scale, const float *shift,
                          float *x);
} qnn_vec_kernel;
extern const qnn_vec_kernel *const qnn_vec_list[];

/* ---- the choice ---------------------------------------------------------------------------- */

typedef struct qnn_kernels { /* one per context, read-only after init */
    qnn_isa isa;
    const qnn_gemm_f32_kernel *gemm_f32;
    const qnn_gemm_u8s8_kernel *gemm_u8s8;
    const qnn_vec_kernel *vec;
} qnn_kernels;

/* Pure; isa = detected & cap. First entry of each list whose bits are all in isa. */
void qnn_kernels_init(qnn_kernels *k, qnn_isa isa);

#endif
