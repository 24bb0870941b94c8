/* call.h - the body of a request for completions in OpenAI's form: its checked fields and its choices. */
#ifndef MOEFLUX_API_CALL_H
#define MOEFLUX_API_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "generate/request.h"

struct ask;
struct generator;
struct json_t;
struct refusal;

enum { CALL_MAX_CHOICES = 128 };

struct call {  /* zeroed at first; freed with call_free */
    bool chat; /* a chat; false: the completion of a text */
    bool stream, include_usage;
    bool echo; /* the reply begins with the prompt */
    bool logprobs;
    uint32_t n; /* choices for each prompt */
    uint32_t n_asks;
    struct ask *asks; /* [n_asks], ordered by prompt */
};

/* Values of fields that the body does not have. */
struct call_defaults {
    struct request_options options;
    bool turns; /* fill choice.stops: positions where the next request of a conversation will differ */
};

/* Reads a body and makes its choices with their tokens. g: prepared (generator_prepare); a copy of it runs
 * the templates. Returns 0, or -1 with the refusal filled. */
int call_read(struct call *c, bool chat, const char *body, size_t len, const struct generator *g,
              const struct call_defaults *defaults, struct refusal *no);

/* Does the same with a parsed object, such as the body of a batch line. */
int call_take(struct call *c, bool chat, const struct json_t *in, const struct generator *g,
              const struct call_defaults *defaults, struct refusal *no);

/* Frees all but the struct itself; a zeroed one is legal. */
void call_free(struct call *c);

#endif
