/* token_lists.h - the log-probabilities of a completion's tokens as parallel lists, the older form of the
 * API: {tokens, token_logprobs, top_logprobs, text_offset}. */
#ifndef MOEFLUX_API_TOKEN_LISTS_H
#define MOEFLUX_API_TOKEN_LISTS_H

#include <stdint.h>

struct json_t;
struct moeflux_logprob;
struct tokenizer;

struct token_lists {       /* zeroed at first */
    struct json_t *object; /* NULL: no token yet */
    uint64_t n_chars;      /* characters of the text so far */
};

/* Appends a token. of: [1 + n_top] as in logprobs.h; NULL: not known, as for the first token of a text. */
void token_lists_add(struct token_lists *l, const struct tokenizer *t, int32_t id,
                     const struct moeflux_logprob *of, uint32_t n_top);
/* Returns the lists since the last call of this; the caller owns them. NULL: nothing. */
struct json_t *token_lists_take(struct token_lists *l);

#endif
