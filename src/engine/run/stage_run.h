/* stage_run.h - tokens on one stage: from what goes into it to what comes out. */
#ifndef MOEFLUX_ENGINE_RUN_STAGE_RUN_H
#define MOEFLUX_ENGINE_RUN_STAGE_RUN_H

#include "engine/run/pass.h"

/* What is evaluated: n tokens of one sequence, or one of each of n sequences. */
struct work {
    struct moeflux_model *m;
    struct moeflux_session *const *list;
    uint32_t n;
    uint32_t keep; /* arch_chunk.keep */
    bool is_batched, is_watched;
    /* the recurrent states move with each chunk (pipeline.h), not with the sequences' positions */
    bool is_pipelined;
    uint32_t ahead; /* the tokens stand so many positions behind those that come next, */
    uint32_t flips; /* and so many evaluations */
    const struct moeflux_outputs *outputs;
    struct device_choice *choice; /* NULL: the host gets the logits */
};

/* Where sequence i of the work is, and its state on the stage. */
struct arch_sequence stage_sequence(const struct work *w, uint32_t i, const struct stage *at);
/* Whether the choice is made there, if the token passes it without the host. */
bool stage_chooses(const struct work *w, const struct stage *at);
/* The work on one stage. each: room for what the pass refers to; NULL: of one sequence. */
struct pass stage_pass(const struct work *w, struct stage *at,
                       struct arch_sequence each[MOEFLUX_MOST_TOGETHER]);
/* Begins a batch with the embedding, or with what the stage before has handed over, and records the stage's
 * layers. */
int stage_record_layers(const struct pass *p, struct moeflux_err *e);
/* The same with what comes out of the stage: the tokens' logits after the last, else the hidden states. */
int stage_record_tokens(const struct pass *p, struct moeflux_err *e);
/* A chunk, from begin to end, with stage_begin_logits and stage_end_logits. last: outputs->logits are those
 * of this chunk. */
int stage_run(const struct pass *p, bool last, struct moeflux_err *e);
/* exec_watch of all that computes there. */
void stage_watch(const struct stage *at, const struct exec_watch *w);
/* Ends what was begun. Returns rc; the text says whose fault it is. */
int stage_end(const struct pass *p, int rc, struct moeflux_err *e);
/* Behind a stage that has ended: its hidden states become what goes into the next one, which does not compute
 * now. The caller has the turn of both. Not where they have crossed by themselves (crossing.h). */
void stage_hand_over(const struct work *w, const struct stage *at);
/* What the stage's predictor has seen of these sequences is of use if they go on from there. Notes where they
 * are behind this work. */
void forward_follow(const struct work *w, struct stage *at);
/* What the last stage has made of a few tokens: f32 [n][vocab_size]. Where that is a copy it is there until
 * stage_end_logits, even if the stage has other work meanwhile, which writes to the other half.
 * stage_begin_logits: before it is computed. */
const float *stage_logits(const struct stage *at, uint32_t half);
void stage_begin_logits(struct stage *at, uint32_t half);
void stage_end_logits(struct stage *at, uint32_t half);

#endif
