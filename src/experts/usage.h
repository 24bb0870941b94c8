/* usage.h - writes and reads files that count how often each expert was chosen, over several runs.
 *
 * A text file. The first line is "moeflux usage 1 LAYERS EXPERTS". Each expert that was chosen has a line
 * "layer expert count", ordered by layer and expert. The last line is "end", so that a cut file is
 * recognised. Numbers are decimal, without sign or leading zeros, with one blank between. */
#ifndef MOEFLUX_EXPERTS_USAGE_H
#define MOEFLUX_EXPERTS_USAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "experts/ranking.h"

struct moeflux_err;

/* Adds the counts of the file to counts [n_layers][n_experts]; sums saturate at UINT32_MAX. Returns 1, or 0
 * if there is no such file. ERR_IO. ERR_FORMAT names the line, what was expected and what was found. After an
 * error nothing has changed. */
int usage_read(const char *path, uint32_t n_layers, uint32_t n_experts, uint32_t *counts,
               struct moeflux_err *e);

/* Reads the numbers of layers and experts that the file is for. ERR_IO (also if it is missing),
 * ERR_FORMAT. */
int usage_read_shape(const char *path, uint32_t *n_layers, uint32_t *n_experts, struct moeflux_err *e);

/* Writes the file, which appears whole or not at all and replaces an old one. ERR_IO, ERR_MEMORY. */
int usage_write(const char *path, uint32_t n_layers, uint32_t n_experts, const uint32_t *counts,
                struct moeflux_err *e);

/* Lists the n most chosen experts, or all that were chosen if fewer, in keys [n]: the most chosen first,
 * equals by layer, then by number. Returns how many, or ERR_MEMORY. */
int usage_order(uint32_t n_layers, uint32_t n_experts, const uint32_t *counts, struct expert_key *keys,
                uint32_t n, struct moeflux_err *e);

/* Numbers and separators of this format; those of traces (trace.h) are the same. */

/* Takes the number at *at, which ends at `end` or before. Returns false, and changes nothing, if there is
 * none or it is above `most`. */
bool usage_take_number(const char **at, const char *end, uint64_t most, uint64_t *out);
/* Takes one byte if it is `c`. Returns whether it is. */
bool usage_skip(const char **at, const char *end, char c);

#endif
