/* fixed_probe.h - gemm_fixed (cpu/gemm_fixed.h) on emulated tile registers, with each instruction set. */
#ifndef MOEFLUX_TESTS_FIXED_PROBE_H
#define MOEFLUX_TESTS_FIXED_PROBE_H

#include "cpu/isa.h"

cpu_gemm_fixed_fn *fixed_probe_for(const struct cpu_isa *isa);

#endif
