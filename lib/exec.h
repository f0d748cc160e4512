/* The inside of a compiled program, and what an op sees while it runs. */
#ifndef QNN_LIB_EXEC_H
#define QNN_LIB_EXEC_H

#include <qnn/program.h>

#include "lib/backend.h"
#include "lib/op.h"

#define QNN_NO_OFFSET  ((size_t)-1)
#define QNN_MAX_INPUTS 64 /* of one node */

/* One node in running order. */
struct qnn_step {
    qnn_program *p;
    qnn_node id;
    const qnn_op *op;
    unsigned flags; /* op->flags; prepare may take some back */
    const qnn_node_data *
        n; /* training: the model's own node; inference: the program's private copy, see p->graph */
    const char *kernel; /* what it runs, for people; static storage; NULL: none */
    void *packed;       /* op's own block, one allocation: packed weights and constants; NULL when
                           training */
    size_t packed_bytes;
    size_t scratch_bytes; /* needed during forward or backward; shared by all steps */
    size_t saved_bytes;   /* kept from forward to backward (arg-max, masks, batch statistics) */
    /* offsets into the workspace, QNN_NO_OFFSET when absent */
    size_t out, out_bytes; /* value, for max_batch */
    size_t dout;           /* its gradient */
    size_t saved;
    int input_index;                  /* INPUT nodes: which program input; -1 otherwise */
    int needs_grad;                   /* the gradient of its output is computed */
    uint8_t din_beta[QNN_MAX_INPUTS]; /* per input: 1 when this is not the first contribution */
};

struct qnn_program {
    qnn_ctx *ctx;         /* only for its allocator */
    const qnn_kernels *k; /* points to kernels_ below: the compile-time context's choice */
    qnn_kernels kernels_;
    const qnn_backend *backend;
    int max_batch;
    int is_train; /* keeps values for backward, reads the model's live parameters, packs per run */
    int keep_all; /* every node's value stays readable after a run (observers, tests) */
    int input_grad;   /* training: also d(loss)/d(input) */
    qnn_model *graph; /* inference: private copy without parameter data; training: the caller's,
                         borrowed */
    int owns_graph;
    int n_steps;
    qnn_step *step; /* [n_steps] in running order = node order; inputs have a step too, with nothing
                       to run */
    int *step_of; /* [graph->n_nodes] the step whose value stands for node i: its own, or, for views
                     and nodes that were dropped, the step that their input stands for */
    size_t scratch;   /* offset of the shared scratch */
    size_t workspace; /* total bytes */
    size_t bytes;
};

struct qnn_exec {
    qnn_ctx *ctx;
    const qnn_program *p;
    const qnn_kernels *k; /* p->k */
    int n;                /* items in this run */
    int is_train;         /* batch statistics, dropout, observers on */
    uint64_t seed;        /* of this run's random choices (dropout) */
    unsigned char *ws;
    const void *const *src; /* program inputs */
    float *const *grad; /* training: gradient of slot s of node i at [i * QNN_MAX_PARAMS + s]; NULL
                           entries: not wanted */
};

typedef struct qnn_compile_opts {
    int max_batch, is_train, keep_all, input_grad;
} qnn_compile_opts;
/* lib/program.c. With is_train the model is borrowed and must outlive the program. */
qnn_status qnn_program__compile(qnn_program **out, qnn_ctx *ctx, const qnn_model *m,
                                const qnn_compile_opts *o);
/* lib/plan.c: offsets of everything, total in p->workspace. */
qnn_status qnn_program__plan(qnn_program *p);
/* lib/exec.c. All steps forward; all steps backward from the outputs' dout, which the caller has
 * written. */
qnn_status qnn_exec__forward(qnn_exec *x);
qnn_status qnn_exec__backward(qnn_exec *x);

/* What an op asks. Values are [n][shape] dense. */
const void *qnn_exec__in(const qnn_exec *x, const qnn_step *s, int i);
void *qnn_exec__out(const qnn_exec *x, const qnn_step *s);
float *qnn_exec__dout(const qnn_exec *x, const qnn_step *s);
float *qnn_exec__din(const qnn_exec *x, const qnn_step *s, int i); /* NULL: not needed */
int qnn_exec__din_beta(const qnn_exec *x, const qnn_step *s, int i);
float *qnn_exec__dparam(const qnn_exec *x, const qnn_step *s,
                        int slot); /* NULL: not needed or absent */
void *qnn_exec__saved(const qnn_exec *x, const qnn_step *s);
void *qnn_exec__scratch(const qnn_exec *x, const qnn_step *s);
/* Value and gradient of node i (tests, trainer, observers). */
const void *qnn_exec__value(const qnn_exec *x, qnn_node i);
float *qnn_exec__dvalue(const qnn_exec *x, qnn_node i);
/* Input i of step s: its node's data. */
const qnn_node_data *qnn_step__in(const qnn_step *s, int i);
/* Allocates s->packed (bytes, counted in the program) and returns it in *out. */
qnn_status qnn_step__pack(qnn_step *s, void **out, size_t bytes);

#endif
