/* batcher.h - answers on a thread each, whose tokens are evaluated together (moeflux_eval_batched).
 *
 * Who comes with a token waits for others; one of those that wait evaluates a group of them. Groups are as
 * large as keeps every device of the model busy: with n devices one behind the other there are n groups or
 * more, where there are as many answers; one begins on the first device when the one before has left it. What
 * a token gets does not depend on its group. */
#ifndef MOEFLUX_GENERATE_BATCHER_H
#define MOEFLUX_GENERATE_BATCHER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "moeflux.h"

enum { BATCHER_MOST = 8 }; /* tokens of a group */

struct answer;
struct answer_options;
struct batcher;
struct generator;

/* Of a thread; zeroed at first. */
struct batcher_slot {
    void *of; /* the owner's */
    struct batcher *batcher;
    bool has_joined; /* the thread comes with token after token: others wait for it */
    /* While the owner's thread evaluates a group: those in it. For a progress callback on that thread. */
    struct batcher_slot *group[BATCHER_MOST];
    uint32_t n_group;

    /* The batcher's own. */
    uint32_t number;
    struct moeflux_session *sequence;
    int32_t id;
    float *logits;
    bool is_done;
    int rc;
    struct moeflux_err error;
    struct batcher_slot *next;
    pthread_cond_t changed;
};

/* ERR_MEMORY. The model must outlive it. */
int batcher_new(struct batcher **out, struct moeflux_model *m, struct moeflux_err *e);
/* Nobody has joined. NULL is legal. */
void batcher_free(struct batcher *b);

/* From now on the generator's single tokens go through the batcher while an answer runs. It stays the slot's
 * thread's. */
void batcher_bind(struct batcher *b, struct batcher_slot *slot, struct generator *g);
/* answer_run of a generator that was bound. */
int batcher_answer(struct batcher_slot *slot, struct answer *a, struct generator *g,
                   const struct answer_options *o, struct moeflux_err *e);

#endif
