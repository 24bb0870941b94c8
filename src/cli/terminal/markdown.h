/* markdown.h - shows an answer's Markdown on a terminal: headings and **bold** in bold, `code` and code
 * blocks in colour, tables with lines. The marks of what is drawn are hidden; all other characters stay.
 * Lines of code and tables are not broken.
 *
 * The text comes in pieces. A mark is held back until its partner comes, and then drawn; if the line ends
 * before, or 512 bytes later, it is printed as it is. A table is held back until its end. */
#ifndef MOEFLUX_CLI_TERMINAL_MARKDOWN_H
#define MOEFLUX_CLI_TERMINAL_MARKDOWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct wrap;

struct markdown {     /* zeroed at first, with `plain` or `is_cell` set: the beginning of a text */
    bool plain;       /* every character stays: only lines and blanks of code and tables are kept together */
    bool is_cell;     /* the text is a table's cell: no tables, headings, code blocks */
    struct str held;  /* text of the line whose meaning is not known yet */
    bool in_line;     /* what the line is, is known */
    bool heading;     /* it is a heading */
    bool bold;        /* within **bold** */
    bool keeps;       /* lines of a table that is not drawn */
    char before;      /* the last character that was printed or hidden */
    uint32_t fence;   /* backticks that the code block began with; 0: no code block */
    struct str table; /* lines that may be a table; in_table: the last one has not ended */
    uint32_t n_rows;  /* whole lines in `table` */
    bool in_table;
};

/* Prints the text. */
void markdown_push(struct markdown *m, const char *text, size_t n, struct wrap *w);
/* Ends the text: prints what is held back, resets the terminal's style, and frees. */
void markdown_end(struct markdown *m, struct wrap *w);

#endif
