/* scaled.h - describes matrices that a checkpoint stores as DeepSeek-V4's: a NAME.weight and its NAME.scale,
 * which are 8-bit floats with the scales of blocks (fp8.h), or experts' 4-bit floats (E2M1), two in a byte,
 * the even column in the low bits, with a power of two for 32 columns. MLX's mxfp4 has the same bytes. */
#ifndef MOEFLUX_MODEL_SCALED_H
#define MOEFLUX_MODEL_SCALED_H

struct moeflux_err;
struct tensor_list;

/* Gives scales the names that fp8.h and MLX have for them, and 4-bit floats MLX's description. A matrix whose
 * scales are missing is refused where it is read. ERR_UNSUPPORTED: a matrix of 4-bit floats is no expert's;
 * ERR_FORMAT: its rows have no multiple of 4 bytes, or its scales are of another dtype; ERR_MEMORY. */
int scaled_adopt(struct tensor_list *l, const char *where, struct moeflux_err *e);

#endif
