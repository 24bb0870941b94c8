/* encode.h - encodes numbers as codes, scales and biases, and sums the errors. */
#ifndef MOEFLUX_CONVERT_ENCODE_H
#define MOEFLUX_CONVERT_ENCODE_H

#include <stdbool.h>
#include <stdint.h>

#include "convert/errors.h"
#include "model/model.h"

struct format;

/* How a group's scale and bias are chosen. */
enum convert_scales {
    CONVERT_SCALES_PLAIN,  /* smallest and largest value (model/quant.h); errors are not measured */
    CONVERT_SCALES_MINMAX, /* the same, errors are measured; small floats: as mlx chooses */
    CONVERT_SCALES_SEARCH, /* smallest squared error (search.h) */
};

struct convert_codes {
    uint8_t *codes;
    void *scales, *biases; /* biases: unused if the format has none */
};

/* Quantises n numbers, whole groups, in an affine format with bf16 scales or a format of small_floats.h.
 * dtype: BF16, F16 or F32. Adds the errors to `sum` (NULL: not measured). Returns false if a value is not
 * finite; the outputs are then undefined. */
bool convert_encode(enum dtype dtype, const void *in, uint64_t n, const struct format *f,
                    enum convert_scales rule, const struct convert_codes *out, struct convert_error *sum);

#endif
