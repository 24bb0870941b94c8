#include "fixed_probe.h"

#define DECLARE(set) cpu_gemm_fixed_fn fixed_probe_##set;
CPU_ISAS(DECLARE)

cpu_gemm_fixed_fn *fixed_probe_for(const struct cpu_isa *isa)
{
#define ENTRY(set) fixed_probe_##set,
    static cpu_gemm_fixed_fn *const probes[] = {CPU_ISAS(ENTRY)};
    return probes[isa->idx];
}
