/* index.h - the indexer of an attention part (ops/indexer/indexer.h): sizes, stores, and the choice of a
 * chunk's positions. Parts of one kind share its buffers, so a layer without an indexer finds the lists of
 * the last layer before it that has one. Part of gqa.c and latent.c. */
#ifndef MOEFLUX_ARCH_INDEX_H
#define MOEFLUX_ARCH_INDEX_H

#include "arch/part.h"
#include "ops/indexer/indexer.h"

struct index_part {
    const struct part_room *room;
    const struct index_config *config;
    enum part_kind kind;   /* whose own buffers it uses */
    uint32_t rope;         /* index of the table of angles */
    struct indexer op;     /* unused without an indexer */
    uint64_t scores_bytes; /* size of one sequence's part of the scores in batched decode */
};

/* A layer's inputs of the indexer for a chunk, and its weights: see indexer_call. */
struct index_inputs {
    uint64_t queries, keys, weights;
    uint32_t stride, key_stride, weight_stride; /* floats from a token to the next */
    uint64_t q_norm, k_norm, k_bias, pool_bias;
    const struct arch_store *stores; /* the indexer's */
};

/* Returns which positions a token sees. */
struct kv_choice index_choice(const struct index_config *x);
/* Adds the needs to those of the attention part. */
void index_needs(const struct config *c, const struct index_config *x, const struct exec_caps *caps,
                 const struct part_most *most, struct part_needs *out);
/* Returns the type of index rows: blocks are chosen by them, so they keep more bits than q8_0 has. */
enum kv_type index_type(enum kv_type type);
/* Adds the store of the rows alone. off: as below. */
void index_rows(const struct index_config *x, uint64_t off, enum kv_type type, struct arch_stores *out);
/* Adds the stores. off: where the part's other rows end in a block. */
void index_stores(const struct index_config *x, uint64_t off, enum kv_type type, struct arch_stores *out);
/* Opens the indexer if the configuration has one. */
int index_open(struct index_part *out, const struct part_room *room, enum part_kind kind,
               const struct index_config *x, uint32_t rope, struct moeflux_err *e);
/* Returns the address of a token's list; 0: every token sees everything. */
uint64_t index_list_at(const struct index_part *x, uint32_t token);
/* Returns the address of a token's prepared queries, f32 [n_heads][dim]. */
uint64_t index_queries_at(const struct index_part *x, uint32_t token);
/* Chooses what the tokens of `part` see, whose queries are prepared and whose rows are in the store.
 * weights: see indexer_call; the chunk's. idx: which of the chunk's sequences it is. */
void index_choose(const struct index_part *x, const struct part_tokens *part, const struct arch_store *rows,
                  uint64_t weights, uint32_t weight_stride, uint32_t idx);
/* Prepares queries and rows, and chooses what the chunk's tokens see. */
void index_run(const struct index_part *x, const struct part_call *call, const struct index_inputs *in);

#endif
