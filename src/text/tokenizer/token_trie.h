/* token_trie.h - a vocabulary's tokens by their bytes, as a tree: tokens that begin alike share their
 * beginning. Nodes stand in preorder, so a subtree is a range of nodes and its tokens a range of ids.
 * Read-only once it is made. */
#ifndef MOEFLUX_TEXT_TOKENIZER_TOKEN_TRIE_H
#define MOEFLUX_TEXT_TOKENIZER_TOKEN_TRIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct tokenizer;

struct token_text {
    const char *bytes; /* borrowed; NULL: not in the tree */
    size_t len;
};

struct token_trie {
    uint32_t n_ids;   /* of the vocabulary, those that are not in the tree included */
    uint32_t n_nodes; /* node 0 is the root, which has no byte */
    uint32_t depth;   /* bytes of the longest token */
    uint8_t *byte;    /* [n_nodes] */
    uint32_t *level;  /* [n_nodes] bytes from the root */
    uint32_t *end;    /* [n_nodes] the node behind the subtree */
    uint32_t *
        /* [n_nodes + 1] in `ids`; the tokens that end at node i are ids[first[i]] up to ids[first[i + 1]] */
        first;
    int32_t *ids;             /* tokens in the order of their bytes */
    struct token_text *texts; /* [n_ids] */
};

/* Which text an id stands for; false: none that may be generated under a constraint. */
struct token_source {
    uint32_t n_ids;
    bool (*text)(const void *ctx, int32_t id, struct token_text *out);
    const void *ctx;
};

/* ERR_MEMORY; ERR_UNSUPPORTED for tokens of 4 GiB together. The texts must outlive the trie. */
int token_trie_new(struct token_trie **out, const struct token_source *source, struct moeflux_err *e);

/* Of a tokenizer's ordinary tokens below n_ids: added tokens (control tokens, tags) are left out. */
int token_trie_of(struct token_trie **out, const struct tokenizer *t, uint32_t n_ids, struct moeflux_err *e);

void token_trie_free(struct token_trie *t);

#endif
