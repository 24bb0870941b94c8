/* matcher.h - a grammar at work: all places where a text may stand in it, byte by byte. A part of the
 * constraints.
 *
 * A place is a state and a stack: whom the rule goes back to, and how many rounds of a counted repetition are
 * done. The set of places that bytes lead to is a position; equal stacks and equal positions have one number,
 * and where a byte leads from a position is computed once. Numbers stay good until matcher_forget.
 *
 * The first failure (memory, a bound) sticks in `rc`; the calls then give MATCHER_DEAD. */
#ifndef MOEFLUX_TEXT_GRAMMAR_MATCHER_H
#define MOEFLUX_TEXT_GRAMMAR_MATCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct grammar;

enum {
    MATCHER_DEAD = 0,              /* the position of no place: the text does not fit */
    MATCHER_BOTTOM = 0,            /* the stack with nothing on it */
    MATCHER_MAX_PLACES = 1 << 13,  /* of a position */
    MATCHER_MAX_STACKS = 1 << 18,  /* in all */
    MATCHER_MAX_MEMBERS = 1 << 21, /* places of all positions */
    MATCHER_MAX_TABLES = 1 << 15,  /* positions that a byte was tried from */
    MATCHER_MAX_WORK = 1 << 27,    /* bytes tried from positions, and 64 for each place that is looked at */
};

/* A place whose state is not of the grammar: the frame at the bottom may end here. */
#define MATCHER_EXIT UINT32_MAX

struct matcher_place {
    uint32_t state, stack;
};

struct matcher_stack {
    uint32_t parent;
    uint32_t value; /* FRAME_CALL: the state to go on with; else the loop */
    uint32_t count; /* rounds that are done */
    enum matcher_frame {
        FRAME_CALL,
        FRAME_LOOP,
        FRAME_FREE /* a loop whose rounds are counted and not bounded; it is at the bottom */
    } kind;
};

struct matcher;

/* The grammar must outlive it. */
struct matcher *matcher_new(const struct grammar *g, struct moeflux_err *e);
void matcher_free(struct matcher *m);

/* Where a text begins. */
uint32_t matcher_start(struct matcher *m);
/* The places that a state with a stack stands for. */
uint32_t matcher_enter(struct matcher *m, uint32_t state, uint32_t stack);
uint32_t matcher_step(struct matcher *m, uint32_t position, uint8_t byte);

/* The places of a position: states that take a byte, and exits. Borrowed until the next call but
 * matcher_get_stack. */
const struct matcher_place *matcher_places(const struct matcher *m, uint32_t position, size_t *n);
const struct matcher_stack *matcher_get_stack(const struct matcher *m, uint32_t stack);
uint32_t matcher_push(struct matcher *m, struct matcher_stack top);

/* Whether the text may end here. */
bool matcher_may_end(const struct matcher *m, uint32_t position);

/* Work from here on counts anew: a second or two of it is a failure. */
void matcher_begin_work(struct matcher *m);

/* 0, or the failure that stuck. */
int matcher_failure(const struct matcher *m, struct moeflux_err *e);

/* Whether so much is remembered that the owner should forget. */
bool matcher_is_large(const struct matcher *m);
/* Forgets everything but these positions, which get new numbers. A failure sticks. */
void matcher_forget(struct matcher *m, uint32_t **positions, size_t n);

#endif
