/* isa.h - the instruction sets that the program is built for, and the one that it uses.
 *
 * The sources named src/X/Y_isa.c are compiled once for each of them (Makefile) and export their functions
 * with its name: VEC_NAME(y_run) of cpu/vec.h is y_run_avx2 and so on. All of them give the same bits; amx
 * has gemm_fixed besides, with bits of its own. */
#ifndef MOEFLUX_CPU_ISA_H
#define MOEFLUX_CPU_ISA_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu/product.h"

struct moeflux_err;

/* CPU_ISAS(each): each(NAME) for every set of the processor family that the program is built for, slow ones
 * first. CPU_ISAS_SHARED(each): in the same order each(NAME) of the set whose code runs where amx has none of
 * its own (Makefile). */
#if defined(__x86_64__)
#define CPU_ISAS(each)        each(portable) each(avx2) each(avx512) each(amx)
#define CPU_ISAS_SHARED(each) each(portable) each(avx2) each(avx512) each(avx512)
enum { CPU_N_ISAS = 4 };
#elif defined(__aarch64__)
#define CPU_ISAS(each)        each(portable) each(neon) each(dotprod)
#define CPU_ISAS_SHARED(each) CPU_ISAS(each)
enum { CPU_N_ISAS = 3 };
#else
#define CPU_ISAS(each)        each(portable)
#define CPU_ISAS_SHARED(each) CPU_ISAS(each)
enum { CPU_N_ISAS = 1 };
#endif

/* One instruction set: its name and the functions of src/cpu that are compiled for it. */
struct cpu_isa {
    const char *name;
    uint32_t idx; /* its number in CPU_ISAS: for tables of functions that X_isa.c exports */
    cpu_quantise_fn *quantise;
    cpu_gemv_fn *gemv;
    cpu_pack_fn *pack;
    cpu_gemm_fn *gemm;
    cpu_widen_fn *widen;
    cpu_pack_fixed_fn *pack_fixed;
    cpu_gemm_fixed_fn *gemm_fixed; /* NULL: gemm is faster */
};

/* The one of that name, or for NULL the fastest that this processor has.
 * NULL with `e` filled (ERR_USAGE): the name is none of CPU_ISAS, or the processor lacks it. */
const struct cpu_isa *cpu_isa_find(const char *name, struct moeflux_err *e);

/* Number idx of CPU_ISAS when this processor has it, else NULL. */
const struct cpu_isa *cpu_isa_at(uint32_t idx);

/* Whether a result has the bits that all processors with a fused multiply-add compute. False where there is
 * none: the results are as good, but exp, log and tanh round differently. */
bool cpu_common_bits(void);

#endif
