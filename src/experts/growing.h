/* growing.h - a thread that allocates the memory of slots, chunk by chunk, as it is asked for.
 *
 * Pinning host memory takes a second for 3 to 6 GB, which nobody waits for: the slots that have memory are
 * used meanwhile. */
#ifndef MOEFLUX_EXPERTS_GROWING_H
#define MOEFLUX_EXPERTS_GROWING_H

#include <stdbool.h>
#include <stdint.h>

struct growing;
struct moeflux_err;
struct slots;

/* The slots (slots_open_growing) outlive it. NULL with `e` filled: no memory, no thread. */
struct growing *growing_new(struct slots *s, struct moeflux_err *e);
/* Waits for the chunk that is being allocated. NULL is legal. */
void growing_free(struct growing *g);

/* The calls below: one thread. */

/* So many more chunks than are in use are wanted. */
void growing_request(struct growing *g, uint32_t n);
/* Whether chunks are to come: not all are there, and none was refused. */
bool growing_has_more(struct growing *g);
/* Takes the chunks that were allocated into use. Returns how many slots that adds. */
uint32_t growing_take(struct growing *g);
/* The same, and waits for one if none is there, which was asked for. 0: none comes. */
uint32_t growing_await(struct growing *g);

#endif
