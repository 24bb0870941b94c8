/* The table of one instruction set's functions (isa.h). */
#include "cpu/table.h"

#define TEXT_(name) #name
#define TEXT(name)  TEXT_(name)

const struct cpu_isa VEC_NAME(cpu_isa) = {
    .name = TEXT(CPU_ISA),
    .idx = VEC_JOIN(CPU_IDX, CPU_ISA),
    .quantise = SHARED_NAME(quantise),
    .gemv = SHARED_NAME(gemv),
    .pack = SHARED_NAME(pack),
    .gemm = VEC_NAME(gemm),
    .widen = VEC_NAME(widen),
    .pack_fixed = SHARED_NAME(pack_fixed),
#ifdef __AVX512VNNI__
    .pack_int16 = SHARED_NAME(pack_int16),
    .gemm_int16 = SHARED_NAME(gemm_int16),
#endif
#ifdef CPU_ISA_amx
    .gemm_fixed = gemm_fixed_amx,
#endif
};
