/* Arithmetic over lanes. The loops are the compiler's to vectorise: operands never overlap the result, except that
 * a rounding may have one place for both. Operands of three loops that are not there are not read. */
#include "arithmetic.h"

#include <math.h>
#include <string.h>

#include "base/f16.h"
#include "numbers.h"

#define UNUSED3 (void)a, (void)b, (void)c
/* z from x, y and w, which are names of one number of each operand. */
#define COMPUTE(name, out, in, expr)                                                                                   \
    static void name(size_t n, void *d, const void *a, const void *b, const void *c)                                   \
    {                                                                                                                  \
        out *restrict zs = d;                                                                                          \
        const in *xs = a, *ys = b;                                                                                     \
        UNUSED3;                                                                                                       \
        for (size_t i = 0; i < n; i++) {                                                                               \
            const in x = xs[i], y = ys[i];                                                                             \
            zs[i] = (out)(expr);                                                                                       \
        }                                                                                                              \
    }
#define COMPUTE1(name, out, in, expr)                                                                                  \
    static void name(size_t n, void *d, const void *a, const void *b, const void *c)                                   \
    {                                                                                                                  \
        out *restrict zs = d;                                                                                          \
        const in *xs = a;                                                                                              \
        UNUSED3;                                                                                                       \
        for (size_t i = 0; i < n; i++) {                                                                               \
            const in x = xs[i];                                                                                        \
            zs[i] = (out)(expr);                                                                                       \
        }                                                                                                              \
    }
#define COMPUTE3(name, type, expr)                                                                                     \
    static void name(size_t n, void *d, const void *a, const void *b, const void *c)                                   \
    {                                                                                                                  \
        type *restrict zs = d;                                                                                         \
        const type *xs = a, *ys = b, *ws = c;                                                                          \
        for (size_t i = 0; i < n; i++) {                                                                               \
            const type x = xs[i], y = ys[i], w = ws[i];                                                                \
            zs[i] = (type)(expr);                                                                                      \
        }                                                                                                              \
    }
#define U32_2(name, expr)  COMPUTE(name, uint32_t, uint32_t, expr)
#define I32_2(name, expr)  COMPUTE(name, int32_t, int32_t, expr)
#define U64_2(name, expr)  COMPUTE(name, uint64_t, uint64_t, expr)
#define F32_2(name, expr)  COMPUTE(name, float, float, expr)
#define F32_1(name, expr)  COMPUTE1(name, float, float, expr)
#define U32_1(name, expr)  COMPUTE1(name, uint32_t, uint32_t, expr)
#define IF_U32(name, expr) COMPUTE(name, uint32_t, uint32_t, expr)
#define IF_I32(name, expr) COMPUTE(name, uint32_t, int32_t, expr)
#define IF_U64(name, expr) COMPUTE(name, uint32_t, uint64_t, expr)
#define IF_I64(name, expr) COMPUTE(name, uint32_t, int64_t, expr)
#define IF_F32(name, expr) COMPUTE(name, uint32_t, float, expr)

/* SPIR-V leaves a division by zero open: it gives 0 here. */
U32_2(add, x + y)
U32_2(sub, x - y)
U32_2(mul, x *y)
U32_2(divide, y ? x / y : 0)
U32_2(modulo, y ? x % y : 0)
I32_2(divide_signed, y == 0 || (y == -1 && x == INT32_MIN) ? 0 : x / y)
I32_2(remainder_signed, y == 0 || y == -1 ? 0 : x % y)
I32_2(modulo_signed, y == 0 || y == -1 ? 0 : (x % y + y) % y)
U32_2(shift_left, x << (y & 31))
U32_2(shift_right, x >> (y & 31))
COMPUTE(shift_right_signed, int32_t, int32_t, x >> (y & 31))
U32_2(bit_or, x | y)
U32_2(bit_xor, x ^ y)
U32_2(bit_and, x &y)
U32_1(bit_not, ~x)
U32_1(negate, 0 - x)
U32_1(logical_not, x == 0)
U32_1(bit_count, (uint32_t)__builtin_popcount(x))
U64_2(add_long, x + y)
U64_2(sub_long, x - y)
U64_2(mul_long, x *y)
U64_2(divide_long, y ? x / y : 0)
U64_2(modulo_long, y ? x % y : 0)
U64_2(shift_left_long, x << (y & 63))
U64_2(shift_right_long, x >> (y & 63))
U64_2(bit_or_long, x | y)
U64_2(bit_xor_long, x ^ y)
U64_2(bit_and_long, x &y)
F32_2(add_float, x + y)
F32_2(sub_float, x - y)
F32_2(mul_float, x *y)
F32_2(divide_float, x / y)
F32_2(modulo_float, x - y * floorf(x / y))
F32_1(negate_float, -x)
IF_U32(equal, x == y)
IF_U32(not_equal, x != y)
IF_U32(above, x > y)
IF_I32(above_signed, x > y)
IF_U32(above_equal, x >= y)
IF_I32(above_equal_signed, x >= y)
IF_U32(below, x < y)
IF_I32(below_signed, x < y)
IF_U32(below_equal, x <= y)
IF_I32(below_equal_signed, x <= y)
IF_U64(equal_long, x == y)
IF_U64(not_equal_long, x != y)
IF_U64(above_long, x > y)
IF_I64(above_signed_long, x > y)
IF_U64(above_equal_long, x >= y)
IF_I64(above_equal_signed_long, x >= y)
IF_U64(below_long, x < y)
IF_I64(below_signed_long, x < y)
IF_U64(below_equal_long, x <= y)
IF_I64(below_equal_signed_long, x <= y)
#define IS_ORDERED (x == x && y == y)
IF_F32(float_equal, x == y)
IF_F32(float_equal_or_nan, x == y || !IS_ORDERED)
IF_F32(float_not_equal, x != y && IS_ORDERED)
IF_F32(float_not_equal_or_nan, x != y)
IF_F32(float_below, x < y)
IF_F32(float_below_or_nan, !(x >= y))
IF_F32(float_above, x > y)
IF_F32(float_above_or_nan, !(x <= y))
IF_F32(float_below_equal, x <= y)
IF_F32(float_below_equal_or_nan, !(x > y))
IF_F32(float_above_equal, x >= y)
IF_F32(float_above_equal_or_nan, !(x < y))
COMPUTE1(is_nan, uint32_t, float, x != x)
COMPUTE1(is_inf, uint32_t, float, x == INFINITY || x == -INFINITY)
COMPUTE3(choose, uint32_t, x ? y : w)
COMPUTE1(float_to_uint, uint32_t, float, x < 4294967296.0f ? (x > 0 ? (int64_t)x : 0) : 4294967295)
COMPUTE1(float_to_int, int32_t, float, x < 2147483648.0f ? (x >= -2147483648.0f ? (int32_t)x : INT32_MIN) : INT32_MAX)
COMPUTE1(int_to_float, float, int32_t, x)
COMPUTE1(uint_to_float, float, uint32_t, x)
COMPUTE(carry, uint32_t, uint32_t, x + y < x)
COMPUTE(borrow, uint32_t, uint32_t, x < y)
COMPUTE3(fused, float, fmaf(x, y, w))

static uint32_t reverse(uint32_t x)
{
    uint32_t z = 0;
    for (uint32_t i = 0; i < 32; i++)
        z |= (x >> i & 1) << (31 - i);
    return z;
}
U32_1(bit_reverse, reverse(x))

static uint32_t field(uint32_t x, uint32_t at, uint32_t n)
{
    return n >= 32 ? x >> (at & 31) : (x >> (at & 31)) & ((1u << n) - 1);
}
static int32_t field_signed(int32_t x, int32_t at, int32_t n)
{
    return n == 0 ? 0 : (int32_t)((uint32_t)x << ((32 - at - n) & 31)) >> ((32 - n) & 31);
}
COMPUTE3(field_unsigned, uint32_t, field(x, y, w))
COMPUTE3(field_with_sign, int32_t, field_signed(x, y, w))

/* Nearest, ties to even, as float32; what is over 65504 by half a step is infinite. */
static inline float rounded_to_half(float x)
{
    uint32_t u, sign;
    memcpy(&u, &x, sizeof u);
    sign = u & 0x80000000u;
    u &= 0x7fffffffu;
    float size, small;
    uint32_t r = (u + 0xfffu + (u >> 13 & 1)) & ~0x1fffu, bits;
    memcpy(&size, &u, sizeof size);
    small = (size + 0.75f) - 0.75f;
    memcpy(&bits, &small, sizeof bits);
    r = r >= 0x47800000u ? 0x7f800000u : r;
    r = u < 0x38800000u ? bits : r;
    r = u > 0x7f800000u ? 0x7fc00000u : r;
    r |= sign;
    memcpy(&x, &r, sizeof x);
    return x;
}

/* Of a float32 that is a float16's value. */
static inline uint32_t half_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    uint32_t sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
    float f;
    memcpy(&f, &size, sizeof f);
    uint32_t normal = (size >> 13) - (112u << 10), small = (uint32_t)(int32_t)(size < 0x38800000u ? f * 0x1p24f : 0);
    uint32_t r = size < 0x38800000u ? small : normal;
    r = size >= 0x7f800000u ? 0x7c00u : r;
    r = size > 0x7f800000u ? 0x7e00u : r;
    return sign | r;
}

static inline float half_value(uint32_t bits)
{
    uint32_t exponent = bits >> 10 & 31, mantissa = bits & 1023;
    uint32_t u = (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13, r;
    float small = (float)(int32_t)mantissa * 0x1p-24f, x;
    memcpy(&r, &small, sizeof r);
    u = (exponent == 0 ? r : u) | (bits & 0x8000u) << 16;
    memcpy(&x, &u, sizeof x);
    return x;
}

#define EXPORTED(name, out, in, expr)                                                                                  \
    COMPUTE1(name##_, out, in, expr)                                                                                   \
    void name(size_t n, void *d, const void *a, const void *b, const void *c)                                          \
    {                                                                                                                  \
        name##_(n, d, a, b, c);                                                                                        \
    }
EXPORTED(spirv_move, uint32_t, uint32_t, x)
EXPORTED(spirv_move_long, uint64_t, uint64_t, x)
EXPORTED(spirv_half_bits, uint32_t, float, half_bits(x))
EXPORTED(spirv_bits_half, float, uint32_t, half_value(x))
EXPORTED(spirv_widen, uint64_t, uint32_t, x)
EXPORTED(spirv_widen_signed, int64_t, int32_t, x)
EXPORTED(spirv_narrow, uint32_t, uint64_t, x)
EXPORTED(spirv_keep_8, uint32_t, uint32_t, x & 0xff)
EXPORTED(spirv_keep_16, uint32_t, uint32_t, x & 0xffff)
EXPORTED(spirv_sign_8, int32_t, uint32_t, (int8_t)x)
EXPORTED(spirv_sign_16, int32_t, uint32_t, (int16_t)x)

/* In place. */
void spirv_round_half(size_t n, void *d, const void *a, const void *b, const void *c)
{
    float *z = d;
    UNUSED3;
    for (size_t i = 0; i < n; i++)
        z[i] = rounded_to_half(z[i]);
}

/* a: the lower halves, b: the upper ones, of any float32. */
void spirv_pack_half(size_t n, void *d, const void *a, const void *b, const void *c)
{
    uint32_t *restrict z = d;
    const float *low = a, *high = b;
    (void)c;
    for (size_t i = 0; i < n; i++)
        z[i] = half_bits(rounded_to_half(low[i])) | half_bits(rounded_to_half(high[i])) << 16;
}

/* n numbers to lower halves, and n more to upper ones. */
void spirv_unpack_half(size_t n, void *d, const void *a, const void *b, const void *c)
{
    float *restrict z = d;
    const uint32_t *x = a;
    UNUSED3;
    for (size_t i = 0; i < n; i++)
        z[i] = half_value(x[i] & 0xffff);
    for (size_t i = 0; i < n; i++)
        z[n + i] = half_value(x[i] >> 16);
}

/* Two numbers of 32 bits, a whole vector of each after the other, as one of 64; and back. */
void spirv_join(size_t n, void *d, const void *a, const void *b, const void *c)
{
    uint64_t *restrict z = d;
    const uint32_t *x = a;
    UNUSED3;
    for (size_t i = 0; i < n; i++)
        z[i] = (uint64_t)x[n + i] << 32 | x[i];
}
void spirv_split(size_t n, void *d, const void *a, const void *b, const void *c)
{
    uint32_t *restrict z = d;
    const uint64_t *x = a;
    UNUSED3;
    for (size_t i = 0; i < n; i++) {
        z[i] = (uint32_t)x[i];
        z[n + i] = (uint32_t)(x[i] >> 32);
    }
}

/* a + b * c: an address, an index and a stride that is the same in all lanes. */
void spirv_address(size_t n, void *d, const void *a, const void *b, const void *c)
{
    uint64_t *restrict z = d;
    const uint64_t *x = a;
    const uint32_t *y = b, *w = c;
    for (size_t i = 0; i < n; i++)
        z[i] = x[i] + (uint64_t)y[i] * w[i];
}
void spirv_address_signed(size_t n, void *d, const void *a, const void *b, const void *c)
{
    uint64_t *restrict z = d;
    const uint64_t *x = a;
    const int32_t *y = b, *w = c;
    for (size_t i = 0; i < n; i++)
        z[i] = x[i] + (uint64_t)((int64_t)y[i] * w[i]);
}
void spirv_add_bytes(size_t n, void *d, const void *a, const void *b, const void *c)
{
    uint64_t *restrict z = d;
    const uint64_t *x = a;
    const uint32_t *y = b;
    (void)c;
    for (size_t i = 0; i < n; i++)
        z[i] = x[i] + y[i];
}

void spirv_mul_high(size_t n, void *d, const void *a, const void *b, const void *c)
{
    uint32_t *restrict z = d;
    const uint32_t *x = a, *y = b;
    (void)c;
    for (size_t i = 0; i < n; i++)
        z[i] = (uint32_t)((uint64_t)x[i] * y[i] >> 32);
}
void spirv_mul_high_signed(size_t n, void *d, const void *a, const void *b, const void *c)
{
    int32_t *restrict z = d;
    const int32_t *x = a, *y = b;
    (void)c;
    for (size_t i = 0; i < n; i++)
        z[i] = (int32_t)((int64_t)x[i] * y[i] >> 32);
}

struct row {
    uint32_t op;
    spirv_pure_fn *as_int, *as_long, *as_float;
};
static const struct row rows[] = {
    {OP_S_NEGATE, negate, NULL, NULL},
    {OP_F_NEGATE, NULL, NULL, negate_float},
    {OP_I_ADD, add, add_long, NULL},
    {OP_F_ADD, NULL, NULL, add_float},
    {OP_I_SUB, sub, sub_long, NULL},
    {OP_F_SUB, NULL, NULL, sub_float},
    {OP_I_MUL, mul, mul_long, NULL},
    {OP_F_MUL, NULL, NULL, mul_float},
    {OP_U_DIV, divide, divide_long, NULL},
    {OP_S_DIV, divide_signed, NULL, NULL},
    {OP_F_DIV, NULL, NULL, divide_float},
    {OP_U_MOD, modulo, modulo_long, NULL},
    {OP_S_REM, remainder_signed, NULL, NULL},
    {OP_S_MOD, modulo_signed, NULL, NULL},
    {OP_F_MOD, NULL, NULL, modulo_float},
    {OP_ADD_CARRY, carry, NULL, NULL},
    {OP_SUB_BORROW, borrow, NULL, NULL},
    {OP_IS_NAN, NULL, NULL, is_nan},
    {OP_IS_INF, NULL, NULL, is_inf},
    {OP_LOGICAL_EQUAL, equal, NULL, NULL},
    {OP_LOGICAL_NOT_EQUAL, not_equal, NULL, NULL},
    {OP_LOGICAL_OR, bit_or, NULL, NULL},
    {OP_LOGICAL_AND, bit_and, NULL, NULL},
    {OP_LOGICAL_NOT, logical_not, NULL, NULL},
    {OP_SELECT, choose, NULL, choose},
    {OP_I_EQUAL, equal, equal_long, NULL},
    {OP_I_EQUAL + 1, not_equal, not_equal_long, NULL},
    {OP_I_EQUAL + 2, above, above_long, NULL},
    {OP_I_EQUAL + 3, above_signed, above_signed_long, NULL},
    {OP_I_EQUAL + 4, above_equal, above_equal_long, NULL},
    {OP_I_EQUAL + 5, above_equal_signed, above_equal_signed_long, NULL},
    {OP_I_EQUAL + 6, below, below_long, NULL},
    {OP_I_EQUAL + 7, below_signed, below_signed_long, NULL},
    {OP_I_EQUAL + 8, below_equal, below_equal_long, NULL},
    {OP_I_EQUAL + 9, below_equal_signed, below_equal_signed_long, NULL},
    {OP_F_ORD_EQUAL, NULL, NULL, float_equal},
    {OP_F_ORD_EQUAL + 1, NULL, NULL, float_equal_or_nan},
    {OP_F_ORD_EQUAL + 2, NULL, NULL, float_not_equal},
    {OP_F_ORD_EQUAL + 3, NULL, NULL, float_not_equal_or_nan},
    {OP_F_ORD_EQUAL + 4, NULL, NULL, float_below},
    {OP_F_ORD_EQUAL + 5, NULL, NULL, float_below_or_nan},
    {OP_F_ORD_EQUAL + 6, NULL, NULL, float_above},
    {OP_F_ORD_EQUAL + 7, NULL, NULL, float_above_or_nan},
    {OP_F_ORD_EQUAL + 8, NULL, NULL, float_below_equal},
    {OP_F_ORD_EQUAL + 9, NULL, NULL, float_below_equal_or_nan},
    {OP_F_ORD_EQUAL + 10, NULL, NULL, float_above_equal},
    {OP_F_ORD_EQUAL + 11, NULL, NULL, float_above_equal_or_nan},
    {OP_SHIFT_RIGHT, shift_right, shift_right_long, NULL},
    {OP_SHIFT_RIGHT_SIGNED, shift_right_signed, NULL, NULL},
    {OP_SHIFT_LEFT, shift_left, shift_left_long, NULL},
    {OP_BIT_OR, bit_or, bit_or_long, NULL},
    {OP_BIT_XOR, bit_xor, bit_xor_long, NULL},
    {OP_BIT_AND, bit_and, bit_and_long, NULL},
    {OP_BIT_NOT, bit_not, NULL, NULL},
    {OP_FIELD_S_EXTRACT, field_with_sign, NULL, NULL},
    {OP_FIELD_U_EXTRACT, field_unsigned, NULL, NULL},
    {OP_BIT_REVERSE, bit_reverse, NULL, NULL},
    {OP_BIT_COUNT, bit_count, NULL, NULL},
    {OP_F_TO_U, NULL, NULL, float_to_uint},
    {OP_F_TO_S, NULL, NULL, float_to_int},
    {OP_S_TO_F, int_to_float, NULL, NULL},
    {OP_U_TO_F, uint_to_float, NULL, NULL},
};

spirv_pure_fn *spirv_math(uint32_t op, enum spirv_kind kind)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].op == op)
            return kind == SPIRV_FLOAT ? rows[i].as_float : kind == SPIRV_LONG ? rows[i].as_long : rows[i].as_int;
    return NULL;
}

F32_1(round_even, rintf(x))
F32_1(truncate, truncf(x))
F32_1(float_size, fabsf(x))
F32_1(float_sign, x > 0 ? 1.0f : x < 0 ? -1.0f : x)
F32_1(to_floor, floorf(x))
F32_1(to_ceil, ceilf(x))
F32_1(fraction, x - floorf(x))
F32_1(exponential, expf(x))
F32_1(logarithm, logf(x))
F32_1(exponential_2, exp2f(x))
F32_1(logarithm_2, log2f(x))
F32_1(root, sqrtf(x))
F32_1(inverse_root, 1.0f / sqrtf(x))
F32_1(sine, sinf(x))
F32_1(cosine, cosf(x))
F32_1(tangent_h, tanhf(x))
F32_2(power, powf(x, y))
F32_2(least_float, y < x ? y : x)
F32_2(most_float, x < y ? y : x)
U32_2(least, x < y ? x : y)
U32_2(most, x > y ? x : y)
I32_2(least_signed, x < y ? x : y)
I32_2(most_signed, x > y ? x : y)
COMPUTE1(int_size, int32_t, int32_t, x < 0 ? 0u - (uint32_t)x : (uint32_t)x)
COMPUTE1(int_sign, int32_t, int32_t, (x > 0) - (x < 0))
COMPUTE3(clamp_float, float, x < y ? y : x > w ? w : x)
COMPUTE3(clamp, uint32_t, x < y ? y : x > w ? w : x)
COMPUTE3(clamp_signed, int32_t, x < y ? y : x > w ? w : x)
COMPUTE3(mix, float, x * (1.0f - w) + y * w)
COMPUTE1(lowest_bit, int32_t, uint32_t, x ? __builtin_ctz(x) : -1)
COMPUTE1(highest_bit, int32_t, uint32_t, x ? 31 - __builtin_clz(x) : -1)

/* A table by number; 58 and 62 change the number of numbers and are the compiler's. */
static spirv_pure_fn *const extended[] = {[2] = round_even,     [3] = truncate,      [4] = float_size,
                                          [5] = int_size,       [6] = float_sign,    [7] = int_sign,
                                          [8] = to_floor,       [9] = to_ceil,       [10] = fraction,
                                          [13] = sine,          [14] = cosine,       [21] = tangent_h,
                                          [26] = power,         [27] = exponential,  [28] = logarithm,
                                          [29] = exponential_2, [30] = logarithm_2,  [31] = root,
                                          [32] = inverse_root,  [37] = least_float,  [38] = least,
                                          [39] = least_signed,  [40] = most_float,   [41] = most,
                                          [42] = most_signed,   [43] = clamp_float,  [44] = clamp,
                                          [45] = clamp_signed,  [46] = mix,          [50] = fused,
                                          [73] = lowest_bit,    [75] = highest_bit,  [79] = least_float,
                                          [80] = most_float,    [81] = clamp_float};

spirv_pure_fn *spirv_math_extended(uint32_t number)
{
    return number < sizeof extended / sizeof *extended ? extended[number] : NULL;
}
