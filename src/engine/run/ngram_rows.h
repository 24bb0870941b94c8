/* ngram_rows.h - reads the n-gram rows of a chunk's tokens from disk to a stage's input (arch_chunk.ngrams).
 * They are known as soon as the tokens are. */
#ifndef MOEFLUX_ENGINE_RUN_NGRAM_ROWS_H
#define MOEFLUX_ENGINE_RUN_NGRAM_ROWS_H

#include <stdint.h>

#include "exec/exec.h"
#include "experts/store.h"
#include "model/table.h"

struct moeflux_err;

struct ngram_rows {
    struct exec_buffer room; /* f32 [n_tables][max_chunk][inner]; absent without tables */
    struct table *tables;    /* [n_tables]; zero for those of other stages' layers */
    uint32_t n_tables, inner, max_chunk;
    uint32_t *rows;  /* [max_chunk][n_heads] */
    uint32_t *words; /* [NGRAM_MAX_SIZE + max_chunk]: the tokens, after those before them */
};

/* The tokens of a sequence: the first `pos`, then those being evaluated. */
struct ngram_text {
    const int32_t *history, *ids;
    uint32_t pos;
};

/* Returns whether a model has tables. */
bool ngram_rows_are_needed(const struct config *c);
int ngram_rows_open(struct ngram_rows *r, struct exec *x, const struct model_dir *d,
                    struct expert_layers layers, uint32_t max_chunk, struct moeflux_err *e);
void ngram_rows_close(struct ngram_rows *r, struct exec *x); /* zeroed is legal */
/* Reads the rows of the n tokens from position `pos` on, for places at .. at + n - 1 of the chunk. No
 * operation may be reading them. ERR_USAGE: a token before them is not known. */
int ngram_rows_read(struct ngram_rows *r, const struct model_dir *d, const struct ngram_text *t, uint32_t pos,
                    uint32_t n, uint32_t at, struct moeflux_err *e);

#endif
