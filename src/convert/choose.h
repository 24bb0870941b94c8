/* choose.h - what each matrix becomes: of its source, the model's family and the settings. */
#ifndef MOEFLUX_CONVERT_CHOOSE_H
#define MOEFLUX_CONVERT_CHOOSE_H

#include "args.h"
#include "convert/plan.h"

/* What unquantised matrices become where nothing is said. */
enum { CONVERT_DEFAULT_FORMAT = FORMAT_Q4 };

/* FORMAT_* that a matrix is quantised to; FORMAT_NONE: it stays as it is. In a quantised source one stays
 * that has the asked bits or fewer; p->choice counts. ERR_USAGE: the group that is asked for does not divide
 * its columns. */
int convert_choose_matrix(struct convert_plan *p, const struct matrix *w, uint32_t *format,
                          struct moeflux_err *e);

/* The formats of a layer's experts. */
int convert_choose_experts(struct convert_plan *p, uint32_t layer, struct expert_formats *out,
                           struct moeflux_err *e);

/* Bits and group of most matrices, which config.json gives once. */
void convert_choose_default(struct convert_plan *p, uint32_t source_bits, uint32_t source_group);

/* After all choices: ERR_USAGE when what is asked of a quantised source changes nothing of it. */
int convert_choose_check(const struct convert_plan *p, struct moeflux_err *e);

#endif
