/* A small model and a small data set: see the header. */
#include "train_fixture.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/testutil.h"

qnn_model *tt_model(qnn_ctx *ctx)
{
    qnn_model *m;
    qnn_node x;

    TU_OK(ctx, qnn_model_create(&m, ctx));
    x = qnn_input(m, "image", TT_SIDE, TT_SIDE, 3);
    x = qnn_conv2d(m, x, "conv", &(qnn_conv2d_opts){.filters = 8, .kernel = 3, .pad = 1});
    x = qnn_relu(m, qnn_batchnorm2d(m, x, "bn", NULL), "relu");
    x = qnn_flatten(m, qnn_maxpool2d(m, x, "pool", 2, 2), "flat");
    x = qnn_dropout(m, qnn_relu(m, qnn_linear(m, x, "fc1", 16), "relu1"), "drop", 0.25f);
    qnn_output(m, "logits", qnn_linear(m, x, "fc2", TT_CLASSES));
    TU_OK(ctx, qnn_model_check(m));
    return m;
}

/* Stripes whose period is the class, under noise. */
static qnn_status get_item(void *user, int64_t i, uint8_t *pixels, int *label, char *err,
                           size_t err_size)
{
    const int period = 2 + (int)(i % TT_CLASSES);

    (void)user;
    (void)err;
    (void)err_size;
    *label = (int)(i % TT_CLASSES);
    tu_fill_u8(pixels, TT_PIXELS, (uint64_t)i);
    for (int k = 0; k < TT_PIXELS; k++)
        pixels[k] = (uint8_t)(pixels[k] / 4 + (k / 3 % TT_SIDE % period == 0 ? 180 : 0));
    return QNN_OK;
}

tt_data tt_make_data(qnn_ctx *ctx)
{
    const qnn_dataset_ops ops = {.description = "stripes",
                                 .n_items = TT_ITEMS,
                                 .n_classes = TT_CLASSES,
                                 .height = TT_SIDE,
                                 .width = TT_SIDE,
                                 .get = get_item};
    int64_t index[TT_ITEMS];
    tt_data d;

    for (int i = 0; i < TT_ITEMS; i++)
        index[i] = i;
    TU_OK(ctx, qnn_dataset_create(&d.ds, ctx, &ops, NULL));
    TU_OK(ctx, qnn_loader_create(&d.train, ctx, d.ds, index, TT_ITEMS - TT_N_VAL,
                                 &(qnn_loader_opts){.batch = TT_BATCH, .shuffle = 1, .seed = 5}));
    TU_OK(ctx, qnn_loader_create(&d.val, ctx, d.ds, index + TT_ITEMS - TT_N_VAL, TT_N_VAL,
                                 &(qnn_loader_opts){.batch = TT_BATCH}));
    return d;
}

void tt_free_data(tt_data *d)
{
    qnn_loader_free(d->train);
    qnn_loader_free(d->val);
    qnn_dataset_free(d->ds);
}

float *tt_params(const qnn_model *m, size_t *n)
{
    float *all;
    qnn_param_info p;

    *n = 0;
    for (int i = 0; i < qnn_model_n_params(m); i++) {
        TU_OK(NULL, qnn_model_param(m, i, &p));
        *n += p.count;
    }
    all = tu_alloc(*n * sizeof *all);
    *n = 0;
    for (int i = 0; i < qnn_model_n_params(m); i++) {
        TU_OK(NULL, qnn_model_param(m, i, &p));
        memcpy(all + *n, p.data, p.bytes);
        *n += p.count;
    }
    return all;
}

void tt_assert_same(const float *want, size_t n, float *params)
{
    ck_assert_mem_eq(want, params, n * sizeof *want);
    free(params);
}
