/* state.h - what reading and running a template share: memory that is given back all at once, limits, and the
 * place where a failure leaves. A part of jinja.
 *
 * A failure does not return: it goes to the setjmp of jinja_parse or jinja_render. Nothing but the state's
 * own memory may be held where something can fail. */
#ifndef MOEFLUX_TEXT_JINJA_STATE_H
#define MOEFLUX_TEXT_JINJA_STATE_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

/* Brackets and blocks in each other while a template is read; nodes in nodes, macros in macros while it runs.
 * */
enum { JINJA_PARSE_DEPTH = 100, JINJA_RUN_DEPTH = 500 };

struct jinja_place {
    uint32_t line, column; /* from 1; 0: nowhere */
};

struct jinja_state {
    struct jinja_chunk *chunks;
    char *free; /* of the newest chunk */
    size_t n_free;
    size_t memory;         /* that may still be taken */
    uint64_t steps;        /* that may still be taken */
    uint32_t depth;        /* the same */
    const char *name;      /* the template's, borrowed */
    struct jinja_place at; /* what is being read or run */
    struct moeflux_err *e;
    int rc;
    jmp_buf failed;
};

/* Zeroed memory for any type. */
void *jinja_alloc(struct jinja_state *s, size_t n, size_t size);
/* Gives all of it back. */
void jinja_state_free(struct jinja_state *s);

void jinja_fail(struct jinja_state *s, int code, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));

/* Counts work. */
void jinja_count(struct jinja_state *s, uint64_t steps);
/* Around what calls itself. */
void jinja_enter(struct jinja_state *s);
void jinja_leave(struct jinja_state *s);

#endif
