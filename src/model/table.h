/* table.h - the rows of an n-gram table on disk: one tensor, or shards of consecutive rows as published
 * checkpoints have them. Says where the bytes of a row are and decodes them; experts/row_reader.h reads. */
#ifndef MOEFLUX_MODEL_TABLE_H
#define MOEFLUX_MODEL_TABLE_H

#include "model/model.h"
#include "model/ngram.h"

struct moeflux_err;

/* 8-bit floats have matrix.format FORMAT_NONE. */
struct table_shard {
    struct matrix matrix;
    uint32_t first; /* row of the table */
    struct {        /* 8-bit floats (fp8.h) */
        const struct tensor *scales;
        struct fp8_blocks blocks;
        uint32_t type, row_bytes; /* SCALE_*; bytes of a row's scales */
        uint8_t only[4];          /* the scale, if it is the only one of the shard */
        bool has_only;
    } fp8;
};

struct table {
    struct ngram_hash hash;
    uint32_t cols;      /* numbers of a row */
    uint32_t row_bytes; /* most bytes of a row in the files, all its runs; at most 4 cols */
    uint32_t n_shards;
    struct table_shard *shards; /* owned; by increasing rows */
    float fp8_values[256];
};

/* Gives the constants of a table, or computes them (ngram.h). ERR_UNSUPPORTED: sizes that do not fit. */
int table_hash(const struct ngram_config *c, struct ngram_hash *out, struct moeflux_err *e);
/* Finds and checks the table of a layer that has one. ERR_FORMAT: a shard is missing, or the rows are not as
 * many as the configuration says. ERR_UNSUPPORTED: a row has more bytes than its numbers in float32. */
int table_open(struct table *t, const struct model_dir *m, uint32_t layer, const struct ngram_config *c,
               struct moeflux_err *e);
void table_close(struct table *t); /* zeroed is legal */
/* Contiguous bytes of a row in a file. */
struct table_run {
    uint32_t file; /* index into model_dir.files */
    uint32_t bytes;
    uint64_t off; /* bytes from the file's start */
};
/* A row's codes, scales and biases. */
enum { TABLE_RUNS = 3 };
/* Lists the runs of a row, whose bytes table_decode takes in this order. Returns their number. */
uint32_t table_find_row(const struct table *t, uint32_t row, struct table_run out[TABLE_RUNS]);
/* Sets is_read [model_dir.n_files] for the files that rows lie in. */
void table_mark_files(const struct table *t, bool *is_read);
/* Decodes a row to float32, [cols]. raw: the bytes of its runs; may be out's last row_bytes. ERR_FORMAT: a
 * number is not finite. */
int table_decode(const struct table *t, const struct model_dir *m, uint32_t row, const uint8_t *raw,
                 float *out, struct moeflux_err *e);

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
