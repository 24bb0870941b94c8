/* batcher.h - batched decode of answers that run on a thread each (batched_eval).
 *
 * A thread with a token waits for others; then one of the waiting threads evaluates a group of tokens. The
 * size of groups keeps every device of the model busy: with n consecutive devices there are at least n
 * groups, if there are that many answers. A group begins on the first device when the previous one has
 * left it. The results are batch-invariant.
 *
 * Where a batch may have parts of prompts (batched_takes_prompts), a short part is evaluated with the next
 * group, so that weights are read once for both, and those who decode hardly wait. The end of a prompt, its
 * last token, is decoded as the others' tokens are. Without answers, a group has prompts alone: while one is
 * evaluated, the next one gathers.
 *
 * Elsewhere, with `prompts_first`, on one device, a group waits for the threads that evaluate a prompt, so
 * that groups are as large as they can be. It waits for no more prompts than a group may have tokens, because
 * prompts may never end. */
#ifndef MOEFLUX_GENERATE_BATCHER_H
#define MOEFLUX_GENERATE_BATCHER_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/run/batched.h"
#include "moeflux.h"

enum { BATCHER_MOST = MOEFLUX_MAX_PARALLEL }; /* most tokens of a group */

struct answer;
struct answer_options;
struct batcher;
struct generator;

/* One thread's place in the batcher; zeroed at first. */
struct batcher_slot {
    void *owner; /* the thread's own pointer */
    struct batcher *batcher;
    bool has_joined; /* the thread decodes an answer: others wait for its tokens */
    bool is_coming;  /* the thread evaluates a prompt and will join */
    /* The slots of the group that this thread evaluates, the last n_prompts with a part of a prompt; n_group
     * 0: none. A progress callback on the thread may read them. */
    struct batcher_slot *group[BATCHER_MOST];
    uint32_t n_group, n_prompts;

    /* Private to the batcher. */
    uint32_t number;
    struct batched_token token;
    struct batched_prompt prompt;
    atomic_bool is_done;
    int rc;
    struct moeflux_err error;
    struct batcher_slot *next;
    sem_t posts;
    uint32_t n_posts;
};

/* Creates a batcher. The model must outlive it. ERR_MEMORY. */
int batcher_new(struct batcher **out, struct moeflux_model *m, bool prompts_first, struct moeflux_err *e);
/* Frees a batcher, once no answer runs. NULL is legal. */
void batcher_free(struct batcher *b);

/* Returns the most tokens of a part of a prompt that is evaluated with others: more of them, up to a chunk,
 * use the whole device by themselves. 0: none is, on this model. */
uint32_t batcher_most_prompt(const struct batcher *b);

/* Sends the generator's prompts, and its single tokens while an answer runs, through the batcher. The
 * generator still belongs to the slot's thread. */
void batcher_bind(struct batcher *b, struct batcher_slot *slot, struct generator *g);
/* Says that the slot's thread evaluates a prompt now, or that no answer will follow. */
void batcher_expect(struct batcher_slot *slot, bool is_coming);
/* Does the work of answer_run with a generator that was bound. */
int batcher_answer(struct batcher_slot *slot, struct answer *a, struct generator *g,
                   const struct answer_options *o, struct moeflux_err *e);

#endif
