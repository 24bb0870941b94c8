/* gguf_merges.h - the merges of a SentencePiece vocabulary, which has scores. A part of gguf_vocab. */
#ifndef MOEFLUX_TEXT_TOKENIZER_GGUF_MERGES_H
#define MOEFLUX_TEXT_TOKENIZER_GGUF_MERGES_H

#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer/vocab.h"

struct gguf;
struct moeflux_err;

struct gguf_merge {
    int32_t left, right;
    uint32_t n_left, n_right; /* characters */
    float score;              /* score of the token that the merge makes */
    uint32_t order;           /* position by that token's id, `left`, `right` */
};

struct gguf_merges { /* zeroed at first; freed with gguf_merges_free */
    struct vocab vocab;
    struct gguf_merge *list; /* the first is applied first */
    size_t n, cap;
};

/* Makes a merge of each way to cut a normal token into two. The highest score comes first, then the longest
 * left part, as in the converter of transformers. types: the types of the tokens; NULL: all are normal.
 * ERR_FORMAT: a list is missing, too short or too long. */
int gguf_merges_make(struct gguf_merges *m, const struct gguf *g, const uint32_t *types,
                     struct moeflux_err *e);
void gguf_merges_free(struct gguf_merges *m);

#endif
