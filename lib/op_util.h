/* What the files of lib/op/ share: common checks of infer, and work on long arrays in pieces. */
#ifndef QNN_LIB_OP_UTIL_H
#define QNN_LIB_OP_UTIL_H

#include "lib/exec.h"

/* Elements in one task: fixed, so that no result can depend on the number of threads. */
#define QNN_CHUNK ((size_t)16384)

static inline size_t qnn_chunk__count(size_t total) { return (total + QNN_CHUNK - 1) / QNN_CHUNK; }

static inline size_t qnn_chunk__size(size_t total, size_t i)
{
    const size_t rest = total - i * QNN_CHUNK;

    return rest < QNN_CHUNK ? rest : QNN_CHUNK;
}

/* Rows of row_size elements that make about one chunk, at least one. */
static inline size_t qnn_chunk__rows(size_t row_size)
{
    return row_size < QNN_CHUNK ? QNN_CHUNK / row_size : 1;
}

/* Elements of the step's output in this run. */
size_t qnn_exec__n_out(const qnn_exec *x, const qnn_step *s);
/*
 * d(input i) (+)= d(output), for operations that pass the gradient as it is. Not where the two are
 * one block.
 */
void qnn_exec__pass_gradient(qnn_exec *x, const qnn_step *s, int i);

/* During infer: input i's node. */
const qnn_node_data *qnn_node__in(const qnn_model *m, const qnn_node_data *n, int i);
/* Fails unless every input is f32; the output becomes f32. */
qnn_status qnn_node__infer_f32(qnn_model *m, qnn_node_data *n);
/* The output takes input 0's type, scale and zero point. */
void qnn_node__infer_keep(qnn_model *m, qnn_node_data *n);
/*
 * Types of operations that compute on real values: all f32, or all u8 and a scale given by
 * qnn_model__add_u8.
 */
qnn_status qnn_node__infer_f32_or_u8(qnn_model *m, qnn_node_data *n);
/* Fails unless input 0 is an image {H, W, C}. */
qnn_status qnn_node__check_image(qnn_model *m, const qnn_node_data *n);

#endif
