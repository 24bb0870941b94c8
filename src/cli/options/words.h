/* words.h - a text split into words as a shell splits it: at blanks, except in '...', in "..." and behind \.
 * Nothing else of a shell: no variables, no patterns. */
#ifndef MOEFLUX_CLI_OPTIONS_WORDS_H
#define MOEFLUX_CLI_OPTIONS_WORDS_H

struct moeflux_err;

struct words { /* zeroed at first */
    int argc;
    char **argv; /* as main's: [0] is no word but "", NULL at the end; the bytes follow in the same memory */
};

/* ERR_USAGE: a quote that does not end, a \ with nothing behind it; ERR_MEMORY. */
int words_split(struct words *w, const char *text, struct moeflux_err *e);
void words_free(struct words *w);

#endif
