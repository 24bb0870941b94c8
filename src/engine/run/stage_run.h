/* stage_run.h - runs tokens on one stage, from the hidden states that enter it to those that leave it. */
#ifndef MOEFLUX_ENGINE_RUN_STAGE_RUN_H
#define MOEFLUX_ENGINE_RUN_STAGE_RUN_H

#include "engine/run/pass.h"

/* An evaluation: n tokens of one sequence, or one token of each of n sequences. */
struct work {
    struct moeflux_model *m;
    struct moeflux_session *const *list;
    uint32_t n;
    uint32_t keep; /* arch_chunk.keep */
    bool is_batched, is_watched;
    /* the recurrent states move with each chunk (pipeline.h), not with the sequences' positions */
    bool is_pipelined;
    uint32_t ahead; /* positions between the sequence's end and the first token */
    uint32_t flips; /* evaluations between the sequence's end and this one */
    const struct moeflux_outputs *outputs;
    struct device_choice *choice; /* sampling on the device; NULL: the host gets the logits */
};

/* Returns the position of sequence i of the work, and its state on the stage. */
struct arch_sequence stage_sequence(const struct work *w, uint32_t i, const struct stage *at);
/* Whether the next token is sampled on this stage, if the token passes it without the host. */
bool stage_chooses(const struct work *w, const struct stage *at);
/* Returns the work's pass on one stage. each: room for what the pass refers to; NULL: one sequence. */
struct pass stage_pass(const struct work *w, struct stage *at,
                       struct arch_sequence each[MOEFLUX_MAX_BATCHED]);
/* Begins a batch with the embedding, or with the hidden states of the stage before, and records the
 * layers. */
int stage_record_layers(const struct pass *p, struct moeflux_err *e);
/* Does the same and records the stage's output: the tokens' logits on the last stage, else the hidden
 * states. */
int stage_record_tokens(const struct pass *p, struct moeflux_err *e);
/* Runs a chunk from begin to end, with stage_begin_logits and stage_end_logits. last: outputs->logits are
 * those of this chunk. */
int stage_run(const struct pass *p, bool last, struct moeflux_err *e);
/* Calls exec_watch for every exec of the stage. */
void stage_watch(const struct stage *at, const struct exec_watch *w);
/* Ends a pass with the result rc. Returns rc; the text names the device at fault. */
int stage_end(const struct pass *p, int rc, struct moeflux_err *e);
/* Copies the hidden states of a finished stage to the input of the next one, which must be idle. The caller
 * has the turn of both. Not needed if the stages have a crossing. */
void stage_hand_over(const struct work *w, const struct stage *at);
/* Selects the predictor's places for the work's sequences and notes their positions after the work. What the
 * predictor has seen of a sequence counts only if the sequence goes on from there. */
void forward_track(const struct work *w, struct stage *at);
/* Returns the last stage's logits of a few tokens: f32 [n][vocab_size]. If they are a host copy, they stay
 * valid until stage_end_logits, even if the stage computes something else, which uses the other half.
 * stage_begin_logits must be called before they are computed. */
const float *stage_logits(const struct stage *at, uint32_t half);
void stage_begin_logits(struct stage *at, uint32_t half);
void stage_end_logits(struct stage *at, uint32_t half);

#endif
