/* output.h - stdout, with every write checked. The first failure sticks and is returned by output_flush. A
 * terminal gets the text as text/printable.h filters it; a file or a pipe gets all bytes. If the reader has
 * gone (EPIPE), or stdout was closed from the start, the failure is ERR_IO with an empty text: the program
 * ends quietly. */
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
    struct printable filter; /* applied to text for a terminal */
    struct str held;         /* bytes that are not written yet */
    struct moeflux_err fault;
};

void output_init(struct output *o, int fd);

/* Appends bytes, and writes when 64 KiB are held. */
void output_add(struct output *o, const char *bytes, size_t n);
void output_text(struct output *o, const char *text);
/* Appends one of the program's own escape sequences (term.h), which is not filtered. */
void output_escape(struct output *o, const char *sequence);
void output_addf(struct output *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Prints one JSON value on a line of its own and flushes. Takes over `value`; NULL: ERR_MEMORY. */
int output_json(struct output *o, struct json_t *value, struct moeflux_err *e);

/* Returns a JSON string of bytes that need not be UTF-8 (paths); the caller owns it. */
struct json_t *output_json_text(const char *bytes, size_t n);

/* Writes what is held. Returns 0 or the sticky failure. */
int output_flush(struct output *o, struct moeflux_err *e);

/* Flushes, closes the descriptor (a full disk may show only then) and frees. 0 or the first failure. */
int output_close(struct output *o, struct moeflux_err *e);

#endif
