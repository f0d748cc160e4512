/*
 * Load a model file that caltech_bench saved and classify images.
 *
 * usage: infer MODEL.safetensors IMAGE...       prints the three likeliest classes of each
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>
#include <qnn.h>

static qnn_ctx *ctx;

/* Every result is checked. */
static void ok(qnn_status status)
{
    if (status == QNN_OK)
        return;
    fprintf(stderr, "infer: %s\n", ctx != NULL ? qnn_ctx_error(ctx) : qnn_status_name(status));
    exit(1);
}

/* Three numbers of the file's metadata, or those that the study trains with. */
static void read_three(const qnn_model *m, const char *key, float out[3], const float usual[3])
{
    const char *const text = qnn_model_meta(m, key);

    if (text == NULL || sscanf(text, "%f %f %f", &out[0], &out[1], &out[2]) != 3)
        for (int i = 0; i < 3; i++)
            out[i] = usual[i];
}

/* The largest of scores that is below (or, among equals, after) the one at last; -1: any. */
static int next_best(const float *scores, int n, int last)
{
    int best = -1;

    for (int i = 0; i < n; i++)
        if (last < 0 || scores[i] < scores[last] || (scores[i] == scores[last] && i > last))
            if (best < 0 || scores[i] > scores[best])
                best = i;
    return best;
}

/* Probabilities are the softmax of the scores. */
static void print_best(const char *path, const float *scores, int n, const json_t *classes)
{
    int i = next_best(scores, n, -1);
    const float largest = i >= 0 ? scores[i] : 0.0f;
    double sum = 0.0;

    for (int c = 0; c < n; c++)
        sum += exp((double)scores[c] - largest);
    printf("%s:", path);
    for (int k = 0; k < 3 && i >= 0; k++, i = next_best(scores, n, i)) {
        const char *const name = json_string_value(json_array_get(classes, (size_t)i));

        if (name != NULL)
            printf("  %s %.1f%%", name, 100.0 * exp((double)scores[i] - largest) / sum);
        else
            printf("  class %d %.1f%%", i, 100.0 * exp((double)scores[i] - largest) / sum);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    static const float usual_mean[3] = {0.485f, 0.456f, 0.406f};
    static const float usual_std[3] = {0.229f, 0.224f, 0.225f};
    float mean[3], std_dev[3];
    qnn_model *m;
    qnn_program *p;
    qnn_node_info in, out;

    if (argc < 3) {
        fprintf(stderr, "usage: infer MODEL.safetensors IMAGE...\n");
        return 2;
    }
    ok(qnn_ctx_create(&ctx, NULL));
    ok(qnn_model_load(&m, ctx, argv[1]));
    ok(qnn_program_compile(&p, ctx, m, NULL));
    ok(qnn_model_node_info(m, qnn_model_input(m, 0), &in));
    ok(qnn_model_node_info(m, qnn_model_output(m, 0), &out));
    if (qnn_model_n_inputs(m) != 1 || qnn_model_n_outputs(m) != 1 || in.shape.rank != 3 ||
        in.shape.dim[2] != 3 || out.shape.rank != 1) {
        fprintf(stderr, "infer: %s is not a model of one image in and class scores out\n", argv[1]);
        return 1;
    }
    read_three(m, "mean", mean, usual_mean);
    read_three(m, "std", std_dev, usual_std);
    json_t *const classes = qnn_model_meta(m, "classes") != NULL
                                ? json_loads(qnn_model_meta(m, "classes"), 0, NULL)
                                : NULL;
    const int height = (int)in.shape.dim[0], width = (int)in.shape.dim[1],
              n_classes = (int)out.shape.dim[0];
    const size_t n = (size_t)height * (size_t)width * 3;
    uint8_t *const pixels = malloc(n);
    float *const x = malloc(n * sizeof *x), *const scores =
                                                malloc((size_t)n_classes * sizeof *scores);

    if (pixels == NULL || x == NULL || scores == NULL) {
        fprintf(stderr, "infer: out of memory\n");
        return 1;
    }
    for (int i = 2; i < argc; i++) {
        uint8_t *rgb;
        int h, w;

        ok(qnn_image_load(&rgb, &h, &w, ctx, argv[i]));
        ok(qnn_image_resize(pixels, height, width, rgb, h, w, ctx));
        qnn_image_free(ctx, rgb, h, w);
        for (size_t k = 0; k < n; k++)
            x[k] = ((float)pixels[k] / 255.0f - mean[k % 3]) / std_dev[k % 3];
        ok(qnn_run(p, ctx, x, 1, scores));
        print_best(argv[i], scores, n_classes, classes);
    }
    json_decref(classes);
    free(scores);
    free(x);
    free(pixels);
    qnn_program_free(p);
    qnn_model_free(m);
    qnn_ctx_free(ctx);
    return 0;
}
