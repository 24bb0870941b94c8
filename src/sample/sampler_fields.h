/* sampler_fields.h - the options of the sampler that users set. Flags, request lines and the API are made
 * from this list: an option has one name, one range and one help text everywhere. */
#ifndef MOEFLUX_SAMPLE_SAMPLER_FIELDS_H
#define MOEFLUX_SAMPLE_SAMPLER_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sample/sampler.h"

/* REAL(field, name, flags, value, lo, hi, help), WHOLE(field, name, flags, value, lo, hi, all, help).
 *   field   a member of struct sampler_options: float, uint32_t
 *   name    its name in requests and in their errors
 *   flags   the names of its flag; with "_" for "-" they are other names in requests
 *   value   the value's name in the help text
 *   lo, hi  its range in requests; sampler_check has the limits that hold everywhere
 *   all     what -1 stands for in a request */
#define SAMPLER_FIELDS(REAL, WHOLE)                                                                          \
    REAL(temperature, "temperature", "temp,temperature", "T", 0, 100, "temperature, 0: greedy (0.7)")        \
    WHOLE(top_k, "top_k", "top-k", "N", 0, 1 << 30, 0, "sample from the N likeliest tokens, 0: all (20)")    \
    REAL(top_p, "top_p", "top-p", "P", 0, 1, "sample from the likeliest that sum to P (0.95)")               \
    REAL(min_p, "min_p", "min-p", "P", 0, 1, "drop tokens below P times the likeliest (0: off)")             \
    REAL(repeat_penalty, "repeat_penalty", "repeat-penalty,repetition-penalty", "X", 0, 100,                 \
         "make repeated tokens less likely (1: off)")                                                        \
    WHOLE(repeat_last, "repeat_last_n", "repeat-last-n", "N", 0, SAMPLER_MAX_REPEAT_LAST,                    \
          SAMPLER_MAX_REPEAT_LAST, "last tokens that the penalty applies to (64)")                           \
    REAL(presence_penalty, "presence_penalty", "presence-penalty", "X", -2, 2,                               \
         "make tokens of the answer less likely (0: off)")                                                   \
    REAL(frequency_penalty, "frequency_penalty", "frequency-penalty", "X", -2, 2,                            \
         "likewise, for each occurrence (0: off)")

enum {
#define SAMPLER_FIELD_INDEX(field, ...) SAMPLER_FIELD_##field,
    SAMPLER_FIELDS(SAMPLER_FIELD_INDEX, SAMPLER_FIELD_INDEX)
#undef SAMPLER_FIELD_INDEX
        SAMPLER_N_FIELDS
};

struct sampler_field {
    const char *name, *flags;
    size_t at; /* offset in struct sampler_options */
    double lo, hi;
    uint32_t all; /* whole numbers only */
    bool is_whole;
};
extern const struct sampler_field sampler_fields[SAMPLER_N_FIELDS];

#endif
