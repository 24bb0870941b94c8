/* output.h - stdout, with every write checked. The first failure sticks; output_flush tells it. A terminal
 * gets what text/printable.h leaves of the text, a file or a pipe all bytes. A reader that went away (EPIPE)
 * or a stdout that was closed from the start gives ERR_IO with an empty text: the program ends quietly. */
#ifndef MOEFLUX_CLI_OUTPUT_H
#define MOEFLUX_CLI_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/str.h"
#include "text/printable.h"

struct json_t;

struct output {
    int fd;
    bool is_terminal;
    struct printable filter; /* what a terminal is sent goes through it */
    struct str held;         /* not written yet */
    struct moeflux_err fault;
};

void output_init(struct output *o, int fd);

/* Appends; writes by itself when much is held. */
void output_add(struct output *o, const char *bytes, size_t n);
void output_text(struct output *o, const char *text);
/* One of the program's own escape sequences (term.h): it is not filtered. */
void output_escape(struct output *o, const char *sequence);
void output_addf(struct output *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Prints one JSON value on a line of its own and flushes. Takes over `value`; NULL stands for lack of memory.
 * */
int output_json(struct output *o, struct json_t *value, struct moeflux_err *e);

/* A JSON string of bytes that need not be UTF-8 (paths); the caller owns it. */
struct json_t *output_json_text(const char *bytes, size_t n);

/* Writes what is held. 0 or the sticky failure. */
int output_flush(struct output *o, struct moeflux_err *e);

/* Flushes, closes the descriptor (where a full disk may show itself last) and frees. */
int output_close(struct output *o, struct moeflux_err *e);

#endif
