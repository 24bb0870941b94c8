/* prompt_cache.h - the state after a prompt in a file, for the next prompt with a common prefix. */
#ifndef MOEFLUX_GENERATE_PROMPT_CACHE_H
#define MOEFLUX_GENERATE_PROMPT_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "moeflux.h"

struct generator;
struct moeflux_sampler_options;
struct token_list;

struct prompt_cache_options {
    const char *path; /* borrowed; NULL: no cache */
    bool read_only;   /* do not write the file */
    enum moeflux_state_format format;
    /* Shows the user a line that is no failure. */
    void (*tell)(void *ctx, const char *text);
    void *ctx;
};

struct prompt_cache { /* zeroed at first */
    struct prompt_cache_options options;
    bool may_write;               /* the file is of this model, damaged, or does not exist */
    bool loaded;                  /* the sequence has the state of the file */
    uint32_t n_held;              /* tokens in the file */
    uint32_t n_system;            /* tokens of the prompt up to the end of the system text; 0: not known */
    uint32_t n_reused;            /* tokens of the prompt that were not evaluated */
    struct moeflux_err unwritten; /* why the file could not be written; code 0: it was, or need not be */
};

/* Loads the file into the empty sequence. Reports a file that cannot be used: a damaged one will be replaced;
 * one of another model or version, or with other content, stays as it is. ERR_DEVICE, ERR_INTERRUPTED. */
int prompt_cache_load(struct prompt_cache *pc, const struct prompt_cache_options *o, struct generator *s,
                      struct moeflux_err *e);

/* Makes the sampler, evaluates the part of the prompt that the sequence does not have, and reports how much
 * was reused. Writes the file before the last token is evaluated, so that the same prompt reuses all but one
 * token. Version 2 has no checkpoints: it is written after the last token. A file that cannot be written is
 * no failure: the answer has priority, and pc->unwritten has the reason. Errors: those of prefill_begin and
 * prefill_run. */
int prompt_cache_eval(struct prompt_cache *pc, struct generator *s, const struct token_list *prompt,
                      const struct moeflux_sampler_options *sampling, const struct moeflux_outputs *outputs,
                      struct moeflux_err *e);

#endif
