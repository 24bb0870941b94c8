#include "sample/sampler_fields.h"

#define AT(field) offsetof(struct moeflux_sampler_options, field)
#define REAL(f, name, flags, value, lo, hi, help)                                                            \
    {name, flags, value, help, lo, hi, AT(f), MOEFLUX_SAMPLER_REAL, 0},
#define WHOLE(f, name, flags, value, lo, hi, all, help)                                                      \
    {name, flags, value, help, lo, hi, AT(f), MOEFLUX_SAMPLER_WHOLE, all},
#define LIST(f, name, flags, value, help) {name, flags, value, help, 0, 0, AT(f), MOEFLUX_SAMPLER_LIST, 0},

const struct moeflux_sampler_field sampler_fields[MOEFLUX_N_SAMPLER_FIELDS] = {
    MOEFLUX_SAMPLER_FIELDS(REAL, WHOLE, LIST)};
