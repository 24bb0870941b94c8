/* saved_sequences.h - a directory of sequence states, one file each, and which one has the longest common
 * prefix with a prompt.
 *
 * Files are for their owner alone, and replaced atomically, so that killing the program loses none. When a
 * sequence that continues a saved one is saved, it replaces that file. All copies of a model have one index.
 * Other programs may use the directory at the same time: each save brings the index up to date, so that the
 * limits are those of all files of the model.
 *
 * Any thread may call, except to open and close. No lock is held while a state is written or read. */
#ifndef MOEFLUX_GENERATE_SAVED_SEQUENCES_H
#define MOEFLUX_GENERATE_SAVED_SEQUENCES_H

#include <stdint.h>

struct moeflux_err;
struct moeflux_model;
struct moeflux_session;

struct saved_options {
    const char *dir; /* borrowed; NULL: none */
    /* Limits; the least recently used files are removed first. The index of a file takes about 1.7 kB of
     * memory, and 4 bytes for each of its tokens. */
    uint64_t bytes;   /* total of all files; 0: no limit */
    uint32_t n_files; /* 0: no limit */
    /* Shows the user a line that is no failure. NULL: nothing is shown. */
    void (*tell)(void *ctx, const char *text);
    void *ctx;
};

struct saved_counts {
    uint32_t n;                       /* files */
    uint64_t bytes, n_loads, n_saves; /* bytes of them; states that were read and written so far */
};

struct saved_sequences;

/* Creates the directory if there is none, removes what killed programs left in it, and indexes its files of
 * this model; the last written one counts as the last used. m: the model or the first of its copies; must
 * outlive *out, which the caller owns. ERR_IO, also if no file can be created there; ERR_MEMORY. */
int saved_sequences_open(struct saved_sequences **out, struct moeflux_model *m, const struct saved_options *o,
                         struct moeflux_err *e);
/* Frees the index; the files stay. NULL is legal. */
void saved_sequences_close(struct saved_sequences *v);

/* Returns how many tokens of a prompt need no evaluation after the best file that the model `m`, a copy, can
 * load. v NULL: 0. */
uint32_t saved_sequences_usable(struct saved_sequences *v, const struct moeflux_model *m, const int32_t *ids,
                                uint32_t n);

/* Returns the length of the longest common prefix with a file, of those that differ before the ids' end.
 * v NULL: 0. */
uint32_t saved_sequences_common(struct saved_sequences *v, const int32_t *ids, uint32_t n);

/* Loads the best file for a prompt into an empty sequence of at most max_context tokens; none: nothing. A
 * file that is damaged, gone or longer is no failure: it is reported and not used again, and the sequence
 * stays empty. ERR_INTERRUPTED, ERR_DEVICE, ERR_LOST. ERR_NO_FIT, ERR_MEMORY: too little memory; the file can
 * be loaded later. */
int saved_sequences_load(struct saved_sequences *v, const struct moeflux_model *m, const int32_t *ids,
                         uint32_t n, struct moeflux_session *s, uint32_t max_context, struct moeflux_err *e);

/* Saves a sequence; removes old files above the limits. Reports a failure to the user, also that the state
 * alone is above the limit: nothing changes then. */
void saved_sequences_add(struct saved_sequences *v, struct moeflux_session *s);

/* v NULL: zeros. */
struct saved_counts saved_sequences_count(struct saved_sequences *v);

#endif
