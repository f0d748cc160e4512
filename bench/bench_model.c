/*
 * Latency of saved models: one image and a batch, median and half the distance between the
 * quartiles.
 *
 * usage: bench_model [-b BATCH] [-r RUNS] [-t THREADS] MODEL.safetensors...
 * QNN_ISA caps the instruction set. Images are random; decoding is not part of it. Before timing, a
 * batch must give what its images give one by one: the same bits for int8, a relative difference
 * under 1e-4 for float.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <qnn.h>

#define WARM_UP 5

static qnn_ctx *ctx;

static void die(const char *what)
{
    fprintf(stderr, "bench_model: %s: %s\n", what,
            ctx != NULL ? qnn_ctx_error(ctx) : "cannot start");
    exit(1);
}
#define OK(expr) ((expr) == QNN_OK ? (void)0 : die(#expr))

static double now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void time_runs(const qnn_program *p, const float *x, int n, float *y, int n_runs,
                      double *median, double *spread)
{
    double *const ms = malloc((size_t)n_runs * sizeof *ms);

    if (ms == NULL)
        die("out of memory");
    for (int i = -WARM_UP; i < n_runs; i++) {
        const double start = now_ms();

        OK(qnn_run(p, ctx, x, n, y));
        if (i >= 0)
            ms[i] = now_ms() - start;
    }
    qsort(ms, (size_t)n_runs, sizeof *ms, by_value);
    *median = ms[n_runs / 2];
    *spread = 0.5 * (ms[n_runs * 3 / 4] - ms[n_runs / 4]);
    free(ms);
}

static void bench(const char *path, int batch, int n_runs)
{
    qnn_model *m;
    qnn_program *one, *many;
    qnn_node_info in, out;
    size_t item = 1, n_out;
    float *x, *y, *z;
    double single, single_spread, whole, whole_spread, worst = 0.0, largest = 0.0;
    unsigned state = 1;

    OK(qnn_model_load(&m, ctx, path));
    OK(qnn_model_node_info(m, qnn_model_input(m, 0), &in));
    OK(qnn_model_node_info(m, qnn_model_output(m, 0), &out));
    OK(qnn_program_compile(&one, ctx, m, NULL));
    OK(qnn_program_compile(&many, ctx, m, &(qnn_program_opts){.max_batch = batch}));
    for (int i = 0; i < in.shape.rank; i++)
        item *= (size_t)in.shape.dim[i];
    n_out = (size_t)out.shape.dim[0];
    x = malloc((size_t)batch * item * sizeof *x);
    y = malloc((size_t)batch * n_out * sizeof *y);
    z = malloc(n_out * sizeof *z);
    if (x == NULL || y == NULL || z == NULL)
        die("out of memory");
    for (size_t i = 0; i < (size_t)batch * item; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 4194304.0f - 2.0f;
    }
    OK(qnn_run(many, ctx, x, batch, y));
    for (int i = 0; i < batch; i++) {
        OK(qnn_run(one, ctx, x + (size_t)i * item, 1, z));
        for (size_t k = 0; k < n_out; k++) {
            const double want = (double)z[k], diff = fabs((double)y[(size_t)i * n_out + k] - want);

            largest = fabs(want) > largest ? fabs(want) : largest;
            worst = diff > worst || isnan(diff) ? diff : worst;
        }
    }
    if (!(worst <= 1e-4 * largest)) {
        fprintf(stderr, "bench_model: %s: a batch differs from its images by %g of %g\n", path,
                worst, largest);
        exit(1);
    }
    time_runs(one, x, 1, z, n_runs, &single, &single_spread);
    time_runs(many, x, batch, y, n_runs / 5 > 3 ? n_runs / 5 : 3, &whole, &whole_spread);
    printf("%-40s %8.3f +- %5.3f ms %9.2f +- %5.2f ms %7.0f images/s %7.1f GMAC/s\n", path, single,
           single_spread, whole, whole_spread, 1e3 * batch / whole,
           1e-6 * batch * (double)qnn_model_macs(m) / whole);
    free(z);
    free(y);
    free(x);
    qnn_program_free(many);
    qnn_program_free(one);
    qnn_model_free(m);
}

static int number(const char *text, const char *option)
{
    char *end;
    const long n = strtol(text, &end, 10);

    if (*end != '\0' || end == text || n < 1 || n > 100000) {
        fprintf(stderr, "bench_model: %s: \"%s\" is not a number from 1 to 100000\n", option, text);
        exit(2);
    }
    return (int)n;
}

int main(int argc, char **argv)
{
    int batch = 64, n_runs = 100, n_threads = 0, i = 1;

    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        int *const value = strcmp(argv[i], "-b") == 0   ? &batch
                           : strcmp(argv[i], "-r") == 0 ? &n_runs
                           : strcmp(argv[i], "-t") == 0 ? &n_threads
                                                        : NULL;

        if (value == NULL)
            break;
        *value = number(argv[i + 1], argv[i]);
    }
    if (i >= argc || argv[i][0] == '-') {
        fprintf(stderr,
                "usage: bench_model [-b BATCH] [-r RUNS] [-t THREADS] MODEL.safetensors...\n");
        return 2;
    }
    if (qnn_ctx_create(&ctx, &(qnn_ctx_opts){.n_threads = n_threads, .isa = getenv("QNN_ISA")}) !=
        QNN_OK)
        die("QNN_ISA or the number of threads");
    printf("qnn %s, %s, %d threads, batch %d, %d runs\n", qnn_version(), qnn_ctx_isa(ctx),
           qnn_ctx_threads(ctx), batch, n_runs);
    for (; i < argc; i++)
        bench(argv[i], batch, n_runs);
    qnn_ctx_free(ctx);
    return 0;
}
