/* sampler_fields.h - the table of moeflux_sampler_fields. */
#ifndef MOEFLUX_SAMPLE_SAMPLER_FIELDS_H
#define MOEFLUX_SAMPLE_SAMPLER_FIELDS_H

#include "moeflux.h"

extern const struct moeflux_sampler_field sampler_fields[MOEFLUX_N_SAMPLER_FIELDS];

#endif
