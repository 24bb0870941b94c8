/* publish.h - writes small checkpoints as their publishers would: unquantised, with Hugging Face's names. */
#ifndef MOEFLUX_TESTS_PUBLISH_H
#define MOEFLUX_TESTS_PUBLISH_H

#include <stdbool.h>

enum publish_scales {
    PUBLISH_FOR_BLOCKS, /* weight_scale_inv; config.json says the blocks */
    PUBLISH_FOR_ROWS,   /* weight_scale, a column; config.json says nothing */
    PUBLISH_FOR_ALL     /* weight_scale, one; config.json says nothing */
};

/* Whose names and whose last factor matrices in NVFP4 have. */
enum publish_nvfp4 { PUBLISH_NO_NVFP4, PUBLISH_MODELOPT, PUBLISH_COMPRESSED };

struct publish_form {
    const char *dtype; /* the matrices' dtype: "F32", "F16" or "BF16" */
    bool fused;        /* experts are stacks with gate above up; false: tensors of one expert each */
    bool less_one;     /* norms lose 1, convolutions are [C, 1, taps] */
    bool sharded;      /* three files with an index; false: one */
    /* rows and columns of a block of 8-bit floats with one scale; 0: none. Such matrices' numbers are rounded
     * to 8-bit floats: to codes with scales, or with `widened` to what these stand for. */
    unsigned block;
    enum publish_scales scales;
    bool modelopt_fp8;       /* config.json has ModelOpt's quant_algo FP8 */
    const char *scale_dtype; /* "F32", "BF16" or "F8_E8M0"; NULL: F32 */
    bool widened;
    /* Matrices with whole groups of 64 columns become NVFP4, or with `widened` the numbers that it stands
     * for; with `block`, too, only the experts' do. */
    enum publish_nvfp4 nvfp4;
    const char *fp8_experts; /* part of the names of experts in 8-bit floats all the same; NULL: none */
};

/* Writes the checkpoint in `from`, quantised by MLX or not, to the new directory `to`. Numbers must fit the
 * dtype exactly, except with `block`. Asserts. */
void publish_model(const char *from, const char *to, const struct publish_form *form);

#endif
