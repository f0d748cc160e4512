/*
 * Gradient tests: every operation that has a backward pass, and one whole network.
 *
 * usage: grad [NAME]     runs the cases whose name begins with NAME; QNN_ISA caps the instruction
 * set
 */
#include "tests/grad/grad.h"

#include <stdio.h>
#include <string.h>

static int run_list(const grad_case *list, const char *filter, int *seen, int *n_run)
{
    int n_failed = 0;

    for (const grad_case *c = list; c->name != NULL; c++)
        if (strncmp(c->name, filter, strlen(filter)) == 0) {
            n_failed += grad_run(c, seen);
            ++*n_run;
        }
    return n_failed;
}

int main(int argc, char **argv)
{
    const char *const filter = argc > 1 ? argv[1] : "";
    int seen[QNN_OP_COUNT] = {0};
    int n_run = 0, n_failed = run_list(grad_cases_conv, filter, seen, &n_run);

    n_failed += run_list(grad_cases_op, filter, seen, &n_run);
    if (strncmp("network", filter, strlen(filter)) == 0) {
        n_failed += grad_run_network();
        n_run++;
    }
    for (int kind = 0; filter[0] == '\0' && kind < QNN_OP_COUNT; kind++)
        if (qnn_ops[kind]->backward != NULL && !seen[kind]) {
            printf("FAIL %s has a backward pass and no gradient case\n", qnn_ops[kind]->name);
            n_failed++;
        }
    printf("grad: %d cases, %d failures\n", n_run, n_failed);
    return n_run == 0 || n_failed != 0;
}
