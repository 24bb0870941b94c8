/* sequences.h - the recent sequences of one model. A prompt goes on in the one that has the most of it: in
 * memory, or in a directory where those that had to leave memory are saved.
 *
 * Where the model has recurrent layers a sequence can be gone back in to its checkpoints only; what counts is
 * what needs no evaluation. Used by one thread at a time. */
#ifndef MOEFLUX_GENERATE_SEQUENCES_H
#define MOEFLUX_GENERATE_SEQUENCES_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;
struct moeflux_model;
struct moeflux_session;
struct sequences;

struct sequences_options {
    uint32_t max_context; /* tokens of each */
    uint32_t most;        /* in memory, those in use included; >= 1 */
    uint64_t bytes;       /* of the states of those that are not in use; 0: no limit */
    const char *dir;      /* for those that leave memory; NULL: none. Borrowed */
    uint64_t dir_bytes;   /* of its files; the oldest leave; 0: no limit */
    uint32_t dir_files;   /* their number, likewise */
    /* Gets a line that the user should know and that stops nothing. */
    void (*tell)(void *ctx, const char *text);
    void *ctx;
};

struct sequences_counts {
    uint32_t n, n_used;        /* in memory; of those in use */
    uint32_t n_saved;          /* files */
    uint64_t bytes, dir_bytes; /* of states in memory, of files */
    uint64_t n_loads, n_saves; /* so far */
};

/* Looks through the directory: files of this model are taken up, others stay as they are. ERR_IO: it cannot
 * be made or read. */
int sequences_new(struct sequences **out, struct moeflux_model *m, const struct sequences_options *o,
                  struct moeflux_err *e);

/* How many of the ids sequences_take would find in memory. */
uint32_t sequences_usable(struct sequences *q, const int32_t *ids, uint32_t n);

/* The sequence to evaluate the n >= 1 ids in, after moeflux_session_reuse; the caller's until sequences_put.
 * ERR_USAGE: all are in use; ERR_NO_FIT, ERR_MEMORY, ERR_DEVICE, ERR_INTERRUPTED. */
int sequences_take(struct sequences *q, const int32_t *ids, uint32_t n, struct moeflux_session **out,
                   struct moeflux_err *e);
/* An empty one, for prompts of which nothing is kept. */
int sequences_take_empty(struct sequences *q, struct moeflux_session **out, struct moeflux_err *e);
/* Gives it back. Others leave memory if there are too many bytes. */
void sequences_put(struct sequences *q, struct moeflux_session *s);

/* Frees the memory of the least recently used one that is not in use, after saving it. False: there is none.
 * */
bool sequences_shrink(struct sequences *q);

struct sequences_counts sequences_count(const struct sequences *q);

/* Saves what is in memory, where there is a directory, and frees all. NULL is legal. */
void sequences_free(struct sequences *q);

#endif
