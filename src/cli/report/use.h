/* use.h - `moeflux inspect --trace FILE` and `--usage FILE`: how a run used the experts, and what another
 * size of the cache would have read. */
#ifndef MOEFLUX_CLI_REPORT_USE_H
#define MOEFLUX_CLI_REPORT_USE_H

#include <stdint.h>

struct moeflux_err;
struct options;
struct output;
struct moeflux_model;
struct str;

/* o->trace or o->usage is given. o->model may be: then the file must be of such a model, and the plan's size
 * is shown too. ERR_IO, ERR_FORMAT: the file. */
int use_report_run(const struct options *o, struct output *out, struct moeflux_err *e);

/* For --stats: a table of how the model's experts were used, layer by layer; nothing where nothing was
 * counted. */
void use_report_add(const struct moeflux_model *m, struct str *to);
/* For --stats: what the trace that a run has written says of its cache of n_slots. On stderr. ERR_IO,
 * ERR_FORMAT, ERR_MEMORY. */
int use_report_tell(const struct options *o, uint64_t n_slots, struct moeflux_err *e);

#endif
