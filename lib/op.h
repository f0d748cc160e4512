/*
 * Operations: one per file in lib/op/, shape inference, preparation, forward and backward side by
 * side; one table of them.
 *
 * Gradient convention. The executor tells each op, per input, whether the gradient is to be stored
 * (beta 0: the first contribution) or added (beta 1): qnn_exec__din_beta(). Nothing has to be
 * zeroed first, and an op whose input has one user may work in place. Parameter gradients always
 * accumulate (+=); the trainer zeroes them. Numbers: a sum over the batch is made per fixed shard,
 * shards added in order, so that bits depend on no thread count.
 */
#ifndef QNN_LIB_OP_H
#define QNN_LIB_OP_H

#include "lib/graph.h"

typedef struct qnn_exec qnn_exec;
typedef struct qnn_step qnn_step;

enum qnn_op_flags {
    QNN_OP_VIEW =
        1u << 0, /* output is input 0's memory under another shape; nothing runs (flatten) */
    QNN_OP_INPLACE =
        1u << 1, /* output may lie in input 0's memory, and d(input 0) in d(output)'s */
    QNN_OP_BWD_SRC = 1u << 2, /* backward reads its inputs */
    QNN_OP_BWD_DST = 1u << 3, /* backward reads its output */
    QNN_OP_KEEPS_Q =
        1u
        << 4, /* on u8 the output has the input's scale and zero point (max pool, clip, flatten) */
    QNN_OP_TRAIN_ONLY =
        1u << 5 /* identity when not training: inference programs drop it (dropout) */
};

/* One attribute in a file: its name and place in qnn_attrs. */
typedef struct qnn_attr_field {
    const char *name;
    uint16_t offset; /* into qnn_attrs */
    uint16_t is_float;
} qnn_attr_field;

typedef struct qnn_op {
    const char *name; /* "conv2d", also in files */
    int n_in_min, n_in_max;
    unsigned flags;
    const qnn_attr_field *fields; /* ends with name NULL; NULL: none */
    /* Checks attributes and inputs, sets n->shape (and dtype, declares parameters). n->in, n->a,
     * n->name are set. */
    qnn_status (*infer)(qnn_model *m, qnn_node_data *n);
    /* (optional) When a program is compiled: choose kernels, pack weights into s->packed (inference
       programs only), set s->scratch_bytes, s->saved_bytes, s->kernel. s->p->is_train tells which.
     */
    qnn_status (*prepare)(qnn_step *s);
    void (*forward)(qnn_exec *x, const qnn_step *s);  /* cannot fail: everything was checked */
    void (*backward)(qnn_exec *x, const qnn_step *s); /* NULL: gradients stop here */
} qnn_op;

extern const qnn_op *const qnn_ops[QNN_OP_COUNT];

/* Each is defined in lib/op/<name>.c. */
extern const qnn_op qnn_op_input, qnn_op_conv2d, qnn_op_linear, qnn_op_batchnorm2d, qnn_op_clip,
    qnn_op_maxpool2d, qnn_op_avgpool2d, qnn_op_global_avgpool, qnn_op_add, qnn_op_concat,
    qnn_op_flatten, qnn_op_softmax, qnn_op_dropout, qnn_op_quantize, qnn_op_dequantize,
    qnn_op_fake_quant;

#endif
