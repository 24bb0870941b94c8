/* saved.h - saves conversations in files, by name. NAME.json has texts and tokens, NAME.state the model's
 * state. The first is enough to go on; the second only saves prefill, and may be older. They are in
 * $XDG_STATE_HOME/moeflux/sessions, else in ~/.local/state/moeflux/sessions, readable by the user only. */
#ifndef MOEFLUX_CLI_TALK_SAVED_H
#define MOEFLUX_CLI_TALK_SAVED_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;

struct moeflux_conversation;
struct str;

struct saved {
    struct moeflux_conversation *conversation; /* moeflux_conversation_free; NULL after a failure */
    uint64_t seen;                             /* hash of NAME.json */
};

/* Checks a name: 1 to 64 letters, digits, ".", "_" and "-", the first a letter or a digit. ERR_USAGE. */
int saved_check_name(const char *name, struct moeflux_err *e);

/* Return the paths of the two files; the caller frees them. NULL with `e` filled. */
char *saved_text_path(const char *name, struct moeflux_err *e);
char *saved_state_path(const char *name, struct moeflux_err *e);

bool saved_exists(const char *name);

/* Replaces NAME.json as a whole. *seen: hash of the file when this program last read or wrote it, 0: never;
 * gets the new one's. Returns SAVED_CHANGED, with nothing written, if the file has another hash: a second
 * program's work is not lost silently. Waits while other programs write to the directory. */
enum { SAVED_CHANGED = 1 };
int saved_write(const char *name, const struct moeflux_conversation *c, uint64_t *seen,
                struct moeflux_err *e);

/* Returns another name, NAME-n, cut to the allowed length; the caller frees it. NULL with `e` filled. */
char *saved_other_name(const char *name, unsigned n, struct moeflux_err *e);

/* Reads a conversation. ERR_USAGE: there is none of that name; ERR_IO, ERR_FORMAT, ERR_MEMORY. */
int saved_read(const char *name, struct saved *out, struct moeflux_err *e);

/* Removes both files. ERR_USAGE: there is none of that name. */
int saved_delete(const char *name, struct moeflux_err *e);

/* Appends a line for each conversation, the latest first. current: the name that is marked; NULL: none. */
int saved_list(const char *current, struct str *out, struct moeflux_err *e);

#endif
