/* The table of operations, keyed by the enum, so that its order cannot drift. */
#include "lib/op.h"

const qnn_op *const qnn_ops[QNN_OP_COUNT] = {
    [QNN_OP_INPUT] = &qnn_op_input,
    [QNN_OP_CONV2D] = &qnn_op_conv2d,
    [QNN_OP_LINEAR] = &qnn_op_linear,
    [QNN_OP_BATCHNORM2D] = &qnn_op_batchnorm2d,
    [QNN_OP_CLIP] = &qnn_op_clip,
    [QNN_OP_MAXPOOL2D] = &qnn_op_maxpool2d,
    [QNN_OP_AVGPOOL2D] = &qnn_op_avgpool2d,
    [QNN_OP_GLOBAL_AVGPOOL] = &qnn_op_global_avgpool,
    [QNN_OP_ADD] = &qnn_op_add,
    [QNN_OP_CONCAT] = &qnn_op_concat,
    [QNN_OP_FLATTEN] = &qnn_op_flatten,
    [QNN_OP_SOFTMAX] = &qnn_op_softmax,
    [QNN_OP_DROPOUT] = &qnn_op_dropout,
    [QNN_OP_QUANTIZE] = &qnn_op_quantize,
    [QNN_OP_DEQUANTIZE] = &qnn_op_dequantize,
    [QNN_OP_FAKE_QUANT] = &qnn_op_fake_quant,
};
