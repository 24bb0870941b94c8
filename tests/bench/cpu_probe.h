/* cpu_probe.h - the limits of a processor with each instruction set: a plain read
 * of memory, multiply-adds. */
#ifndef MOEFLUX_TESTS_CPU_PROBE_H
#define MOEFLUX_TESTS_CPU_PROBE_H

#include <stdint.h>

#include "cpu/isa.h"

struct cpu_probe {
    /* Reads n bytes, a multiple of 256. */
    float (*read)(const void *p, uint64_t n);
    /* n times 12 fused multiply-adds of 16 lanes that do not wait for each other. */
    float (*peak)(uint64_t n);
};

const struct cpu_probe *cpu_probe_for(const struct cpu_isa *isa);

#endif
