/* queue.h - requests that wait for one model: which one is computed next, and where its prompt gets
 * checkpoints for other requests with a common prefix. */
#ifndef MOEFLUX_GENERATE_QUEUE_H
#define MOEFLUX_GENERATE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "generate/prefix.h"

struct generator;
struct job;
struct moeflux_err;
struct moeflux_session;
struct token_list;

enum { QUEUE_MAX = 256 }; /* requests */

struct queue_item {
    const struct token_list *tokens; /* tokens of the prompt, borrowed; NULL: none, there is a result */
    struct prefix_cuts cuts;         /* set by the caller: where it is cut in any case */
    void *of;                        /* set by the caller: the request's own data */
    uint64_t since;                  /* queue.n_chosen when it was added */
    struct job *job;                 /* set by the caller while it is being computed; else NULL */
    char *result;                    /* set by the caller, from malloc; NULL: not computed yet */
    bool failed;                     /* set by the caller: the result is an error */
};

struct queue {                /* zeroed at first; freed with queue_free */
    struct queue_item *items; /* [QUEUE_MAX], the first n in use, in the order in which they were added */
    size_t n;
    uint64_t n_chosen; /* requests computed so far */
    /* Not 0: prompts are cut at their cuts and into chunks of so many tokens only, so that a result does not
     * depend on the other requests. */
    uint32_t chunk;
    /* Tokens that a checkpoint of their own (piece), or an earlier turn (order), must save. */
    struct queue_worth {
        uint32_t piece, order;
    } worth;
    uint32_t most_checkpoints;
};

/* Creates a queue for sequences like the generator's, which get as many checkpoints as memory allows.
 * ERR_MEMORY. */
int queue_init(struct queue *q, struct generator *g, uint32_t chunk, struct moeflux_err *e);

/* Returns whether another request may be added: requests and their tokens have limits. */
bool queue_has_room(const struct queue *q);
/* Appends a zeroed item, if there is room; borrowed until the next remove. */
struct queue_item *queue_add(struct queue *q);
void queue_remove(struct queue *q, size_t idx);

/* Returns the next item to compute: the first one without a result or a job, or one with a much longer common
 * prefix with the sequence that will compute it (NULL: not known). None waits for more than QUEUE_MAX others,
 * because requests with a common prefix may never end. NULL: there is none. */
struct queue_item *queue_choose(struct queue *q, const struct moeflux_session *s);

/* Chooses where a prompt of the item gets checkpoints: where others differ from it, if returning there saves
 * more than the piece costs, and where it differs from what the sequence has. With `chunk`, at whole chunks
 * that others have, too, after the cuts: what comes before a cut is shared without a checkpoint. ids [n]: the
 * item's tokens, or those of another of its prompts. */
struct prefix_stops queue_stops(const struct queue *q, const struct queue_item *item,
                                const struct token_list *ids, const struct moeflux_session *s);

void queue_free(struct queue *q);

#endif
