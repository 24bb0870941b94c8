#include "cpu/table.h"

#define TEXT_(name) #name
#define TEXT(name)  TEXT_(name)

const struct cpu_isa VEC_NAME(cpu_isa) = {
    .name = TEXT(CPU_ISA),
    .idx = VEC_JOIN(CPU_IDX, CPU_ISA),
    .quantise = VEC_NAME(quantise),
    .gemv = VEC_NAME(gemv),
    .pack = VEC_NAME(pack),
    .gemm = VEC_NAME(gemm),
    .widen = VEC_NAME(widen),
    .pack_fixed = VEC_NAME(pack_fixed),
#ifdef CPU_ISA_amx
    .gemm_fixed = gemm_fixed_amx,
#endif
};
