/* Whole files: read into memory, written so that a reader sees the old bytes or the new ones. */
#ifndef QNN_LIB_IO_FILE_IO_H
#define QNN_LIB_IO_FILE_IO_H

#include "lib/internal.h"

typedef struct qnn_file_part {
    const void *data;
    size_t bytes;
} qnn_file_part;

/* *out has *n bytes and is released with qnn_ctx__release(). QNN_ERR_IO has the system's words. */
qnn_status qnn_file__read(qnn_ctx *ctx, const char *path, void **out, size_t *n);
/* The parts one after the other: temporary file beside path, fsync, rename, fsync of the folder. */
qnn_status qnn_file__write(qnn_ctx *ctx, const char *path, const qnn_file_part *part,
                           size_t n_parts);
/* 1 when path names something. */
int qnn_file__exists(const char *path);

#endif
