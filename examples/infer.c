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

static void die(const char *what)
{
    fprintf(stderr, "infer: %s: %s\n", what, ctx != NULL ? qnn_ctx_error(ctx) : "cannot start");
    exit(1);
}
#define OK(expr) ((expr) == QNN_OK ? (void)0 : die(#expr))

/* Three numbers of the file's metadata, or the usual ones. */
static void numbers(const qnn_model *m, const char *key, float out[3], float r, float g, float b)
{
    const char *const text = qnn_model_meta(m, key);

    if (text == NULL || sscanf(text, "%f %f %f", &out[0], &out[1], &out[2]) != 3) {
        out[0] = r;
        out[1] = g;
        out[2] = b;
    }
}

static void print_best(const char *path, const float *scores, int n, const json_t *classes)
{
    double sum = 0.0, largest = scores[0];
    int shown[3];

    for (int i = 1; i < n; i++)
        largest = scores[i] > largest ? scores[i] : largest;
    for (int i = 0; i < n; i++)
        sum += exp(scores[i] - largest);
    printf("%s:", path);
    for (int k = 0; k < 3 && k < n; k++) {
        int best = -1;

        for (int i = 0; i < n; i++)
            if (!(k > 0 && i == shown[0]) && !(k > 1 && i == shown[1]) &&
                (best < 0 || scores[i] > scores[best]))
                best = i;
        shown[k] = best;
        printf("  %s %.1f%%",
               json_is_array(classes) ? json_string_value(json_array_get(classes, (size_t)best))
                                      : "class",
               100.0 * exp(scores[best] - largest) / sum);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    float mean[3], std_dev[3];
    qnn_model *m;
    qnn_program *p;
    qnn_node_info in, out;

    if (argc < 3) {
        fprintf(stderr, "usage: infer MODEL.safetensors IMAGE...\n");
        return 2;
    }
    OK(qnn_ctx_create(&ctx, NULL));
    OK(qnn_model_load(&m, ctx, argv[1]));
    OK(qnn_program_compile(&p, ctx, m, NULL));
    OK(qnn_model_node_info(m, qnn_model_input(m, 0), &in));
    OK(qnn_model_node_info(m, qnn_model_output(m, 0), &out));
    numbers(m, "mean", mean, 0.485f, 0.456f, 0.406f);
    numbers(m, "std", std_dev, 0.229f, 0.224f, 0.225f);
    json_t *const classes = qnn_model_meta(m, "classes") != NULL
                                ? json_loads(qnn_model_meta(m, "classes"), 0, NULL)
                                : NULL;
    const int height = (int)in.shape.dim[0], width = (int)in.shape.dim[1],
              n_classes = (int)out.shape.dim[0];
    const size_t n = (size_t)height * (size_t)width * 3;
    uint8_t *const pixels = malloc(n);
    float *const x = malloc(n * sizeof *x), *const scores =
                                                malloc((size_t)n_classes * sizeof *scores);

    if (pixels == NULL || x == NULL || scores == NULL)
        die("out of memory");
    for (int i = 2; i < argc; i++) {
        uint8_t *rgb;
        int h, w;

        OK(qnn_image_load(&rgb, &h, &w, ctx, argv[i]));
        OK(qnn_image_resize(pixels, height, width, rgb, h, w, ctx));
        qnn_image_free(ctx, rgb, h, w);
        for (size_t k = 0; k < n; k++)
            x[k] = ((float)pixels[k] / 255.0f - mean[k % 3]) / std_dev[k % 3];
        OK(qnn_run(p, ctx, x, 1, scores));
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
