/* publish.h - writes small checkpoints as their publishers would: unquantised, with Hugging Face's names. */
#ifndef MOEFLUX_TESTS_PUBLISH_H
#define MOEFLUX_TESTS_PUBLISH_H

#include <stdbool.h>

struct publish_form {
    const char *dtype; /* of matrices: "F32", "F16" or "BF16" */
    bool fused;        /* experts are stacks with gate above up; false: tensors of one expert each */
    bool less_one;     /* norms lose 1, convolutions are [C, 1, taps] */
    bool sharded;      /* three files with an index; false: one */
};

/* Writes the checkpoint in `from`, quantised by MLX or not, to the new directory `to`. Numbers must fit the
 * dtype exactly. Asserts. */
void publish_model(const char *from, const char *to, const struct publish_form *form);

#endif
