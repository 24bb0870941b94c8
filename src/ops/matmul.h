/* matmul.h - how a device runs kernels/matmul.glsl, the products of many tokens: a weight is dequantised once for a
 * tile of tokens, where kernels/matvec.glsl does it for every four. */
#ifndef MOEFLUX_OPS_MATMUL_H
#define MOEFLUX_OPS_MATMUL_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;
struct exec;
struct kernel;

enum { MATMUL_N_SPEC = 7 };
/* The specialisation of matmul.glsl for a device, and what one workgroup computes. */
struct matmul_plan {
    uint32_t spec[MATMUL_N_SPEC];
    uint32_t rows, tokens; /* of a workgroup */
    const char *variant;   /* of the kernel: "", "_wide" for software devices, "_coop" */
};

/* The device can run kernels/matmul.glsl. */
bool matmul_is_possible(const struct exec *x);

/* How many tokens a tile has: on a GPU 16, 32, 64 or 128, on a software device 8 or, MATMUL_MOST, 16. A tile costs as
 * much when it is partly filled; large ones make more of a weight, small ones keep more of the device busy. */
enum matmul_tile { MATMUL_FEW, MATMUL_SOME, MATMUL_MANY, MATMUL_MOST, MATMUL_TILES };

/* formats: bit f is set when a matrix is stored as FORMAT_f. */
struct matmul_plan matmul_plan_for(const struct exec *x, enum matmul_tile tile, uint32_t formats);

/* The same with tiles in float16 and float32 sums, good to 2e-3 of the largest output; where the device can. A smaller
 * tile where the device has no room for this one. */
bool matmul_has_half(const struct exec *x);
struct matmul_plan matmul_half_plan_for(const struct exec *x, enum matmul_tile tile, uint32_t formats);

/* exec_kernel_later for a kernel on matmul.glsl. */
int matmul_kernel(struct exec *x, struct kernel *k, const char *name, void (*ref)(const void *args),
                  uint32_t args_bytes, const struct matmul_plan *p, struct moeflux_err *e);

#endif
