/* usage.h - how often each expert was chosen, as a file that outlives a run.
 *
 * Text: a first line "moeflux usage 1 LAYERS EXPERTS", then a line "layer expert count" for each expert that
 * was chosen, layer after layer and expert after expert, then a line "end", so that a file that was cut is
 * recognised. Numbers are decimal, without sign or leading zeros, with one blank between. */
#ifndef MOEFLUX_EXPERTS_USAGE_H
#define MOEFLUX_EXPERTS_USAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "experts/ranking.h"

struct moeflux_err;

/* Adds the counts of the file to counts [n_layers][n_experts]; sums saturate at UINT32_MAX. Returns 1, or 0
 * where there is no such file. ERR_IO; ERR_FORMAT names the line, what was expected and what was found;
 * nothing changes then. */
int usage_read(const char *path, uint32_t n_layers, uint32_t n_experts, uint32_t *counts,
               struct moeflux_err *e);

/* The layers and experts that the file is for. ERR_IO: there is no such file, too; ERR_FORMAT. */
int usage_read_shape(const char *path, uint32_t *n_layers, uint32_t *n_experts, struct moeflux_err *e);

/* The file appears whole or not at all; an old one is replaced. ERR_IO, ERR_MEMORY. */
int usage_write(const char *path, uint32_t n_layers, uint32_t n_experts, const uint32_t *counts,
                struct moeflux_err *e);

/* The n most chosen experts (all that were chosen, if fewer) into keys [n], the most chosen first; of equals
 * the one of the lower layer, then the lower number. Returns how many, or ERR_MEMORY. */
int usage_order(uint32_t n_layers, uint32_t n_experts, const uint32_t *counts, struct expert_key *keys,
                uint32_t n, struct moeflux_err *e);

/* Numbers and separators of this format; those of traces (trace.h) are the same. */

/* Takes the digits from *at on, at most up to `end`. False: there is no such number, or it is above `most`;
 * nothing changes. */
bool usage_take_number(const char **at, const char *end, uint64_t most, uint64_t *out);
/* Takes one byte, if it is `c`. */
bool usage_skip(const char **at, const char *end, char c);

#endif
