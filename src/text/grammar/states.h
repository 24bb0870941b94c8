/* states.h - a compiled grammar: a nondeterministic automaton over bytes, with calls of rules. A part of the
 * grammar's modules.
 *
 * Each rule has its own states. A call continues with its own `next` when the rule has ended. A counted
 * repetition is like a rule that is called once for each round. */
#ifndef MOEFLUX_TEXT_GRAMMAR_STATES_H
#define MOEFLUX_TEXT_GRAMMAR_STATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum state_kind {
    STATE_BYTES, /* one byte of the ranges, then `next` */
    STATE_SPLIT, /* `next` or `other`, without a byte */
    STATE_CALL,  /* the rule `other`, then `next` */
    STATE_LOOP,  /* the loop `other`, then its `next` */
    STATE_ROUND, /* the end of a round of the loop on top of the stack */
    STATE_END,   /* the end of the rule */
};

struct grammar_state {
    uint8_t kind;
    bool live;        /* the end of its rule or round can be reached from here */
    uint16_t n_bytes; /* STATE_BYTES: ranges of bytes */
    uint32_t first;   /* index in grammar.bytes of the first range */
    uint32_t next, other;
};

struct byte_range { /* inclusive */
    uint8_t lo, hi;
};

struct grammar_loop {
    uint32_t min, max; /* rounds, max > 0; a round takes at least one byte */
    uint32_t body, next;
};

struct grammar {
    struct grammar_state *states;
    size_t n_states, cap_states;
    struct byte_range *bytes;
    size_t n_bytes, cap_bytes;
    struct grammar_loop *loops;
    size_t n_loops, cap_loops;
    uint32_t *starts; /* [n_rules] the first state of each rule */
    uint32_t n_rules, root;
    const struct grammar_marks *marks; /* borrowed; NULL: none */
};

#endif
