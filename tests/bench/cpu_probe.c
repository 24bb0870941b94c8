#include "cpu_probe.h"

#define DECLARE(set) extern const struct cpu_probe cpu_probe_##set;
CPU_ISAS(DECLARE)

const struct cpu_probe *cpu_probe_for(const struct cpu_isa *isa)
{
#define ENTRY(set) &cpu_probe_##set,
    static const struct cpu_probe *const probes[] = {CPU_ISAS(ENTRY)};
    return probes[isa->idx];
}
