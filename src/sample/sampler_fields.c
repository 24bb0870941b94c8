#include "sample/sampler_fields.h"

#define REAL(field, name, flags, value, lo, hi, help)                                                        \
    {name, flags, offsetof(struct sampler_options, field), false, lo, hi, 0},
#define WHOLE(field, name, flags, value, lo, hi, all, help)                                                  \
    {name, flags, offsetof(struct sampler_options, field), true, lo, hi, all},

const struct sampler_field sampler_fields[SAMPLER_N_FIELDS] = {SAMPLER_FIELDS(REAL, WHOLE)};
