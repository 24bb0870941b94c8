/* flags.h - a table of flags becomes a filled struct, and the help text. One table row says all about a flag.
 * */
#ifndef MOEFLUX_CLI_OPTIONS_FLAGS_H
#define MOEFLUX_CLI_OPTIONS_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct str;

enum { FLAG_TEXTS_MAX = 15 };
/* Rows of a table, headings too. */
enum { FLAGS_MAX = 128 };
struct flag_texts {
    uint32_t n;
    const char *values[FLAG_TEXTS_MAX]; /* borrowed from argv, not empty */
};

enum flag_kind {
    FLAG_HEADING, /* a group's title in the help text; no flag */
    FLAG_SWITCH,  /* bool */
    FLAG_TEXT,    /* const char *, borrowed from argv, not empty */
    FLAG_TEXTS,   /* struct flag_texts: one for each time that it is given */
    FLAG_INT,     /* int64_t in [lo, hi] */
    FLAG_REAL,    /* float */
    FLAG_BYTES,   /* uint64_t */
    FLAG_LIST,    /* struct number_list, each in [lo, hi] */
    FLAG_SHARES,  /* struct share_list */
    FLAG_SIZES,   /* struct bytes_list */
    FLAG_CHOICE,  /* int: which of `choices`, from 0 */
    FLAG_OPERAND, /* const char *: a word without a flag, in the table's order; required unless hi is 1 */
};

struct flag {
    enum flag_kind kind;
    const char *shorts; /* "m" or NULL */
    const char *longs;  /* "predict,n-predict": the first is the one shown; NULL: none */
    const char *value;  /* "DIR": what the help text calls the value */
    const char *help;   /* one line; NULL: left out of the help text */
    size_t at;          /* offsetof the field */
    int64_t lo, hi;
    const char *
        /* as a message names them: "auto, f32 or f16"; of a text values that it may have, among others */
        choices;
};

/* Parses argv[1..] (argv[0] is skipped) into `into`, whose defaults the caller has set; a flag given twice
 * keeps its last value (but for FLAG_TEXTS). ERR_USAGE names the flag, what it takes and what was found.
 * *help (a FLAG_SWITCH of the table) wins over every fault. */
int flags_parse(const struct flag *table, size_t n, int argc, char **argv, void *into, const bool *help,
                struct moeflux_err *e);

/* As flags_parse for words that may have a part of the table's flags only: ERR_USAGE for one that `takes`
 * denies. */
int flags_parse_part(const struct flag *table, size_t n, bool (*takes)(const struct flag *f), int argc,
                     char **argv, void *into, struct moeflux_err *e);

/* Which of the table's flags the words have: given[i] of table[i], which has at most FLAGS_MAX rows. Words
 * that no flag takes are passed over. */
int flags_given(const struct flag *table, size_t n, int argc, char **argv, bool *given,
                struct moeflux_err *e);

/* The flag with this long name, any of them; NULL: there is none. */
const struct flag *flags_find(const struct flag *table, size_t n, const char *name);

/* Sets the flag's field from a text as flags_parse does; a switch by true or false. `text` is borrowed.
 * ERR_USAGE. */
int flags_set(const struct flag *f, const char *text, void *into, struct moeflux_err *e);

/* Word i of the flag's choices, in `word`; NULL: past the last. */
enum { FLAG_CHOICE_TEXT = 32 };
const char *flags_choice(const struct flag *f, uint32_t i, char word[FLAG_CHOICE_TEXT]);

/* Appends the table as help text, at most 80 columns wide. */
void flags_help(const struct flag *table, size_t n, struct str *out);

#endif
