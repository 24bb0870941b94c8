/* pretokenize.h - cuts text into the pieces that merging never crosses. A part of the tokenizer. The splits
 * run one after the other, each inside the pieces of the one before: to a pattern a piece is the whole text.
 * Every match is a piece and so is every gap between matches; a split's behaviour may join neighbours. */
#ifndef MOEFLUX_TEXT_TOKENIZER_PRETOKENIZE_H
#define MOEFLUX_TEXT_TOKENIZER_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

struct moeflux_err;
struct pretokenize_split; /* one compiled pattern */
struct steps;

#define PRETOKENIZE_MAX_SPLITS 16

/* Which neighbours of a split become one piece. */
enum pretokenize_join {
    PRETOKENIZE_ISOLATED,      /* none */
    PRETOKENIZE_CONTIGUOUS,    /* matches that touch */
    PRETOKENIZE_WITH_PREVIOUS, /* a gap and the match after it */
    PRETOKENIZE_WITH_NEXT,     /* a match and the gap after it */
};

struct pretokenizer {
    struct pretokenize_split *splits[PRETOKENIZE_MAX_SPLITS];
    size_t n_splits;
};

/* Adds a split. literal: the pattern is plain text, not a regular expression. ERR_FORMAT for a pattern that
 * does not compile, ERR_UNSUPPORTED for one that cannot be run faithfully (see pattern.h) or that matches the
 * empty text, and for too many splits. */
int pretokenize_add(struct pretokenizer *p, const char *pattern, size_t len, bool literal,
                    enum pretokenize_join join, struct moeflux_err *e);
void pretokenize_free(struct pretokenizer *p);

/* Who gets the pieces, borrowed. A negative return stops the cutting and is handed on. */
struct pretokenize_sink {
    int (*piece)(void *ctx, const char *bytes, size_t len, struct moeflux_err *e);
    void *ctx;
};

/* Gives each piece of `text` (valid UTF-8) to the sink, in order. The pieces in a row are the text, none is
 * empty. ERR_UNSUPPORTED when a pattern needs more steps or memory than is allowed: it names the split and
 * the place; ERR_INTERRUPTED, ERR_MEMORY. */
int pretokenize_run(const struct pretokenizer *p, const char *text, size_t len, struct steps *steps,
                    struct pretokenize_sink sink, struct moeflux_err *e);

#endif
