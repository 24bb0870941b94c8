/* tokens.h - token lists that a test expects. */
#ifndef MOEFLUX_TESTS_TOKENS_H
#define MOEFLUX_TESTS_TOKENS_H

struct token_list;
struct tokenizer;

/* Appends the tokens of a text in which special tokens count as such. */
void tokens_add(const struct tokenizer *t, const char *text, struct token_list *out);
/* `got` is what the whole text encodes to; frees it. */
void tokens_expect(const struct tokenizer *t, const char *text, struct token_list *got);

#endif
