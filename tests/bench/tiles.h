/* tiles.h - shapes of float16 tiles (kernels/lib/gemm.glsl, COOP) for measuring programs to compare. */
#ifndef MOEFLUX_TESTS_TILES_H
#define MOEFLUX_TESTS_TILES_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/linear/gemm_plan.h"

struct exec;

struct tile {
    uint32_t group; /* invocations of a workgroup: subgroups of 32 */
    uint32_t rows,
        across;     /* matrices of sums of a subgroup, along the rows (2 or 4) and the tokens (1 or 2) */
    uint32_t depth; /* columns of a step: 64 or 128 */
    uint32_t along; /* subgroups along the tokens */
};

enum { TILES_TO_TRY = 16 };
extern const struct tile tiles_to_try[TILES_TO_TRY];

/* Reads "GROUP,ROWS,ACROSS,DEPTH,ALONG" with numbers that the kernels can be built with. */
bool tile_read(const char *text, struct tile *t);
/* Whether a device has the shared memory for it and the columns are whole steps. */
bool tile_fits(const struct exec *x, const struct tile *t, uint32_t cols);
struct gemm_plan tile_plan(const struct exec *x, const struct tile *t, uint32_t formats);
/* "16x64 (64,2,1,128,1)": tokens, rows, and what tile_read reads. */
void tile_name(const struct tile *t, char *text, uint64_t bytes);

#endif
