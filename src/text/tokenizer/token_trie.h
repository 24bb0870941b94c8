/* token_trie.h - a vocabulary's tokens as a prefix tree over their bytes.
 *
 * Nodes are in preorder, so a subtree is a range of nodes, and its tokens are a range of `ids`. Read-only
 * once it is made. */
#ifndef MOEFLUX_TEXT_TOKENIZER_TOKEN_TRIE_H
#define MOEFLUX_TEXT_TOKENIZER_TOKEN_TRIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct tokenizer;

struct token_text {
    const char *bytes; /* borrowed; NULL: not in the trie */
    size_t len;
};

struct token_trie {
    uint32_t n_ids;   /* ids of the vocabulary, including those not in the trie */
    uint32_t n_nodes; /* nodes; node 0 is the root, which has no byte */
    uint32_t depth;   /* bytes of the longest token */
    uint8_t *byte;    /* [n_nodes] */
    uint32_t *level;  /* [n_nodes] depth in bytes */
    uint32_t *end;    /* [n_nodes] the node after the subtree */
    uint32_t *first;  /* [n_nodes + 1] the tokens that end at node i are ids[first[i]..first[i + 1]) */
    int32_t *ids;     /* tokens, sorted by their bytes */
    struct token_text *texts; /* [n_ids] */
};

/* `text` fills *out with an id's bytes. It returns false if the id must not be
 * generated under a constraint. */
struct token_source {
    uint32_t n_ids;
    bool (*text)(const void *ctx, int32_t id, struct token_text *out);
    const void *ctx;
};

/* Makes a trie of the source's tokens, whose bytes must outlive it. ERR_MEMORY; ERR_UNSUPPORTED: the trie
 * would have over 2^31 nodes. */
int token_trie_new(struct token_trie **out, const struct token_source *source, struct moeflux_err *e);

/* Makes a trie of a tokenizer's ordinary tokens below n_ids: without added tokens (control tokens, tags). */
int token_trie_of(struct token_trie **out, const struct tokenizer *t, uint32_t n_ids, struct moeflux_err *e);

void token_trie_free(struct token_trie *t);

#endif
