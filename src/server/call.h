/* call.h - a request for completions in the form of OpenAI's API: its fields, checked, and a job for each choice. */
#ifndef MOEFLUX_SERVER_CALL_H
#define MOEFLUX_SERVER_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "generate/request.h"

struct generator;
struct job;
struct json_t;
struct jobs;
struct refusal;

enum { CALL_MAX_CHOICES = 128 };

struct call {  /* zeroed at first; freed with call_free */
    bool chat; /* else a completion of a text */
    bool stream, include_usage;
    bool echo; /* the prompt comes first */
    bool logprobs;
    uint32_t n; /* choices of each prompt */
    uint32_t n_jobs;
    struct job **jobs; /* [n_jobs], prompt by prompt */
};

/* What a request says nothing about. */
struct call_defaults {
    struct request_options options;
};

/* Reads a body and makes the jobs, with their tokens. g: prepared; it is copied for the templates. 0, or -1 with the refusal filled. */
int call_read(struct call *c, bool chat, const char *body, size_t len, const struct generator *g,
              const struct call_defaults *defaults, struct refusal *no);

/* Releases the jobs. */
void call_free(struct call *c, struct jobs *jobs);

#endif
