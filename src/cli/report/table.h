/* table.h - prints rows as an aligned table, as CSV or as a JSON array of objects. */
#ifndef MOEFLUX_CLI_REPORT_TABLE_H
#define MOEFLUX_CLI_REPORT_TABLE_H

#include <stdbool.h>
#include <stddef.h>

struct moeflux_err;
struct json_t;
struct output;

struct table_column {
    const char *key;   /* name in CSV and JSON, with the unit: "median_tok_s"; NULL: not in them */
    const char *title; /* title in the plain table; NULL: not in it */
    int digits;        /* digits after the point; -1: a column of text, aligned left */
};

struct table_cell {
    const char *text; /* used in a column of text */
    double number;    /* used in a column of numbers; NaN: not known */
};

enum table_format { TABLE_PLAIN, TABLE_CSV };

struct table {
    const struct table_column *columns;
    size_t n_columns, n_rows;
    const struct table_cell *cells; /* [n_rows][n_columns] */
};

void table_print(const struct table *t, enum table_format format, struct output *out);

/* Returns an array with an object for each row, owned by the caller; NULL: no memory. */
struct json_t *table_json(const struct table *t);

#endif
