/* The element-wise family in plain C for any processor; the formulas are in vec_template.h. */
#define VEC_SYMBOL qnn_vec_ref
#define VEC_NAME   "vec_ref"
#define VEC_ISA    QNN_ISA_REF
#include "kernels/vec_template.h"
