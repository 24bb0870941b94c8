/* response_store.h - responses that a client may get again or continue (previous_response_id), in memory
 * within a bound. Each has its own items only and refers to the response that it continues; so a conversation
 * takes memory once. Locked: any thread may call. */
#ifndef MOEFLUX_API_RESPONSE_STORE_H
#define MOEFLUX_API_RESPONSE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t;
struct moeflux_err;
struct response_store;

/* Creates an empty store. most_bytes: of its texts; beyond it the oldest responses are dropped. NULL with `e`
 * filled. */
struct response_store *response_store_new(size_t most_bytes, struct moeflux_err *e);
/* Frees the store; NULL is legal. */
void response_store_free(struct response_store *s);

/* Keeps a response, an object with `id` and `output`. previous: the id of the response that it continues;
 * NULL: none. input: array of its own items. Without memory, or if it is larger than the bound, it is not
 * kept. */
void response_store_put(struct response_store *s, const char *previous, const struct json_t *input,
                        const struct json_t *response);

/* Return what the caller owns; NULL: no response has this id, or no memory. _get: the response. _input: its
 * own input items. _items: the input and output items of the whole conversation up to its end. */
struct json_t *response_store_get(struct response_store *s, const char *id);
struct json_t *response_store_input(struct response_store *s, const char *id);
struct json_t *response_store_items(struct response_store *s, const char *id);

/* Forgets a response; those that continue it stay complete. Returns whether it was there. */
bool response_store_delete(struct response_store *s, const char *id);

#endif
