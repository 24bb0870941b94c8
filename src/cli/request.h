/* request.h - one line of --batch: what is asked, and how it is to be answered. */
#ifndef MOEFLUX_CLI_REQUEST_H
#define MOEFLUX_CLI_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/options.h"
#include "text/tokenizer.h"

struct err;
struct json_t;
struct session;

struct request {            /* zeroed at first; freed with request_free */
    uint64_t line;          /* its number, from 1 */
    struct json_t *fields;  /* the object, every name as in the list of request.c; NULL when there is none */
    struct json_t *id;      /* a text, a whole number or null; borrowed from `fields` or jansson's own null */
    char *key;              /* what tells it from others: of the id, else of the line */
    struct options options; /* the command line's with the request's fields put in */
    struct token_list tokens;
};

/* A line that was too long to be read. Returns ERR_FORMAT with its text, or ERR_MEMORY. */
int request_too_long(struct request *r, uint64_t line, struct err *e);

/* Parses a line. On failure (ERR_FORMAT, ERR_USAGE: the text names the line and the field) id and key are there all the
 * same, where the line tells them. ERR_MEMORY. */
int request_read(struct request *r, const char *text, size_t len, uint64_t line, const struct options *o,
                 struct err *e);

/* Makes the tokens of the prompt, or of the messages. ERR_USAGE, ERR_FORMAT, ERR_UNSUPPORTED, ERR_MEMORY. */
int request_encode(struct request *r, struct session *s, struct err *e);

/* The key of an id, or of a line that has none; NULL without memory. */
char *request_key(const struct json_t *id, uint64_t line);

void request_free(struct request *r);

#endif
