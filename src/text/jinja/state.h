/* state.h - what parsing and running a template share: an arena, limits, and the exit on failure. A part of
 * jinja.
 *
 * A failure does not return: it jumps to the setjmp of jinja_parse or jinja_render. So code that can fail
 * must hold no memory except that of the arena. */
#ifndef MOEFLUX_TEXT_JINJA_STATE_H
#define MOEFLUX_TEXT_JINJA_STATE_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

/* Limits of nesting: of brackets and blocks when parsed; of nodes and macros when run. */
enum { JINJA_PARSE_DEPTH = 100, JINJA_RUN_DEPTH = 500 };

struct jinja_place {
    uint32_t line, column; /* 1 or more; 0: no place */
};

struct jinja_state {
    struct jinja_chunk *chunks;
    char *free;            /* unused bytes of the newest chunk */
    size_t n_free;         /* ... their number */
    size_t memory;         /* bytes that may still be allocated */
    uint64_t steps;        /* steps that may still be taken */
    uint32_t depth;        /* levels that may still be entered */
    const char *name;      /* name of the template, borrowed */
    struct jinja_place at; /* the place that is parsed or run */
    struct moeflux_err *e;
    int rc;
    jmp_buf failed;
};

/* Returns zeroed memory for any type. */
void *jinja_alloc(struct jinja_state *s, size_t n, size_t size);
/* Frees all memory. */
void jinja_state_free(struct jinja_state *s);

void jinja_fail(struct jinja_state *s, int code, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));

/* Counts steps; fails if none are left. */
void jinja_count(struct jinja_state *s, uint64_t steps);
/* Called around recursion; jinja_enter fails if the nesting is too deep. */
void jinja_enter(struct jinja_state *s);
void jinja_leave(struct jinja_state *s);

#endif
