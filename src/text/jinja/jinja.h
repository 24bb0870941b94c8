/* jinja.h - runs a chat template: the part of the Jinja language that published templates use, with the
 * meaning that it has in Python's jinja2 with transformers' settings (trim_blocks, lstrip_blocks, loop
 * controls, tojson as json.dumps with ensure_ascii=False, raise_exception, strftime_now, immutable values).
 *
 * Known: if, for (else, filter, unpacking), set, macro, call, filter, with, raw, generation, break and
 * continue; every operator; the filters, tests and methods of filters.c, tests.c and methods.c. What is not
 * known is an error that names it. Whole numbers have 64 bits, an overflow is an error.
 *
 * Templates come from outside: a rendering is bounded in steps, nesting, memory and output
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
    uint64_t steps; /* evaluated nodes, items looked at, 64 bytes of text copied */
    /* bytes of all values, what is given up included; and 16 for each of the context's texts' */
    size_t memory;
    size_t output; /* bytes */
};
extern const struct jinja_limits jinja_default_limits;

/* Reads a template of UTF-8; `name` begins its errors. ERR_FORMAT: what is wrong and where; ERR_UNSUPPORTED:
 * not a part of the language that is known, or too deep; ERR_MEMORY. The template is immutable: any number of
 * threads may render it. */
int jinja_parse(struct jinja **out, const char *source, size_t len, const char *name, struct moeflux_err *e);

/* Appends what the template makes of the context's members (an object: messages, tools,
 * add_generation_prompt, bos_token ...) to `out`; on failure nothing. `now` is what strftime_now shows, in
 * local time. ERR_USAGE: the template refuses the context (raise_exception, with its text); ERR_FORMAT: it
 * cannot be run with this context; ERR_UNSUPPORTED: a limit; ERR_MEMORY. */
int jinja_render(const struct jinja *t, const struct json_t *context, time_t now, struct str *out,
                 struct moeflux_err *e);

/* Who wrote a byte of the output. */
enum jinja_author {
    JINJA_TEMPLATE, /* the template, or a member of the context called ..._token */
    JINJA_CONTEXT   /* it stands in the context, whatever filters it went through */
};

/* The same, with an enum jinja_author appended to `authors` for each byte of `out`. */
int jinja_render_authors(const struct jinja *t, const struct json_t *context, time_t now,
                         const struct jinja_limits *limits, struct str *out, struct str *authors,
                         struct moeflux_err *e);

/* NULL is legal. */
void jinja_free(struct jinja *t);

#endif
