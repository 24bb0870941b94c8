/* dense.h - writes model_weights.bin. */
#ifndef MOEFLUX_CONVERT_DENSE_H
#define MOEFLUX_CONVERT_DENSE_H

#include "convert/plan.h"
#include "convert/target.h"
#include "convert/work.h"

#define CONVERT_WEIGHTS "model_weights.bin"

/* Writes the file, or keeps it if an earlier run finished it. Source bytes count as progress either way.
 * ERR_FORMAT: a value that is not finite. */
int convert_dense_write(const struct convert_plan *p, struct convert_target *t, struct convert_work *w,
                        struct moeflux_err *e);

#endif
