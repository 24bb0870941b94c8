/* bpe.h - byte-pair merging of one piece: the adjacent pair of lowest rank first, leftmost on a tie.
 * A part of the tokenizer. A piece is the ids of its bytes or of its characters. */
#ifndef MOEFLUX_TEXT_TOKENIZER_BPE_H
#define MOEFLUX_TEXT_TOKENIZER_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer/tokenizer.h"

struct moeflux_err;
struct work_limit;

struct bpe_merge {
    uint64_t pair; /* left id in the high half, right id in the low one; UINT64_MAX: empty */
    uint32_t rank; /* index in the file's list of merges; the lowest is applied first */
    int32_t result;
};

struct bpe {
    struct bpe_merge *table; /* [mask + 1] open addressing */
    size_t mask;
};

/* Buffers for a piece and its merging. Zero it before first use; it serves any number of pieces. */
struct bpe_scratch {
    struct token_list piece; /* the ids to merge, filled by the caller of bpe_encode */
    void *symbols;           /* struct symbol [] */
    size_t symbols_cap;
    uint64_t *heap;
    size_t heap_cap;
    struct work_limit *limit; /* lets the user stop a long piece; may be NULL */
};

int bpe_init(struct bpe *b, size_t n_merges, struct moeflux_err *e);
void bpe_free(struct bpe *b);
/* Adds a merge. A second merge of the same pair replaces the first, as in the format's own readers. */
void bpe_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t result);

/* Appends the ids of s->piece after merging, in O(n log n). ERR_MEMORY, ERR_INTERRUPTED; ERR_USAGE: a piece
 * of 2^32 - 1 ids or more. */
int bpe_encode(const struct bpe *b, struct bpe_scratch *s, struct token_list *out, struct moeflux_err *e);
void bpe_scratch_free(struct bpe_scratch *s);

#endif
