/* errors.h - sums the errors of quantisation by class of tensor. */
#ifndef MOEFLUX_CONVERT_ERRORS_H
#define MOEFLUX_CONVERT_ERRORS_H

#include <stdint.h>

struct family;

enum convert_class {
    CONVERT_CLASS_EMBEDDING,
    CONVERT_CLASS_ATTENTION,
    CONVERT_CLASS_DELTA,
    CONVERT_CLASS_ROUTER, /* includes the shared expert's gate */
    CONVERT_CLASS_EXPERTS,
    CONVERT_CLASS_SHARED,
    CONVERT_CLASS_DENSE,
    CONVERT_CLASS_HEAD,
    CONVERT_N_CLASSES,
};

/* Sums over the weights that were quantised. */
struct convert_error {
    uint64_t weights;
    uint64_t bits;  /* size of their codes, scales and biases */
    double squares; /* squared weights */
    double minmax;  /* squared errors with scales by the smallest and largest value */
    double stored;  /* squared errors with the stored scales */
};

struct convert_errors {
    struct convert_error of[CONVERT_N_CLASSES];
};

void convert_error_add(struct convert_error *to, const struct convert_error *x);

/* Returns the class of a matrix with this canonical name, which is not one of the routed experts'. */
enum convert_class convert_class_of(const char *name, const struct family *f);
/* Returns the class's name for reports: "shared expert". */
const char *convert_class_name(enum convert_class c);

#endif
