/* work.h - an evaluation on one stage, from the hidden states that enter it to those that leave it. */
#ifndef MOEFLUX_ENGINE_RUN_WORK_H
#define MOEFLUX_ENGINE_RUN_WORK_H

#include "engine/run/pass.h"

/* An evaluation: n tokens of one sequence, or one token of each of n sequences. */
struct work {
    struct moeflux_model *m;
    struct moeflux_session *const *list;
    const int32_t *ids; /* [n] */
    uint32_t n;
    uint32_t n_all; /* n, and the tokens of the chunks that follow at once */
    uint32_t keep;  /* arch_chunk.keep */
    bool is_batched, is_watched;
    bool is_last; /* outputs->logits are those of this chunk */
    /* the recurrent states move with each chunk (forward.h), not with the sequences' positions */
    bool is_moving;
    uint32_t ahead; /* positions between the sequence's end and the first token */
    uint32_t flips; /* evaluations between the sequence's end and this one */
    const struct moeflux_outputs *outputs;
    float *const *logits;         /* [n], in batched decode */
    struct device_choice *choice; /* sampling on the device; NULL: the host gets the logits */
};

/* Logits of a few tokens on the last stage, which work_end_rows copies to the caller. */
struct work_rows {
    bool is_there;
    bool is_wanted; /* false: the device samples from them */
    uint32_t half;  /* pass.half */
};

/* Returns the position of sequence i of the work, and its state on the stage. */
struct arch_sequence work_sequence(const struct work *w, uint32_t i, const struct stage *at);
/* Whether the next token is sampled on this stage, if the token passes it without the host. */
bool work_chooses(const struct work *w, const struct stage *at);
/* Returns the work's pass on one stage. each: room for what the pass refers to; NULL: one sequence. */
struct pass work_pass(const struct work *w, struct stage *at, struct arch_sequence each[MOEFLUX_MAX_BATCHED]);
/* Sets (on) or ends the modes that the work needs on a stage: `watch` if it is watched, batch-invariant
 * results in batched decode. */
void work_set_up(const struct work *w, const struct stage *at, const struct exec_watch *watch, bool on);
/* Runs the pass of a work from begin to end; the caller has the stage's turn. If *rows are there, it must
 * call work_end_rows with the result. A host copy of them (stage.logits) stays valid when the stage is
 * given back. */
int work_run(const struct work *w, struct pass *p, struct work_rows *rows, struct moeflux_err *e);
/* Copies the rows to the caller if rc is 0. */
void work_end_rows(const struct work *w, const struct work_rows *rows, int rc);
/* Copies the hidden states of a finished stage to the input of the next one, which must be idle. The caller
 * has the turn of both. Not needed if the stages have a crossing. */
void work_hand_over(const struct work *w, const struct stage *at);
/* Records one token, from its id to its logits in view.logits, in a batch of its own. All experts must be
 * resident, and there must be one stage. */
int work_record_token(struct moeflux_session *s, const struct arch_chunk *c, struct moeflux_err *e);

#endif
