/* Model files: whatever loads is also compiled and run, as long as it asks for little memory and
 * time. */
#include <stdint.h>
#include <stdlib.h>

#include <qnn.h>

#include "tests/common/testutil.h"

enum { BATCH = 2, MAX_ENDS = 4 };
#define MAX_WORKSPACE ((size_t)16 << 20)
#define MAX_ELEMENTS  ((int64_t)1 << 22)
#define MAX_MACS      ((int64_t)1 << 26)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Floats for a batch of node i's output; NULL when there would be too many. */
static float *make_batch(const qnn_model *m, qnn_node i)
{
    qnn_node_info info;
    int64_t n = BATCH;
    float *x;

    if (qnn_model_node_info(m, i, &info) != QNN_OK)
        return NULL;
    for (int k = 0; k < info.shape.rank; k++) {
        if (info.shape.dim[k] > MAX_ELEMENTS / n)
            return NULL;
        n *= info.shape.dim[k];
    }
    x = tu_alloc((size_t)n * sizeof *x);
    tu_fill_uniform(x, (size_t)n, -3, 3, 1);
    return x;
}

static void run(qnn_ctx *ctx, const qnn_model *m, const qnn_program *p)
{
    const int n_in = qnn_model_n_inputs(m), n_out = qnn_model_n_outputs(m);
    float *src[MAX_ENDS] = {NULL}, *dst[MAX_ENDS] = {NULL};
    int is_small = 1;

    if (n_in > MAX_ENDS || n_out > MAX_ENDS || qnn_program_workspace(p) > MAX_WORKSPACE ||
        qnn_model_macs(m) > MAX_MACS)
        return;
    for (int i = 0; i < n_in; i++)
        is_small &= (src[i] = make_batch(m, qnn_model_input(m, i))) != NULL;
    for (int i = 0; i < n_out; i++)
        is_small &= (dst[i] = make_batch(m, qnn_model_output(m, i))) != NULL;
    if (is_small) {
        const float *const inputs[MAX_ENDS] = {src[0], src[1], src[2], src[3]};
        void *const ws = tu_alloc_aligned(qnn_program_workspace(p));

        TU_OK(ctx, qnn_run_in(p, ctx, inputs, BATCH, dst, ws, qnn_program_workspace(p)));
        free(ws);
    }
    for (int i = 0; i < MAX_ENDS; i++) {
        free(src[i]);
        free(dst[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const qnn_program_opts opts = {.max_batch = BATCH};
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_model *m;
    qnn_program *p;

    if (qnn_model_load_mem(&m, ctx, data, size) == QNN_OK &&
        qnn_program_compile(&p, ctx, m, &opts) == QNN_OK) {
        run(ctx, m, p);
        qnn_program_free(p);
    }
    qnn_model_free(m);
    qnn_ctx_free(ctx);
    return 0;
}
