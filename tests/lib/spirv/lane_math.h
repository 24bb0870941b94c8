/* lane_math.h - instructions that compute each lane's numbers from that lane's own. */
#ifndef MOEFLUX_TESTS_SPIRV_LANE_MATH_H
#define MOEFLUX_TESTS_SPIRV_LANE_MATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Besides the instructions of SPIR-V and, from MATH_EXTENDED on, those of GLSL.std.450. */
enum { MATH_EXTENDED = 1 << 16, MATH_PACK_HALF = MATH_EXTENDED + 58, MATH_UNPACK_HALF = MATH_EXTENDED + 62 };
enum { MATH_MOVE = 1 << 17, MATH_ROUND_HALF, MATH_HALF_BITS, MATH_BITS_HALF, MATH_ADDRESS };

/* Computes n numbers of each operand; d overlaps none. What has two results writes 2 n numbers. False: there
 * is no such instruction. */
bool lane_math(uint32_t op, size_t n, void *d, const void *a, const void *b, const void *c);

#endif
