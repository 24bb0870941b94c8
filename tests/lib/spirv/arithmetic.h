/* arithmetic.h - instructions that compute each lane's numbers from that lane's own. */
#ifndef MOEFLUX_TESTS_SPIRV_ARITHMETIC_H
#define MOEFLUX_TESTS_SPIRV_ARITHMETIC_H

#include "program.h"

/* The kind of numbers that an instruction computes with. */
enum spirv_kind { SPIRV_BOOL, SPIRV_INT, SPIRV_LONG, SPIRV_FLOAT };

/* The function of an arithmetic, logic or compare instruction; NULL: there is none. */
spirv_pure_fn *spirv_math(uint32_t op, enum spirv_kind kind);
/* An instruction of GLSL.std.450. */
spirv_pure_fn *spirv_math_extended(uint32_t number);

/* What the compiler puts together. */
spirv_pure_fn spirv_move, spirv_move_long, spirv_round_half, spirv_half_bits, spirv_bits_half, spirv_pack_half,
    spirv_unpack_half, spirv_join, spirv_split, spirv_widen, spirv_widen_signed, spirv_narrow, spirv_keep_8,
    spirv_keep_16, spirv_sign_8, spirv_sign_16, spirv_address, spirv_address_signed, spirv_add_bytes,
    spirv_mul_high, spirv_mul_high_signed;

#endif
