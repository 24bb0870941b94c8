#include "base/ggml_type.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "base/format.h"

/* The index is the type's number in a file. */
static const struct ggml_type types[] = {
    [GGML_TYPE_F32] = {"F32", 1, 4},
    [GGML_TYPE_F16] = {"F16", 1, 2},
    [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},
    [4] = {"Q4_2", 0, 0},
    [5] = {"Q4_3", 0, 0},
    [6] = {"Q5_0", 32, 22},
    [7] = {"Q5_1", 32, 24},
    [8] = {"Q8_0", 32, 34},
    [9] = {"Q8_1", 0, 0},
    [10] = {"Q2_K", 256, 84},
    [11] = {"Q3_K", 256, 110},
    [12] = {"Q4_K", 256, 144},
    [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},
    [15] = {"Q8_K", 0, 0},
    [16] = {"IQ2_XXS", 256, 66},
    [17] = {"IQ2_XS", 256, 74},
    [18] = {"IQ3_XXS", 256, 98},
    [19] = {"IQ1_S", 256, 50},
    [20] = {"IQ4_NL", 32, 18},
    [21] = {"IQ3_S", 256, 110},
    [22] = {"IQ2_S", 256, 82},
    [23] = {"IQ4_XS", 256, 136},
    [24] = {"I8", 0, 0},
    [25] = {"I16", 0, 0},
    [26] = {"I32", 0, 0},
    [27] = {"I64", 0, 0},
    [28] = {"F64", 0, 0},
    [29] = {"IQ1_M", 256, 56},
    [GGML_TYPE_BF16] = {"BF16", 1, 2},
    [31] = {"Q4_0_4_4", 0, 0},
    [32] = {"Q4_0_4_8", 0, 0},
    [33] = {"Q4_0_8_8", 0, 0},
    [34] = {"TQ1_0", 256, 54},
    [35] = {"TQ2_0", 256, 66},
    [39] = {"MXFP4", 32, 17},
    [40] = {"NVFP4", 64, 36},
};
enum { N_TYPES = sizeof types / sizeof *types };

const struct ggml_type *ggml_type_find(uint32_t number)
{
    return number < N_TYPES && types[number].name ? &types[number] : NULL;
}

/* Plain types have our own formats; formats of blocks have ggml's names. */
uint32_t ggml_type_format(uint32_t number)
{
    const struct ggml_type *t = ggml_type_find(number);
    if (!t || t->block == 0)
        return FORMAT_NONE;
    if (t->block == 1)
        return number == GGML_TYPE_F32 ? FORMAT_F32 : number == GGML_TYPE_F16 ? FORMAT_F16 : FORMAT_BF16;
    return FORMAT_NONE;
}

const char *ggml_type_list(char out[GGML_TYPE_LIST])
{
    size_t at = 0, last = N_TYPES;
    while (types[last - 1].block == 0)
        last--;
    for (size_t i = 0; i < last && at < GGML_TYPE_LIST; i++)
        if (types[i].block)
            at += (size_t)snprintf(out + at, GGML_TYPE_LIST - at, "%s%s",
                                   i == 0         ? ""
                                   : i + 1 < last ? ", "
                                                  : " or ",
                                   types[i].name);
    return out;
}
