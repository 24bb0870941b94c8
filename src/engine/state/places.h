/* places.h - reads from a saved state at which tokens a prompt can continue, without loading the state. */
#ifndef MOEFLUX_ENGINE_STATE_PLACES_H
#define MOEFLUX_ENGINE_STATE_PLACES_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/attention/kv_cache.h"

struct moeflux_err;
struct moeflux_model;

struct places { /* freed with places_free */
    uint32_t n_tokens, n_checkpoints;
    bool at_checkpoints;   /* a prompt can continue only at the end and at checkpoints, else at every token */
    enum kv_type kv;       /* type of the KV cache: only a model with the same one can load it */
    uint64_t bytes;        /* size of the file */
    int32_t *ids;          /* [n_tokens] */
    uint32_t *checkpoints; /* [n_checkpoints], positions, ascending */
};

/* Reads a file of version 3 or 4 of this model. Does not check the checksum of the states. ERR_IO;
 * ERR_FORMAT: not such a file; ERR_MEMORY. On failure `p` is empty. */
int places_read(struct places *p, struct moeflux_model *m, const char *path, struct moeflux_err *e);
void places_free(struct places *p);

/* Returns the last position up to `pos`, which is at most n_tokens, to which the loaded sequence can go
 * back without an evaluation (rewind_reach). */
uint32_t places_reach(const struct places *p, uint32_t pos);

#endif
