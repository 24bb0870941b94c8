/* table.h - what the sources of this folder that are compiled for each instruction set put into its struct cpu_isa. */
#ifndef MOEFLUX_CPU_TABLE_H
#define MOEFLUX_CPU_TABLE_H

#include "base/vec.h"
#include "cpu/isa.h"

extern const struct cpu_isa VEC_NAME(cpu_isa);

cpu_quantise_fn VEC_NAME(quantise);
cpu_gemv_fn VEC_NAME(gemv);
cpu_pack_fn VEC_NAME(pack);
cpu_gemm_fn VEC_NAME(gemm);
cpu_widen_fn VEC_NAME(widen);
cpu_pack_fixed_fn VEC_NAME(pack_fixed);
cpu_gemm_fixed_fn gemm_fixed_amx;
/* Affine formats of 3, 5 and 6 bits with bf16 scales, for processors that have VBMI beside avx512. */
cpu_gemv_fn gemv_avx512vbmi;

enum {
#define CPU_IDX_OF(set) CPU_IDX_##set,
    CPU_ISAS(CPU_IDX_OF)
#undef CPU_IDX_OF
};

#endif
