/* ngram.h - which rows of an n-gram table belong to a token: a hash of the token and those before it.
 *
 * The table has a part of its own for each head of each n-gram order, with a prime number of rows. For order
 * m = 2 .. size, with x_0 the token, x_i the i-th before it and multipliers k_i from splitmix64:
 *   row = first row of the part + (x_0 k_0 ^ x_1 k_1 ^ .. ^ x_{m-1} k_{m-1}) mod rows of the part
 * N-grams do not cross the end-of-text token: x_i is that token if any of the i tokens before x_0 is. What
 * precedes the first token of a sequence counts as end of text.
 *
 * DeepSeek-V4.1's n-grams consist of words (text/tokenizer/words.h) in place of tokens, do cross the end of
 * text, and have multipliers of numpy's generator. A padding word precedes the first one of a sequence. */
#ifndef MOEFLUX_MODEL_NGRAM_H
#define MOEFLUX_MODEL_NGRAM_H

#include <stdint.h>

struct moeflux_err;

enum { NGRAM_MAX_SIZE = 4, NGRAM_MAX_HEADS = 64 };

/* A table as a model's configuration describes it. */
struct ngram_table {
    uint32_t size;        /* tokens of the longest n-gram, 2 to NGRAM_MAX_SIZE */
    uint32_t heads;       /* heads of each order */
    uint32_t base;        /* no part has fewer rows */
    uint32_t divisor;     /* the number of rows is rounded up to a multiple; 0: it is not */
    uint32_t vocab_size;  /* bounds the multipliers */
    uint32_t end_of_text; /* n-grams of words: the padding token, whose word precedes a sequence */
    uint32_t index;       /* index of this table among the model's */
    uint64_t seed;        /* n-grams of words: numpy's */
    uint32_t n_words;     /* number of words; 0: n-grams consist of tokens */
};

struct ngram_hash {
    uint32_t size, heads, n_heads; /* n_heads: of all orders, (size - 1) heads */
    uint32_t end_of_text;
    uint32_t n_words; /* ngram_table's */
    uint32_t n_rows;  /* rows of the table with its padding */
    uint64_t multipliers[NGRAM_MAX_SIZE];
    uint32_t rows[NGRAM_MAX_HEADS], first[NGRAM_MAX_HEADS]; /* rows and first row of each part */
};

/* Computes a table's constants. ERR_UNSUPPORTED: sizes that do not fit this header. */
int ngram_hash_make(struct ngram_hash *h, const struct ngram_table *t, struct moeflux_err *e);
/* Writes the rows of n tokens, [n][n_heads], by increasing order and head. before: the size - 1 tokens before
 * the first, oldest first (ngram_before_first at the beginning of a sequence). Every token is less than
 * vocab_size. Of n-grams of words all of these are words. */
void ngram_hash_rows(const struct ngram_hash *h, const uint32_t *before, const uint32_t *tokens, uint32_t n,
                     uint32_t *rows);
/* Replaces `before` by the size - 1 tokens that precede what follows the n tokens. */
void ngram_advance(const struct ngram_hash *h, uint32_t *before, const uint32_t *tokens, uint32_t n);
/* Sets `before` for the beginning of a sequence. */
void ngram_before_first(const struct ngram_hash *h, uint32_t *before);

#endif
