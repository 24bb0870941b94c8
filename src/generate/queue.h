/* queue.h - requests that wait for one model: which is computed next, and which states of its prompt are kept
 * because the others begin with it too. */
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
    const struct token_list *tokens; /* of its prompt, borrowed; NULL: none, there is a result */
    void *of;                        /* the caller's: what is to be computed */
    uint64_t since;                  /* queue.n_chosen when it was added */
    bool taken;                      /* the caller's: it is being computed */
    char *result;                    /* the caller's, from malloc; NULL: not computed yet */
    bool failed;                     /* the caller's: the result is an error */
};

struct queue { /* zeroed at first; freed with queue_free */
    struct generator *generator;
    struct queue_item *items; /* [QUEUE_MAX], the first n in use, in the order in which they were added */
    size_t n;
    uint64_t n_chosen; /* requests computed so far */
    struct queue_worth {
        uint32_t piece, order; /* tokens */
    } worth;
    uint32_t most_checkpoints;
};

/* For a generator with a sequence, which gets as many checkpoints as there is memory for. ERR_MEMORY. */
int queue_init(struct queue *q, struct generator *g, struct moeflux_err *e);

/* Requests and tokens that are held have limits. */
bool queue_has_room(const struct queue *q);
/* A zeroed item at the end, where there is room; borrowed until the next remove. */
struct queue_item *queue_add(struct queue *q);
void queue_remove(struct queue *q, size_t idx);

/* The next one to compute: the first without a result, or one that has much more in common with what was
 * computed last. None waits for more than QUEUE_MAX others: requests with a common prefix may never end.
 * NULL: there is none. */
struct queue_item *queue_choose(struct queue *q);

/* Brings the sequence to the end of the prompt of `r`, with its logits, and gives it a sampler with `seed`.
 * r: the item's request, or one of several that it has. *n_reused: tokens that the sequence had already. As
 * moeflux_session_reuse and generator_eval. */
int queue_prefill(struct queue *q, const struct queue_item *item, const struct request *r, uint64_t seed,
                  uint32_t *n_reused, struct moeflux_err *e);

void queue_free(struct queue *q);

#endif
