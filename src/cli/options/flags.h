/* flags.h - parses flags by a table into a struct, and prints their help. One table row says all about a
 * flag. */
#ifndef MOEFLUX_CLI_OPTIONS_FLAGS_H
#define MOEFLUX_CLI_OPTIONS_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/texts.h"

struct moeflux_err;
struct str;

enum { FLAGS_MAX = 128 }; /* rows of a table, headings included */

enum flag_kind {
    FLAG_HEADING, /* a group's title in the help text; no flag */
    FLAG_SWITCH,  /* bool */
    FLAG_TEXT,    /* const char *, borrowed from argv, not empty */
    FLAG_TEXTS,   /* struct texts: a value for each occurrence */
    FLAG_INT,     /* int64_t in [lo, hi] */
    FLAG_U32,     /* uint32_t in [lo, hi] */
    FLAG_REAL,    /* float */
    FLAG_BYTES,   /* uint64_t */
    FLAG_LIST,    /* struct number_list, each in [lo, hi] */
    FLAG_SHARES,  /* struct share_list */
    FLAG_SIZES,   /* struct bytes_list */
    FLAG_PLACE,   /* struct expert_place */
    FLAG_CHOICE,  /* int: index in `choices` */
    FLAG_OPERAND, /* const char *: a word without a flag, in the table's order; required if hi is 0 */
};

struct flag {
    enum flag_kind kind;
    const char *shorts; /* "m" or NULL */
    const char *longs;  /* "predict,n-predict": the first is the one shown; NULL: none */
    const char *value;  /* the value's name in the help text: "DIR" */
    const char *help;   /* one line; NULL: left out of the help text */
    size_t at;          /* offsetof of the field that is set */
    int64_t lo, hi;
    /* list for messages: "auto, f32 or f16"; FLAG_TEXT, FLAG_PLACE: some of the possible values */
    const char *choices;
};

/* Parses argv[1..] (argv[0] is skipped) into `into`, whose defaults the caller has set. A flag given twice
 * keeps its last value; FLAG_TEXTS keeps all. ERR_USAGE names the flag, what it takes and what was found. If
 * *help, a FLAG_SWITCH of the table, is given, faults are ignored. */
int flags_parse(const struct flag *table, size_t n, int argc, char **argv, void *into, const bool *help,
                struct moeflux_err *e);

/* Parses like flags_parse if only some of the table's flags are allowed: ERR_USAGE for one that `takes`
 * denies. */
int flags_parse_part(const struct flag *table, size_t n, bool (*takes)(const struct flag *f), int argc,
                     char **argv, void *into, struct moeflux_err *e);

/* Sets given[i] if argv has the flag table[i]. n <= FLAGS_MAX. Unknown words are ignored. ERR_MEMORY. */
int flags_given(const struct flag *table, size_t n, int argc, char **argv, bool *given,
                struct moeflux_err *e);

/* Returns the flag that has this long name, the first or another; NULL: none. */
const struct flag *flags_find(const struct flag *table, size_t n, const char *name);

/* Sets the flag's field from a text as flags_parse does; a switch takes true or false. `text` is borrowed.
 * ERR_USAGE. */
int flags_set(const struct flag *f, const char *text, void *into, struct moeflux_err *e);

/* Copies word i of the flag's choices into `word` and returns it; NULL: there are no more. */
enum { FLAG_CHOICE_TEXT = 32 };
const char *flags_choice(const struct flag *f, uint32_t i, char word[FLAG_CHOICE_TEXT]);

/* Appends the table as help text, at most 80 columns wide. */
void flags_help(const struct flag *table, size_t n, struct str *out);

#endif
