/* gemm_plan.h - how a Vulkan device runs kernels/lib/gemm.glsl, the products of many tokens: a weight is
 * dequantised once for a tile of tokens, where kernels/lib/gemv.glsl does it for every four. */
#ifndef MOEFLUX_OPS_LINEAR_GEMM_PLAN_H
#define MOEFLUX_OPS_LINEAR_GEMM_PLAN_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;
struct exec;
struct kernel;

enum { GEMM_N_SPEC = 7 };
/* The specialisation of gemm.glsl for a device, and what one workgroup computes. */
struct gemm_plan {
    uint32_t spec[GEMM_N_SPEC];
    uint32_t rows, tokens; /* of a workgroup */
    const char *variant;   /* of the kernel: "", "_coop", "_fragcoop", "_other", "_othercoop" */
};

/* The device can run kernels/lib/gemm.glsl. */
bool gemm_is_possible(const struct exec *x);

/* How many tokens a tile has. It costs as much when it is partly filled; large ones make more of a weight,
 * small ones keep more of the device busy. */
enum gemm_tile { GEMM_TILE_16, GEMM_TILE_32, GEMM_TILE_64, GEMM_TILE_128, GEMM_TILES };

/* formats: a part of a set (format_set_part): how the matrices are stored. */
struct gemm_plan gemm_plan_for(const struct exec *x, enum gemm_tile tile, uint32_t formats);

/* The same with tiles in float16 and float32 sums, good to 2e-3 of the largest output; where the device can.
 * A smaller tile where the device has no room for this one. */
bool gemm_has_f16(const struct exec *x);
struct gemm_plan gemm_f16_plan_for(const struct exec *x, enum gemm_tile tile, uint32_t formats);

/* kernels/lib/gemm_frag.glsl: the same for FORMAT_Q4 and tiles of up to 64 tokens, in registers alone, on
 * devices whose matrices have the layout of exec/fragment_layout.h. Columns come in blocks of GEMM_FRAG_COLS,
 * stored as cast_f16_call.is_blocked says. A workgroup has along_rows times parts subgroups: `parts`, a power
 * of two, share the columns of 32 rows. tokens: of a tile, 16, 32 or 64. */
enum { GEMM_FRAG_COLS = 128 };
struct gemm_plan gemm_frag_plan_for(const struct exec *x, uint32_t tokens, uint32_t along_rows,
                                    uint32_t parts);

/* exec_kernel_later for a kernel on gemm.glsl. */
int gemm_kernel(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes,
                const struct gemm_plan *p, struct moeflux_err *e);

#endif
