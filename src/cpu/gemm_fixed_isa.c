/* gemm_fixed (gemm_fixed.h) as a function of the instruction set amx. */
#include "cpu/table.h"

/* Only amx: other sets have no product of bytes that is faster than their float32 units. */
#ifdef CPU_ISA_amx
#include "cpu/gemm_fixed.h"

void gemm_fixed_amx(const struct cpu_gemm_fixed_call *call)
{
    fixed_gemm(call);
}
#endif
