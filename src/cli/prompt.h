/* prompt.h - where the prompt comes from: -p, with what is piped in behind it, -f, --tokens-in or stdin. */
#ifndef MOEFLUX_CLI_PROMPT_H
#define MOEFLUX_CLI_PROMPT_H

#include <stdbool.h>

#include "base/str.h"
#include "text/tokenizer/tokenizer.h"

struct moeflux_err;
struct options;
struct term;

struct prompt {
    bool is_ids;
    struct str text;       /* as given, unchanged */
    struct token_list ids; /* --tokens-in; >= 0, not yet compared with the vocabulary */
};

/* Whether the user gives a prompt at all (else stdin is a terminal: a conversation). */
bool prompt_is_given(const struct options *o, const struct term *t);

/* Reads it whole. ERR_IO, ERR_USAGE (empty prompt; a word of --tokens-in that is no token id, with its
 * number). */
int prompt_read(struct prompt *p, const struct options *o, struct moeflux_err *e);

void prompt_free(struct prompt *p);

#endif
