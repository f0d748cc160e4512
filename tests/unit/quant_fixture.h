/* Small networks, their inputs and float outputs, and what tests of quantisation ask of a model. */
#ifndef QNN_TESTS_QUANT_FIXTURE_H
#define QNN_TESTS_QUANT_FIXTURE_H

#include <qnn.h>

enum {
    QF_SIDE = 16,
    QF_ITEM = QF_SIDE * QF_SIDE * 3,
    QF_BATCH = 16,
    QF_CLASSES = 6,
    QF_NETWORKS = 2 /* 0: branches, pools, dropout; 1: stride, depthwise, global average */
};

typedef struct qf_fixture {
    qnn_ctx *ctx;
    qnn_model *m, *fused;
    qnn_stats *st; /* of fused, empty */
    float *x, *y;  /* a batch and m's scores of it */
} qf_fixture;

qf_fixture qf_open(int network);
void qf_close(qf_fixture *f);

/* Scores of QF_BATCH items; the caller frees. */
float *qf_run(qnn_ctx *ctx, const qnn_model *m, const float *x);
/* Signal to quantisation noise of scores, in dB. */
double qf_sqnr(const float *want, const float *got);

/* Nothing is skipped silently: a node runs in codes, or is an input, a quantize or dequantize, or
 * carries its reason. */
void qf_check_coverage(qnn_ctx *ctx, const qnn_model *m);

#endif
