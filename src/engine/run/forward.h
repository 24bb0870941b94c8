/* forward.h - evaluates tokens on all stages: takes each, fills in what it reads, lets its layers compute
 * (layers.h; single tokens with all experts resident: token.h), and hands the hidden states over. While one
 * stage computes a chunk of a prompt, the stage before it computes the next.
 *
 * Each stage has a worker. It starts a chunk when the stage before has handed it over, and hands its own
 * chunk over when the next stage has finished the previous one. So a stage is at most as many chunks ahead of
 * the last stage as there are stages between them, and keeps as many older recurrent states: after a stop all
 * stages go back to the last one's position. Chunks, and so results, are the same as on one device.
 *
 * A prompt of several chunks on several stages has a thread for each stage; the last stage's is the
 * caller's. One chunk, or one token, is a pipeline of one: the caller's thread goes from stage to stage. */
#ifndef MOEFLUX_ENGINE_RUN_FORWARD_H
#define MOEFLUX_ENGINE_RUN_FORWARD_H

#include "engine/session.h"

/* Tokens of one sequence in chunks of m->max_chunk, or a batch of several sequences in one chunk. */
struct forward_call {
    struct moeflux_session *const *list;
    const int32_t *ids; /* [n] */
    uint32_t n, n_chunks;
    uint32_t n_after; /* tokens that will probably follow in another call; their ids follow the n */
    bool is_batched;  /* several sequences, each once in `list`: n_chunks is 1 */
    /* whose tokens they are: single tokens have logits, parts of prompts have none */
    struct arch_batch batch;
    bool is_chain; /* also batched: n tokens of one sequence, all entries of `list` (verify.h) */
    /* the recurrent state after so many tokens of the last chunk goes to the stages' `kept` (arch_chunk);
     * 0: it is not kept */
    uint32_t keep;
    bool is_last; /* outputs->logits are those of the last chunk */
    const struct moeflux_outputs *outputs;
    float *const *logits; /* [n_single], in batched decode */
    /* sampling on the device, if every token passes it without the host: [n_single] in batched decode, a
     * chain's [n], else of a single token; NULL: the host gets the logits */
    struct device_choice *choices;
};

/* Whether several chunks with these outputs can be evaluated at once. Also false if there is no memory for
 * the older states. */
bool forward_takes_chunks(struct moeflux_session *s, const struct moeflux_outputs *outputs);
/* Evaluates the tokens. One sequence advances; on failure it keeps the chunks that were finished (*n_done
 * tokens), and if it is_stopped, sequence_recover must be called before its states are used; otherwise its
 * states are undefined. Several sequences do not advance; their new recurrent states are in
 * recurrent_next. */
int forward_run(const struct forward_call *c, uint32_t *n_done, struct moeflux_err *e);

/* Returns how many older recurrent states a stage keeps in addition to the two that every stage has. */
uint32_t forward_n_older(uint32_t stage, uint32_t n_stages);

/* Single tokens that take longer than this can be stopped, like chunks. */
#define QUICK_NS ((uint64_t)250000000)

/* Checks the mapped files of weights and experts; every evaluation does it first. */
int forward_check_files(const struct moeflux_model *m, struct moeflux_err *e);

#endif
