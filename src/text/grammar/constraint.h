/* constraint.h - which tokens may come next so that a text fits a grammar.
 *
 * Exact: a token is allowed if and only if the text so far, with the token's bytes behind it, is the
 * beginning of some text of the grammar. A vocabulary that has every byte as a token therefore never comes to
 * a dead end. Tokens that end a text are allowed exactly where the grammar may end; other control tokens and
 * added tokens never.
 *
 * What was computed for one constraint is kept for it and its clones, which different threads may use, each
 * one at a time: the tokens that a state of the grammar allows, whoever called its rule, are found by walking
 * the trie once. */
#ifndef MOEFLUX_TEXT_GRAMMAR_CONSTRAINT_H
#define MOEFLUX_TEXT_GRAMMAR_CONSTRAINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct constraint;
struct grammar;
struct token_trie;

/* At the beginning of a text. The grammar is taken over, on failure too: it is freed with the last of the
 * clones. The trie must outlive them. ends: the tokens that end a text, copied. ERR_UNSUPPORTED: too
 * ambiguous; ERR_MEMORY. */
int constraint_new(struct constraint **out, struct grammar *g, const struct token_trie *t,
                   const int32_t *ends, size_t n_ends, struct moeflux_err *e);
/* At the same place; shares what was computed. NULL with `e` filled. */
struct constraint *constraint_clone(const struct constraint *c, struct moeflux_err *e);
void constraint_free(struct constraint *c);

/* Back to the beginning of a text. */
int constraint_reset(struct constraint *c, struct moeflux_err *e);

/* The tokens that may come next: bit i % 64 of word i / 64, [n_ids / 64, rounded up]. Borrowed until the next
 * call. ERR_UNSUPPORTED: no token is allowed, which needs a vocabulary that lacks a byte, or the grammar is
 * too ambiguous (it says how); ERR_MEMORY. */
int constraint_mask(struct constraint *c, const uint64_t **bits, struct moeflux_err *e);

/* The token is part of the text now. ERR_USAGE: it does not fit, and nothing has changed. ERR_UNSUPPORTED,
 * ERR_MEMORY. */
int constraint_accept(struct constraint *c, int32_t id, struct moeflux_err *e);
/* The same for bytes. */
int constraint_accept_bytes(struct constraint *c, const char *bytes, size_t len, struct moeflux_err *e);

/* Whether the text so far is one of the grammar. */
bool constraint_may_end(const struct constraint *c);
/* ... and nothing can follow it. */
bool constraint_must_end(const struct constraint *c);

#endif
