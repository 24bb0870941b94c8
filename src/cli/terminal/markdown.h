/* markdown.h - shows an answer's Markdown on a terminal: headings and **bold** in bold, `code` and code
 * blocks in colour, tables with lines. The marks of what is drawn are hidden; all other characters stay.
 * The text comes in pieces: marks at the end of one are held back until their meaning is known, and a
 * table until its end. */
#ifndef MOEFLUX_CLI_TERMINAL_MARKDOWN_H
#define MOEFLUX_CLI_TERMINAL_MARKDOWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct wrap;

struct markdown {      /* zeroed at first: the beginning of a text */
    char run;          /* the mark that is held back; 0: none */
    uint32_t n_run;    /* how often it came */
    bool run_begins;   /* it begins the line */
    char before;       /* the last character */
    bool escaped;      /* the last character is an unescaped backslash */
    bool in_line;      /* the line has text or more than three blanks */
    uint32_t n_blanks; /* blanks in the line */
    uint32_t n_held;   /* blanks of the line that are not printed yet: they may stand before a fence */
    uint32_t fence;    /* backticks that the code block began with; 0: no code block */
    uint32_t code;     /* backticks that the code in the line began with; 0: no code */
    bool bold, heading;
    bool hides_line;   /* the rest of the line belongs to a fence */
    bool hides_blanks; /* blanks after a heading's marks */
    bool is_cell;      /* the text is a table's cell: it has no tables */
    struct str table;  /* lines that may be a table; in_table: the last one has not ended */
    uint32_t n_rows;   /* whole lines in `table` */
    bool in_table;
};

/* Prints the text. */
void markdown_push(struct markdown *m, const char *text, size_t n, struct wrap *w);
/* Ends the text: prints what is held back and resets the terminal's style. */
void markdown_end(struct markdown *m, struct wrap *w);

#endif
