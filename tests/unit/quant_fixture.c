/* What the tests of quantisation share: see the header. */
#include "quant_fixture.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/testutil.h"

static qnn_node branching(qnn_model *m, qnn_node x)
{
    const qnn_conv2d_opts wide = {.filters = 12, .kernel = 3, .pad = 1};
    const qnn_conv2d_opts narrow = {.filters = 8, .kernel = 1, .no_bias = 1};
    qnn_node a, both[2];

    x = qnn_relu(m, qnn_conv2d(m, x, "conv1", &wide), "relu1");
    x = qnn_maxpool2d(m, x, "pool1", 2, 2);
    a = qnn_relu(m, qnn_conv2d(m, x, "conv2", &wide), "relu2");
    x = qnn_relu6(m, qnn_add(m, x, a, "sum"), "relu3");
    both[0] = x;
    both[1] = qnn_relu(m, qnn_conv2d(m, x, "conv3", &narrow), "relu4");
    x = qnn_avgpool2d(m, qnn_concat(m, both, 2, "cat"), "pool2", 2, 2);
    x = qnn_dropout(m, qnn_flatten(m, x, "flat"), "drop", 0.2f);
    x = qnn_relu(m, qnn_linear(m, x, "fc1", 24), "relu5");
    return qnn_linear(m, x, "fc2", QF_CLASSES);
}

static qnn_node averaging(qnn_model *m, qnn_node x)
{
    const qnn_conv2d_opts stem = {.filters = 16, .kernel = 3, .stride = 2, .pads = {0, 1, 1, 0}};
    const qnn_conv2d_opts depthwise = {.filters = 16, .kernel = 3, .groups = 16, .pad = 1};
    const qnn_conv2d_opts dilated = {.filters = 24, .kernel = 3, .dilation = 2, .pad = 2};

    x = qnn_relu6(m, qnn_conv2d(m, x, "conv1", &stem), "relu1");
    x = qnn_conv2d(m, x, "conv2", &depthwise); /* nothing clips it: its range has two sides */
    x = qnn_relu(m, qnn_conv2d(m, x, "conv3", &dilated), "relu3");
    x = qnn_flatten(m, qnn_global_avgpool(m, x, "mean"), "flat");
    return qnn_linear(m, x, "fc1", QF_CLASSES);
}

static qnn_model *build(qnn_ctx *ctx, int network)
{
    qnn_model *m;
    qnn_node x;

    TU_OK(ctx, qnn_model_create(&m, ctx));
    x = qnn_input(m, "image", QF_SIDE, QF_SIDE, 3);
    qnn_output(m, "scores", network == 0 ? branching(m, x) : averaging(m, x));
    TU_OK(ctx, qnn_model_check(m));
    return m;
}

float *qf_run(qnn_ctx *ctx, const qnn_model *m, const float *x)
{
    float *const y = tu_alloc(QF_BATCH * QF_CLASSES * sizeof *y);
    qnn_program *p;

    TU_OK(ctx, qnn_program_compile(&p, ctx, m, &(qnn_program_opts){.max_batch = QF_BATCH}));
    TU_OK(ctx, qnn_run(p, ctx, x, QF_BATCH, y));
    qnn_program_free(p);
    return y;
}

double qf_sqnr(const float *want, const float *got)
{
    double signal = 0, error = 0;

    for (int i = 0; i < QF_BATCH * QF_CLASSES; i++) {
        signal += (double)want[i] * (double)want[i];
        error += (double)(want[i] - got[i]) * (double)(want[i] - got[i]);
    }
    return 10 * log10(signal / (error + 1e-30));
}

qf_fixture qf_open(int network)
{
    qf_fixture f = {.ctx = tu_ctx(2)};

    f.m = build(f.ctx, network);
    f.x = tu_alloc(QF_BATCH * QF_ITEM * sizeof *f.x);
    tu_fill_uniform(f.x, QF_BATCH * QF_ITEM, -2, 2, 9);
    f.y = qf_run(f.ctx, f.m, f.x);
    TU_OK(f.ctx, qnn_fuse(&f.fused, f.ctx, f.m));
    TU_OK(f.ctx, qnn_stats_create(&f.st, f.ctx, f.fused, &(qnn_stats_opts){.max_batch = QF_BATCH}));
    return f;
}

void qf_close(qf_fixture *f)
{
    qnn_stats_free(f->st);
    qnn_model_free(f->fused);
    qnn_model_free(f->m);
    free(f->y);
    free(f->x);
    qnn_ctx_free(f->ctx);
}

void qf_check_coverage(qnn_ctx *ctx, const qnn_model *m)
{
    for (int i = 0; i < qnn_model_n_nodes(m); i++) {
        qnn_node_info n, in;
        int reads_u8 = 0;

        TU_OK(ctx, qnn_model_node_info(m, i, &n));
        for (int k = 0; k < n.n_inputs; k++) {
            TU_OK(ctx, qnn_model_node_info(m, n.inputs[k], &in));
            reads_u8 |= in.dtype == QNN_DTYPE_U8;
        }
        ck_assert_msg(n.dtype == QNN_DTYPE_U8 || reads_u8 || strcmp(n.op, "input") == 0 ||
                          n.note[0] != '\0',
                      "%s \"%s\" is f32 without a reason", n.op, n.name);
    }
}
