/* tensors.h - lists a GGUF file's tensors with the names and shapes that models have here. */
#ifndef MOEFLUX_MODEL_GGUF_TENSORS_H
#define MOEFLUX_MODEL_GGUF_TENSORS_H

#include <stdbool.h>
#include <stddef.h>

struct config;
struct gguf;
struct gguf_tensor;
struct moeflux_err;
struct tensor_list;

/* Appends the tensors of the text model, in the file's order: canonical name, dtype (DTYPE_BLOCKS: a type
 * with blocks), format, shape with the outermost dimension first, and place. from [g->n_tensors]: receives
 * the file's tensor for each. *n_left_out: the number of tensors of other parts, such as vision. The factor
 * of an NVFP4 matrix X.weight is X.global_scale. ERR_UNSUPPORTED: a tensor that the family does not have. */
int gguf_tensors_list(const struct gguf *g, const struct config *c, struct tensor_list *l,
                      const struct gguf_tensor **from, size_t *n_left_out, struct moeflux_err *e);

/* Returns whether the file has a layer of multi-token prediction that can be used. c: the model, or its
 * drafter. */
bool gguf_tensors_have_drafter(const struct gguf *g, const struct config *c);

/* Describes NVFP4 matrices with factors, which the list has as blocks, as codes and scales (nvfp4.h). Sorts
 * the list. where: the file, for messages. ERR_MEMORY; ERR_FORMAT: two tensors with one name. */
int gguf_tensors_split(struct tensor_list *l, const char *where, struct moeflux_err *e);

#endif
