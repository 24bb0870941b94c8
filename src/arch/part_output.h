/* part_output.h - the buffer that parts write to where their outputs are not added to the residual at once:
 * with several streams, norms after the parts, or experts of a latent. */
#ifndef MOEFLUX_ARCH_PART_OUTPUT_H
#define MOEFLUX_ARCH_PART_OUTPUT_H

#include <stdint.h>

#include "exec/exec.h"
#include "ops/add.h"

struct loader;
struct moeflux_err;
struct scratch;

struct part_output {
    struct exec_buffer rows; /* f32 [n][cols] */
    struct add zero;         /* clears rows that experts add to */
    uint64_t zeros;          /* f32 [cols] */
    uint32_t cols;
};

void part_output_allocate(struct part_output *o, uint32_t cols, uint32_t n, struct scratch *to);
/* Opens the operation and loads the zeros. */
int part_output_load(struct part_output *o, struct exec *x, struct loader *l, struct moeflux_err *e);
void part_output_close(struct part_output *o, struct exec *x); /* zeroed is legal */
/* Clears the rows of n tokens. */
void part_output_clear(const struct part_output *o, struct exec *x, uint32_t n);

#endif
