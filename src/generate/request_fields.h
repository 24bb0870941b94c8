/* request_fields.h - the fields of a request: their names, and how they become options. A part of request. */
#ifndef MOEFLUX_GENERATE_REQUEST_FIELDS_H
#define MOEFLUX_GENERATE_REQUEST_FIELDS_H

#include <stddef.h>
#include <stdint.h>

#include "base/json.h"

struct generator;
struct moeflux_err;
struct request;
struct request_options;

/* Where a field may stand. */
enum {
    REQUEST_IN_LINE = 1, /* a line of --batch */
    REQUEST_IN_CHAT = 2, /* the body of a chat */
    REQUEST_IN_TEXT = 4, /* the body of a completion */
};

/* Returns the field that a name stands for, in `places` at least; "-" counts as "_" in a line. NULL: none. */
const char *request_fields_find(const char *name, unsigned places);

/* Sets r->options to what r->fields says, checked. `where` begins the errors. ERR_FORMAT, ERR_USAGE,
 * ERR_UNSUPPORTED, ERR_MEMORY. */
int request_fields_take(struct request *r, const char *where, struct moeflux_err *e);

/* Reads a whole number from lo to hi; 5.0 is one. *out stays if it is absent. */
void request_fields_whole(struct json_view *v, const char *key, int64_t lo, int64_t hi, int64_t *out);

/* --- request_thinking.c --- */

/* Reads how much is thought, from the fields of all dialects. The later one wins of: reasoning_effort,
 * reasoning, thinking, enable_thinking, think and no_think, chat_template_kwargs. */
void request_thinking_take(struct json_view *v, struct request *r);

/* --- request_form.c --- */

/* Reads the field that the answer must fit; there may be only one. */
int request_form_take(struct request *r, struct json_view *v, struct moeflux_err *e);

/* --- request_prompt.c --- */

/* Makes the tokens of the prompt or the messages, with the chat template unless it is raw. */
int request_prompt_encode(struct request *r, struct generator *s, const char *where, struct moeflux_err *e);

#endif
