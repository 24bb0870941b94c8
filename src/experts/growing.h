/* growing.h - allocates the host memory of expert slots in a background thread, one chunk of slots at a time.
 *
 * Pinning host memory takes a second for 3 to 6 GB. Slots that have memory already are used meanwhile. */
#ifndef MOEFLUX_EXPERTS_GROWING_H
#define MOEFLUX_EXPERTS_GROWING_H

#include <stdbool.h>
#include <stdint.h>

struct growing;
struct moeflux_err;
struct slots;

/* Starts the thread. The slots (slots_open_growing) must outlive it. NULL with `e` filled: no memory, no
 * thread. */
struct growing *growing_new(struct slots *s, struct moeflux_err *e);
/* Waits for the chunk that is being allocated. NULL is legal. */
void growing_free(struct growing *g);

/* Only one thread may call the functions below. */

/* Requests memory for n more chunks than are in use. */
void growing_request(struct growing *g, uint32_t n);
/* Returns whether there may be more chunks: not all are in use, and the system refused none. */
bool growing_has_more(struct growing *g);
/* Takes allocated chunks into use. Returns how many slots that adds. */
uint32_t growing_take(struct growing *g);
/* Does the same, but waits for a requested chunk if none is allocated. Returns 0 if none will come. */
uint32_t growing_await(struct growing *g);

#endif
