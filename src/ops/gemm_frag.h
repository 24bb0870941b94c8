/* gemm_frag.h - kernels/lib/gemm_frag.glsl, the products of few tokens with 4-bit matrices: a weight goes from memory straight
 * to where a matrix lies in registers, without shared memory. Vulkan leaves open where that is: the device is asked. */
#ifndef MOEFLUX_OPS_GEMM_FRAG_H
#define MOEFLUX_OPS_GEMM_FRAG_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/gemm_plan.h"

/* Columns come in blocks of so many; inputs are stored as cast_f16_call.is_blocked says. */
enum { GEMM_FRAG_COLS = 128 };

/* Whether the device's lanes have the numbers of matrices as the kernels need them: runs one small kernel. 1, 0, or an error;
 * 0 where the device has no matrices or float16 is forbidden. */
int gemm_frag_probe(struct exec *x, struct moeflux_err *e);

/* tokens: 8, 16 or 32 a tile, of which few take fewer matrices. The matrices are of FORMAT_Q4. */
struct gemm_plan gemm_frag_plan_for(const struct exec *x, uint32_t tokens);

#endif
