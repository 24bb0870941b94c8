#include "base/ggml_type.h"

#include <stddef.h>
#include <stdio.h>

#include "args.h"
#include "base/format_blocks.h"

/* The index is the type's number in a file. */
#define PLAIN(number, name, bytes) [number] = {#name, 1, bytes, FORMAT_##name},
#define NOT_READ(number, name)     [number] = {#name, 0, 0, FORMAT_NONE},

#define BLOCKS(number, name) [number] = {#name, FORMAT_COLS_##name, FORMAT_BYTES_##name, FORMAT_G_##name},

static const struct ggml_type types[] = {
    /* clang-format off */
    PLAIN(GGML_TYPE_F32, F32, 4)
    PLAIN(GGML_TYPE_F16, F16, 2)
    BLOCKS(2, Q4_0)
    BLOCKS(3, Q4_1)
    NOT_READ(4, Q4_2)
    NOT_READ(5, Q4_3)
    BLOCKS(6, Q5_0)
    BLOCKS(7, Q5_1)
    BLOCKS(8, Q8_0)
    NOT_READ(9, Q8_1)
    BLOCKS(10, Q2_K)
    BLOCKS(11, Q3_K)
    BLOCKS(12, Q4_K)
    BLOCKS(13, Q5_K)
    BLOCKS(14, Q6_K)
    NOT_READ(15, Q8_K)
    BLOCKS(16, IQ2_XXS)
    BLOCKS(17, IQ2_XS)
    BLOCKS(18, IQ3_XXS)
    BLOCKS(19, IQ1_S)
    BLOCKS(20, IQ4_NL)
    BLOCKS(21, IQ3_S)
    BLOCKS(22, IQ2_S)
    BLOCKS(23, IQ4_XS)
    NOT_READ(24, I8)
    NOT_READ(25, I16)
    [GGML_TYPE_I32] = {"I32", 1, 4, FORMAT_NONE},
    NOT_READ(27, I64)
    NOT_READ(28, F64)
    BLOCKS(29, IQ1_M)
    PLAIN(GGML_TYPE_BF16, BF16, 2)
    NOT_READ(31, Q4_0_4_4)
    NOT_READ(32, Q4_0_4_8)
    NOT_READ(33, Q4_0_8_8)
    BLOCKS(34, TQ1_0)
    BLOCKS(35, TQ2_0)
    BLOCKS(39, MXFP4)
    BLOCKS(40, NVFP4)
    /* clang-format on */
};
enum { N_TYPES = sizeof types / sizeof *types };

const struct ggml_type *ggml_type_find(uint32_t number)
{
    return number < N_TYPES && types[number].name ? &types[number] : NULL;
}

const char *ggml_type_list(char out[GGML_TYPE_LIST])
{
    size_t at = 0, last = N_TYPES;
    while (types[last - 1].block == 0)
        last--;
    for (size_t i = 0; i < last && at < GGML_TYPE_LIST; i++)
        if (types[i].block && types[i].format != FORMAT_NONE)
            at += (size_t)snprintf(out + at, GGML_TYPE_LIST - at, "%s%s",
                                   i == 0         ? ""
                                   : i + 1 < last ? ", "
                                                  : " or ",
                                   types[i].name);
    return out;
}
