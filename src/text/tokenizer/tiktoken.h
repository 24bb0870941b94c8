/* tiktoken.h - reads a vocabulary in tiktoken's form into the parts of a tokenizer. A part of the tokenizer.
 * */
#ifndef MOEFLUX_TEXT_TOKENIZER_TIKTOKEN_H
#define MOEFLUX_TEXT_TOKENIZER_TIKTOKEN_H

#include <stdbool.h>

struct moeflux_err;
struct tokenizer;

/* Whether the file is called as such vocabularies are: NAME.model or NAME.tiktoken. */
bool tokenizer_is_tiktoken(const char *path);

/* Fills the zeroed `t`. Every line of the file is a token in base64 and its rank, which is its id; the
 * adjacent pair that makes the token of lowest rank is merged first. What stands beside the file, in
 * tokenizer_config.json, has the added tokens (added_tokens_decoder) and says by its tokenizer_class how text
 * is split: TikTokenTokenizer, Kimi-K2's, is known. On failure `t` is partly filled. Errors as
 * tokenizer_open; each names the file. */
int tokenizer_tiktoken_read(const char *path, struct tokenizer *t, struct moeflux_err *e);

#endif
