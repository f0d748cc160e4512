/*
 * Gradients against finite differences: what a case is, and the harness that runs one.
 *
 * The loss is L = sum(w y) with random w, summed in double. Every input element and every trainable
 * parameter is moved by +-h and +-2h (fourth-order central differences).
 */
#ifndef QNN_TESTS_GRAD_H
#define QNN_TESTS_GRAD_H

#include "lib/exec.h"

#define GRAD_MAX_INPUTS 3

typedef void grad_fill_fn(float *x, size_t n, uint64_t seed);

typedef struct grad_case {
    const char *name;
    /* Adds the operation under test, named "op", on x. */
    qnn_node (*build)(qnn_model *m, const qnn_node *x);
    qnn_shape in[GRAD_MAX_INPUTS]; /* rank 0: no more */
    grad_fill_fn *fill;            /* NULL: uniform in +-1 */
    void (*setup)(qnn_model *m);   /* (optional) sets parameters */
    float step;                    /* h; 0: 1/32 */
    int is_eval;                   /* run with is_train 0 */
    int skips_first_weight; /* element 0 of the weight sets a scale: differences do not hold for it
                             */
} grad_case;

/* Lists end with name NULL. */
extern const grad_case grad_cases_conv[], grad_cases_op[];

/*
 * Values (k + 1/2) / 5 in random order, k around 0, no two the same: far from each other and from
 * multiples of 0.2.
 */
void grad_fill_apart(float *x, size_t n, uint64_t seed);

/*
 * Runs a case in each of its variants; marks the kinds of its nodes in seen[]. Returns the number
 * of failures.
 */
int grad_run(const grad_case *c, int *seen);
/* One random direction through a whole network. */
int grad_run_network(void);

#endif
