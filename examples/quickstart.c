/*
 * Quickstart: train a small network on the built-in shapes, quantise it to int8, compare, save.
 *
 * usage: quickstart [EPOCHS]        writes quickstart.safetensors in the current folder
 */
#include <stdio.h>
#include <stdlib.h>

#include <qnn.h>

#define SIZE     64
#define N_IMAGES 3000
#define BATCH    50

static qnn_ctx *ctx;

static void die(const char *what)
{
    fprintf(stderr, "quickstart: %s: %s\n", what,
            ctx != NULL ? qnn_ctx_error(ctx) : "cannot start");
    exit(1);
}
#define OK(expr) ((expr) == QNN_OK ? (void)0 : die(#expr))

static int on_epoch(void *user, const qnn_epoch *e)
{
    (void)user;
    printf("epoch %d: loss %.3f, validation accuracy %.1f%%, %.1f s\n", e->epoch, e->train_loss,
           100 * e->val.accuracy, e->train_seconds + e->val_seconds);
    return 0;
}

static qnn_model *build(int n_classes)
{
    qnn_model *m;
    qnn_node x;

    OK(qnn_model_create(&m, ctx));
    x = qnn_input(m, "image", SIZE, SIZE, 3);
    x = qnn_conv2d(m, x, "conv1", &(qnn_conv2d_opts){.filters = 16, .kernel = 3, .pad = 1});
    x = qnn_maxpool2d(m, qnn_relu(m, x, "relu1"), "pool1", 2, 2);
    x = qnn_conv2d(m, x, "conv2", &(qnn_conv2d_opts){.filters = 32, .kernel = 3, .pad = 1});
    x = qnn_maxpool2d(m, qnn_relu(m, x, "relu2"), "pool2", 2, 2);
    x = qnn_linear(m, qnn_flatten(m, x, "flat"), "fc1", 128);
    qnn_output(m, "scores", qnn_linear(m, qnn_relu(m, x, "relu3"), "fc2", n_classes));
    OK(qnn_model_check(m));
    return m;
}

/* Accuracy of a compiled program over a loader. */
static double accuracy(const qnn_model *m, qnn_loader *ld, int n_classes)
{
    static float scores[BATCH * 64];
    qnn_program *p;
    qnn_confusion *c;
    const float *x;
    const int32_t *y;
    double result;
    int n;

    OK(qnn_program_compile(&p, ctx, m, &(qnn_program_opts){.max_batch = BATCH}));
    OK(qnn_confusion_create(&c, ctx, n_classes));
    OK(qnn_loader_begin(ld, 0));
    for (;;) {
        OK(qnn_loader_next(ld, &x, &y, &n));
        if (n == 0)
            break;
        OK(qnn_run(p, ctx, x, n, scores));
        OK(qnn_confusion_add_logits(c, scores, y, n));
    }
    result = qnn_confusion_metrics(c).accuracy;
    qnn_confusion_free(c);
    qnn_program_free(p);
    return result;
}

/* Ranges of every tensor on some training images, then int8. */
static qnn_model *quantise(const qnn_model *fused, qnn_loader *train)
{
    qnn_stats *st;
    qnn_model *int8;
    const float *x;
    const int32_t *y;
    int n;

    OK(qnn_stats_create(&st, ctx, fused, &(qnn_stats_opts){.max_batch = BATCH}));
    OK(qnn_loader_begin(train, 0));
    for (int i = 0; i < 4; i++) {
        OK(qnn_loader_next(train, &x, &y, &n));
        OK(qnn_stats_observe(st, ctx, x, n));
    }
    OK(qnn_quantize_static(&int8, ctx, fused, st, NULL));
    qnn_stats_free(st);
    return int8;
}

int main(int argc, char **argv)
{
    static int64_t order[N_IMAGES];
    qnn_fit_opts fit = QNN_FIT_OPTS_INIT;
    int64_t n_val, n_train;
    int n_classes;

    OK(qnn_ctx_create(&ctx, NULL));
    qnn_dataset *data;
    OK(qnn_dataset_open_builtin(
        &data, ctx,
        &(qnn_builtin_opts){.n_items = N_IMAGES, .height = SIZE, .width = SIZE, .seed = 1}));
    n_classes = qnn_dataset_classes(data);
    OK(qnn_split(order, &n_val, &n_train, ctx, N_IMAGES, 0, 0.2, 1));
    OK(qnn_loader_create(&fit.train, ctx, data, order + n_val, n_train,
                         &(qnn_loader_opts){.batch = BATCH, .shuffle = 1, .drop_last = 1}));
    OK(qnn_loader_create(&fit.val, ctx, data, order, n_val, &(qnn_loader_opts){.batch = BATCH}));

    qnn_model *model = build(n_classes);
    qnn_trainer *trainer;
    OK(qnn_trainer_create(&trainer, ctx, model,
                          &(qnn_trainer_opts){.batch = BATCH, .lr = 1e-3f, .clip_norm = 1.0f}));
    fit.epochs = argc > 1 ? atoi(argv[1]) : 8;
    fit.on_epoch = on_epoch;
    OK(qnn_fit(trainer, &fit, NULL));
    OK(qnn_trainer_restore_best(trainer));

    qnn_model *fused;
    OK(qnn_fuse(&fused, ctx, model));
    qnn_model *int8 = quantise(fused, fit.train);
    printf("f32:  %.1f%%\nint8: %.1f%%\n", 100 * accuracy(fused, fit.val, n_classes),
           100 * accuracy(int8, fit.val, n_classes));
    OK(qnn_model_save(int8, "quickstart.safetensors"));
    printf("saved quickstart.safetensors\n");

    qnn_model_free(int8);
    qnn_model_free(fused);
    qnn_trainer_free(trainer);
    qnn_model_free(model);
    qnn_loader_free(fit.val);
    qnn_loader_free(fit.train);
    qnn_dataset_free(data);
    qnn_ctx_free(ctx);
    return 0;
}
