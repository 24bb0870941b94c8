/* prompt_queue.h - evaluates short parts of several prompts together (batched_feed), so that weights are read
 * once for all.
 *
 * Each thread waits with a part of its own prompt. Nobody waits for others to come: while one group is
 * evaluated, the next one gathers. A part's results do not depend on its group. */
#ifndef MOEFLUX_GENERATE_PROMPT_QUEUE_H
#define MOEFLUX_GENERATE_PROMPT_QUEUE_H

#include <stdbool.h>

#include "engine/run/batched.h"

struct moeflux_err;
struct moeflux_model;
struct prompt_queue;

/* Creates a queue. The model must outlive it. ERR_MEMORY. */
int prompt_queue_new(struct prompt_queue **out, struct moeflux_model *m, struct moeflux_err *e);
/* Frees a queue, once no thread waits. NULL is legal. */
void prompt_queue_free(struct prompt_queue *q);

/* Returns the most tokens of a part that goes with others: a longer one uses the whole device by itself. 0: no
 * part does, on this model. */
uint32_t prompt_queue_most(const struct prompt_queue *q);
/* Returns whether the part goes with others. It depends on nothing but the part. */
bool prompt_queue_takes(const struct prompt_queue *q, const struct batched_prompt *p);
/* Evaluates the part, which the queue takes. Errors: those of batched_feed. */
int prompt_queue_feed(struct prompt_queue *q, const struct batched_prompt *p, struct moeflux_err *e);

#endif
