/* printer.h - an answer on stdout as it comes: text or ids, thinking hidden, dim or plain. */
#ifndef MOEFLUX_CLI_TERMINAL_PRINTER_H
#define MOEFLUX_CLI_TERMINAL_PRINTER_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/terminal/markdown.h"
#include "generate/answer.h"

struct options;
struct output;
struct term;

enum printer_thinking { PRINTER_HIDDEN, PRINTER_DIM, PRINTER_PLAIN };

struct printer {
    struct output *out;
    bool ids;                       /* token ids instead of text */
    enum printer_thinking thinking; /* plain: between lines <think> and </think> */
    bool colors;                    /* the answer's markdown is dressed */
    struct markdown markdown;
    bool any, line_open; /* something was printed; the last line has no end yet */
    bool in_thinking;
};

/* On a terminal thinking is shown dim (plain where it takes no escape sequences), else with --show-think
 * only. */
void printer_init(struct printer *p, struct output *out, const struct options *o, const struct term *t);

struct answer_sink printer_sink(struct printer *p);

/* Ends the last line. 0 or the output's failure. */
int printer_end(struct printer *p, struct moeflux_err *e);

#endif
