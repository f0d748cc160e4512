/* The inside of a data set. */
#ifndef QNN_LIB_IO_DATASET_IMPL_H
#define QNN_LIB_IO_DATASET_IMPL_H

#include <qnn/dataset.h>

#include "lib/internal.h"

#define QNN_ITEM_ERROR_MAX QNN_ERROR_MAX

struct qnn_dataset {
    qnn_ctx *ctx;        /* its allocator; never its error text, which belongs to one thread */
    qnn_dataset_ops ops; /* description owned */
    void *user;
    char *numbers;   /* [n_classes][NUMBER_SIZE] names of classes that have none */
    int64_t n_items; /* what callers see */
    int64_t *index;  /* [n_items] item of ops behind each; NULL: all of them */
    int64_t n_skipped;
    size_t cap_skipped;
    char **skipped;
};

/* qnn_dataset_get() for any thread: the message goes to err. */
qnn_status qnn_dataset__get(const qnn_dataset *ds, int64_t i, uint8_t *pixels, int *label,
                            char *err, size_t err_size);

#endif
