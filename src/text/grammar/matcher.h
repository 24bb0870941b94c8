/* matcher.h - runs a grammar over a text, byte by byte, along all possible parses. A part of the constraints.
 *
 * A place is one parse: a state and a stack. The stack says where each open rule returns to, and how many
 * rounds of each counted repetition are done. A position is the set of places that some bytes lead to. Equal
 * stacks and equal positions have one number; where a byte leads from a position is computed once. Numbers
 * are valid until matcher_forget.
 *
 * The first failure (memory, a bound) sticks; later calls return MATCHER_DEAD. */
#ifndef MOEFLUX_TEXT_GRAMMAR_MATCHER_H
#define MOEFLUX_TEXT_GRAMMAR_MATCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct grammar;

enum {
    MATCHER_DEAD = 0,              /* the position without a place: the text does not fit */
    MATCHER_BOTTOM = 0,            /* the empty stack */
    MATCHER_MAX_PLACES = 1 << 13,  /* places of one position */
    MATCHER_MAX_STACKS = 1 << 18,  /* stacks of the matcher */
    MATCHER_MAX_MEMBERS = 1 << 21, /* places of all positions */
    MATCHER_MAX_TABLES = 1 << 15,  /* positions with a table of next positions */
    MATCHER_MAX_WORK = 1 << 27,    /* bytes tried, and 64 for each place visited */
};

/* The state of a place where the frame at the bottom of the stack may end. */
#define MATCHER_EXIT UINT32_MAX

struct matcher_place {
    uint32_t state, stack;
};

struct matcher_stack {
    uint32_t parent;
    uint32_t value; /* FRAME_CALL: the state after the call; else the loop */
    uint32_t count; /* rounds done; FRAME_CALL: 0 */
    enum matcher_frame {
        FRAME_CALL,
        FRAME_LOOP,
        FRAME_FREE /* a loop whose rounds are counted without a bound; only at the bottom */
    } kind;
};

struct matcher;

/* Makes a matcher; the grammar must outlive it. Returns NULL with `e` filled. */
struct matcher *matcher_new(const struct grammar *g, struct moeflux_err *e);
void matcher_free(struct matcher *m);

/* Returns the position at the beginning of a text. */
uint32_t matcher_start(struct matcher *m);
/* Returns the position of a state with a stack. */
uint32_t matcher_enter(struct matcher *m, uint32_t state, uint32_t stack);
/* Returns the position after the byte; MATCHER_DEAD: the byte does not fit. */
uint32_t matcher_step(struct matcher *m, uint32_t position, uint8_t byte);

/* Returns the places of a position: states that take a byte, then exits. Borrowed until the next call except
 * matcher_get_stack. */
const struct matcher_place *matcher_places(const struct matcher *m, uint32_t position, size_t *n);
const struct matcher_stack *matcher_get_stack(const struct matcher *m, uint32_t stack);
/* Returns the number of the stack with this top. */
uint32_t matcher_push(struct matcher *m, struct matcher_stack top);

/* Returns whether the text may end here. */
bool matcher_may_end(const struct matcher *m, uint32_t position);

/* Resets the count of work. Over MATCHER_MAX_WORK (a second or two) the matcher fails. */
void matcher_begin_work(struct matcher *m);

/* Returns 0, or fills `e` with the first failure. */
int matcher_failure(const struct matcher *m, struct moeflux_err *e);

/* Returns whether the tables are so large that the owner should call matcher_forget. */
bool matcher_is_large(const struct matcher *m);
/* Drops everything except these n positions, which get new numbers. A failure sticks. */
void matcher_forget(struct matcher *m, uint32_t **positions, size_t n);

#endif
