#include "cpu/table.h"

/* Compiled for amx alone: other sets have no product of bytes that outruns their float32 units. */
#ifdef CPU_ISA_amx
#include "cpu/gemm_fixed.h"

void gemm_fixed_amx(const struct cpu_gemm_fixed_call *call)
{
    fixed_gemm(call);
}
#endif
