/* golden.h - reference outputs of a test model (golden.safetensors), made by the reference implementation in
 * float32. */
#ifndef MOEFLUX_TESTS_GOLDEN_H
#define MOEFLUX_TESTS_GOLDEN_H

#include <stdint.h>

struct golden {
    uint8_t *bytes; /* all tensors' data, each aligned */
    struct golden_tensor {
        char name[32];
        uint64_t shape[4];
        const void *data;
    } tensors[64];
    uint32_t n;
};

/* Asserts. */
void golden_open(struct golden *g, const char *path);
void golden_close(struct golden *g);

/* "case<N>.<what>"; NULL when the file has no such tensor. */
const struct golden_tensor *golden_find(const struct golden *g, uint32_t n, const char *what);

#endif
