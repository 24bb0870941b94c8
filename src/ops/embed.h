/* embed.h - rows of the embedding matrix: out[t] = W[ids[t]], dequantised exactly.
 * W [vocab][cols] in any storage format, cols a multiple of 64; ids i32 [n], each < vocab (the caller checks). */
#ifndef MOEFLUX_OPS_EMBED_H
#define MOEFLUX_OPS_EMBED_H

#include <stdint.h>

#include "ops/exec.h"
#include "ops/matvec.h"

struct embed {
    struct kernel kernel;
    struct weights weights;
    uint32_t workgroup;
};

/* ERR_UNSUPPORTED when the shape breaks the rule above. */
int embed_open(struct embed *op, struct exec *x, const struct weights *w, struct moeflux_err *e);
/* ids: address of i32 [n]; dst: address of f32 [n][cols]. */
void embed_run(const struct embed *op, struct exec *x, uint64_t ids, uint64_t dst, uint32_t n);

#endif
