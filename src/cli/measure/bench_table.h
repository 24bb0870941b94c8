/* bench_table.h - prints the results of --bench as a table, CSV or JSON: a row for each measured length and
 * depth. */
#ifndef MOEFLUX_CLI_MEASURE_BENCH_TABLE_H
#define MOEFLUX_CLI_MEASURE_BENCH_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/options/number.h"
#include "cli/report/table.h"

struct loaded;
struct moeflux_err;
struct options;
struct output;

enum { BENCH_ROWS = 2 * NUMBER_LIST_MAX * NUMBER_LIST_MAX, BENCH_COLUMNS = 28 };

/* n tokens after `depth` others, in each of `parallel` sequences that are decoded in one batch */
struct bench_test {
    bool decode;
    uint32_t n, depth, parallel;
    double busy_ms; /* processor time of a token, of all threads */
};

struct bench_table {
    const char *build;
    char model[80];      /* "Qwen3.5-MoE 34.7B.A3.0B": architecture, parameters, active parameters */
    char size[32];       /* all weights: "19.5 GB" */
    const char *backend; /* "vulkan", "cpu", "reference" */
    const char *device;
    uint32_t n_threads;
    double bytes, n_params;     /* all weights */
    char names[BENCH_ROWS][48]; /* "decode 64 x 4 @ d4096" */
    struct table_cell cells[BENCH_ROWS * BENCH_COLUMNS];
    size_t n_rows;
};

/* Fills what is the same in all rows, from the options, the opened model and the program's build. The
 * last two must outlive the table. */
int bench_table_init(struct bench_table *t, const char *build, const struct options *from,
                     const struct loaded *l, struct moeflux_err *e);

/* Adds a row. rates [reps]: tokens per second of all sequences, one for each repetition; they are sorted. */
void bench_table_add(struct bench_table *t, const struct bench_test *what, double *rates, size_t reps);

/* Prints the table. ids: what was evaluated, "random ids" or "prompt". */
int bench_table_print(const struct bench_table *t, const struct options *o, const struct loaded *l,
                      const char *ids, struct output *out, struct moeflux_err *e);

#endif
