/* encode.h - numbers become codes, scales and biases, and what that costs is added up. */
#ifndef MOEFLUX_CONVERT_ENCODE_H
#define MOEFLUX_CONVERT_ENCODE_H

#include <stdbool.h>
#include <stdint.h>

#include "convert/errors.h"
#include "model/model.h"

struct format;

/* Which scale and bias a group gets. */
enum convert_scales {
    /* those of its smallest and largest value (model/quant.h); errors are not measured */
    CONVERT_SCALES_PLAIN,
    CONVERT_SCALES_MINMAX, /* the same ones, measured; of small floats mlx's */
    CONVERT_SCALES_SEARCH, /* those with the smallest squared error (search.h) */
};

struct convert_codes {
    uint8_t *codes;
    void *scales, *biases; /* biases: not used where the format has none */
};

/* Quantises n numbers, whole groups of an affine format with bf16 scales or of small_floats.h's. dtype: BF16,
 * F16 or F32. `sum` gets the errors; NULL: they are not measured. False: a value is not finite, and the
 * outputs are undefined. */
bool convert_encode(enum dtype dtype, const void *in, uint64_t n, const struct format *f,
                    enum convert_scales rule, const struct convert_codes *out, struct convert_error *sum);

#endif
