/* scratch.h - allocates an architecture's buffers for activations, or only counts their bytes. */
#ifndef MOEFLUX_ARCH_SCRATCH_H
#define MOEFLUX_ARCH_SCRATCH_H

#include <stdint.h>

#include "exec/exec.h"

struct moeflux_err;

/* The first failure sticks in rc: nothing is allocated after it. */
struct scratch {
    struct exec *exec; /* NULL: only counts */
    uint64_t bytes;    /* size of all buffers so far */
    int rc;
    struct moeflux_err *e;
};

/* Allocates a buffer of n floats in device memory. */
void scratch_floats(struct scratch *s, struct exec_buffer *b, uint64_t n);

#endif
