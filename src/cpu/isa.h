/* isa.h - the instruction sets that the program is built for, and the one that it uses.
 *
 * The Makefile compiles the sources named src/X/Y_isa.c once for each set. They export their functions with
 * the set's name: VEC_NAME(y_run) of cpu/vec.h is y_run_avx2 and so on. All of them give the same bits,
 * except for gemm_int16 (avx512 and amx) and gemm_fixed (amx), which have bits of their own. */
#ifndef MOEFLUX_CPU_ISA_H
#define MOEFLUX_CPU_ISA_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu/product.h"

struct moeflux_err;

/* CPU_ISAS(each) expands each(NAME) for every set of the processor family that the program is built for, slow
 * ones first. CPU_ISAS_SHARED(each) expands, in the same order, each(NAME) of the set whose code runs where
 * amx has none of its own (Makefile). */
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
    uint32_t idx; /* its number in CPU_ISAS, for tables of functions that X_isa.c exports */
    cpu_quantise_fn *quantise;
    cpu_gemv_fn *gemv;
    cpu_pack_fn *pack;
    cpu_gemm_fn *gemm;
    cpu_widen_fn *widen;
    cpu_pack_fixed_fn *pack_fixed;
    /* NULL where gemm is faster */
    cpu_gemm_fixed_fn *gemm_fixed;
    cpu_pack_fn *pack_int16;
    cpu_gemm_fn *gemm_int16;
};

/* Returns the set of that name; for NULL the fastest that this processor has. Returns NULL with `e` filled
 * (ERR_USAGE) if CPU_ISAS has no such name or the processor lacks the set. */
const struct cpu_isa *cpu_isa_find(const char *name, struct moeflux_err *e);

/* Returns number idx of CPU_ISAS if this processor has it, else NULL. */
const struct cpu_isa *cpu_isa_at(uint32_t idx);

/* Returns whether results have the bits that all processors with a fused multiply-add compute. False without
 * one: the results are as accurate, but exp, log and tanh round differently. */
bool cpu_common_bits(void);

#endif
