/* sequences.h - the recent sequences of one model. A prompt continues the sequence that has the most of it:
 * one in memory, or one in the directory where evicted sequences are saved.
 *
 * What counts is how many tokens need no evaluation. With recurrent layers a sequence can return only to its
 * checkpoints. Used by one thread at a time. */
#ifndef MOEFLUX_GENERATE_SEQUENCES_H
#define MOEFLUX_GENERATE_SEQUENCES_H

#include <stdbool.h>
#include <stdint.h>

#include "generate/prefix.h"
#include "moeflux_chat.h"

struct saved_sequences;
struct sequences;

struct sequences_options {
    uint32_t max_context; /* tokens of each sequence */
    uint32_t most;        /* most sequences in memory, also those in use; >= 1 */
    uint32_t checkpoints; /* most checkpoints of a sequence; 0: a few */
    /* Tokens of a chunk: only whole chunks of a sequence's last prompt are reused (prefill.chunk); 0: all
     * that can be. */
    uint32_t chunk;
    uint64_t bytes;                /* most bytes of the states of idle sequences; 0: no limit */
    struct saved_sequences *saved; /* where evicted sequences are saved, borrowed; NULL: nowhere */
    /* Called on the caller's thread before (on) and after a sequence is saved. It is saved for later prompts,
     * so the leaving of a client who waits meanwhile should not end that. NULL: nobody is called. */
    void (*saves)(void *ctx, bool on);
    void *saves_ctx;
};

/* Creates an empty set. ERR_MEMORY. */
int sequences_new(struct sequences **out, struct moeflux_model *m, const struct sequences_options *o,
                  struct moeflux_err *e);

/* A prompt that wants a sequence: ids [n], n >= 1; where it is cut; tokens that other conversations begin
 * with, too (n: not known). */
struct sequences_prompt {
    const int32_t *ids;
    uint32_t n, n_shared;
    struct prefix_cuts cuts;
};

/* Returns how many of the prompt's tokens need no evaluation in the best idle sequence in memory. */
uint32_t sequences_usable(struct sequences *q, const struct sequences_prompt *p);

/* Returns the length of the longest common prefix with an idle sequence or a file, of those that differ
 * before the ids' end. The common tokens need not be reusable. */
uint32_t sequences_common(const struct sequences *q, const int32_t *ids, uint32_t n);

/* Gives the caller a sequence for the prompt, to be prepared with prefill_begin; the caller's until
 * sequences_put. If what is to be reused is the beginning of another conversation, that one stays, and the
 * new sequence shares it. ERR_USAGE: all are in use. ERR_NO_FIT, ERR_MEMORY, ERR_DEVICE, ERR_INTERRUPTED. */
int sequences_take(struct sequences *q, const struct sequences_prompt *p, struct moeflux_session **out,
                   struct moeflux_err *e);
/* Gives the caller an empty one, for a prompt that must be evaluated from its beginning. */
int sequences_take_empty(struct sequences *q, struct moeflux_session **out, struct moeflux_err *e);
/* Returns which of the first tokens of a sequence that the caller has are those of a prompt. */
struct prefix_evaluated sequences_held(struct sequences *q, const struct moeflux_session *s);
/* Takes a sequence back, of whose tokens the first ones are those of a prompt. Evicts others if idle ones
 * have too many bytes. */
void sequences_put(struct sequences *q, struct moeflux_session *s, const struct prefix_evaluated *prompt);
/* Frees a sequence that the caller has. */
void sequences_drop(struct sequences *q, struct moeflux_session *s);

/* Returns the idle sequence that was used last; NULL: there is none. Borrowed. */
const struct moeflux_session *sequences_latest(const struct sequences *q);

/* Evicts the least recently used idle sequence: saves it and frees its memory. False: there is none. */
bool sequences_shrink(struct sequences *q);

/* Counts the sequences, and the files of all sets that share them. */
struct moeflux_sequence_counts sequences_count(const struct sequences *q);

/* Frees the sequences in memory and saves none: their device is lost. */
void sequences_forget(struct sequences *q);

/* Saves the sequences in memory, if there is where to, and frees all. NULL is legal. */
void sequences_free(struct sequences *q);

#endif
