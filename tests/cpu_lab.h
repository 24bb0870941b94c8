/* cpu_lab.h - random matrices and vectors for the products of src/cpu, and what they must give. */
#ifndef MOEFLUX_TESTS_CPU_LAB_H
#define MOEFLUX_TESTS_CPU_LAB_H

#include "cpu/product.h"
#include "cpu_bits.h"

/* A matrix whose memory ends where its last row ends: reading on is found by the sanitizers. */
struct cpu_lab {
    struct cpu_matrix w;
    void *weight, *scales, *biases;
};
void cpu_lab_matrix(struct cpu_lab *l, enum cpu_format format, uint32_t rows, uint32_t cols, uint64_t seed);
/* The same matrix at odd addresses. */
void cpu_lab_move(struct cpu_lab *to, const struct cpu_matrix *from);
void cpu_lab_free(struct cpu_lab *l);

/* n numbers of about 1, some of them ten times as large. Freed by the caller. */
float *cpu_lab_floats(uint64_t n, uint64_t seed);
/* n floats of NaN, aligned to 64. Freed by the caller. */
float *cpu_lab_room(uint64_t n);

const char *cpu_lab_format(enum cpu_format format);

/* One weight, exact. */
double cpu_lab_weight(const struct cpu_matrix *w, uint32_t row, uint32_t col);
/* W x in double: y [rows]. */
void cpu_lab_product(const struct cpu_matrix *w, const float *x, double *y);

/* The largest difference; NaN where y has one. */
double cpu_lab_worst(const float *y, const double *want, uint64_t n);
double cpu_lab_rms(const double *v, uint64_t n);

/* A placed and filled vector; `memory` is freed by the caller. */
struct cpu_vector cpu_lab_vector(const struct cpu_isa *isa, const struct cpu_matrix *w, const float *x,
                                 void **memory);

#endif
