/* selftest.h - every operation on a device against its reference, over a grid of shapes: the smallest legal
 * ones, odd ones and those of real models. Inputs are random with a fixed seed. */
#ifndef MOEFLUX_SELFTEST_SELFTEST_H
#define MOEFLUX_SELFTEST_SELFTEST_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;

struct selftest_row {
    const char *kernel; /* as in kernels/ */
    const char *shape;  /* valid during the call */
    double error;       /* largest |difference| / largest |reference|; NaN counts as infinite */
    double bound;
    bool ok;
    bool skipped;       /* the device has no kernel for this case: nothing was computed, `ok` holds */
    const char *device; /* its name */
};

/* Of brief cases on a software device. First: every kernel, each way through it once; the others have other
 * sizes, formats and combinations of constants. */
enum selftest_part { SELFTEST_WHOLE, SELFTEST_FIRST, SELFTEST_REST };

struct selftest {
    const char *device; /* as exec_open takes it */
    const char *isa;    /* of the cpu: its instruction set; NULL: each that the processor has */
    const char *kernel; /* run only this one; NULL: all */
    void (*row)(void *ctx, const struct selftest_row *row);
    /* At the end, once for each kernel that the device ran, with its name and variant. NULL: nobody asks. */
    void (*ran)(void *ctx, const char *kernel, uint64_t times);
    void *ctx;
    /* On a software device without the cases whose kernels only have other sizes, or another format, than
     * those of cases that stay: lavapipe's compiler takes up to a second for each of them. On the cpu without
     * the sizes of real models. */
    bool brief;
    enum selftest_part part;
};

/* Returns the number of cases over their bound, or a negative ERR_* when a case could not run. */
int selftest_run(const struct selftest *s, struct moeflux_err *e);

#endif
