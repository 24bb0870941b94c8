/* pipeline.h - a prompt on several devices: while one computes a chunk, the device before it computes the
 * next.
 *
 * Each stage has a thread; the last stage's is the caller's. A stage starts a chunk when the stage before has
 * handed it over. It hands its own chunk over when the next stage has finished the previous one. So a stage
 * is at most as many chunks ahead of the last stage as there are stages between them, and keeps as many older
 * recurrent states: after a stop all stages go back to the last one's position. Chunks, and so results, are
 * the same as on one device. */
#ifndef MOEFLUX_ENGINE_RUN_PIPELINE_H
#define MOEFLUX_ENGINE_RUN_PIPELINE_H

#include "engine/engine.h"

struct pipeline_call {
    const int32_t *ids; /* [n] */
    uint32_t n, n_chunks;
    uint32_t keep; /* forward_chunk's `keep` for the last chunk */
    bool last;     /* outputs->logits are those of the last chunk */
    const struct moeflux_outputs *outputs;
};

/* Whether chunks with these outputs can be pipelined. Also false if there is no memory for the older
 * states. */
bool pipeline_takes(struct moeflux_session *s, const struct moeflux_outputs *outputs);
/* Appends n tokens in chunks of m->max_chunk. On failure the sequence keeps the chunks that were finished
 * (*n_done tokens), and sequence_recover must be called before its states are used. */
int pipeline_run(struct moeflux_session *s, const struct pipeline_call *c, uint32_t *n_done,
                 struct moeflux_err *e);

/* Returns how many older recurrent states a stage keeps in addition to the two that every stage has. */
uint32_t pipeline_n_older(uint32_t stage, uint32_t n_stages);

#endif
