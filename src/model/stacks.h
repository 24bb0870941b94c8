/* stacks.h - describes experts that a checkpoint stores as gpt-oss's: all of a layer in one tensor, blocks of
 * 4-bit floats with a scale each, gate and up rows interleaved. MLX's tensors have the same bytes. */
#ifndef MOEFLUX_MODEL_STACKS_H
#define MOEFLUX_MODEL_STACKS_H

struct moeflux_err;
struct tensor_list;

/* Replaces the stacks of the list by MLX's tensors. ERR_FORMAT, ERR_MEMORY. */
int stacks_split(struct tensor_list *l, const char *where, struct moeflux_err *e);

#endif
