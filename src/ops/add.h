/* add.h - adds vectors, in one of three ways:
 *   x[i] += y[i]              adds a sum made elsewhere to the hidden states
 *   x[i] += y[i mod every]    adds biases to the rows of a product
 *   x[i] = y[i mod every]     sets what a product will be added to */
#ifndef MOEFLUX_OPS_ADD_H
#define MOEFLUX_OPS_ADD_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"

struct add {
    struct { /* vulkan */
        struct kernel kernel;
        uint32_t workgroup;
    } gpu;
};

struct add_call {
    uint64_t y, x;  /* f32 [n], aligned to 16 bytes; y may be host memory (EXEC_HOST) */
    uint32_t n;     /* a multiple of 4, or of `every` */
    uint32_t every; /* y is f32 [every]; 0: y is f32 [n] */
    bool sets;      /* x is set instead of added to; only with `every` */
};

int add_open(struct add *op, struct exec *x, struct moeflux_err *e);
void add_run(const struct add *op, struct exec *x, const struct add_call *call);

/* The implementations. */
void add_vulkan(const void *self, const void *what, struct exec *x);
op_host_fn add_cpu, add_ref;

#endif
