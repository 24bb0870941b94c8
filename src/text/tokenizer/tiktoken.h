/* tiktoken.h - reads a vocabulary in tiktoken's format. A part of the tokenizer. */
#ifndef MOEFLUX_TEXT_TOKENIZER_TIKTOKEN_H
#define MOEFLUX_TEXT_TOKENIZER_TIKTOKEN_H

#include <stdbool.h>

struct moeflux_err;
struct tokenizer;

/* Returns whether the file's name is that of such a vocabulary: NAME.model or NAME.tiktoken. */
bool tokenizer_is_tiktoken(const char *path);

/* Fills the zeroed `t`. Every line of the file is a token in base64 and its rank, which is its id. The
 * adjacent pair that makes the token of lowest rank is merged first. tokenizer_config.json, in the same
 * directory, has the added tokens (added_tokens_decoder); its tokenizer_class says how text is split. The one
 * known class is TikTokenTokenizer, Kimi-K2's. On failure `t` is partly filled. Errors as tokenizer_open;
 * each names the file. */
int tokenizer_tiktoken_read(const char *path, struct tokenizer *t, struct moeflux_err *e);

#endif
