/* reach.h - what a vocabulary's tokens do from one state of a grammar, whoever called its rule. A part of the
 * constraints.
 *
 * Most tokens are settled here: they stay in the rule (or in the rounds of a counted repetition), or they fit
 * nowhere. What is left are places in the trie where the rule comes to an end inside of a token: those go on
 * with the caller. */
#ifndef MOEFLUX_TEXT_GRAMMAR_REACH_H
#define MOEFLUX_TEXT_GRAMMAR_REACH_H

#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct grammar;
struct matcher;
struct token_trie;

#define REACH_NO_LOOP UINT32_MAX

struct reach_exit {
    uint32_t node; /* behind which the rule, or the rounds, have ended: a child, whose byte is the caller's */
    uint32_t rounds; /* that ended since the state; 0 for a rule */
};

struct reach_bytes { /* a set */
    uint64_t bits[4];
};

struct reach {
    /* Tokens that fit, by how many more rounds they need; of a rule all need none. */
    uint32_t n_needs;  /* they need less than this */
    uint32_t *fit_end; /* [n_needs] fit[0..fit_end[i]) need at most i */
    int32_t *fit;
    uint64_t **prefix; /* [n_needs] the same as bitmaps where they are dense; filled as they are asked for */
    /* Tokens at whose end exactly i rounds have ended; they are among `fit` as well, as the beginning of the
     * next round. */
    uint32_t n_ends;   /* less rounds than this */
    uint32_t *end_end; /* [n_ends] */
    int32_t *end;
    struct reach_bytes leaving; /* the exits' bytes are among these */
    struct reach_exit *exits;   /* by byte, then by rounds */
    uint32_t by_byte[257];
    uint32_t most_rounds; /* that a token needs or ends */
    size_t bytes;         /* of memory */
};

/* With which bytes what follows a loop may go on. */
void reach_leaving(struct matcher *m, const struct grammar *g, uint32_t loop, struct reach_bytes *out);

/* loop: whose round the state belongs to, or REACH_NO_LOOP; leaving: the bytes with which a caller may go on.
 * NULL with `e` filled. */
struct reach *reach_new(struct matcher *m, const struct token_trie *t, uint32_t state, uint32_t loop,
                        const struct reach_bytes *leaving, struct moeflux_err *e);
void reach_free(struct reach *r);

/* Sets the bits of the tokens that need at most `rounds`. [n_ids / 64, rounded up]. ERR_MEMORY. */
int reach_add_fit(struct reach *r, const struct token_trie *t, uint32_t rounds, uint64_t *bits,
                  struct moeflux_err *e);
/* ... of the tokens that end with exactly so many. */
void reach_add_ends(const struct reach *r, uint32_t rounds, uint64_t *bits);

/* Exits by `byte` after `least` to `most` rounds. */
const struct reach_exit *reach_exits(const struct reach *r, uint8_t byte, uint32_t least, uint32_t most,
                                     size_t *n);

#endif
