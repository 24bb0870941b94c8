/* table.h - the rows of an n-gram table on disk: one tensor, or shards of consecutive rows as published
 * checkpoints have them. Rows are read where they lie, at the storage format of the file. */
#ifndef MOEFLUX_MODEL_TABLE_H
#define MOEFLUX_MODEL_TABLE_H

#include "model/model.h"
#include "model/ngram.h"

struct moeflux_err;

struct table_shard {
    struct matrix matrix;
    uint32_t first; /* row of the table */
};

struct table {
    struct ngram_hash hash;
    uint32_t cols; /* numbers of a row */
    uint32_t n_shards;
    struct table_shard *shards; /* owned; by increasing rows */
};

/* Finds and checks the table of a layer that has one. ERR_FORMAT: a shard is missing, or the rows are not as
 * many as the configuration says. */
int table_open(struct table *t, const struct model_dir *m, uint32_t layer, const struct ngram_config *c,
               struct moeflux_err *e);
void table_close(struct table *t); /* zeroed is legal */
/* Reads n rows as float32, [n][cols]. ERR_FORMAT: a number is not finite. */
int table_read(const struct table *t, const struct model_dir *m, const uint32_t *rows, uint64_t n, float *out,
               struct moeflux_err *e);

/* Returns whether a tensor holds rows of a table. */
bool table_has(const char *name);
/* Returns the format with groups that divide a table's rows; FORMAT_NONE: there is none. Operations do not
 * read tables, so other limits of matrices do not hold. */
uint32_t table_format(uint32_t format, uint64_t cols);
/* Writes the name of a layer's whole table, without ".weight", to name [TABLE_NAME]. */
enum { TABLE_NAME = 80 };
void table_name(uint32_t layer, char *name);
/* Returns the description of a layer's table; NULL: it has none. */
const struct ngram_config *table_of_layer(const struct config *c, uint32_t layer);

#endif
