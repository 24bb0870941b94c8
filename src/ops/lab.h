/* lab.h - the bench on which a kernel meets its reference: the same random inputs on two sides. Private to selftest. */
#ifndef MOEFLUX_OPS_LAB_H
#define MOEFLUX_OPS_LAB_H

#include <stdint.h>

#include "base/err.h"
#include "ops/exec.h"
#include "ops/kv_cache.h"
#include "ops/matvec.h"
#include "ops/selftest.h"

enum { LAB_DEVICE, LAB_REFERENCE, LAB_SIDES, LAB_MAX_TWINS = 32 };

struct twin { /* the same bytes on both sides */
    struct exec_buffer on[LAB_SIDES];
};

struct lab {
    struct exec *side[LAB_SIDES];
    const struct selftest *request;
    uint64_t rng;
    int n_failed;
    bool is_again;  /* the cases have run with all kernels of the device */
    struct err err; /* the first failure; later calls do nothing */
    struct twin twins[LAB_MAX_TWINS];
    uint32_t n_twins;
};

uint64_t lab_random(struct lab *l);
/* Uniform in [low, high). */
float lab_uniform(struct lab *l, float low, float high);
/* n floats in [low, high). Borrowed until lab_clear. */
struct twin *lab_floats(struct lab *l, uint64_t n, float low, float high);
/* n numbers of a KV cache in [-1, 1). */
struct twin *lab_cache(struct lab *l, uint64_t n, enum kv_type type);
/* Given bytes; NULL: zeros. */
struct twin *lab_bytes(struct lab *l, const void *bytes, uint64_t n);
/* A random matrix whose outputs are about as large as its inputs; its place on each side in at[]. */
void lab_matrix(struct lab *l, uint32_t rows, uint32_t cols, uint32_t format, struct weights at[LAB_SIDES]);
/* A table of one address per twin: the same twins on both sides. */
struct twin *lab_table(struct lab *l, struct twin *const *twins, uint32_t n);

/* Ends the side's batch after the operation was recorded on it. */
void lab_finish(struct lab *l, int side);
/* Compares n floats of a twin that both sides wrote. */
double lab_error(struct lab *l, const struct twin *t, uint64_t n);
/* The same for n float16 numbers, n even; each difference is relative to the larger of the reference's number and 1. */
double lab_half_error(struct lab *l, const struct twin *t, uint64_t n);
/* As lab_error for integers: 0 when all are equal, else 1. */
double lab_difference(struct lab *l, const struct twin *t, uint64_t n);
/* Reports one case and frees its twins. */
void lab_report(struct lab *l, const char *kernel, const char *shape, double error, double bound);
/* Reports a case that cannot run on the device, and frees its twins. Says nothing where the device is kept from kernels
 * that it has: these cases have run. */
void lab_skip(struct lab *l, const char *kernel, const char *shape);
void lab_clear(struct lab *l);

/* Cases that stand in files of their own. */
void selftest_delta_cases(struct lab *l);
void selftest_mla_cases(struct lab *l);
void selftest_swiglu_cases(struct lab *l);

#endif
