/* The probe of fixed_probe.h, compiled once for each instruction set. */
#include "fixed_probe.h"

#include "amx_emulated.h"
#include "cpu/vec.h"
#include "cpu/gemm_fixed.h"

cpu_gemm_fixed_fn VEC_NAME(fixed_probe);

void VEC_NAME(fixed_probe)(const struct cpu_gemm_fixed_call *call)
{
    fixed_gemm(call);
}
