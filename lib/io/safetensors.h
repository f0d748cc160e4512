/*
 * A safetensors file in memory: named tensors and string metadata. Used for models and for
 * checkpoints. Reading treats every byte as hostile; see docs/file-format.md for what is refused.
 */
#ifndef QNN_LIB_IO_SAFETENSORS_H
#define QNN_LIB_IO_SAFETENSORS_H

#include <qnn/model.h>

#include "lib/internal.h"

typedef enum qnn_st_dtype {
    QNN_ST_F32,
    QNN_ST_F16,
    QNN_ST_BF16,
    QNN_ST_I32,
    QNN_ST_I64,
    QNN_ST_I8,
    QNN_ST_U8,
    QNN_ST_F64,
    QNN_ST_COUNT
} qnn_st_dtype;

#define QNN_ST_MAX_RANK 8

typedef struct qnn_st_tensor {
    char *name;
    qnn_st_dtype dtype;
    int rank;
    int64_t dim[QNN_ST_MAX_RANK];
    const void *data; /* writing: borrowed from the caller; reading: into the file's bytes, aligned
                         to the dtype */
    size_t bytes;
} qnn_st_tensor;

typedef struct qnn_st_meta {
    char *key, *value;
} qnn_st_meta;

typedef struct qnn_st {
    qnn_ctx *ctx;
    size_t n_tensors, cap_tensors;
    qnn_st_tensor *tensor;
    size_t n_meta, cap_meta;
    qnn_st_meta *meta;
    void *bytes; /* reading: the data section's copy, owned */
} qnn_st;

void qnn_st__init(qnn_st *st, qnn_ctx *ctx);
void qnn_st__free(qnn_st *st);
/* Adds a tensor to be written; data is borrowed until the write. */
qnn_status qnn_st__add(qnn_st *st, const char *name, qnn_st_dtype dtype, int rank,
                       const int64_t *dim, const void *data);
qnn_status qnn_st__add_meta(qnn_st *st, const char *key, const char *value);
const qnn_st_tensor *qnn_st__find(const qnn_st *st, const char *name);
const char *qnn_st__meta(const qnn_st *st, const char *key);
/* Atomic: temporary file beside path, fsync, rename, fsync of the folder. Tensors are written in
 * descending alignment, as the format asks. */
qnn_status qnn_st__write(const qnn_st *st, const char *path);
qnn_status qnn_st__read(qnn_st *st, qnn_ctx *ctx, const char *path);
qnn_status qnn_st__read_mem(qnn_st *st, qnn_ctx *ctx, const void *bytes, size_t n);

#endif
