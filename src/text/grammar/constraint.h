/* constraint.h - which tokens may come next so that a text fits a grammar.
 *
 * The answer is exact: a token is allowed if and only if the text so far plus the token's bytes is a prefix
 * of some text of the grammar. So with a vocabulary that has every byte as a token there is never a dead end.
 * Tokens that end a text are allowed exactly where the grammar may end; other control tokens and added tokens
 * are never allowed.
 *
 * A constraint and its clones share a cache: the tokens that fit from a state of the grammar, whoever called
 * its rule, are found by one walk of the trie. The clones may be used by different threads, each by one at a
 * time. */
#ifndef MOEFLUX_TEXT_GRAMMAR_CONSTRAINT_H
#define MOEFLUX_TEXT_GRAMMAR_CONSTRAINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct constraint;
struct grammar;
struct token_trie;

/* Makes a constraint at the beginning of a text. Takes ownership of the grammar, on failure too, and frees it
 * with the last clone. The trie must outlive all clones. ends: the tokens that end a text, copied.
 * ERR_UNSUPPORTED: the grammar is too ambiguous; ERR_MEMORY. */
int constraint_new(struct constraint **out, struct grammar *g, const struct token_trie *t,
                   const int32_t *ends, size_t n_ends, struct moeflux_err *e);
/* Makes a constraint at the same place in the text, with the same cache. Returns NULL with `e` filled. */
struct constraint *constraint_clone(const struct constraint *c, struct moeflux_err *e);
void constraint_free(struct constraint *c);

/* Returns to the beginning of a text. ERR_UNSUPPORTED, ERR_MEMORY. */
int constraint_reset(struct constraint *c, struct moeflux_err *e);

/* Sets *bits to the tokens that may come next: bit i % 64 of word i / 64, [n_ids / 64, rounded up]. Borrowed
 * until the next call. ERR_UNSUPPORTED: no token is allowed (only if the vocabulary lacks a byte), or the
 * grammar is too ambiguous (the message says how); ERR_MEMORY. */
int constraint_mask(struct constraint *c, const uint64_t **bits, struct moeflux_err *e);

/* Appends the token to the text. ERR_USAGE: it does not fit; nothing changes. ERR_UNSUPPORTED, ERR_MEMORY. */
int constraint_accept(struct constraint *c, int32_t id, struct moeflux_err *e);
/* Appends bytes to the text; marks of the grammar (grammar.h) are there as their texts. Errors as
 * constraint_accept. */
int constraint_accept_bytes(struct constraint *c, const char *bytes, size_t len, struct moeflux_err *e);

/* Returns whether the text so far fits the whole grammar. */
bool constraint_may_end(const struct constraint *c);
/* Returns whether the text so far fits the whole grammar and nothing can follow. */
bool constraint_must_end(const struct constraint *c);

#endif
