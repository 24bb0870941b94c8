/* cpu_lab.h - random matrices and vectors for the products of src/cpu, and what they must give. */
#ifndef MOEFLUX_TESTS_CPU_LAB_H
#define MOEFLUX_TESTS_CPU_LAB_H

#include "args.h"
#include "cpu/product.h"
#include "cpu_bits.h"

/* A matrix whose memory ends where its last row ends: reading on is found by the sanitizers. */
struct cpu_lab {
    struct cpu_matrix w;
    void *weight, *scales, *biases;
    bool is_moved;
};
void cpu_lab_matrix(struct cpu_lab *l, uint32_t format, uint32_t rows, uint32_t cols, uint64_t seed);
/* The same matrix at odd addresses, where what follows cannot be read. */
void cpu_lab_move(struct cpu_lab *to, const struct cpu_matrix *from);
void cpu_lab_free(struct cpu_lab *l);

/* n numbers of about 1, some of them ten times as large. Freed by the caller. */
float *cpu_lab_floats(uint64_t n, uint64_t seed);
/* n floats of NaN, aligned to 64. Freed by the caller. */
float *cpu_lab_room(uint64_t n);

/* The format's name as cpu_bits.txt has it: "q3-g32-f16", "g-q4_k" of a block format. */
enum { CPU_LAB_NAME = 24 };
const char *cpu_lab_format(uint32_t format, char out[CPU_LAB_NAME]);

/* Formats of every kind, and of groups and scales the others. */
#define CPU_LAB_FORMATS                                                                                      \
    FORMAT_Q4, FORMAT_Q8, FORMAT_BF16, FORMAT_F32, FORMAT_Q2, FORMAT_Q3, FORMAT_Q5, FORMAT_Q6, FORMAT_MXFP4, \
        FORMAT_MXFP8, FORMAT_NVFP4, FORMAT_F16, FORMAT_Q2 + FORMAT_GROUP_128 + FORMAT_SCALE_F32,             \
        FORMAT_Q3 + FORMAT_GROUP_32 + FORMAT_SCALE_F16, FORMAT_Q4 + FORMAT_GROUP_32,                         \
        FORMAT_Q4 + FORMAT_GROUP_128 + FORMAT_SCALE_F16, FORMAT_Q5 + FORMAT_GROUP_32 + FORMAT_SCALE_F32,     \
        FORMAT_Q6 + FORMAT_GROUP_128, FORMAT_Q6 + FORMAT_SCALE_F16, FORMAT_Q8 + FORMAT_GROUP_32,             \
        FORMAT_Q8 + FORMAT_GROUP_128 + FORMAT_SCALE_F32, FORMAT_FP8, FORMAT_FP8_32, FORMAT_NVFP4_FACTOR,     \
        CPU_LAB_SHORT_BLOCKS, CPU_LAB_BLOCKS
/* Block formats of 32 or 64 columns, and of 256. */
#define CPU_LAB_SHORT_BLOCKS                                                                                 \
    FORMAT_G_Q4_0, FORMAT_G_Q4_1, FORMAT_G_Q5_0, FORMAT_G_Q5_1, FORMAT_G_Q8_0, FORMAT_G_IQ4_NL,              \
        FORMAT_G_MXFP4, FORMAT_G_NVFP4
#define CPU_LAB_BLOCKS                                                                                       \
    FORMAT_G_Q2_K, FORMAT_G_Q3_K, FORMAT_G_Q4_K, FORMAT_G_Q5_K, FORMAT_G_Q6_K, FORMAT_G_IQ1_S,               \
        FORMAT_G_IQ1_M, FORMAT_G_IQ2_XXS, FORMAT_G_IQ2_XS, FORMAT_G_IQ2_S, FORMAT_G_IQ3_XXS, FORMAT_G_IQ3_S, \
        FORMAT_G_IQ4_XS, FORMAT_G_TQ1_0, FORMAT_G_TQ2_0

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
