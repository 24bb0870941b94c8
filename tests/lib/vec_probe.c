#include "vec_probe.h"

#include "cpu/isa.h"

#define DECLARE(set) vec_probe_fn vec_probe_##set;
CPU_ISAS(DECLARE)

vec_probe_fn *vec_probe(uint32_t isa_idx)
{
#define ENTRY(set) vec_probe_##set,
    static vec_probe_fn *const probes[] = {CPU_ISAS(ENTRY)};
    return probes[isa_idx];
}
