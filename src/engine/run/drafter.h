/* drafter.h - proposes tokens with the model's layer of multi-token prediction (model/drafter.h).
 *
 * The layer is a model of its own, moeflux_model.drafter, on the same device. A sequence has one of its
 * sequences, whose row i belongs to position base + i of the text. A row needs the model's hidden state after
 * its position and the next token. So each evaluation of the model leaves hidden states here, and the rows
 * follow when their tokens are known: after each chunk of a prompt, and before a proposal.
 *
 * Saved states and forks have the rows. Proposals never change an answer, so rows may be missing: they begin
 * again after a state without them was loaded, or where a text was cut before the last rows. */
#ifndef MOEFLUX_ENGINE_RUN_DRAFTER_H
#define MOEFLUX_ENGINE_RUN_DRAFTER_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;
struct moeflux_model;
struct moeflux_options;
struct moeflux_session;
struct stage;
struct work;

/* What a sequence keeps for proposals. */
enum drafter_use {
    DRAFTER_FOLLOWS, /* the rows of all tokens */
    DRAFTER_WAITS,   /* the hidden states of the last tokens, from which rows are computed for a proposal */
    DRAFTER_RESTS,   /* nothing */
};

/* What a sequence keeps of it; zeroed without a drafter. */
struct drafter_rows {
    enum drafter_use use;
    struct moeflux_session *rows; /* the drafter's sequence; owned */
    uint32_t base;                /* position of its first row */
    uint32_t end;                 /* position after the last hidden state */
    uint64_t mark;                /* moeflux_session.mark, when `end` was set */
    uint32_t n;                   /* hidden states that wait: those of positions end - n to end - 1 */
    float *waiting;               /* f32 [cap][drafter_width] */
    float *chain;                 /* f32 [VERIFY_ROWS][drafter_width], of the last chain's tokens */
    int32_t *ids;                 /* [cap], the tokens of the rows that follow */
    float *logits;                /* [vocab_size] */
    struct sampler *greedy;       /* chooses what is proposed */
    uint32_t cap;
    /* what a sequence of the drafter has: the hidden states of positions from fed_pos on, borrowed; whether
     * they are its own; the hidden state after its last row */
    const float *fed;
    uint32_t fed_pos;
    bool fed_is_own;
    float *own;
};

/* Opens the drafter of a model that is open on one device and holds all its experts. o: the model's options.
 * ERR_UNSUPPORTED: it has none, or cannot use it. */
int drafter_open(struct moeflux_model *m, const struct moeflux_options *o, struct moeflux_err *e);

/* Returns the numbers of a hidden state that goes to a model's drafter, or of a drafter's own. */
uint32_t drafter_width(const struct moeflux_model *m);

/* Make and free what a new sequence needs; nothing without a drafter. */
int drafter_begin(struct moeflux_session *s, struct moeflux_err *e);
void drafter_end(struct moeflux_session *s);

/* Sets what a sequence keeps, from its next token on. */
void drafter_set_use(struct moeflux_session *s, enum drafter_use use);
/* Returns whether a sequence's evaluations leave hidden states for a drafter that does not rest. */
bool drafter_wants(const struct moeflux_session *s);
/* Takes the hidden states of a finished evaluation, f32 [n][hidden]; the caller has the stage's turn. */
void drafter_take(const struct work *w, const float *hidden);
/* Takes that of the next token of a chain, before the sequence advances. */
void drafter_take_chained(struct moeflux_session *s, uint32_t at);

/* Returns whether the rows go on at the sequence's position, so that a saved state has them. At most
 * VERIFY_ROWS hidden states wait then. */
bool drafter_has_rows(const struct moeflux_session *s);
/* Empties the rows and makes room for n. Errors: those of sequence_reserve. */
int drafter_reserve(struct moeflux_session *s, uint32_t n, struct moeflux_err *e);
/* Takes n_rows rows from position `base` on and n_waiting hidden states, which were read, for the sequence's
 * position. */
void drafter_put_back(struct moeflux_session *s, uint32_t n_rows, uint32_t base, uint32_t n_waiting);
/* Takes the rows of `from` before the position of `to`, which was forked from it. No memory for them ends the
 * rows. */
int drafter_fork(struct moeflux_session *to, struct moeflux_session *from, struct moeflux_err *e);

/* Computes the rows whose tokens are known. No memory for them, or an interruption, ends the rows. */
int drafter_follow(struct moeflux_session *s, struct moeflux_err *e);
/* Returns the rows that a proposal computes first. */
uint32_t drafter_n_waiting(const struct moeflux_session *s);
/* Proposes up to `most` tokens that may follow the sequence and `id`. Returns their number. Errors: those of
 * moeflux_session_eval; the sequence itself stays. */
int drafter_propose(struct moeflux_session *s, int32_t id, uint32_t most, int32_t *out,
                    struct moeflux_err *e);

#endif
