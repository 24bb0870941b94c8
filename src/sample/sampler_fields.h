/* sampler_fields.h - the options of the sampler that users set (MOEFLUX_SAMPLER_FIELDS). */
#ifndef MOEFLUX_SAMPLE_SAMPLER_FIELDS_H
#define MOEFLUX_SAMPLE_SAMPLER_FIELDS_H

#include "moeflux.h"

/* Their places in the table. */
enum {
#define SAMPLER_FIELD_INDEX(field, ...) SAMPLER_FIELD_##field,
    MOEFLUX_SAMPLER_FIELDS(SAMPLER_FIELD_INDEX, SAMPLER_FIELD_INDEX, SAMPLER_FIELD_INDEX)
#undef SAMPLER_FIELD_INDEX
};

extern const struct moeflux_sampler_field sampler_fields[MOEFLUX_N_SAMPLER_FIELDS];

#endif
