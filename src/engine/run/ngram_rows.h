/* ngram_rows.h - reads the n-gram rows of a chunk's tokens from disk to a stage's input (arch_chunk.ngrams).
 *
 * Rows are known as soon as the tokens are, so a thread reads them while the device computes what does not
 * need them: the layers before the first table, or the chunk before.
 *
 *   ngram_rows_clear -> ngram_rows_add of each sequence -> ngram_rows_start
 *     -> ngram_rows_add of the tokens that come next, if they are known -> ngram_rows_wait
 *
 * ngram_rows_start goes on with rows that are being read already, so a right guess of the next tokens is
 * never read twice. Only the thread with the stage's turn calls. */
#ifndef MOEFLUX_ENGINE_RUN_NGRAM_ROWS_H
#define MOEFLUX_ENGINE_RUN_NGRAM_ROWS_H

#include <stdint.h>

#include "exec/exec.h"
#include "experts/reader.h"
#include "experts/store.h"
#include "model/table.h"

struct moeflux_err;
struct rows_reading;

struct ngram_rows {
    struct exec_buffer room; /* f32 [n_tables][max_chunk][inner]; absent without tables */
    struct table *tables;    /* [n_tables]; zero for those of other stages' layers */
    uint32_t n_tables, inner, max_chunk;
    uint32_t first_layer; /* the first of the stage's layers with a table; UINT32_MAX: there is none */
    uint32_t n_heads;     /* rows of a token in each table */
    uint32_t n;           /* tokens added and not started */
    uint32_t *rows;       /* [n_tables][max_chunk][n_heads] */
    uint32_t *words;      /* [NGRAM_MAX_SIZE + max_chunk]: the tokens or words, after those before them */
    uint32_t *words_of;   /* [vocab_size]: each token's word; NULL: n-grams consist of tokens */
    struct rows_reading *reading;
    bool is_started;          /* rows are being read, or were and wait in memory */
    uint64_t n_read, wait_ns; /* statistics: rows that were waited for; time of that */
};

/* The tokens of a sequence: the first `pos`, then those being evaluated. */
struct ngram_text {
    const int32_t *history, *ids;
    uint32_t pos;
};

struct ngram_rows_options {
    const struct model_dir *dir; /* must outlive the rows */
    struct expert_layers layers; /* the stage's */
    uint32_t max_chunk;
    enum reader_mode io;
    uint64_t host_bytes, expert_bytes; /* row_reader_options' */
};

/* Returns the bytes of `room`, and of host memory in addition, for the layers' tables. */
uint64_t ngram_rows_room_bytes(const struct config *c, struct expert_layers layers, uint32_t max_chunk);
uint64_t ngram_rows_host_bytes(const struct config *c, struct expert_layers layers, uint32_t max_chunk);

int ngram_rows_open(struct ngram_rows *r, struct exec *x, const struct ngram_rows_options *o,
                    struct moeflux_err *e);
void ngram_rows_close(struct ngram_rows *r, struct exec *x); /* zeroed is legal */

/* The functions below do nothing if the stage has no tables.
 *
 * Forgets the added tokens. */
void ngram_rows_clear(struct ngram_rows *r);
/* Adds the n tokens from position `pos` on, in the chunk's order. ERR_USAGE: a token before them is not
 * known. */
int ngram_rows_add(struct ngram_rows *r, const struct ngram_text *t, uint32_t pos, uint32_t n,
                   struct moeflux_err *e);
/* Begins to read the rows of the added tokens, which are forgotten. Drops what was begun for others. */
void ngram_rows_start(struct ngram_rows *r);
/* Returns whether ngram_rows_wait would return at once. */
bool ngram_rows_are_there(const struct ngram_rows *r);
/* Waits for the rows and copies them to `room`, which no operation may be reading. Then starts those added
 * since. Does nothing if none were started. Asks the watch of `x` every 50 ms. ERR_INTERRUPTED, ERR_IO,
 * ERR_FORMAT. */
int ngram_rows_wait(struct ngram_rows *r, const struct exec *x, struct moeflux_err *e);

#endif
