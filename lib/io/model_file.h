/* What writing and reading a model's file share. docs/file-format.md describes the format. */
#ifndef QNN_LIB_IO_MODEL_FILE_H
#define QNN_LIB_IO_MODEL_FILE_H

#include "lib/graph.h"
#include "lib/io/safetensors.h"

#define QNN_GRAPH_KEY     "qnn.graph"
#define QNN_GRAPH_VERSION 1
/* Weight scales of parameter "conv1.weight" are tensor "conv1.weight.scale". */
#define QNN_SCALE_SUFFIX   ".scale"
#define QNN_SCALE_NAME_MAX (2 * QNN_NAME_MAX + sizeof QNN_SCALE_SUFFIX)

/* The type that parameters of type t have as tensors: S4 is packed in U8. */
qnn_st_dtype qnn_model__st_dtype(qnn_dtype t);

#endif
