/* ggml_type.h - the types of tensors in GGUF files: names, and sizes of their blocks. A row is whole
 * blocks. */
#ifndef MOEFLUX_BASE_GGML_TYPE_H
#define MOEFLUX_BASE_GGML_TYPE_H

#include <stdint.h>

enum {
    GGML_TYPE_F32 = 0,
    GGML_TYPE_F16 = 1,
    GGML_TYPE_BF16 = 30,
};

struct ggml_type {
    const char *name; /* "Q4_K" */
    uint32_t block;   /* numbers of a block; 0: moeflux does not read the type */
    uint32_t bytes;   /* bytes of a block */
};

/* Returns the type with this number, also one that moeflux does not read; NULL: ggml never had it. */
const struct ggml_type *ggml_type_find(uint32_t number);
/* Returns the storage format (FORMAT_*) that has the type's blocks as they are; FORMAT_NONE: there is none. */
uint32_t ggml_type_format(uint32_t number);
/* Writes the names of the types that are read: "F32, F16, ... or NVFP4". */
enum { GGML_TYPE_LIST = 256 };
const char *ggml_type_list(char out[GGML_TYPE_LIST]);

#endif
