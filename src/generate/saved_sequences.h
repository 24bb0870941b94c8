/* saved_sequences.h - a directory of sequence states, one file each, and which one has the longest common
 * prefix with a prompt.
 *
 * Files are for their owner alone, and replaced atomically, so that killing the program loses none. When a
 * sequence that continues a saved one is saved, it replaces that file. */
#ifndef MOEFLUX_GENERATE_SAVED_SEQUENCES_H
#define MOEFLUX_GENERATE_SAVED_SEQUENCES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/state/places.h"

struct moeflux_err;
struct moeflux_model;
struct moeflux_session;

/* Limits; the least recently used files are removed first. The index of a file takes about 1.7 kB of memory,
 * and 4 bytes for each of its tokens. */
struct saved_limits {
    uint64_t bytes;   /* total of all files; 0: no limit */
    uint32_t n_files; /* 0: no limit */
};

struct saved_sequence {
    char *path;
    struct places places;
    uint64_t last_use;
};

struct saved_sequences { /* zeroed: none */
    struct moeflux_model *model;
    const char *dir;
    uint64_t fingerprint;
    struct saved_limits limits;
    struct saved_sequence *items; /* [n] */
    size_t n, cap;
    uint64_t part_bytes; /* size of files that others are writing */
    uint64_t bytes, clock, n_loads, n_saves;
    void (*tell)(void *ctx, const char *text);
    void *ctx;
};

/* Creates the directory if there is none, removes what killed servers left in it, and indexes its files of
 * this model; the last written one counts as the last used. tell: shows the user a line that is no
 * failure. ERR_IO, also if no file can be created there; ERR_MEMORY. */
int saved_sequences_open(struct saved_sequences *v, struct moeflux_model *m, const char *dir,
                         const struct saved_limits *limits, void (*tell)(void *ctx, const char *text),
                         void *ctx, struct moeflux_err *e);

/* Returns the index of the file with the most of a prompt; valid until one is added or loaded. *n_usable:
 * tokens that need no evaluation then; 0: there is no such file. */
uint32_t saved_sequences_find(struct saved_sequences *v, const int32_t *ids, uint32_t n, uint32_t *n_usable);

/* Returns the length of the longest common prefix with a file, of those that differ before the ids' end. */
uint32_t saved_sequences_common(const struct saved_sequences *v, const int32_t *ids, uint32_t n);

/* Loads a file into an empty sequence of at most max_context tokens. A file that is damaged, gone or longer
 * is no failure: it is reported and removed from the index, and the sequence stays empty. ERR_INTERRUPTED,
 * ERR_DEVICE, ERR_LOST. ERR_NO_FIT, ERR_MEMORY: too little memory; the file stays in the index. */
int saved_sequences_load(struct saved_sequences *v, uint32_t idx, struct moeflux_session *s,
                         uint32_t max_context, struct moeflux_err *e);

/* Saves a sequence; removes old files above the limits. Reports a failure to the user, also that the state
 * alone is above the limit: nothing changes then. */
void saved_sequences_add(struct saved_sequences *v, struct moeflux_session *s);

/* Frees the index; the files stay. */
void saved_sequences_close(struct saved_sequences *v);

#endif
