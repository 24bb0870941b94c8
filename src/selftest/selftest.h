/* selftest.h - every operation on a device against its reference, over a grid of shapes: the smallest legal
 * ones, odd ones and those of real models. Inputs are random with a fixed seed. */
#ifndef MOEFLUX_SELFTEST_SELFTEST_H
#define MOEFLUX_SELFTEST_SELFTEST_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;

struct selftest_row {
    const char *kernel; /* its name in kernels/ */
    const char *shape;  /* valid during the call */
    double error;       /* largest |difference| / largest |reference|; NaN counts as infinite */
    double bound;
    bool ok;
    bool skipped;       /* the device has no kernel for this case: nothing was computed, `ok` holds */
    const char *device; /* its name */
};

/* Which cases run. A driver compiles a pipeline for most of them. */
enum selftest_grid {
    SELFTEST_FULL,  /* all formats, with odd sizes and those of real models */
    SELFTEST_BRIEF, /* no case whose kernels differ only in size or format from those of a case that stays */
    SELFTEST_FIRST, /* part of SELFTEST_BRIEF: every kernel, each path through it once */
    SELFTEST_REST,  /* the rest of SELFTEST_BRIEF */
    SELFTEST_SHORT, /* part of SELFTEST_FIRST for an interpreter, without its longest cases */
};

struct selftest {
    const char *device; /* exec_options.device */
    const char *isa;    /* the cpu's instruction set; NULL: each that the processor has */
    const char *kernel; /* run only this one; NULL: all */
    void (*row)(void *ctx, const struct selftest_row *row);
    /* Called at the end, once for each kernel that the device ran, with its name and variant. May be NULL. */
    void (*ran)(void *ctx, const char *kernel, uint64_t times);
    /* Called before each case on a Vulkan device: its number, from 1, and the
     * number of cases. May be NULL. */
    void (*progress)(void *ctx, uint32_t case_number, uint32_t n_cases);
    void *ctx;
    enum selftest_grid grid;
    /* Threads that compute cases of a Vulkan device, each with a logical device of its own; 0: one. The
     * functions above are called by one thread at a time. */
    uint32_t n_threads;
};

/* Returns the number of cases over their bound, or a negative ERR_* when a case could not run. */
int selftest_run(const struct selftest *s, struct moeflux_err *e);

#endif
