/* state_tokens.h - which tokens fit from one state of a grammar, whoever called its rule. A part of the
 * constraints.
 *
 * Most tokens do not depend on the caller: they stay in the rule (or in the rounds of a counted repetition),
 * or they never fit. In the others the rule ends inside the token. Each such place is recorded as an exit:
 * the trie node whose byte, and those after it, the caller must take. */
#ifndef MOEFLUX_TEXT_GRAMMAR_STATE_TOKENS_H
#define MOEFLUX_TEXT_GRAMMAR_STATE_TOKENS_H

#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct grammar;
struct matcher;
struct token_trie;

#define STATE_TOKENS_NO_LOOP UINT32_MAX

struct state_tokens_exit {
    uint32_t node;   /* trie node whose byte is the first after the end of the rule or round */
    uint32_t rounds; /* rounds that ended before it; 0 for a rule */
};

struct byte_set {
    uint64_t bits[4];
};

struct state_tokens {
    /* Tokens that fit, sorted by how many more rounds they need; in a rule they need none. */
    uint32_t n_needs;  /* the largest need, plus 1 */
    uint32_t *fit_end; /* [n_needs] the tokens fit[0..fit_end[i]) need at most i rounds */
    int32_t *fit;
    uint64_t **prefix; /* [n_needs] the same as bitmaps if they are many; filled on demand */
    /* Tokens at whose end exactly i rounds have ended, sorted by i. They are in `fit` too, as the beginning
     * of the next round. */
    uint32_t n_ends;   /* the largest i, plus 1 */
    uint32_t *end_end; /* [n_ends] end of the tokens of i rounds in `end` */
    int32_t *end;
    struct byte_set follow;          /* superset of the exits' bytes */
    struct state_tokens_exit *exits; /* sorted by byte, then by rounds */
    uint32_t by_byte[257];           /* the exits of byte b are exits[by_byte[b]..by_byte[b + 1]) */
    uint32_t most_rounds;            /* the most rounds that a token needs or ends */
    size_t bytes;                    /* memory of the whole */
};

/* Finds the bytes that may follow a loop. */
void state_tokens_follow(struct matcher *m, const struct grammar *g, uint32_t loop, struct byte_set *out);

/* Walks the trie from a state. loop: the loop to whose round the state belongs, or STATE_TOKENS_NO_LOOP.
 * follow: the bytes that a caller may take next. Returns NULL with `e` filled. */
struct state_tokens *state_tokens_new(struct matcher *m, const struct token_trie *t, uint32_t state,
                                      uint32_t loop, const struct byte_set *follow, struct moeflux_err *e);
void state_tokens_free(struct state_tokens *r);

/* Sets the bits of the tokens that need at most `rounds` rounds. bits: [n_ids / 64,
 * rounded up]. ERR_MEMORY. */
int state_tokens_add_fit(struct state_tokens *r, const struct token_trie *t, uint32_t rounds, uint64_t *bits,
                         struct moeflux_err *e);
/* Sets the bits of the tokens at whose end exactly `rounds` rounds have ended. */
void state_tokens_add_ends(const struct state_tokens *r, uint32_t rounds, uint64_t *bits);

/* Returns the *n exits with `byte` after `least` to `most` rounds. Borrowed. */
const struct state_tokens_exit *state_tokens_exits(const struct state_tokens *r, uint8_t byte, uint32_t least,
                                                   uint32_t most, size_t *n);

#endif
