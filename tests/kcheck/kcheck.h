/*
 * kcheck: the kernels against naive loops, in the manner of checkasm.
 *
 * A case is a kernel, a shape and a seed: everything else (data, strides, layout, which side
 * touches a guard page) follows from the seed, so the command printed with a failure repeats it
 * exactly. Buffers come from kc_take(): they lie flush against an inaccessible page and carry
 * canaries on the other side. The whole case runs under kc_run_case(), which also turns SIGSEGV,
 * SIGBUS, SIGFPE and SIGILL into a failure.
 */
#ifndef QNN_TESTS_KCHECK_H
#define QNN_TESTS_KCHECK_H

#include "kernels/kernels.h"

#include <stddef.h>
#include <stdint.h>

typedef struct kc_options {
    const char *family;  /* NULL: all */
    const char *kernel;  /* NULL: all */
    const char *routine; /* of the vec family; NULL: all */
    size_t m, n, k;      /* m == 0: sizes derived from the tile */
    uint32_t seed;
    int has_seed;
    int is_long;
    qnn_isa host;
} kc_options;

/* One case: returns 0, or nonzero after kc_note(). */
typedef struct kc_case {
    const char *family;
    const char *kernel_name;
    const char *routine; /* NULL outside the vec family */
    const void *kernel;
    size_t m, n, k;
    uint32_t seed;
} kc_case;
typedef int kc_case_fn(const kc_case *c);

/* Runs one case: resets the buffers, seeds the generator, catches signals, checks canaries, counts,
 * and prints a failure with the command that repeats it. Returns 0 when all is well. */
int kc_run_case(kc_case_fn *fn, const kc_case *c);
/* While quiet, failures are not printed (the self-test expects them); the last text is kept. */
void kc_set_quiet(int is_quiet);
const char *kc_last_note(void);
size_t kc_n_cases(void);

/* Says what is wrong in the running case; the first note of a case is kept. Returns 1. */
int kc_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A buffer of the running case, filled with junk. Bit 0 of the case's seed chooses the side: 0 puts
 * its end against the guard page (as near as align allows), 1 its start. */
void *kc_take(size_t bytes, size_t align);
/* Junk again, the same junk in both. */
void kc_fill_same(void *a, void *b, size_t bytes);

uint32_t kc_random(void);
size_t kc_random_below(size_t n);
size_t kc_next_prime(size_t n);

/* Data in random-length runs: zeros, maximum, random, low, high, alternating low and high. */
void kc_fill_u8(uint8_t *x, size_t n);
void kc_fill_s8(int8_t *x, size_t n);
/* Moderate floats, products and sums stay finite. */
void kc_fill_f32(float *x, size_t n);
/* Ties, their neighbours, huge, subnormal, -0, infinities, NaN. limit scales the moderate part. */
void kc_fill_f32_any(float *x, size_t n, float limit);

/* Returns 0 when equal over the whole buffer; unit is the element size used in the message. */
int kc_same(const char *what, const void *want, const void *got, size_t bytes, size_t unit);
/* Bits equal, or both NaN. */
int kc_same_f32(const char *what, const float *want, const float *got, size_t n);

uint32_t kc_bits(float x);
float kc_float(uint32_t bits);

/* 1 when options name this family and kernel; prints the kernels the host cannot run as skipped. */
int kc_is_wanted(const kc_options *o, const char *family, const char *kernel, qnn_isa isa);

/* Families: return the number of kernels that failed. check_one runs the sweep over one kernel. */
int kc_check_gemm_f32(const kc_options *o);
int kc_check_gemm_f32_one(const kc_options *o, const qnn_gemm_f32_kernel *kernel);
int kc_check_gemm_u8s8(const kc_options *o);
int kc_check_gemm_u8s8_one(const kc_options *o, const qnn_gemm_u8s8_kernel *kernel);
int kc_check_vec(const kc_options *o);
int kc_check_vec_one(const kc_options *o, const qnn_vec_kernel *kernel);
/* Deliberately broken kernels: each must be caught. */
int kc_selftest(const kc_options *o);

#endif
