/* encode_text.h - the tokens of a text that is measured. */
#ifndef MOEFLUX_CLI_MEASURE_ENCODE_TEXT_H
#define MOEFLUX_CLI_MEASURE_ENCODE_TEXT_H

#include <stdbool.h>

#include "base/token_list.h"

struct moeflux_err;
struct moeflux_tokenizer;
struct str;

/* Encodes a text into the empty *ids, after the token that the model expects before every text. specials:
 * added tokens in it become their ids. Errors: those of moeflux_tokenizer_encode. */
int encode_text(const struct moeflux_tokenizer *t, const struct str *text, bool specials,
                struct token_list *ids, struct moeflux_err *e);

#endif
