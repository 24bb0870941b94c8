/* scratch.h - the memory of an architecture's activations: made, or only counted. */
#ifndef MOEFLUX_ARCH_SCRATCH_H
#define MOEFLUX_ARCH_SCRATCH_H

#include <stdint.h>

#include "exec/exec.h"

struct moeflux_err;

/* Sticky: after the first failure, which rc keeps, nothing more is made. */
struct scratch {
    struct exec *exec; /* NULL: only counts */
    uint64_t bytes;    /* of all so far */
    int rc;
    struct moeflux_err *e;
};

/* A buffer of n floats in device memory. */
void scratch_floats(struct scratch *s, struct exec_buffer *b, uint64_t n);

#endif
