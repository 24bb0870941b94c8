/* use_report.h - `moeflux inspect --trace FILE` and `--usage FILE`: how a run used the experts, and what another size of the
 * cache would have read. */
#ifndef MOEFLUX_CLI_USE_REPORT_H
#define MOEFLUX_CLI_USE_REPORT_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;
struct options;
struct output;
struct replay_layer;
struct str;

/* o->trace or o->usage is given. o->model may be: then the file must be of such a model, and the plan's size is shown too.
 * ERR_IO, ERR_FORMAT: the file. */
int use_report_run(const struct options *o, struct output *out, struct moeflux_err *e);

/* The table of the layers that were used: [n_layers]. has_reuse: with the distances. */
void use_report_layers(const struct replay_layer *layers, uint32_t n_layers, bool has_reuse, struct str *to);

#endif
