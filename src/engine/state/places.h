/* places.h - where in a file of a state a prompt can go on, without loading it. */
#ifndef MOEFLUX_ENGINE_STATE_PLACES_H
#define MOEFLUX_ENGINE_STATE_PLACES_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;
struct moeflux_model;

struct state_places { /* freed with state_places_free */
    uint32_t n_tokens, n_checkpoints;
    bool recurrent;        /* only the end and checkpoints can be gone on from, else every token */
    uint64_t bytes;        /* of the file */
    int32_t *ids;          /* [n_tokens] */
    uint32_t *checkpoints; /* [n_checkpoints], positions, ascending */
};

/* Reads a file of version 3 of this model. The checksum of the states is not looked at. ERR_IO; ERR_FORMAT:
 * not such a file; ERR_MEMORY. On failure `p` is empty. */
int state_places_read(struct state_places *p, struct moeflux_model *m, const char *path,
                      struct moeflux_err *e);
void state_places_free(struct state_places *p);

#endif
