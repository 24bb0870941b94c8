/* defaults.h - values for flags that the command line does not give: MOEFLUX_MODEL of the environment, and
 * before that the user's file, $XDG_CONFIG_HOME/moeflux/config or ~/.config/moeflux/config.
 *
 *     # a comment model = ~/models/a3b the names of the flags, without dashes no-think = true a switch: true
 *     or false [serve] from here on for `moeflux serve` alone: [run], [serve], [inspect], [convert] ctx-size
 *     = 32768
 *
 * A line for one command wins over one for all, a later line over an earlier one. */
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
    uint32_t line; /* of the file; 0: from MOEFLUX_MODEL */
};

struct defaults {
    char *path;               /* of the file, owned; NULL: there is none */
    char *text;               /* its text, cut into names and values, owned */
    char *home[DEFAULTS_MAX]; /* values that began with "~/", owned */
    uint32_t n_home;
    struct default_value used[DEFAULTS_MAX];
    uint32_t n_used;
};

/* A command and its flags. The first of a list is run, which has no name on the command line. */
struct defaults_command {
    const char *section; /* "serve" */
    const char *help;    /* a few words */
    const struct flag *flags;
    size_t n;
};

/* What the file says is decided here, whether it is used in this call there. */
struct defaults_rules {
    const struct defaults_command *commands;
    size_t n_commands;
    /* Whether a file may set the flag for this command. */
    bool (*may_set)(const struct defaults_command *c, const struct flag *f);
    /* Whether a value may be used beside the flags of the command line. `given` is the flags' (flags_given).
     * */
    bool (*is_used)(const struct defaults_command *c, const struct flag *f, const bool *given,
                    const void *into);
};

/* Sets the fields of `into` that the command line left alone: those of flags of `c`, which is one of the
 * rules' commands. scratch: of the same size, for values that are checked and not used. ERR_USAGE and ERR_IO
 * name the file and the line. On failure defaults_free is legal, too. */
int defaults_apply(struct defaults *d, const struct defaults_rules *r, const struct defaults_command *c,
                   const bool *given, void *into, void *scratch, struct moeflux_err *e);
void defaults_free(struct defaults *d);

/* The place that a field's value came from, "MOEFLUX_MODEL" or "FILE:LINE", in buf; NULL: the command line,
 * or nothing. */
const char *defaults_source(const struct defaults *d, size_t at, char *buf, size_t cap);

/* Adds to a message which settings did not come from the command line; nothing where there are none. */
void defaults_explain(const struct defaults *d, struct moeflux_err *e);

/* A table of them, and an object; nothing, and {}, where there are none. */
void defaults_print(const struct defaults *d, struct output *out);
struct json_t *defaults_json(const struct defaults *d);

#endif
