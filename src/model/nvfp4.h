/* nvfp4.h - describes matrices in NVIDIA's NVFP4 as ModelOpt and compressed-tensors publish them.
 *
 * A matrix [rows][cols] is three tensors:
 *   ModelOpt           compressed-tensors
 *   X.weight           X.weight_packed         U8 [rows][cols / 2]        E2M1, even columns in the low bits
 *   X.weight_scale     X.weight_scale          F8_E4M3 [rows][cols / 16]  one for 16 columns
 *   X.weight_scale_2   X.weight_global_scale   F32, one number            multiplies scales, or divides them
 *
 * value = code * s, with s = weight_scale * weight_scale_2 or s = weight_scale / weight_global_scale in
 * float32: the formulas of the two libraries. MLX's nvfp4 has the same codes and scales. A matrix has the
 * format FORMAT_NVFP4_FACTOR, whose factor is weight_scale_2, or 1 / weight_global_scale.
 *
 * A GGUF file has blocks of 64 columns, 36 bytes: four scales, then for each 16 columns 8 bytes, with columns
 * 0 to 7 in the low bits and 8 to 15 in the high bits. The factor is a tensor of its own, of an expert stack
 * with a number for each expert. A scale's sign is ignored, and 0x7f is zero.
 *
 * Other numbers of such a module are left out: input_scale and input_global_scale scale activations, which
 * are not rounded here, and k_scale and v_scale an 8-bit KV cache, whose type --kv-type says. */
#ifndef MOEFLUX_MODEL_NVFP4_H
#define MOEFLUX_MODEL_NVFP4_H

#include <stdint.h>

struct moeflux_err;
struct open_file;
struct tensor;
struct tensor_list;

/* Describes the list's matrices as MLX's tensors: X.weight of words and X.scales, and X.global_scale, the
 * factor (model.h), which is read now. A list without such matrices stays as it is. ERR_FORMAT: a tensor of a
 * matrix is missing, or has another dtype or shape; a factor is not finite, or too large for scales.
 * ERR_UNSUPPORTED: an n-gram table, or a module that also scales or reorders its input or has a matrix of low
 * rank. ERR_IO, ERR_MEMORY. */
int nvfp4_adopt(struct tensor_list *l, const struct open_file *files, const char *where,
                struct moeflux_err *e);

/* Check that a tensor has n factors, float32, and that its factor x is finite, also times the largest scale.
 * ERR_FORMAT names the tensor; where: the file. */
int nvfp4_check_factors(const struct tensor *t, uint64_t n, const char *where, struct moeflux_err *e);
int nvfp4_check_factor(const struct tensor *t, float x, const char *where, struct moeflux_err *e);

enum {
    NVFP4_BLOCK_BYTES = 36,
    NVFP4_BLOCK_CODES = 32, /* bytes of a block's codes */
    NVFP4_BLOCK_SCALES = 4  /* bytes of its scales */
};

/* Takes bytes [from, from + n) of a matrix's blocks apart; both are multiples of 4. codes, scales: receive
 * the matrix's, in the order of columns; NULL: left out. */
void nvfp4_split(const uint8_t *bytes, uint64_t from, uint64_t n, uint8_t *codes, uint8_t *scales);

#endif
