/* prompt.h - reads the prompt: from -p, followed by what is piped in, from -f, --tokens-in or stdin. */
#ifndef MOEFLUX_CLI_PROMPT_H
#define MOEFLUX_CLI_PROMPT_H

#include <stdbool.h>

#include "base/str.h"
#include "base/token_list.h"

struct moeflux_err;
struct options;
struct term;

struct prompt {
    bool is_ids;
    struct str text;       /* bytes as the user gave them */
    struct token_list ids; /* --tokens-in: >= 0, not yet compared with the vocabulary */
};

/* Whether the user gives a prompt. If not, stdin is a terminal: a conversation. */
bool prompt_is_given(const struct options *o, const struct term *t);

/* Reads the whole prompt. ERR_IO; ERR_USAGE: it is empty, or a word of --tokens-in, named by number, is no
 * token id. */
int prompt_read(struct prompt *p, const struct options *o, struct moeflux_err *e);

/* Copies a text to the empty `out` as a model can read it: invalid UTF-8 and NUL become U+FFFD. Returns the
 * number of replacements. */
size_t prompt_clean(struct str *out, const char *text, size_t len);

void prompt_free(struct prompt *p);

#endif
