/* gemv_plan.h - how a Vulkan device runs kernels/lib/gemv.glsl: products of one vector or a few. */
#ifndef MOEFLUX_OPS_LINEAR_GEMV_PLAN_H
#define MOEFLUX_OPS_LINEAR_GEMV_PLAN_H

#include <stdbool.h>
#include <stdint.h>

struct exec;
struct exec_caps;
struct kernel;
struct moeflux_err;

/* The specialisation constants of gemv.glsl, in order. */
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
    GEMV_FEW_REGISTERS,
    GEMV_N_SPEC
};
/* Most bytes of shared memory of a code book (kernels/lib/dequant_blocks.glsl). */
enum { GEMV_BOOK_BYTES = 4096 };
struct gemv_shape {
    uint32_t rows; /* rows of all segments and experts of the dispatch */
    uint32_t cols;
    uint32_t tokens;   /* vectors at once: 1 or 4 */
    uint64_t formats;  /* formats of the matrices: a part of a set (format_set_part) */
    uint32_t matrices; /* MATRICES of the kernel */
    uint32_t least;    /* rows of the smallest matrix; 0: four or more */
    /* number of matrices of about equal size that share no workgroup; 0: the kernel does not know STREAM */
    uint32_t n_apart;
};
/* The specialisation of gemv.glsl for a device, and the rows of each matrix that one workgroup computes. */
struct gemv_plan {
    uint32_t spec[GEMV_N_SPEC];
    uint32_t workgroup_rows, workgroup, tokens;
};
/* Returns the columns of which a tile is a multiple: pieces of a block format may need all columns of a
 * block. */
uint32_t gemv_tile_unit(uint64_t formats);
/* Returns the pieces of a row as kernels/lib/gemv_lanes.glsl and, if gemv_has_steps, gemv_extended.glsl cut
 * it; 0: their number differs between these formats. */
uint32_t gemv_pieces(uint32_t cols, uint64_t formats);
/* Returns whether the kernels for these formats can take all pieces of a row at once (STEPS). */
bool gemv_has_steps(const struct exec_caps *c, uint64_t formats);

struct gemv_plan gemv_plan_for(const struct exec *x, const struct gemv_shape *s);
/* Turns the shape's plan for one vector into one for up to `tokens` vectors at once, as many as fit shared
 * memory. The results are batch-invariant. */
struct gemv_plan gemv_plan_concurrent(const struct exec *x, const struct gemv_shape *s,
                                      const struct gemv_plan *one, uint32_t tokens);
/* Turns a plan for fewer rows into one for all of the shape's. A workgroup may take several blocks; the order
 * of the sums stays. */
struct gemv_plan gemv_plan_longer(const struct exec *x, const struct gemv_shape *s,
                                  const struct gemv_plan *few);
/* Gives subgroups fewer rows, at most so many products of a row and a vector at once, if lanes have few
 * registers. The order of the sums stays. */
void gemv_plan_narrow(const struct exec_caps *c, uint32_t most, struct gemv_plan *p);
/* Returns the processors that workgroups of consecutive blocks are counted for. */
uint32_t gemv_stream_processors(const struct exec_caps *c);
/* Returns a plan for kernels that take the vector in parts of `cols` columns; a TILE holds two parts. */
struct gemv_plan gemv_plan_parts(const struct exec *x, const struct gemv_shape *s, uint32_t cols);
/* Returns the columns of such a part if gemv_plan_for has no better plan for the rows; else 0. */
uint32_t gemv_part_cols(const struct exec *x, const struct gemv_shape *s);

/* Returns the end of the name of a kernel that has no variants but those for a part of a set: "", "_ext",
 * "_blk". */
const char *gemv_suffix(uint64_t formats);

/* Opens the variant that suits best: NAME_denorm on devices that keep float16 denormals, NAME_q4 and so on
 * for a basic format that has one, NAME_extdenorm or NAME_ext for an extended format, NAME_blkdenorm or
 * NAME_blk for a block format, else NAME. spec begins with a plan's constants. */
int gemv_kernel(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes, const uint32_t *spec,
                uint32_t n_spec, struct moeflux_err *e);
/* Does the same with exec_kernel_later. */
int gemv_kernel_later(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes,
                      const uint32_t *spec, uint32_t n_spec, struct moeflux_err *e);

#endif
