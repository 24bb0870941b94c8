/* escapes.h - the escape sequences that llama.cpp replaces in a flag's text. */
#ifndef MOEFLUX_CLI_OPTIONS_ESCAPES_H
#define MOEFLUX_CLI_OPTIONS_ESCAPES_H

struct str;

/* Replaces \n, \r, \t, \', \", \\ and \xHH in place. Other sequences, and \x00, stay as they are. */
void escapes_replace(char *text);
/* Appends the text with \n, \r, \t, \" and \\ in the place of these characters. */
void escapes_add(struct str *out, const char *text);

#endif
