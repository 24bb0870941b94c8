/* matvec.h - what all product operations share: how a device runs kernels/matvec.glsl, and the exact value of a
 * stored weight for the references. */
#ifndef MOEFLUX_OPS_MATVEC_H
#define MOEFLUX_OPS_MATVEC_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct exec;
struct kernel;

/* Where a matrix lies: addresses as in kernels/args.h, format FORMAT_*. scales and biases are 0 for plain formats. */
struct weights {
    uint64_t weight, scales, biases;
    uint32_t rows, cols, format;
};

/* Rows [first, first + n) of a matrix. Plain rows are a multiple of 4 bytes. */
struct weights weights_rows(const struct weights *w, uint32_t first, uint32_t n);

/* Whether its numbers are not quantised. */
bool weights_are_plain(const struct weights *w);

/* The constants of matvec.glsl in order. */
enum {
    MATVEC_SUBGROUP,
    MATVEC_WORKGROUP,
    MATVEC_ROWS,
    MATVEC_TOKENS,
    MATVEC_TILE,
    MATVEC_FORMATS,
    MATVEC_SPLIT,
    MATVEC_N_SPEC
};
struct matvec_shape {
    uint32_t rows; /* of the whole dispatch: all segments, experts */
    uint32_t cols;
    uint32_t tokens;   /* vectors at once: 1 or 4 */
    uint32_t formats;  /* bit f is set when a matrix is stored as FORMAT_f */
    uint32_t matrices; /* MATRICES of the kernel */
};
/* The specialisation of matvec.glsl for a device, and the rows (of each matrix) that one workgroup computes. */
struct matvec_plan {
    uint32_t spec[MATVEC_N_SPEC];
    uint32_t workgroup_rows, workgroup, tokens, matrices;
    bool wide; /* run the variant for software devices, X_wide */
};
struct matvec_plan matvec_plan_for(const struct exec *x, const struct matvec_shape *shape);

/* exec_kernel for a kernel on matvec.glsl that has a variant for software devices, `name`_wide. */
int matvec_kernel(struct exec *x, struct kernel *k, const char *name, void (*ref)(const void *args),
                  uint32_t args_bytes, const struct matvec_plan *p, struct err *e);

/* Row `row` of a matrix as `cols` doubles (exact: q * scale + bias has one float32 value). `at`: its addresses as
 * host pointers. */
void matvec_ref_row(const struct weights *at, uint32_t row, double *out);

/* sum a[i] * b[i] */
double matvec_ref_dot(const double *a, const double *b, uint32_t n);

/* out[c] = x[c] * norm[c] / sqrt(mean(x^2) + eps); norm NULL: out = x. */
void matvec_ref_norm(const float *x, const float *norm, uint32_t n, double eps, double *out);

double ref_sigmoid(double x);
double ref_silu(double x);

static inline const float *ref_floats(uint64_t address)
{
    return (const float *)(uintptr_t)address;
}
static inline float *ref_floats_mut(uint64_t address)
{
    return (float *)(uintptr_t)address;
}
static inline const uint32_t *ref_words(uint64_t address)
{
    return (const uint32_t *)(uintptr_t)address;
}

#endif
