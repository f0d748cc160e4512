/*
 * Which instruction sets this processor and operating system can run, and the names of the
 * bundles.
 *
 * A bundle is usable only when every flag its folder is compiled with has its CPUID bit and the
 * operating system saves the registers (XGETBV).
 */
#include "kernels/kernels.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

const qnn_isa_info qnn_isa_list[] = {
    {"ref", QNN_ISA_REF},
#if defined(QNN_BUILD_AVX2)
    {"avx2", QNN_ISA_AVX2},
#endif
#if defined(QNN_BUILD_AVX512)
    {"avx512", QNN_ISA_AVX2 | QNN_ISA_AVX512},
#endif
#if defined(QNN_BUILD_AVX512VNNI)
    {"avx512vnni", QNN_ISA_AVX2 | QNN_ISA_AVX512 | QNN_ISA_AVX512VNNI},
#endif
    {NULL, 0},
};

#if defined(__x86_64__) || defined(__i386__)

#define BIT(n) (1u << (n))

enum {
    XCR0_YMM = 0x06, /* SSE and upper halves of ymm          */
    XCR0_ZMM = 0xe0  /* mask registers, zmm0-15 upper, zmm16+ */
};

/* CPUID leaf 1, ECX. -mavx2 implies everything from SSE3 to POPCNT. */
static const unsigned leaf1_ecx_avx2 = BIT(0) /* SSE3 */ | BIT(9) /* SSSE3 */ | BIT(12) /* FMA */ |
                                       BIT(19) /* SSE4.1 */ | BIT(20) /* SSE4.2 */ |
                                       BIT(23) /* POPCNT */ | BIT(27) /* OSXSAVE */ |
                                       BIT(28) /* AVX */ | BIT(29) /* F16C */;
/* CPUID leaf 7, sub-leaf 0. */
static const unsigned leaf7_ebx_avx2 = BIT(5) /* AVX2 */ | BIT(8) /* BMI2 */;
static const unsigned leaf7_ebx_avx512 =
    BIT(16) /* F */ | BIT(17) /* DQ */ | BIT(30) /* BW */ | BIT(31) /* VL */;
static const unsigned leaf7_ecx_vnni = BIT(11);

/* The register sets the operating system saves. Only where CPUID says OSXSAVE. */
static unsigned read_xcr0(void)
{
    unsigned eax, edx;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return eax;
}

static int has_all(unsigned value, unsigned bits)
{
    return (value & bits) == bits;
}

qnn_isa qnn_isa_detect(void)
{
    unsigned eax, ebx, ecx, edx, ecx1;
    if (!__get_cpuid(1, &eax, &ebx, &ecx1, &edx) || !has_all(ecx1, leaf1_ecx_avx2))
        return QNN_ISA_REF;
    const unsigned xcr0 = read_xcr0();
    if (!has_all(xcr0, XCR0_YMM) || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) ||
        !has_all(ebx, leaf7_ebx_avx2))
        return QNN_ISA_REF;

    qnn_isa isa = QNN_ISA_AVX2;
    if (has_all(xcr0, XCR0_ZMM) && has_all(ebx, leaf7_ebx_avx512)) {
        isa |= QNN_ISA_AVX512;
        if (has_all(ecx, leaf7_ecx_vnni))
            isa |= QNN_ISA_AVX512VNNI;
    }
    return isa;
}

#undef BIT

#else

qnn_isa qnn_isa_detect(void)
{
    return QNN_ISA_REF;
}

#endif
