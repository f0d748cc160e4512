/*
 * A user's program, in the part of C that is C++ too: builds a small model, compiles and runs it, prints the
 * library's version.
 */
#include <qnn.h>

#include <stdio.h>
#include <string.h>

static int failed(qnn_ctx *ctx, qnn_status status, const char *what)
{
    if (status == QNN_OK)
        return 0;
    fprintf(stderr, "%s: %s: %s\n", what, qnn_status_name(status), ctx != NULL ? qnn_ctx_error(ctx) : "");
    return 1;
}

static int run(qnn_ctx *ctx)
{
    qnn_model *model = NULL;
    qnn_program *program = NULL;
    qnn_conv2d_opts conv;
    qnn_program_opts compile;
    float image[8 * 8 * 3], logits[4];
    int bad;
    qnn_node x;
    size_t i;

    memset(&conv, 0, sizeof conv);
    conv.filters = 8;
    conv.kernel = 3;
    conv.pad = 1;
    memset(&compile, 0, sizeof compile);
    compile.max_batch = 1;
    for (i = 0; i < sizeof image / sizeof *image; i++)
        image[i] = (float)(i % 7) - 3.0f;

    bad = failed(ctx, qnn_model_create(&model, ctx), "create");
    if (!bad) {
        x = qnn_input(model, "image", 8, 8, 3);
        x = qnn_conv2d(model, x, "conv1", &conv);
        x = qnn_relu(model, x, "relu1");
        x = qnn_maxpool2d(model, x, "pool1", 2, 2);
        x = qnn_linear(model, qnn_flatten(model, x, "flat"), "fc", 4);
        qnn_output(model, "logits", x);
        bad = failed(ctx, qnn_model_check(model), "check") ||
              failed(ctx, qnn_program_compile(&program, ctx, model, &compile), "compile") ||
              failed(ctx, qnn_run(program, ctx, image, 1, logits), "run");
    }
    if (!bad) {
        bad = !(logits[0] == logits[0]) || (logits[0] == 0.0f && logits[1] == 0.0f);
        printf("%s\n", qnn_version());
    }
    qnn_program_free(program);
    qnn_model_free(model);
    return bad;
}

int main(void)
{
    qnn_ctx *ctx = NULL;
    int bad = failed(NULL, qnn_ctx_create(&ctx, NULL), "context");

    bad = bad || run(ctx);
    qnn_ctx_free(ctx);
    return bad;
}
