#include "sample/sampler_fields.h"

#define REAL(field, name, flags, value, lo, hi, help)                                                        \
    {name, flags, offsetof(struct sampler_options, field), lo, hi, 0, false},
#define WHOLE(field, name, flags, value, lo, hi, all, help)                                                  \
    {name, flags, offsetof(struct sampler_options, field), lo, hi, all, true},

const struct sampler_field sampler_fields[SAMPLER_N_FIELDS] = {SAMPLER_FIELDS(REAL, WHOLE)};
