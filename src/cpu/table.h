/* table.h - the functions of this folder that are compiled for each instruction set, and its struct
 * cpu_isa. */
#ifndef MOEFLUX_CPU_TABLE_H
#define MOEFLUX_CPU_TABLE_H

#include "cpu/vec.h"
#include "cpu/isa.h"

extern const struct cpu_isa VEC_NAME(cpu_isa);

/* amx has its own versions of what reads a matrix's codes for many tokens. It shares everything else with
 * avx512 (CPU_ISAS_SHARED). */
#ifdef CPU_ISA_amx
#define SHARED_NAME(name) VEC_JOIN(name, avx512)
#else
#define SHARED_NAME(name) VEC_NAME(name)
#endif

cpu_quantise_fn SHARED_NAME(quantise);
cpu_gemv_fn SHARED_NAME(gemv);
cpu_gemv_fn SHARED_NAME(gemv_blocks);
cpu_widen_fn SHARED_NAME(widen_blocks);
/* Writes the weights of columns col to col + n - 1 of 16 rows of a block format: out[16 * c + i] is of row
 * rows[i]. col: a multiple of 256, n: of 64. Only sets with AVX2 have it. */
void SHARED_NAME(panel_blocks)(const struct cpu_matrix *w, const uint32_t rows[16], uint32_t col, uint32_t n,
                               float *out);
/* 256 columns of 16 rows of a block format as whole numbers. */
enum { CPU_CODE_ROWS = 16, CPU_CODE_COLS = 32, CPU_CODE_PARTS = 8 };
struct cpu_code_panel {
    /* signed codes: [32 columns][4 columns][row][column] */
    _Alignas(64) int8_t codes[CPU_CODE_PARTS][CPU_CODE_COLS / 4][CPU_CODE_ROWS * 4];
    /* each is for 16 columns */
    float scales[2 * CPU_CODE_PARTS][CPU_CODE_ROWS], biases[2 * CPU_CODE_PARTS][CPU_CODE_ROWS];
    uint32_t group; /* columns with the same scale, and bias if there are some: 16 or 32 */
    bool has_biases;
};
/* Sets the panel of columns col to col + n - 1 of rows rows[i] of a block format. col: a multiple of 256; n:
 * at most 256, a multiple of 64. Only avx512 has it. */
void SHARED_NAME(panel_codes)(const struct cpu_matrix *w, const uint32_t rows[CPU_CODE_ROWS], uint32_t col,
                              uint32_t n, struct cpu_code_panel *to);
cpu_pack_fn SHARED_NAME(pack);
cpu_gemm_fn VEC_NAME(gemm);
/* Only avx512 has them. */
cpu_pack_fn SHARED_NAME(pack_int16);
cpu_gemm_fn SHARED_NAME(gemm_int16);
cpu_widen_fn VEC_NAME(widen);
cpu_pack_fixed_fn SHARED_NAME(pack_fixed);
cpu_gemm_fixed_fn gemm_fixed_amx;
/* Affine formats of 3, 5 and 6 bits with bf16 scales, for processors with VBMI in addition to avx512. */
cpu_gemv_fn gemv_avx512vbmi;

enum {
#define CPU_IDX_OF(set) CPU_IDX_##set,
    CPU_ISAS(CPU_IDX_OF)
#undef CPU_IDX_OF
};

#endif
