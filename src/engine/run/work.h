/* work.h - an evaluation on one stage, from the hidden states that enter it to those that leave it. The next
 * tokens are recorded while the device computes ("ahead").
 *
 * The commands of a token do not depend on its id, so they can be ready before the id is known. Then they
 * are deferred, and submitted when the host knows the id. If groups of sequences alternate on several
 * devices, the next group is guessed: the one that came after this group the last time. A wrong guess costs
 * the recording.
 *
 * If one device holds all experts and samples (work.runs_on), the id stays on the device: the next token
 * reads it there. So it is submitted as soon as it is recorded, and is in flight while the host follows one
 * token later. If the host wants no more tokens, or another one, the token in flight is wasted. Its row of
 * the KV cache is overwritten. Its recurrent state is in the buffer that becomes the current one only when
 * the token is accepted. */
#ifndef MOEFLUX_ENGINE_RUN_WORK_H
#define MOEFLUX_ENGINE_RUN_WORK_H

#include "engine/run/pass.h"

/* An evaluation: n tokens of one sequence, or a batch of several sequences, or a chain: n tokens of one
 * sequence that are computed as if they were of n. */
struct work {
    struct moeflux_model *m;
    struct moeflux_session *const *list;
    const int32_t *ids; /* [n] */
    uint32_t n;
    uint32_t n_all;          /* n, and the tokens of the chunks that follow at once */
    uint32_t n_after;        /* tokens that will follow the work's; their ids follow its own */
    uint32_t keep;           /* arch_chunk.keep */
    struct arch_batch batch; /* zeroed without is_batched, and for a chain */
    bool is_batched, is_watched;
    bool is_chain; /* and is_batched */
    /* one device holds all experts and samples: the token after it may be in flight (see above) */
    bool runs_on;
    bool is_last; /* outputs->logits are those of this chunk */
    /* the recurrent states move with each chunk (forward.h), not with the sequences' positions */
    bool is_moving;
    uint32_t ahead; /* positions between the sequence's end and the first token */
    uint32_t flips; /* evaluations between the sequence's end and this one */
    const struct moeflux_outputs *outputs;
    float *const *logits; /* [n_single], in batched decode; a chain's [n] */
    /* sampling on the device, as many as `logits` in batched decode; NULL: the host gets the logits */
    struct device_choice *choice;
};

/* Logits of a few tokens on the last stage, which work_end_rows copies to the caller. */
struct work_rows {
    bool is_there;
    bool is_wanted; /* false: the device samples from them, except those without a sampler */
    uint32_t n;
    uint32_t half; /* pass.half */
};

/* Returns the work's pass on one stage. each: room for what the pass refers to; NULL: one sequence. */
struct pass work_pass(const struct work *w, struct stage *at,
                      struct arch_sequence each[MOEFLUX_MAX_PARALLEL]);
/* Takes the turn of a stage and waits until nothing else is in flight there (stage_wait_idle). On failure
 * the caller does not have the turn. */
int work_enter(const struct work *w, struct stage *at, const struct exec_watch *watch, struct moeflux_err *e);
/* Waits for the token in flight, if there is one, and drops its results. Must be called before any other use
 * of the stage, whose turn the caller has. */
int work_drop_ahead(struct stage *at, struct moeflux_err *e);
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

#endif
