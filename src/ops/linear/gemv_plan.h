/* gemv_plan.h - how a Vulkan device runs kernels/lib/gemv.glsl: products of one vector or a few. */
#ifndef MOEFLUX_OPS_LINEAR_GEMV_PLAN_H
#define MOEFLUX_OPS_LINEAR_GEMV_PLAN_H

#include <stdbool.h>
#include <stdint.h>

struct exec;
struct exec_caps;
struct kernel;
struct moeflux_err;

/* The constants of gemv.glsl in order. */
enum {
    GEMV_SUBGROUP,
    GEMV_WORKGROUP,
    GEMV_ROWS,
    GEMV_TOKENS,
    GEMV_TILE,
    GEMV_FORMATS,
    GEMV_SPLIT,
    GEMV_STEPS,
    GEMV_STREAM,
    GEMV_N_SPEC
};
struct gemv_shape {
    uint32_t rows; /* of the whole dispatch: all segments, experts */
    uint32_t cols;
    uint32_t tokens;   /* vectors at once: 1 or 4 */
    uint32_t formats;  /* a part of a set (format_set_part): how the matrices are stored */
    uint32_t matrices; /* MATRICES of the kernel */
    uint32_t least;    /* rows of the smallest matrix; 0: four or more */
    /* matrices that workgroups do not share, about equally large; 0: the kernel does not know STREAM */
    uint32_t n_apart;
};
/* The specialisation of gemv.glsl for a device, and the rows (of each matrix) that one workgroup computes. */
struct gemv_plan {
    uint32_t spec[GEMV_N_SPEC];
    uint32_t workgroup_rows, workgroup, tokens;
};
/* The pieces of a row in a part of a set of formats, as kernels/lib/gemv_lanes.glsl and, where
 * gemv_has_steps, gemv_other.glsl have them; 0: not in all formats as many. */
uint32_t gemv_pieces(uint32_t cols, uint32_t formats);
/* Whether the kernels for a part of a set of formats can take all pieces of a row at once (STEPS). */
bool gemv_has_steps(const struct exec_caps *c, uint32_t formats);

struct gemv_plan gemv_plan_for(const struct exec *x, const struct gemv_shape *s);
/* A plan for one vector of the shape, for up to `tokens` at once: as many as shared memory has room for. Each
 * gets the bits that it gets alone. */
struct gemv_plan gemv_plan_concurrent(const struct exec *x, const struct gemv_shape *s,
                                      const struct gemv_plan *one, uint32_t tokens);
/* A plan for fewer rows, for all of the shape's: a workgroup may take several blocks, in the same order of
 * sums. */
struct gemv_plan gemv_plan_longer(const struct exec *x, const struct gemv_shape *s,
                                  const struct gemv_plan *few);
/* For kernels that take the vector in parts of `cols` columns, two of which are a TILE. */
struct gemv_plan gemv_plan_parts(const struct exec *x, const struct gemv_shape *s, uint32_t cols);
/* Such parts of rows that gemv_plan_for has no better way for; 0: there are none. */
uint32_t gemv_part_cols(const struct exec *x, const struct gemv_shape *s);

/* exec_kernel with the variant that suits best: NAME_denorm where the device has that, NAME_q4 and so on for
 * a format that has one, else NAME; for a format that is not usual NAME_otherdenorm or NAME_other. spec
 * begins with a plan's. */
int gemv_kernel(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes, const uint32_t *spec,
                uint32_t n_spec, struct moeflux_err *e);
/* The same with exec_kernel_later. */
int gemv_kernel_later(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes,
                      const uint32_t *spec, uint32_t n_spec, struct moeflux_err *e);

#endif
