/* table.h - rows that are printed as an aligned table, as CSV or as a JSON array of objects. */
#ifndef MOEFLUX_CLI_REPORT_TABLE_H
#define MOEFLUX_CLI_REPORT_TABLE_H

#include <stdbool.h>
#include <stddef.h>

struct moeflux_err;
struct json_t;
struct output;

struct table_column {
    const char *key;   /* in CSV and JSON; units in the name: "median_tok_s"; NULL: not there */
    const char *title; /* in the plain table; NULL: not there */
    int digits;        /* after the point; -1: a column of text, aligned left */
};

struct table_cell { /* a column of text has `text`, one of numbers `number` */
    const char *text;
    double number;
};

enum table_format { TABLE_PLAIN, TABLE_CSV };

struct table {
    const struct table_column *columns;
    size_t n_columns, n_rows;
    const struct table_cell *cells; /* [n_rows][n_columns] */
};

void table_print(const struct table *t, enum table_format format, struct output *out);

/* An array of one object per row, or NULL (no memory). The caller owns it. */
struct json_t *table_json(const struct table *t);

#endif
