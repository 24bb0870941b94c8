/* use.h - `moeflux inspect --trace FILE` and `--usage FILE`: reports how a run used the experts, and what
 * caches of other sizes would have read. */
#ifndef MOEFLUX_CLI_REPORT_USE_H
#define MOEFLUX_CLI_REPORT_USE_H

#include <stdint.h>

struct moeflux_err;
struct options;
struct output;
struct moeflux_model;
struct str;

/* Prints the report on o->trace or o->usage as text or JSON. If o->model is given, the file must be of such a
 * model, and the report has the size that the plan gives the cache. ERR_IO, ERR_FORMAT: the file. */
int use_report_run(const struct options *o, struct output *out, struct moeflux_err *e);

/* Appends a table of how the model's experts were used, by layer, for --stats; nothing if nothing was
 * counted. */
void use_report_add(const struct moeflux_model *m, struct str *to);
/* Prints on stderr, for --stats, the hit rate of a cache of n_slots on the trace that the run has written.
 * ERR_IO, ERR_FORMAT, ERR_MEMORY. */
int use_report_tell(const struct options *o, uint64_t n_slots, struct moeflux_err *e);

#endif
