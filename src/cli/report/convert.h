/* convert.h - prints the errors of a quantisation as a table. */
#ifndef MOEFLUX_CLI_REPORT_CONVERT_H
#define MOEFLUX_CLI_REPORT_CONVERT_H

#include <stdbool.h>

#include "convert/errors.h"

struct moeflux_err;
struct output;

/* Prints a line for each class of quantised tensors and one for all; nothing if none was quantised. searched:
 * scales were searched; false: they come from the smallest and largest value of each group. */
int convert_report_print(const struct convert_errors *x, bool searched, struct output *out,
                         struct moeflux_err *e);

#endif
