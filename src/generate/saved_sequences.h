/* saved_sequences.h - a directory of sequences' states, a file each, and which of them a prompt begins with.
 *
 * A file appears whole or not at all, so that killing the program loses none. A sequence that goes on from a
 * saved one takes that file's place. */
#ifndef MOEFLUX_GENERATE_SAVED_SEQUENCES_H
#define MOEFLUX_GENERATE_SAVED_SEQUENCES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/state/places.h"

struct moeflux_err;
struct moeflux_model;
struct moeflux_session;

/* What is kept; the files that were not used for longest go. The index of a file takes about 1.7 kB of
 * memory, and 4 bytes for each of its tokens. */
struct saved_limits {
    uint64_t bytes;   /* of all files; 0: no limit */
    uint32_t n_files; /* 0: no limit */
};

struct saved_sequence {
    char *path;
    struct state_places places;
    uint64_t last_use;
};

struct saved_sequences { /* zeroed: none */
    struct moeflux_model *model;
    const char *dir;
    uint64_t fingerprint;
    struct saved_limits limits;
    struct saved_sequence *items; /* [n] */
    size_t n, cap;
    uint64_t bytes, clock, n_loads, n_saves;
    void (*tell)(void *ctx, const char *text);
    void *ctx;
};

/* Makes the directory if there is none and takes up its files of this model, the last written as the last
 * used. ERR_IO, ERR_MEMORY. */
int saved_sequences_open(struct saved_sequences *v, struct moeflux_model *m, const char *dir,
                         const struct saved_limits *limits, void (*tell)(void *ctx, const char *text),
                         void *ctx, struct moeflux_err *e);

/* Which file has the most of a prompt until one is added, and how many tokens need no evaluation then (0:
 * there is none). */
uint32_t saved_sequences_find(struct saved_sequences *v, const int32_t *ids, uint32_t n, uint32_t *n_usable);

/* Loads it into an empty sequence. A file that is broken or gone is told and forgotten: then the sequence
 * stays empty and this is no failure. ERR_INTERRUPTED, ERR_DEVICE. */
int saved_sequences_load(struct saved_sequences *v, uint32_t idx, struct moeflux_session *s,
                         struct moeflux_err *e);

/* Saves a sequence; old files leave when there is too much. A failure is told. */
void saved_sequences_add(struct saved_sequences *v, struct moeflux_session *s);

/* The files stay. */
void saved_sequences_close(struct saved_sequences *v);

#endif
