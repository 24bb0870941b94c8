/* code_books.h - the code books of block formats (kernels/codebooks.h) in the memory of a Vulkan device, in
 * the order in which kernels/lib/dequant_blocks.glsl reads them. Kernels copy one into shared memory: as
 * constants of a kernel they would be a third of its code, and lavapipe would compile it for minutes. */
#ifndef MOEFLUX_EXEC_CODE_BOOKS_H
#define MOEFLUX_EXEC_CODE_BOOKS_H

#include <stdint.h>

struct exec;
struct moeflux_err;

/* Loads the code books unless they are there. An operation calls it at open if one of its matrices has a
 * block format. */
int code_books_open(struct exec *x, struct moeflux_err *e);
/* Returns what a kernel takes as the scales of a matrix: of block formats, which have none, the code books'
 * address; 0: not loaded. */
uint64_t code_books_or_scales(const struct exec *x, uint32_t format, uint64_t scales);
/* Puts the code books' address in place of scales that are given in two words. */
void code_books_put(const struct exec *x, uint32_t *low, uint32_t *high);

#endif
