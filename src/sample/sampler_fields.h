/* sampler_fields.h - the options of the sampler that users set. Flags, request lines and the API are made
 * from this list: an option has one name, one range and one help text everywhere. */
#ifndef MOEFLUX_SAMPLE_SAMPLER_FIELDS_H
#define MOEFLUX_SAMPLE_SAMPLER_FIELDS_H

#include <stddef.h>
#include <stdint.h>

#include "sample/sampler.h"

/* REAL(field, name, flags, value, lo, hi, help), WHOLE(field, name, flags, value, lo, hi, all, help),
 * LIST(field, name, flags, value, help).
 *   field   a member of struct sampler_options: float, uint32_t, struct texts
 *   name    its name in requests and in their errors
 *   flags   the names of its flag; with "_" for "-" they are other names in requests
 *   value   the value's name in the help text
 *   lo, hi  its range in requests; sampler_check has the limits that hold everywhere
 *   all     what -1 stands for in a request */
#define SAMPLER_FIELDS(REAL, WHOLE, LIST)                                                                    \
    REAL(temperature, "temperature", "temp,temperature", "T", 0, 100, "temperature, 0: greedy (0.7)")        \
    WHOLE(top_k, "top_k", "top-k", "N", 0, 1 << 30, 0, "sample from the N likeliest tokens, 0: all (20)")    \
    REAL(top_p, "top_p", "top-p", "P", 0, 1, "sample from the likeliest that sum to P (0.95)")               \
    REAL(min_p, "min_p", "min-p", "P", 0, 1, "drop tokens below P times the likeliest (0: off)")             \
    REAL(typical_p, "typical_p", "typical-p,typical", "P", 0, 1,                                             \
         "sample from the most typical that sum to P (1: off)")                                              \
    REAL(top_n_sigma, "top_n_sigma", "top-n-sigma,top-nsigma", "X", -1, 100,                                 \
         "drop logits X deviations below the best (-1: off)")                                                \
    WHOLE(min_keep, "min_keep", "min-keep", "N", 0, 1 << 30, 0,                                              \
          "the fewest tokens that top-p, min-p, .. leave (0)")                                               \
    REAL(xtc_probability, "xtc_probability", "xtc-probability", "P", 0, 1,                                   \
         "how often XTC drops the likeliest tokens (0: off)")                                                \
    REAL(xtc_threshold, "xtc_threshold", "xtc-threshold", "P", 0, 1,                                         \
         "XTC: what counts as likely; above 0.5: off (0.1)")                                                 \
    REAL(repeat_penalty, "repeat_penalty", "repeat-penalty,repetition-penalty", "X", 0, 100,                 \
         "make repeated tokens less likely (1: off)")                                                        \
    WHOLE(repeat_last, "repeat_last_n", "repeat-last-n", "N", 0, SAMPLER_MAX_REPEAT_LAST,                    \
          SAMPLER_MAX_REPEAT_LAST, "last tokens that the penalty applies to (64)")                           \
    REAL(presence_penalty, "presence_penalty", "presence-penalty", "X", -2, 2,                               \
         "make tokens of the answer less likely (0: off)")                                                   \
    REAL(frequency_penalty, "frequency_penalty", "frequency-penalty", "X", -2, 2,                            \
         "likewise, for each occurrence (0: off)")                                                           \
    REAL(dry_multiplier, "dry_multiplier", "dry-multiplier", "X", 0, 100,                                    \
         "DRY: make continued repetitions less likely (0: off)")                                             \
    REAL(dry_base, "dry_base", "dry-base", "X", 1, 100, "DRY: growth by each repeated token (1.75)")         \
    WHOLE(dry_allowed, "dry_allowed_length", "dry-allowed-length", "N", 0, SAMPLER_MAX_REPEAT_LAST,          \
          SAMPLER_MAX_REPEAT_LAST, "DRY: least length of a repetition (2)")                                  \
    WHOLE(dry_last, "dry_penalty_last_n", "dry-penalty-last-n", "N", 0, SAMPLER_MAX_REPEAT_LAST,             \
          SAMPLER_MAX_REPEAT_LAST, "DRY: last tokens that are searched (64)")                                \
    LIST(dry_breakers, "dry_sequence_breakers", "dry-sequence-breakers", "TEXT",                             \
         "DRY: what ends a repetition; repeatable")

enum {
#define SAMPLER_FIELD_INDEX(field, ...) SAMPLER_FIELD_##field,
    SAMPLER_FIELDS(SAMPLER_FIELD_INDEX, SAMPLER_FIELD_INDEX, SAMPLER_FIELD_INDEX)
#undef SAMPLER_FIELD_INDEX
        SAMPLER_N_FIELDS
};

enum sampler_kind { SAMPLER_REAL, SAMPLER_WHOLE, SAMPLER_LIST };

struct sampler_field {
    const char *name, *flags;
    size_t at; /* offset in struct sampler_options */
    double lo, hi;
    uint32_t all; /* SAMPLER_WHOLE only */
    enum sampler_kind kind;
};
extern const struct sampler_field sampler_fields[SAMPLER_N_FIELDS];

#endif
