/* pipeline.h - a prompt on several devices: while one computes a chunk, the one before it has the next.
 *
 * Each stage has a thread, the last one is the caller's. A stage takes a chunk when the one before has handed
 * it over, and hands its own over when the next has taken the one before. So a stage is at most as many
 * chunks ahead of the last as there are stages between them, and keeps as many recurrent states: after a stop
 * all go back to where the last one is. The chunks are those of one device, and so are the results. */
#ifndef MOEFLUX_ENGINE_RUN_PIPELINE_H
#define MOEFLUX_ENGINE_RUN_PIPELINE_H

#include "engine/engine.h"

struct pipeline_call {
    const int32_t *ids; /* [n] */
    uint32_t n, n_chunks;
    uint32_t keep; /* of the last chunk: as in forward_chunk */
    bool last;     /* outputs->logits are those of the last chunk */
    const struct moeflux_outputs *outputs;
};

/* Whether chunks with these outputs can go through several stages at once. False too where there is no memory
 * for the states. */
bool pipeline_takes(struct moeflux_session *s, const struct moeflux_outputs *outputs);
/* Appends n tokens in chunks of m->max_chunk. On failure the sequence keeps the chunks that were finished
 * (*n_done tokens), and sequence_recover must be called before its states are used. */
int pipeline_run(struct moeflux_session *s, const struct pipeline_call *c, uint32_t *n_done,
                 struct moeflux_err *e);

/* Recurrent states that a stage keeps beside the two that every one has. */
uint32_t pipeline_n_older(uint32_t stage, uint32_t n_stages);

#endif
