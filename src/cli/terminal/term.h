/* term.h - what the three standard streams are, and how text may be dressed on them. */
#ifndef MOEFLUX_CLI_TERMINAL_TERM_H
#define MOEFLUX_CLI_TERMINAL_TERM_H

#include <stdbool.h>

struct term {
    bool in, out, err;         /* the stream is a terminal */
    bool out_dress, err_dress; /* ... and may be dressed (TERM is not "dumb", NO_COLOR is not set) */
    bool pastes; /* in and err are a terminal that can mark what is pasted (TERM is not "dumb") */
    bool quiet;  /* no news of the work: no progress bars */
};

/* Looks at the streams; first gives a closed one a descriptor that fails to write, so that no file that is
 * opened later takes its number. */
struct term term_look(void);

/* Columns of the terminal on stderr; 80 where that is not known. */
int term_width(void);

extern const char term_dim[], term_plain[], term_erase_line[];
/* Whether pasted text comes between escape sequences. */
extern const char term_paste_on[], term_paste_off[];

#endif
