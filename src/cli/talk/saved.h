/* saved.h - conversations in files, by name: NAME.json has texts and tokens, NAME.state the model's state.
 * The first is all that is needed to go on, the second saves computing it again; so they need not be of the
 * same moment. They lie in $XDG_STATE_HOME/moeflux/sessions, else in ~/.local/state/moeflux/sessions,
 * readable by the user alone. */
#ifndef MOEFLUX_CLI_TALK_SAVED_H
#define MOEFLUX_CLI_TALK_SAVED_H

#include <stdbool.h>
#include <stdint.h>

#include "generate/conversation.h"

struct moeflux_err;

struct saved { /* zeroed at first; freed with saved_free */
    struct conversation conversation;
    struct str model; /* the directory that it was held with */
    uint64_t fingerprint;
    uint64_t seen; /* hash of NAME.json */
};

/* 1 to 64 letters, digits, ".", "_" and "-", beginning with a letter or a digit. ERR_USAGE. */
int saved_check_name(const char *name, struct moeflux_err *e);

/* Paths of the two files, in fresh memory; NULL with `e` filled. */
char *saved_text_path(const char *name, struct moeflux_err *e);
char *saved_state_path(const char *name, struct moeflux_err *e);

bool saved_exists(const char *name);

/* Writes NAME.json: the old one or the new one, never a mixture. *seen: hash of the file as this program read
 * or wrote it last, 0: it did neither; gets that of the new one. Returns SAVED_CHANGED, with nothing written,
 * when there is a file that is another: a second program's work is not lost silently. Waits for other
 * programs that write to the directory. */
enum { SAVED_CHANGED = 1 };
int saved_write(const char *name, const struct conversation *c, const char *model, uint64_t fingerprint,
                uint64_t *seen, struct moeflux_err *e);

/* A name to take instead: NAME-n, in fresh memory, cut where it would be too long; NULL with `e` filled. */
char *saved_other_name(const char *name, unsigned n, struct moeflux_err *e);

/* ERR_USAGE: there is none of that name; ERR_IO, ERR_FORMAT, ERR_MEMORY. */
int saved_read(const char *name, struct saved *out, struct moeflux_err *e);
void saved_free(struct saved *s);

/* Removes both files. ERR_USAGE: there is none of that name. */
int saved_delete(const char *name, struct moeflux_err *e);

/* Appends a line for each, the latest first; `current` (may be NULL) is marked. */
int saved_list(const char *current, struct str *out, struct moeflux_err *e);

#endif
