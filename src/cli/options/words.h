/* words.h - splits a text into words as a shell does: at blanks, except in '...', in "..." and after \.
 * Variables and patterns are not expanded. */
#ifndef MOEFLUX_CLI_OPTIONS_WORDS_H
#define MOEFLUX_CLI_OPTIONS_WORDS_H

struct moeflux_err;

struct words { /* zeroed at first */
    int argc;
    char **argv; /* like main's: [0] is "" and no word, NULL at the end; owned, the bytes too */
};

/* Splits `text`. ERR_USAGE: a quote that does not end, a \ at the end; ERR_MEMORY. */
int words_split(struct words *w, const char *text, struct moeflux_err *e);
void words_free(struct words *w);

#endif
