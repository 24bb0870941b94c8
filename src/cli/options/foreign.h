/* foreign.h - command lines that are written for llama.cpp or Ollama: flags that mean the same here
 * are replaced with their counterparts, those that only ask for what always happens are accepted, and
 * the others are refused with what to do instead.
 *
 * A flag of the command's own table is never translated, and its value is never looked at. moeflux-
 * coming-from(7) lists the flags; tests/unit/test_foreign.c has all of llama.cpp's. */
#ifndef MOEFLUX_CLI_OPTIONS_FOREIGN_H
#define MOEFLUX_CLI_OPTIONS_FOREIGN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

struct defaults_command;
struct moeflux_err;

enum foreign_kind {
    FOREIGN_ALIAS,  /* `text` is the flag that takes the value */
    FOREIGN_WORD,   /* `text`, one word, replaces the flag and its value */
    FOREIGN_ALWAYS, /* `text` says why nothing is to be done; it is shown once */
    FOREIGN_NONE,   /* `text` says what to do instead */
};

/* A flag, or one of its values. Rows of one flag stand in the order in which they are tried. */
struct foreign_flag {
    enum foreign_kind kind;
    const char *names; /* "-ngl,--gpu-layers"; a name may end in * */
    const char *value; /* NULL: the flag has none; else patterns of fnmatch(3), "on|off" */
    const char *text;
};

/* The last row has no names. */
extern const struct foreign_flag foreign_flags[];
/* llama-bench's flags, which the word `bench` takes. */
extern const struct foreign_flag foreign_bench_flags[];

struct foreign { /* zeroed at first; foreign_free is legal after a failure, too */
    int argc;
    char **argv;         /* [argc + 1], NULL at the end; owned, its texts are main's or constant */
    struct str notes;    /* lines to print, each with a newline; empty: none */
    bool help;           /* -h, --help or the word `help` is there: nothing else was looked at */
    bool is_bench;       /* the word `bench` */
    bool takes_operands; /* `run`, `chat`, `bench`: a model and a prompt may follow without flags */
    int n_operands;      /* operands that were found */
};

/* Looks at the first word, argv[1]: skips `help`, `run`, `chat`, `bench`, and -h before a single word.
 * ERR_USAGE for a command of Ollama or llama.cpp that has no counterpart ("pull") says what to do instead. A
 * directory of that name is no model either: those go after -m. */
int foreign_command(struct foreign *x, int *argc, char ***argv, struct moeflux_err *e);

/* Returns whether the general help is that of the word after `help`. */
bool foreign_has_help(const char *word);

/* Translates the flags of argv[1..] for a command. `commands` [n] are all: a flag of another of them
 * is refused by that command's name. ERR_USAGE names the flag; ERR_MEMORY. */
int foreign_translate(struct foreign *x, const struct defaults_command *c,
                      const struct defaults_command *commands, size_t n, int argc, char **argv,
                      struct moeflux_err *e);
void foreign_free(struct foreign *x);

#endif
