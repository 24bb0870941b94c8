/* table_lines.h - draws a table of GitHub's Markdown with lines between its columns. */
#ifndef MOEFLUX_CLI_TERMINAL_TABLE_LINES_H
#define MOEFLUX_CLI_TERMINAL_TABLE_LINES_H

#include <stdbool.h>

struct wrap;

/* Returns whether two lines begin a table: the second one has a cell of dashes for each cell of the first. */
bool table_lines_begin(const char *lines);

/* Prints the table. False, with nothing printed: it is none, is wider than the terminal, or a row has more
 * cells than the title. */
bool table_lines_draw(const char *lines, struct wrap *w);

#endif
