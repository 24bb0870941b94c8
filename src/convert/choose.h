/* choose.h - chooses each matrix's format from its source, the model's family and the settings. */
#ifndef MOEFLUX_CONVERT_CHOOSE_H
#define MOEFLUX_CONVERT_CHOOSE_H

#include "args.h"
#include "convert/plan.h"

/* The format of unquantised matrices without settings. */
enum { CONVERT_DEFAULT_FORMAT = FORMAT_Q4 };

/* Chooses the FORMAT_* that a matrix is quantised to; FORMAT_NONE: it stays as it is. A matrix of a quantised
 * source stays if it has the requested bits or fewer. Counts in p->choice. ERR_USAGE: the requested group
 * does not divide its columns. */
int convert_choose_matrix(struct convert_plan *p, const struct matrix *w, uint32_t *format,
                          struct moeflux_err *e);

/* Chooses the formats of a layer's experts. */
int convert_choose_experts(struct convert_plan *p, uint32_t layer, struct expert_formats *out,
                           struct moeflux_err *e);

/* Chooses bits and group of most matrices, which config.json gives once. */
void convert_choose_default(struct convert_plan *p, uint32_t source_bits, uint32_t source_group);

/* Checks the settings after all choices. ERR_USAGE: they change nothing in a quantised source. */
int convert_choose_check(const struct convert_plan *p, struct moeflux_err *e);

#endif
