/* stacks.h - describes experts that a checkpoint stores in stacks, all of a layer in one tensor.
 *
 * gpt-oss: blocks of 4-bit floats with a scale each, gate and up rows interleaved. MLX's tensors have the
 * same bytes. Step-3.5: 8-bit floats [n_experts][rows][cols], and the scales of their blocks
 * [n_experts][block rows][block columns]. */
#ifndef MOEFLUX_MODEL_STACKS_H
#define MOEFLUX_MODEL_STACKS_H

struct moeflux_err;
struct tensor_list;

/* Replaces gpt-oss's stacks in the list by MLX's tensors. ERR_FORMAT, ERR_MEMORY. */
int stacks_split(struct tensor_list *l, const char *where, struct moeflux_err *e);
/* Replaces stacks of 8-bit floats, and those of their scales, by tensors of one expert each. ERR_MEMORY. */
int stacks_split_fp8(struct tensor_list *l, struct moeflux_err *e);

#endif
