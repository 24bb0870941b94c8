/* work_limit.h - bounds the work of encoding one text, and lets the user stop it. A part of the tokenizer.
 *
 * Split patterns and added tokens come with a model; some need time quadratic in the text's length, or worse.
 * Work is counted in steps: a byte of ordinary text takes one or two in each split. Only crafted patterns
 * reach the limit. */
#ifndef MOEFLUX_TEXT_TOKENIZER_WORK_LIMIT_H
#define MOEFLUX_TEXT_TOKENIZER_WORK_LIMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct moeflux_progress;

struct work_limit {
    uint64_t left;                           /* steps */
    uint64_t until_ask;                      /* steps until `progress` is called */
    const struct moeflux_progress *progress; /* may stop the work; may be NULL */
    bool interrupted;                        /* `progress` stopped the work */
};

/* Returns the limit for a text of len bytes that goes through n_splits splits. */
struct work_limit work_limit_for(size_t len, size_t n_splits, const struct moeflux_progress *p);

/* Takes n steps. Returns false if fewer are left, or if the user stopped it (`interrupted`); then none are
 * left. */
bool work_limit_take(struct work_limit *s, uint64_t n);

/* Takes no steps, but calls `progress` as often as for n steps. For work that is bounded by itself. Returns
 * false if the user stopped it. */
bool work_limit_ask(struct work_limit *s, uint64_t n);

/* Fills `e` with the reason after one of the above returned false: ERR_INTERRUPTED, else ERR_UNSUPPORTED:
 * `what` ("split 1 of 2") took too many steps at byte `at` of `len`. */
int work_limit_error(const struct work_limit *s, const char *what, size_t at, size_t len,
                     struct moeflux_err *e);

#endif
