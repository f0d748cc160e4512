/* A small model and a small data set that the tests of training share. */
#ifndef QNN_TESTS_TRAIN_FIXTURE_H
#define QNN_TESTS_TRAIN_FIXTURE_H

#include <qnn.h>

enum {
    TT_SIDE = 8,
    TT_PIXELS = TT_SIDE * TT_SIDE * 3,
    TT_CLASSES = 3,
    TT_ITEMS = 42,
    TT_N_VAL = 12, /* of them, for validation */
    TT_BATCH = 8
};

/* Convolution, batch norm and dropout: statistics and random numbers have to survive resuming. */
qnn_model *tt_model(qnn_ctx *ctx);

typedef struct tt_data {
    qnn_dataset *ds;
    qnn_loader *train, *val;
} tt_data;
tt_data tt_make_data(qnn_ctx *ctx);
void tt_free_data(tt_data *d);

/* All parameters and buffers, one after the other; the caller frees. */
float *tt_params(const qnn_model *m, size_t *n);
/* Compares with params of the same model from another run, and frees them. */
void tt_assert_same(const float *want, size_t n, float *params);

#endif
