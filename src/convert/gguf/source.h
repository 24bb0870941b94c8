/* source.h - a GGUF file as the source of a conversion: its tensors under canonical names, in the order of
 * rows and columns that the model's own files have.
 *
 * llama.cpp's converter changes some tensors: of Qwen3.5 it puts the value heads of the delta net in another
 * order, of both hybrid families it stores -exp(A_log); the weights of norms have 1 added already, as ours
 * have. All of that is undone as the numbers are read. To model_dir these tensors are of DTYPE_GGUF: float32
 * numbers, whatever their type in the file. */
#ifndef MOEFLUX_CONVERT_GGUF_SOURCE_H
#define MOEFLUX_CONVERT_GGUF_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "convert/encode.h"
#include "convert/gguf/gguf.h"
#include "model/model.h"

struct format;
struct gguf_place;

struct gguf_source {
    struct gguf file;
    struct gguf_place *places; /* tensor.off of the model_dir's tensors counts them */
    size_t n_places;
    bool rounds_scales; /* to float16, also where that does not hold them */
};

/* Of a file that is open, whose config is read (m->config): fills m->files (borrowed), tensors and n_tensors.
 * ERR_FORMAT, ERR_UNSUPPORTED: a tensor that the family does not have, or two under one name. */
int gguf_source_open(struct gguf_source *s, struct model_dir *m, struct moeflux_err *e);
/* Takes what is the file's from `m` and closes it. Zeroed ones are legal. */
void gguf_source_close(struct gguf_source *s, struct model_dir *m);

/* The format that a matrix gets: one that holds it exactly, where there is one. A plain one where it is of
 * plain numbers. */
uint32_t gguf_source_format(const struct gguf_source *s, const struct tensor *t);
/* The same for two stacks of experts that need a common format; never a plain one. */
uint32_t gguf_source_expert_format(const struct gguf_source *s, const struct tensor *a,
                                   const struct tensor *b);
/* Whether the codes and scales of this format stand for exactly the tensor's numbers, group by group; with
 * rounds_scales, its codes. */
bool gguf_source_holds(const struct gguf_source *s, const struct tensor *t, uint32_t format);

/* Numbers first .. first + n - 1, in float32. ERR_IO. */
int gguf_source_read(const struct gguf_source *s, const struct tensor *t, uint64_t first, uint64_t n,
                     float *out, struct moeflux_err *e);
/* The same as codes of a format that holds them; whole groups. `sum` gets what rounding the scales costs, and
 * nothing where they are exact; NULL: it is not measured. ERR_FORMAT: a scale is not finite or does not fit.
 * */
int gguf_source_codes(const struct gguf_source *s, const struct tensor *t, uint64_t first, uint64_t n,
                      uint32_t format, const struct convert_codes *out, struct convert_error *sum,
                      struct moeflux_err *e);

/* Bytes of n numbers in the file. */
uint64_t gguf_source_bytes(const struct gguf_source *s, const struct tensor *t, uint64_t n);
/* "Q4_K" */
const char *gguf_source_type(const struct gguf_source *s, const struct tensor *t);

#endif
