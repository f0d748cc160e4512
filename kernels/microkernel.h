/*
 * Macros shared by the microkernels: nothing here emits code of its own, so that files compiled
 * with different instruction-set flags can all include it.
 *
 * A microkernel is one always-inlined body whose row count and layout are compile-time constants
 * at each call; its loops over rows and vectors are then unrolled in full and the accumulators
 * live in registers.
 */
#ifndef QNN_KERNELS_MICROKERNEL_H
#define QNN_KERNELS_MICROKERNEL_H

#define QNN_INLINE static inline __attribute__((always_inline))

/* Before a loop of at most 16 constant iterations. */
#if defined(__clang__)
#define QNN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define QNN_UNROLL _Pragma("GCC unroll 16")
#endif

/*
 * Makes the compiler forget what it knows about a pointer. Row pointers are grouped by three
 * (base, base + lda, base + 2 * lda are all x86 addressing modes); without this the compiler keeps
 * one induction variable per row and spills them.
 */
#define QNN_OPAQUE(pointer) __asm__("" : "+r"(pointer))

#endif
