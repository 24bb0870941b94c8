/* queue.h - jobs of a batch that are held: which one is computed next, and where its prompt gets checkpoints
 * for others with a common prefix. Used by one thread at a time. */
#ifndef MOEFLUX_GENERATE_QUEUE_H
#define MOEFLUX_GENERATE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "generate/prefix.h"
#include "moeflux_chat.h"

struct token_list;

enum { QUEUE_MAX = MOEFLUX_POOL_MAX_HELD }; /* jobs */

struct queue { /* zeroed at first */
    struct moeflux_job *first, **last;
    uint32_t n;
    uint64_t n_chosen; /* jobs so far */
    /* Not 0: prompts are cut at their cuts and into chunks of so many tokens only, so that a result does not
     * depend on the other jobs. */
    uint32_t chunk;
    /* Tokens that a checkpoint of their own (piece), or an earlier turn (order), must save. */
    struct queue_worth {
        uint32_t piece, order;
    } worth;
    uint32_t most_checkpoints; /* a sequence's limit */
};

/* Makes an empty queue for a model whose sequences of max_context tokens get as many checkpoints as memory
 * allows. Errors: those of moeflux_session_new. */
int queue_init(struct queue *q, struct moeflux_model *m, uint32_t max_context, uint32_t chunk,
               struct moeflux_err *e);

/* Appends a job; there is room (n < QUEUE_MAX). */
void queue_add(struct queue *q, struct moeflux_job *j);
/* Removes a job before it is chosen. */
void queue_remove(struct queue *q, struct moeflux_job *j);

/* Removes the next job to compute: the first one, or one with a much longer common prefix with the sequence
 * that will compute it (NULL: not known). None waits for more than QUEUE_MAX others, because jobs with a
 * common prefix may never end. Its choices get their stops. NULL: there is none. */
struct moeflux_job *queue_choose(struct queue *q, const struct moeflux_session *s);

#endif
