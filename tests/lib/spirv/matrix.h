/* matrix.h - which lane has which number of a cooperative matrix. Vulkan leaves that open: a program has one of two
 * ways, in quads (kernels/lib/quads.glsl) or row by row, so that no kernel relies on either unasked. */
#ifndef MOEFLUX_TESTS_SPIRV_MATRIX_H
#define MOEFLUX_TESTS_SPIRV_MATRIX_H

#include <stdbool.h>
#include <stdint.h>

/* Row and column of lane `lane`'s i-th number of a matrix with `cols` columns. */
static inline void spirv_matrix_place(bool in_quads, bool is_second, uint32_t lanes, uint32_t cols, uint32_t lane,
                                      uint32_t i, uint32_t *row, uint32_t *col)
{
    if (!in_quads) {
        uint32_t at = i * lanes + lane;
        *row = at / cols;
        *col = at % cols;
        return;
    }
    uint32_t line = lane / 4 + i / 4 * 8, along = lane % 4 * 2 + (i & 1) + (i & 2) * 4;
    *row = is_second ? along : line;
    *col = is_second ? line : along;
}

#endif
