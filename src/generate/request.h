/* request.h - what is asked, and how it is to be answered, from a line of JSON. */
#ifndef MOEFLUX_GENERATE_REQUEST_H
#define MOEFLUX_GENERATE_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "text/chat/chat.h"
#include "sample/sampler.h"
#include "text/tokenizer/tokenizer.h"

struct answer_options;
struct constrain_ahead;
struct moeflux_err;
struct json_t;
struct generator;

enum { REQUEST_NO_LIMIT = -1, REQUEST_NO_LOGPROBS = -1, REQUEST_MAX_STOPS = 16 };

struct request_options { /* texts are borrowed */
    const char *prompt;  /* NULL: there are messages */
    const char *system;  /* NULL: none */
    bool raw;            /* the prompt as it is, without chat template */
    bool think, no_think;
    bool by_kwargs; /* one of the two is in kwargs: a template that cannot do it leaves that aside */
    bool ignore_eos;
    int64_t predict; /* tokens; REQUEST_NO_LIMIT */
    int64_t seed;    /* -1: the caller chooses */
    float temp, top_p, min_p, repeat_penalty;
    int64_t top_k, repeat_last;
    float presence_penalty, frequency_penalty;
    const struct sampler_bias *bias; /* [n_bias] */
    uint32_t n_bias;
    const char *stops[REQUEST_MAX_STOPS]; /* not empty */
    uint32_t n_stops;
    int64_t logprobs;            /* of how many of the likeliest tokens; REQUEST_NO_LOGPROBS */
    const struct json_t *tools;  /* tools.h; not empty; NULL: none */
    const struct json_t *kwargs; /* more that the chat template is told, an object; NULL: nothing */
    bool must_call;              /* at least one of them, or */
    const char *tool;            /* this one, once */
    bool one_call;               /* the answer ends with its first call */
    const char *grammar;         /* what the answer must fit (constrain.h); NULL: nothing */
};

/* The sampler's options with `seed` put in. */
struct sampler_options request_sampling(const struct request_options *o, uint64_t seed);
/* What the answer has to fit, for struct answer_options; constrain_await gives it, and the caller gives it
 * back with constraint_free before the generator is closed. */
void request_constrain_ahead(const struct request_options *o, struct generator *s, struct constrain_ahead *a);
enum chat_thinking request_thinking(const struct request_options *o);
/* What answer_run is to be called with, without a sink; borrows from `o`. */
struct answer_options request_answer(const struct request_options *o);

struct request {           /* zeroed at first; freed with request_free */
    uint64_t line;         /* its number, from 1; 0: it is none of several lines */
    struct json_t *fields; /* the object, every name as in the list of request.c; NULL when there is none */
    struct json_t *id;     /* a text, a whole number or null; borrowed from `fields` or jansson's own null */
    char *key;             /* what tells it from others: of the id, else of the line */
    struct request_options options; /* the defaults with the request's fields put in */
    struct str grammar;             /* of its fields */
    struct sampler_bias *bias;      /* likewise */
    struct token_list tokens;
};

/* A line that was too long to be read. Returns ERR_FORMAT with its text, or ERR_MEMORY. */
int request_too_long(struct request *r, uint64_t line, size_t max_bytes, struct moeflux_err *e);

/* Parses a line. On failure (ERR_FORMAT, ERR_USAGE: the text names the line and the field) id and key are
 * there all the same, where the line tells them. ERR_MEMORY. */
int request_read(struct request *r, const char *text, size_t len, uint64_t line,
                 const struct request_options *defaults, struct moeflux_err *e);

/* The same from an object that was parsed already: its texts are borrowed, errors begin with "the request".
 * There is no key. */
int request_take(struct request *r, struct json_t *object, const struct request_options *defaults,
                 struct moeflux_err *e);

/* Makes the tokens of the prompt, or of the messages; the caller compares their number with the context.
 * ERR_USAGE, ERR_FORMAT, ERR_UNSUPPORTED, ERR_MEMORY. */
int request_encode(struct request *r, struct generator *s, struct moeflux_err *e);

/* The key of an id, or of a line that has none; NULL without memory. */
char *request_key(const struct json_t *id, uint64_t line);

void request_free(struct request *r);

#endif
