/* source.h - a GGUF file as the source of a conversion: tensors have canonical names, and rows and columns
 * the order of the model's own files.
 *
 * llama.cpp's converter changes some tensors. It reorders the value heads of Qwen3.5's delta net and stores
 * -exp(A_log) for both hybrid families. Reading undoes both. It also adds 1 to the weights of norms, as our
 * files do. In model_dir these tensors have DTYPE_GGUF: float32 numbers, whatever their type in the file. */
#ifndef MOEFLUX_CONVERT_GGUF_SOURCE_H
#define MOEFLUX_CONVERT_GGUF_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "convert/encode.h"
#include "base/gguf.h"
#include "model/model.h"

struct format;
struct gguf_place;

struct gguf_source {
    struct gguf file;
    struct gguf_place *places; /* [n_places]; tensor.off of the model_dir's tensors is the index */
    size_t n_places;
    bool rounds_scales; /* scales that float16 does not represent are rounded to it */
    bool keeps_blocks;  /* matrices stay as blocks, and value heads in the file's order */
};

/* Fills m->files (borrowed), tensors and n_tensors. The file must be open and m->config read. ERR_FORMAT,
 * ERR_UNSUPPORTED: a tensor that the family does not have, or two with one name. */
int gguf_source_open(struct gguf_source *s, struct model_dir *m, struct moeflux_err *e);
/* Removes the borrowed files from `m` and closes the source. Zeroed ones are legal. */
void gguf_source_close(struct gguf_source *s, struct model_dir *m);

/* Returns the format that a matrix gets: its own with keeps_blocks, except MXFP4, which has the same bytes as
 * the storage format; one that holds it exactly, if there is one; a plain one for plain numbers. */
uint32_t gguf_source_format(const struct gguf_source *s, const struct tensor *t);
/* Returns the format of a stack of experts, `a`; never a plain one. Without keeps_blocks, and if one of the
 * stacks has plain numbers, it is the common format of both. */
uint32_t gguf_source_expert_format(const struct gguf_source *s, const struct tensor *a,
                                   const struct tensor *b);
/* Returns whether this format holds the tensor's numbers exactly, group by group; with rounds_scales, whether
 * it holds its codes. */
bool gguf_source_holds(const struct gguf_source *s, const struct tensor *t, uint32_t format);

/* Returns the factor of the matrix that has number `at`. The tensor has some: its format is NVFP4_FACTOR. */
float gguf_source_factor(const struct gguf_source *s, const struct tensor *t, uint64_t at);

/* Reads numbers [first, first + n) as float32. ERR_IO. */
int gguf_source_read(const struct gguf_source *s, const struct tensor *t, uint64_t first, uint64_t n,
                     float *out, struct moeflux_err *e);
/* Reads them, whole groups or blocks, as codes of a format that holds them. Adds to `sum` the errors of
 * rounding the scales, which is nothing if they are exact; NULL: not measured. ERR_FORMAT: a scale is not
 * finite or does not fit. */
int gguf_source_codes(const struct gguf_source *s, const struct tensor *t, uint64_t first, uint64_t n,
                      uint32_t format, const struct convert_codes *out, struct convert_error *sum,
                      struct moeflux_err *e);

/* Reads the blocks of numbers [first, first + n), whole blocks of a format that the tensor keeps. ERR_IO. */
int gguf_source_blocks(const struct gguf_source *s, const struct tensor *t, uint64_t first, uint64_t n,
                       uint8_t *out, struct moeflux_err *e);

/* Returns the bytes of n numbers in the file. */
uint64_t gguf_source_bytes(const struct gguf_source *s, const struct tensor *t, uint64_t n);
/* Returns the name of the tensor's type: "Q4_K". */
const char *gguf_source_type(const struct gguf_source *s, const struct tensor *t);

#endif
