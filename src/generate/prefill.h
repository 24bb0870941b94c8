/* prefill.h - evaluates a prompt in a sequence that may have a part of it.
 *
 *   prefill_begin   the sequence goes back to what it can reuse of the prompt; the sampler is made
 *   prefill_run     the rest is evaluated, with checkpoints at the stops
 *
 * The results depend on where a prompt is cut into evaluations, and nothing else cuts one. */
#ifndef MOEFLUX_GENERATE_PREFILL_H
#define MOEFLUX_GENERATE_PREFILL_H

#include <stdbool.h>
#include <stdint.h>

#include "generate/prefix.h"

struct generator;
struct moeflux_err;
struct moeflux_outputs;
struct moeflux_session;
struct moeflux_sampler_options;

struct prefill {
    const int32_t *ids; /* [n], the prompt, n >= 1; borrowed, as is `sampling` */
    uint32_t n;
    const struct moeflux_sampler_options *sampling; /* a new sampler's options; NULL: the old sampler stays */
    struct prefix_cuts cuts;
    /* Not 0: the prompt is cut at the cuts and into chunks of so many tokens, and what is reused of the
     * sequence was cut at the same places. Then results are those of a run from the beginning. */
    uint32_t chunk;
    struct prefix_evaluated held; /* the sequence's tokens that may be reused with `chunk` */
    /* Positions where the evaluation is cut for a checkpoint. Unused if the sequence can go back without. */
    struct prefix_stops stops;
    /* If more tokens than these are left of the prompt, the last stop does not cut them: its checkpoint is
     * made inside a chunk. But one token after a stop is always an evaluation of its own: the same prompt,
     * sent again, has only that one left and gets the same results. UINT32_MAX: every stop cuts. */
    uint32_t passes_above;
};

/* Returns how many tokens of the prompt the sequence has and prefill_begin would keep. */
uint32_t prefill_usable(const struct prefill *p, const struct moeflux_session *s);

/* Goes back to the longest prefix that can be reused, *n_reused tokens, and makes the sampler, which accepts
 * them. Errors: those of moeflux_session_reuse and generator_new_sampler. */
int prefill_begin(struct generator *g, const struct prefill *p, uint32_t *n_reused, struct moeflux_err *e);

/* Evaluates the prompt up to `to`, without logits, with checkpoints at the stops up to it. Does nothing when
 * the position is `to`. Too little memory for a checkpoint is no failure: going back is slower then. */
int prefill_feed(struct generator *g, const struct prefill *p, uint32_t to, struct moeflux_err *e);

/* Evaluates the rest of the prompt, with logits (generator_eval). Errors: those of moeflux_session_eval and
 * moeflux_session_checkpoint. */
int prefill_run(struct generator *g, const struct prefill *p, const struct moeflux_outputs *outputs,
                struct moeflux_err *e);

#endif
