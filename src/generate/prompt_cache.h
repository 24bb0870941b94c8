/* prompt_cache.h - the state after a prompt in a file, for the next prompt that begins like it. */
#ifndef MOEFLUX_GENERATE_PROMPT_CACHE_H
#define MOEFLUX_GENERATE_PROMPT_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "moeflux.h"

struct generator;
struct token_list;

struct prompt_cache_options {
    const char *path; /* borrowed; NULL: no cache */
    bool read_only;   /* the file stays as it is */
    enum moeflux_state_format format;
    /* Gets a line that the user should know and that stops nothing. */
    void (*tell)(void *ctx, const char *text);
    void *ctx;
};

struct prompt_cache { /* zeroed at first */
    struct prompt_cache_options options;
    bool may_write;               /* the file is of this model, broken, or not there */
    bool loaded;                  /* the sequence is the file's */
    uint32_t n_held;              /* tokens of the file */
    uint32_t n_system;            /* tokens of the prompt up to the end of the system text; 0: not known */
    uint32_t n_reused;            /* tokens of the prompt that were not computed */
    struct moeflux_err unwritten; /* code 0: the file is written, or was not to be */
};

/* Loads the file into the empty sequence. What cannot be used is told: a broken file will be replaced, one of
 * another model, of another version or of something else stays as it is. Fails only when the device does, or
 * with ERR_INTERRUPTED. */
int prompt_cache_load(struct prompt_cache *pc, const struct prompt_cache_options *o, struct generator *s,
                      struct moeflux_err *e);

/* Evaluates the prompt behind what the sequence has of it, and tells how much that was. Writes the file
 * before the last token's evaluation, so that the same prompt finds all of itself but one (version 2, which
 * cannot be gone back in, after it); why a file could not be written is in pc->unwritten: the answer goes
 * before. The sampler must not have been told of the prompt. */
int prompt_cache_eval(struct prompt_cache *pc, struct generator *s, const struct token_list *prompt,
                      const struct moeflux_outputs *outputs, struct moeflux_err *e);

#endif
