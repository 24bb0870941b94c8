/* printer.h - prints an answer on stdout as it comes: text or ids, with thinking hidden, dim or plain. */
#ifndef MOEFLUX_CLI_TERMINAL_PRINTER_H
#define MOEFLUX_CLI_TERMINAL_PRINTER_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/terminal/markdown.h"
#include "cli/terminal/wrap.h"
#include "moeflux_chat.h"

struct options;
struct output;
struct term;

enum printer_thinking { PRINTER_HIDDEN, PRINTER_DIM, PRINTER_PLAIN };

struct printer {
    struct output *out;
    bool ids;                       /* token ids instead of text */
    enum printer_thinking thinking; /* plain: between the lines <think> and </think> */
    bool colors;                    /* Markdown is drawn, except in raw, grammar and JSON answers */
    bool wraps;                     /* lines are broken between words, with the same exceptions */
    struct markdown markdown;
    struct wrap wrap;
    bool any; /* something was printed */
    bool in_thinking;
};

/* Begins an answer. A terminal shows thinking dim, or plain if it takes no escape sequences. Files and pipes
 * get it with --show-think only. */
void printer_init(struct printer *p, struct output *out, const struct options *o, const struct term *t);

/* Prints a piece. ctx: the printer. Returns false when stdout has failed: the answer is ended then. */
bool printer_piece(void *ctx, const struct moeflux_piece *piece);

/* Ends the last line. Returns 0 or the output's failure. */
int printer_end(struct printer *p, struct moeflux_err *e);

#endif
