/* compare_table.h - the results of --compare as a table, as CSV or as JSON. */
#ifndef MOEFLUX_CLI_MEASURE_COMPARE_TABLE_H
#define MOEFLUX_CLI_MEASURE_COMPARE_TABLE_H

#include <stdint.h>

struct compared;
struct moeflux_err;
struct options;
struct output;

/* all: [n], the first one is what the others are compared with. context: tokens of a window. */
int compare_table_print(const struct options *o, const struct compared *all, uint32_t n, uint32_t context,
                        struct output *out, struct moeflux_err *e);

#endif
