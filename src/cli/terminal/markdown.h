/* markdown.h - an answer's text for a terminal with its headings and **bold** in bold, its `code` and code
 * blocks in colour. Every character of the text stays, the marks too; only escape sequences are added, so
 * that what is copied from the terminal is the text. It comes in pieces: marks at the end of one are held
 * back until it is known what they are. */
#ifndef MOEFLUX_CLI_TERMINAL_MARKDOWN_H
#define MOEFLUX_CLI_TERMINAL_MARKDOWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct output;

struct markdown { /* zeroed at first: the beginning of a text */
    char run;     /* marks that are held back: n_run of this one; 0: none */
    uint32_t n_run;
    bool run_begins; /* ... at the beginning of a line */
    char before;     /* the last character */
    bool escaped;    /* behind a backslash */
    bool in_line;    /* more than three blanks have come of the line */
    uint32_t n_blanks;
    uint32_t fence; /* marks that a code block began with; 0: it is none */
    uint32_t code;  /* ... a piece of code in a line */
    bool bold, heading;
};

/* Appends the text to `out`. */
void markdown_push(struct markdown *m, const char *text, size_t n, struct output *out);
/* Ends the text: what is held back comes, and the terminal is as it was. */
void markdown_end(struct markdown *m, struct output *out);

#endif
