/* markdown.h - shows an answer's headings and **bold** in bold, and `code` and code blocks in colour on a
 * terminal. Every character of the text stays, marks included, so that text copied from the terminal is the
 * answer. Only escape sequences are added. The text comes in pieces: marks at the end of one are held back
 * until their meaning is known. */
#ifndef MOEFLUX_CLI_TERMINAL_MARKDOWN_H
#define MOEFLUX_CLI_TERMINAL_MARKDOWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct output;

struct markdown {      /* zeroed at first: the beginning of a text */
    char run;          /* the mark that is held back; 0: none */
    uint32_t n_run;    /* how often it came */
    bool run_begins;   /* it begins the line */
    char before;       /* the last character */
    bool escaped;      /* the last character is an unescaped backslash */
    bool in_line;      /* the line has text or more than three blanks */
    uint32_t n_blanks; /* blanks in the line */
    uint32_t fence;    /* backticks that the code block began with; 0: no code block */
    uint32_t code;     /* backticks that the code in the line began with; 0: no code */
    bool bold, heading;
};

/* Appends the text to `out`. */
void markdown_push(struct markdown *m, const char *text, size_t n, struct output *out);
/* Ends the text: appends held marks and resets the terminal's style. */
void markdown_end(struct markdown *m, struct output *out);

#endif
