/* convert.h - what quantising cost, as a table. */
#ifndef MOEFLUX_CLI_REPORT_CONVERT_H
#define MOEFLUX_CLI_REPORT_CONVERT_H

#include <stdbool.h>

#include "convert/errors.h"

struct moeflux_err;
struct output;

/* A line for each class of tensors that was quantised and one for all; nothing where none was. searched:
 * whether scales were searched, else those of the smallest and largest value are the ones that are stored. */
int convert_report_print(const struct convert_errors *x, bool searched, struct output *out,
                         struct moeflux_err *e);

#endif
