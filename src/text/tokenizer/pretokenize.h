/* pretokenize.h - cuts text into the pieces that merging never crosses. A part of the tokenizer.
 *
 * Each split cuts the pieces of the split before it; to its pattern a piece is the whole text. Every match is
 * a piece, and so is every gap between matches. A split's behaviour may join neighbours or drop pieces. */
#ifndef MOEFLUX_TEXT_TOKENIZER_PRETOKENIZE_H
#define MOEFLUX_TEXT_TOKENIZER_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

struct moeflux_err;
struct pretokenize_split; /* one compiled pattern */
struct work_limit;

#define PRETOKENIZE_MAX_SPLITS 16

/* Which neighbours become one piece, and what is dropped. */
enum pretokenize_join {
    PRETOKENIZE_ISOLATED,      /* none */
    PRETOKENIZE_CONTIGUOUS,    /* matches that touch */
    PRETOKENIZE_WITH_PREVIOUS, /* a gap and the match after it */
    PRETOKENIZE_WITH_NEXT,     /* a match and the gap after it */
    PRETOKENIZE_DROP_MATCHES,  /* none; only the gaps are kept */
    PRETOKENIZE_DROP_GAPS,     /* none; only the matches are kept */
    PRETOKENIZE_N_JOINS,
};

struct pretokenizer {
    struct pretokenize_split *splits[PRETOKENIZE_MAX_SPLITS];
    size_t n_splits;
};

/* Adds a split. literal: the pattern is plain text, not a regular expression. ERR_FORMAT: the pattern does
 * not compile. ERR_UNSUPPORTED: it means something else in PCRE2 (see pattern.h), it matches the empty text,
 * or there are too many splits. */
int pretokenize_add(struct pretokenizer *p, const char *pattern, size_t len, bool literal,
                    enum pretokenize_join join, struct moeflux_err *e);
void pretokenize_free(struct pretokenizer *p);

/* Receives the pieces, which are borrowed. A negative return ends pretokenize_run, which returns it. */
struct pretokenize_sink {
    int (*piece)(void *ctx, const char *bytes, size_t len, struct moeflux_err *e);
    void *ctx;
};

/* Passes each piece of `text` (valid UTF-8) to the sink, in order. No piece is empty. Concatenated they are
 * the text, except for what splits drop. ERR_UNSUPPORTED: a pattern needs more steps or memory than allowed;
 * the message names the split and the place. ERR_INTERRUPTED, ERR_MEMORY. */
int pretokenize_run(const struct pretokenizer *p, const char *text, size_t len, struct work_limit *limit,
                    struct pretokenize_sink sink, struct moeflux_err *e);

#endif
