/* wrap.h - breaks an answer's lines between words at a terminal's width. A word is printed when its end is
 * known, which is at the next blank or at the end of the text. */
#ifndef MOEFLUX_CLI_TERMINAL_WRAP_H
#define MOEFLUX_CLI_TERMINAL_WRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct output;

enum { WRAP_MAX_ESCAPES = 8 };

struct wrap { /* zeroed at first, with `out` set; wrap_end frees it */
    struct output *out;
    uint32_t width;    /* columns; 0: lines stay as they are */
    bool verbatim;     /* code and tables: lines stay as they are */
    bool joined;       /* code in a line: no line ends at its blanks */
    uint32_t column;   /* that the next character gets, from 0 */
    uint32_t n_blanks; /* blanks that are held back */
    struct str word;   /* the word that is held back */
    uint32_t word_columns;
    /* escape sequences within the word: before which of its bytes */
    struct {
        size_t at;
        const char *code;
    } escapes[WRAP_MAX_ESCAPES];
    uint32_t n_escapes;
    char part[4]; /* a character whose other bytes are to come */
    uint32_t n_part, part_bytes;
    bool line_open; /* the last character was no line end */
};

/* Returns the columns of a character: 0, 1 or 2. */
uint32_t wrap_columns(uint32_t code);
/* Returns the columns of a text in UTF-8. */
uint32_t wrap_text_columns(const char *text, size_t n);

void wrap_text(struct wrap *w, const char *text, size_t n);
/* code: one of the program's own escape sequences, a constant. */
void wrap_escape(struct wrap *w, const char *code);
/* Prints what is held back. */
void wrap_end(struct wrap *w);

#endif
