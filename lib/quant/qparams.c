/* The formulas as public calls; see docs/numerics.md. */
#include <qnn/quant.h>

#include "lib/qmath.h"

void qnn_qparams_u8(float lo, float hi, float *scale, int32_t *zero_point)
{
    qnn_qparams__affine(lo, hi, 0, 255, scale, zero_point);
}

float qnn_qparams_symmetric(float max_abs, int32_t qmax)
{
    return qnn_qparams__symmetric(max_abs, qmax);
}

/* The reference kernels: every ISA gives the same bits, and callers need no context. */
static const qnn_vec_kernel *reference(void)
{
    size_t last = 0;

    while (qnn_vec_list[last + 1] != NULL)
        last++;
    return qnn_vec_list[last];
}

void qnn_quantize_u8(const float *x, size_t n, float scale, int32_t zero_point, uint8_t *q)
{
    reference()->quantize_u8(n, x, 1.0f / scale, zero_point, 0, 255, q);
}

void qnn_dequantize_u8(const uint8_t *q, size_t n, float scale, int32_t zero_point, float *x)
{
    reference()->dequantize_u8(n, q, scale, zero_point, x);
}
