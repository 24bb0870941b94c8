/* compare_table.h - prints the results of --compare as a table, CSV or JSON. */
#ifndef MOEFLUX_CLI_MEASURE_COMPARE_TABLE_H
#define MOEFLUX_CLI_MEASURE_COMPARE_TABLE_H

#include <stdint.h>

struct compared;
struct moeflux_err;
struct options;
struct output;

/* Prints the results all[n]; the others are compared with the first. context: tokens of a window. */
int compare_table_print(const struct options *o, const struct compared *all, uint32_t n, uint32_t context,
                        struct output *out, struct moeflux_err *e);

#endif
