/* defaults.h - values for flags that the command line lacks: from MOEFLUX_MODEL in the environment, else from
 * the user's file, $XDG_CONFIG_HOME/moeflux/config or ~/.config/moeflux/config:
 *
 *     # a comment
 *     model = ~/models/a3b    (a flag's name without dashes)
 *     no-think = true         (a switch: true or false)
 *     [serve]                 (the lines that follow are for `moeflux serve` only)
 *     ctx-size = 32768
 *
 * Sections are [run], [serve], [inspect], [convert], [get] and [doctor]. A line for one command wins over one
 * for all, a later line over an earlier one. */
#ifndef MOEFLUX_CLI_OPTIONS_DEFAULTS_H
#define MOEFLUX_CLI_OPTIONS_DEFAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct flag;
struct json_t;
struct moeflux_err;
struct output;

enum { DEFAULTS_MAX = 128 };

struct default_value {
    const struct flag *flag;
    const char *text;
    uint32_t line; /* line number in the file, from 1; 0: set by MOEFLUX_MODEL */
};

struct defaults {
    char *path;               /* the file, owned; NULL: there is none */
    char *text;               /* its text, cut into names and values, owned */
    char *home[DEFAULTS_MAX]; /* values that began with "~/", expanded, owned */
    uint32_t n_home;
    struct default_value used[DEFAULTS_MAX];
    uint32_t n_used;
};

/* A command and its flags. */
struct defaults_command {
    const char *section; /* "serve" */
    const char *help;    /* a few words */
    const struct flag *flags;
    size_t n;
};

/* may_set decides what a file may say, is_used whether this call uses it. */
struct defaults_rules {
    const struct defaults_command *commands;
    size_t n_commands;
    /* Whether a file may set the flag for this command. */
    bool (*may_set)(const struct defaults_command *c, const struct flag *f);
    /* Whether a value goes with the flags of the command line, `given` (flags_given). */
    bool (*is_used)(const struct defaults_command *c, const struct flag *f, const bool *given,
                    const void *into);
};

/* Sets the fields of `into` whose flags the command line lacks. c: one of the rules' commands. scratch: as
 * large as `into`, for values that are checked but not used. ERR_USAGE and ERR_IO name the file and the line;
 * ERR_MEMORY. defaults_free is legal after a failure, too. */
int defaults_apply(struct defaults *d, const struct defaults_rules *r, const struct defaults_command *c,
                   const bool *given, void *into, void *scratch, struct moeflux_err *e);
void defaults_free(struct defaults *d);

/* Writes where a value came from, "MOEFLUX_MODEL" or "FILE:LINE", and returns buf. */
const char *defaults_place(const struct defaults *d, const struct default_value *v, char *buf, size_t cap);

/* Print these settings as a table, or return them as an object: nothing, or {}, if there are none. */
void defaults_print(const struct defaults *d, struct output *out);
struct json_t *defaults_json(const struct defaults *d);

#endif
