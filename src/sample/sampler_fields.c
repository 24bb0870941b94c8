#include "sample/sampler_fields.h"

#define REAL(field, name, flags, value, lo, hi, help)                                                        \
    {name, flags, offsetof(struct sampler_options, field), lo, hi, 0, SAMPLER_REAL},
#define WHOLE(field, name, flags, value, lo, hi, all, help)                                                  \
    {name, flags, offsetof(struct sampler_options, field), lo, hi, all, SAMPLER_WHOLE},
#define LIST(field, name, flags, value, help)                                                                \
    {name, flags, offsetof(struct sampler_options, field), 0, 0, 0, SAMPLER_LIST},

const struct sampler_field sampler_fields[SAMPLER_N_FIELDS] = {SAMPLER_FIELDS(REAL, WHOLE, LIST)};
