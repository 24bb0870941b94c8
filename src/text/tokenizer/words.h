/* words.h - a smaller vocabulary: tokens that differ in case, accents, compatible characters and white space
 * alone are one word. DeepSeek-V4.1's n-grams consist of words. */
#ifndef MOEFLUX_TEXT_TOKENIZER_WORDS_H
#define MOEFLUX_TEXT_TOKENIZER_WORDS_H

#include <stdint.h>

struct moeflux_err;
struct tokenizer;

/* Writes the word of each token to words [n_ids], of ids without a token 0. Words are numbered as they occur.
 * Returns their number. ERR_MEMORY.
 *
 * A token's word is its text decomposed for compatibility (NFKD), without marks, in lower case, with runs of
 * spaces, tabs and line ends as one space, and stripped, unless one space is all of it. If nothing is left,
 * it is the text itself. The word of a token that is no whole text is the token as the byte alphabet writes
 * it. */
int64_t words_of_tokens(const struct tokenizer *t, uint32_t n_ids, uint32_t *words, struct moeflux_err *e);

#endif
