/* term.h - whether the standard streams are terminals, and which escape sequences they take. */
#ifndef MOEFLUX_CLI_TERMINAL_TERM_H
#define MOEFLUX_CLI_TERMINAL_TERM_H

#include <stdbool.h>

struct term {
    bool in, out, err;         /* the stream is a terminal */
    bool out_dress, err_dress; /* it is one that may be formatted (TERM is not "dumb", NO_COLOR is not set) */
    /* stdin and stderr are a terminal that can mark pasted text (TERM is not "dumb") */
    bool pastes;
    bool quiet; /* no progress bars */
};

/* Inspects the streams. First replaces a closed one by a descriptor that cannot be written, so that no file
 * opened later takes its number. */
struct term term_look(void);

/* Returns the columns of the terminal on stderr; 80 if they are not known. */
int term_width(void);
/* Returns the columns of the terminal on stdout; 0 if they are not known or fewer than 20. */
unsigned term_out_width(void);

/* Escape sequences. term_paste_on: the terminal marks pasted text. */
extern const char term_dim[], term_plain[], term_erase_line[];
extern const char term_paste_on[], term_paste_off[];

#endif
