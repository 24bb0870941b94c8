/* ggml_type.h - the types of tensors in GGUF files: names, and sizes of their blocks. A row is whole
 * blocks. */
#ifndef MOEFLUX_BASE_GGML_TYPE_H
#define MOEFLUX_BASE_GGML_TYPE_H

#include <stdint.h>

enum { GGML_TYPE_F32 = 0, GGML_TYPE_F16 = 1, GGML_TYPE_I32 = 26, GGML_TYPE_BF16 = 30, GGML_TYPE_MXFP4 = 39 };

struct ggml_type {
    const char *name; /* "Q4_K" */
    uint32_t block;   /* numbers of a block; 0: moeflux does not read the type */
    uint32_t bytes;   /* bytes of a block */
    uint32_t format;  /* FORMAT_* of the blocks as they are; FORMAT_NONE: whole numbers */
};

/* Returns the type with this number, also one that moeflux does not read; NULL: ggml never had it. */
const struct ggml_type *ggml_type_find(uint32_t number);
/* Writes the names of the types of numbers that are read: "F32, F16, ... or NVFP4". */
enum { GGML_TYPE_LIST = 256 };
const char *ggml_type_list(char out[GGML_TYPE_LIST]);

#endif
