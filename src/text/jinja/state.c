#include "text/jinja/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

enum { CHUNK_BYTES = 1 << 15, ALIGNMENT = 16 };

struct jinja_chunk {
    struct jinja_chunk *next;
    _Alignas(ALIGNMENT) char bytes[];
};

static void add_chunk(struct jinja_state *s, size_t n)
{
    if (n > s->memory)
        jinja_fail(s, ERR_UNSUPPORTED, "it needs more memory than a template may");
    struct jinja_chunk *chunk = calloc(1, sizeof *chunk + n);
    if (!chunk)
        jinja_fail(s, ERR_MEMORY, "out of memory");
    s->memory -= n;
    chunk->next = s->chunks;
    s->chunks = chunk;
    s->free = chunk->bytes;
    s->n_free = n;
}

void *jinja_alloc(struct jinja_state *s, size_t n, size_t size)
{
    uint64_t need;
    if (!size_mul(n, size, &need) || need > SIZE_MAX / 2)
        jinja_fail(s, ERR_UNSUPPORTED, "it needs more memory than a template may");
    need = size_round_up(need, ALIGNMENT);
    if (need > s->n_free)
        add_chunk(s, need > CHUNK_BYTES ? need : CHUNK_BYTES);
    void *p = s->free;
    s->free += need;
    s->n_free -= need;
    return p;
}

void jinja_state_free(struct jinja_state *s)
{
    while (s->chunks) {
        struct jinja_chunk *next = s->chunks->next;
        free(s->chunks);
        s->chunks = next;
    }
    s->free = NULL;
    s->n_free = 0;
}

void jinja_fail(struct jinja_state *s, int code, const char *fmt, ...)
{
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    s->rc = s->at.line ? err_set(s->e, code, "%s:%u:%u: %s", s->name, s->at.line, s->at.column, text)
                       : err_set(s->e, code, "%s: %s", s->name, text);
    longjmp(s->failed, 1);
}

void jinja_count(struct jinja_state *s, uint64_t steps)
{
    if (steps > s->steps)
        jinja_fail(s, ERR_UNSUPPORTED, "it takes more steps than a template may");
    s->steps -= steps;
}

void jinja_enter(struct jinja_state *s)
{
    if (s->depth == 0)
        jinja_fail(s, ERR_UNSUPPORTED, "it is nested deeper than a template may be");
    s->depth--;
}

void jinja_leave(struct jinja_state *s)
{
    s->depth++;
}
