/*
 * kcheck [family] [--kernel NAME] [--routine NAME] [--shape MxNxK] [--seed N] [--long]
 *
 * Families: gemm_f32, gemm_u8s8, vec, selftest. For vec a shape is rows x n x variant. Exit status
 * 0 only when at least one case ran and none failed.
 */
#include "tests/kcheck/kcheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int usage(void)
{
    fprintf(stderr,
            "usage: kcheck [gemm_f32|gemm_u8s8|vec|selftest] [--kernel NAME] [--routine NAME]\n"
            "              [--shape MxNxK] [--seed N] [--long]\n");
    return 2;
}

static int is_family(const char *name)
{
    static const char *const families[] = {"gemm_f32", "gemm_u8s8", "vec", "selftest"};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(name, families[i]) == 0)
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    kc_options o = {.seed = 90210, .host = qnn_isa_detect()};
    for (int i = 1; i < argc; i++) {
        const char *const value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--long") == 0) {
            o.is_long = 1;
            continue;
        }
        if (argv[i][0] != '-' && o.family == NULL && is_family(argv[i])) {
            o.family = argv[i];
            continue;
        }
        if (value == NULL)
            return usage();
        i++;
        if (strcmp(argv[i - 1], "--kernel") == 0) {
            o.kernel = value;
        } else if (strcmp(argv[i - 1], "--routine") == 0) {
            o.routine = value;
        } else if (strcmp(argv[i - 1], "--seed") == 0) {
            o.seed = (uint32_t)strtoul(value, NULL, 10);
            o.has_seed = 1;
        } else if (strcmp(argv[i - 1], "--shape") != 0 ||
                   sscanf(value, "%zux%zux%zu", &o.m, &o.n, &o.k) != 3 || o.m == 0 ||
                   o.n == 0) {
            return usage();
        }
    }

    int n_failed = 0;
    if (o.family == NULL || strcmp(o.family, "selftest") == 0)
        n_failed += kc_selftest(&o);
    n_failed += kc_check_gemm_f32(&o);
    n_failed += kc_check_gemm_u8s8(&o);
    n_failed += kc_check_vec(&o);
    if (kc_n_cases() == 0) {
        printf("kcheck: no case ran\n");
        return 1;
    }
    printf("kcheck: %zu cases, %d kernels failed, seed %u\n", kc_n_cases(), n_failed, o.seed);
    return n_failed != 0;
}
