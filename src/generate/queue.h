/* queue.h - requests that wait for one model: which one is computed next, and where its prompt gets
 * checkpoints for other requests with a common prefix. */
#ifndef MOEFLUX_GENERATE_QUEUE_H
#define MOEFLUX_GENERATE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "generate/request.h"

struct moeflux_err;
struct generator;

enum { QUEUE_MAX = 256 }; /* requests */

struct queue_item {
    const struct token_list *tokens; /* tokens of the prompt, borrowed; NULL: none, there is a result */
    void *of;                        /* set by the caller: the request's own data */
    uint64_t since;                  /* queue.n_chosen when it was added */
    bool taken;                      /* set by the caller: it is being computed */
    char *result;                    /* set by the caller, from malloc; NULL: not computed yet */
    bool failed;                     /* set by the caller: the result is an error */
};

struct queue { /* zeroed at first; freed with queue_free */
    struct generator *generator;
    struct queue_item *items; /* [QUEUE_MAX], the first n in use, in the order in which they were added */
    size_t n;
    uint64_t n_chosen; /* requests computed so far */
    /* Tokens that a checkpoint of their own (piece), or an earlier turn (order), must save. */
    struct queue_worth {
        uint32_t piece, order;
    } worth;
    uint32_t most_checkpoints;
};

/* Creates a queue for a generator with a sequence, which gets as many checkpoints as memory allows.
 * ERR_MEMORY. */
int queue_init(struct queue *q, struct generator *g, struct moeflux_err *e);

/* Returns whether another request may be added: requests and their tokens have limits. */
bool queue_has_room(const struct queue *q);
/* Appends a zeroed item, if there is room; borrowed until the next remove. */
struct queue_item *queue_add(struct queue *q);
void queue_remove(struct queue *q, size_t idx);

/* Returns the next item to compute: the first one without a result, or one with a much longer common prefix
 * with the sequence. None waits for more than QUEUE_MAX others, because requests with a common prefix may
 * never end. NULL: there is none. */
struct queue_item *queue_choose(struct queue *q);

/* Evaluates the prompt of `r`, with logits, and makes a sampler with `seed`. r: the item's request, or one of
 * its several requests. *n_reused: tokens that the sequence had already. Errors: those of
 * prefill_begin and prefill_run. */
int queue_prefill(struct queue *q, const struct queue_item *item, const struct request *r, uint64_t seed,
                  uint32_t *n_reused, struct moeflux_err *e);

void queue_free(struct queue *q);

#endif
