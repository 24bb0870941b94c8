/* call.h - a request for completions in the form of OpenAI's API: its fields, checked, and an ask for each
 * choice. */
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
    bool chat; /* else a completion of a text */
    bool stream, include_usage;
    bool echo; /* the prompt comes first */
    bool logprobs;
    uint32_t n; /* choices of each prompt */
    uint32_t n_asks;
    struct ask *asks; /* [n_asks], prompt by prompt */
};

/* What a request says nothing about. */
struct call_defaults {
    struct request_options options;
    bool turns; /* conversations go on: where later requests part from one is looked for */
};

/* Reads a body and makes the asks, with their tokens. g: prepared; it is copied for the templates. 0, or -1
 * with the refusal filled. */
int call_read(struct call *c, bool chat, const char *body, size_t len, const struct generator *g,
              const struct call_defaults *defaults, struct refusal *no);

/* The same from an object that was parsed already, as a line of a batch has it. */
int call_take(struct call *c, bool chat, const struct json_t *in, const struct generator *g,
              const struct call_defaults *defaults, struct refusal *no);

/* A zeroed one is legal. */
void call_free(struct call *c);

#endif
