/* steps.h - how much work encoding one text may be, and the question whether to go on. A part of the
 * tokenizer. Split patterns and added tokens come with a model: some need time that squares with a text's
 * length, or worse. A step is what a byte of ordinary text costs once or twice in each split; only crafted
 * patterns need as many as there are. */
#ifndef MOEFLUX_TEXT_TOKENIZER_STEPS_H
#define MOEFLUX_TEXT_TOKENIZER_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct moeflux_progress;

struct steps {
    uint64_t left;
    uint64_t until_ask;
    const struct moeflux_progress *progress; /* asked now and then; may be NULL */
    bool interrupted;
};

/* For a text of len bytes that goes through n_splits splits. */
struct steps steps_for(size_t len, size_t n_splits, const struct moeflux_progress *p);

/* Takes n steps. False: there are not as many left, or the user stops it (`interrupted`); then nothing is
 * left. */
bool steps_take(struct steps *s, uint64_t n);

/* Only asks, after work that is bounded by itself and takes as long as n steps. */
bool steps_ask(struct steps *s, uint64_t n);

/* Why it ended: ERR_INTERRUPTED, else ERR_UNSUPPORTED: `what` ("split 1 of 2") has none left at byte `at` of
 * `len`. */
int steps_error(const struct steps *s, const char *what, size_t at, size_t len, struct moeflux_err *e);

#endif
