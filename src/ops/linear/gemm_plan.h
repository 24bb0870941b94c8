/* gemm_plan.h - how a Vulkan device runs kernels/lib/gemm.glsl, the products of many tokens. It dequantises a
 * weight once for a tile of tokens, kernels/lib/gemv.glsl once for every four. */
#ifndef MOEFLUX_OPS_LINEAR_GEMM_PLAN_H
#define MOEFLUX_OPS_LINEAR_GEMM_PLAN_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;
struct exec;
struct exec_caps;
struct kernel;

enum { GEMM_PASS = 7, GEMM_N_SPEC };
/* The specialisation of gemm.glsl for a device, and what one workgroup computes. */
struct gemm_plan {
    uint32_t spec[GEMM_N_SPEC]; /* [GEMM_PASS]: PASS of experts_prefill_up, by default PASS_BOTH */
    uint32_t rows, tokens;      /* size of a workgroup's tile */
    const char *variant;        /* suffix of the kernel's name: "", "_coop", "_fragcoop", "_blk" .. */
};

/* Returns whether the device can run kernels/lib/gemm.glsl. */
bool gemm_is_possible(const struct exec_caps *c);

/* Tokens of a tile. A partly filled tile costs as much as a full one. Large tiles use a dequantised weight
 * more often, small ones keep more of the device busy. */
enum gemm_tile { GEMM_TILE_16, GEMM_TILE_32, GEMM_TILE_64, GEMM_TILE_128, GEMM_TILES };

/* Returns the plan for matrices in `formats`, a part of a set (format_set_part). */
struct gemm_plan gemm_plan_for(const struct exec *x, enum gemm_tile tile, uint64_t formats);

/* The same with float16 tiles and float32 sums, accurate to 2e-3 of the largest output, on devices with
 * gemm_has_f16. The tile is smaller if the device has no room for this one. */
bool gemm_has_f16(const struct exec *x);
struct gemm_plan gemm_f16_plan_for(const struct exec *x, enum gemm_tile tile, uint64_t formats);

/* Returns the plan for kernels/lib/gemm_frag.glsl: float16 tiles of up to 64 tokens for FORMAT_Q4, in
 * registers only, on devices whose matrices have the known fragment layout (exec/fragment_layout.h). Columns
 * come in blocks of GEMM_FRAG_COLS, stored as cast_f16_call.is_blocked says. A workgroup has along_rows times
 * parts subgroups: `parts`, a power of two, share the columns of 32 rows. tokens: tokens of a tile, 16, 32 or
 * 64. */
enum { GEMM_FRAG_COLS = 128 };
struct gemm_plan gemm_frag_plan_for(const struct exec *x, uint32_t tokens, uint32_t along_rows,
                                    uint32_t parts);

/* Opens a kernel that uses gemm.glsl with exec_kernel_later. */
int gemm_kernel(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes,
                const struct gemm_plan *p, struct moeflux_err *e);

#endif
