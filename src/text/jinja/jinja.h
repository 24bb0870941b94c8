/* jinja.h - runs a chat template.
 *
 * Implements the part of the Jinja language that published templates use. The meaning is that of Python's
 * jinja2 with transformers' settings: trim_blocks, lstrip_blocks, loop controls, tojson as json.dumps with
 * ensure_ascii=False, raise_exception, strftime_now. Unlike there, the methods that change a list or a dict
 * may be called.
 *
 * Supported: if, for (else, filter, unpacking), set, macro, call, filter, with, raw, generation, break and
 * continue; every operator; the filters, tests and methods of filters.c, tests.c, methods.c and containers.c.
 * Anything else is an error that names it. Integers have 64 bits; an overflow is an error.
 *
 * Templates are untrusted: a rendering is bounded in steps, nesting, memory and output
 * (jinja_default_limits). Every error names the template, line and column. */
#ifndef MOEFLUX_TEXT_JINJA_JINJA_H
#define MOEFLUX_TEXT_JINJA_JINJA_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct jinja;
struct json_t;
struct moeflux_err;
struct str;

struct jinja_limits {
    uint64_t steps; /* evaluated nodes, visited items, 64 bytes of text copied */
    /* bytes of all values made, which are freed only at the end; 16 more for each byte of the context's
     * strings */
    size_t memory;
    size_t output; /* bytes */
};
extern const struct jinja_limits jinja_default_limits;

/* Parses a template of UTF-8; `name` begins its errors. The template is immutable: any number of threads may
 * render it. ERR_FORMAT: what is wrong and where; ERR_UNSUPPORTED: not a supported part of the language, or
 * nested too deep; ERR_MEMORY. */
int jinja_parse(struct jinja **out, const char *source, size_t len, const char *name, struct moeflux_err *e);

/* Renders the template and appends the result to `out`; on failure appends nothing. context: an object whose
 * members are the template's variables (messages, tools, add_generation_prompt, bos_token ...). now: the time
 * of strftime_now, shown in local time. ERR_USAGE: the template refuses the context (raise_exception, with
 * its text); ERR_FORMAT: it cannot be run with this context; ERR_UNSUPPORTED: a limit is exceeded;
 * ERR_MEMORY. */
int jinja_render(const struct jinja *t, const struct json_t *context, time_t now, struct str *out,
                 struct moeflux_err *e);

/* Who wrote a byte of the output. */
enum jinja_author {
    JINJA_TEMPLATE, /* the template, or a member of the context called ..._token */
    JINJA_CONTEXT   /* another member of the context, also after filters */
};

/* Renders as jinja_render, and appends an enum jinja_author to `authors` for each byte of the result. */
int jinja_render_authors(const struct jinja *t, const struct json_t *context, time_t now,
                         const struct jinja_limits *limits, struct str *out, struct str *authors,
                         struct moeflux_err *e);

/* Frees the template; NULL is legal. */
void jinja_free(struct jinja *t);

#endif
