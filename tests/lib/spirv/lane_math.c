/* Arithmetic over lanes. The loops are the compiler's to vectorise. */
#include <math.h>
#include <string.h>

#include "base/f16.h"
#include "program.h"

/* The bits of the nearest float16, ties to even. What is over 65504 by half a step is infinite; with
 * f16_from_float nothing is. */
static inline uint32_t half_bits(float x)
{
    uint32_t u, small;
    memcpy(&u, &x, sizeof u);
    uint32_t sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
    /* A number without an exponent of its own: the sum's last bit is that of float16's least number. */
    float sum = fabsf(x) + 0.5f;
    memcpy(&small, &sum, sizeof small);
    uint32_t r = ((size + 0xfffu + (size >> 13 & 1)) >> 13) - (112u << 10);
    r = size < 0x38800000u ? small - 0x3f000000u : r;
    r = r > 0x7c00u ? 0x7c00u : r;
    r = size > 0x7f800000u ? 0x7e00u : r;
    return sign | r;
}

static inline uint64_t address(uint32_t low, uint32_t high, uint32_t idx, uint32_t stride)
{
    return ((uint64_t)high << 32 | low) + (uint64_t)idx * stride;
}

/* NOLINTBEGIN(bugprone-macro-parentheses): types, and names of numbers. */
/* z from x, y and w, which are names of one number of each operand. */
#define LOOP(out, in, body)                                                                                  \
    {                                                                                                        \
        out *restrict zs = d;                                                                                \
        const in *xs = a, *ys = b, *ws = c;                                                                  \
        for (size_t i = 0; i < n; i++) {                                                                     \
            const in x = xs[i], y = ys[i], w = ws[i];                                                        \
            (void)x, (void)y, (void)w;                                                                       \
            body;                                                                                            \
        }                                                                                                    \
        return true;                                                                                         \
    }
#define ROW(op, out, in, expr)                                                                               \
    case op:                                                                                                 \
        LOOP(out, in, zs[i] = (out)(expr))
#define BOTH(op, out, in, first, second)                                                                     \
    case op:                                                                                                 \
        LOOP(out, in, zs[i] = (out)(first); zs[n + i] = (out)(second))
#define U32(op, expr)     ROW(op, uint32_t, uint32_t, expr)
#define IF_I32(op, expr)  ROW(op, uint32_t, int32_t, expr)
#define F32(op, expr)     ROW(op, float, float, expr)
#define IF_F32(op, expr)  ROW(op, uint32_t, float, expr)
#define EXT_U32(op, expr) U32(MATH_EXTENDED + op, expr)
#define EXT_F32(op, expr) F32(MATH_EXTENDED + op, expr)
/* The same for numbers of several types. */
#define ARITHMETIC(i, f, operator)    U32(i, x operator y) F32(f, x operator y)
#define EQUALITY(i, f, operator)      U32(i, x operator y) IF_F32(f, x operator y)
#define COMPARISON(u, s, f, operator) U32(u, x operator y) IF_I32(s, x operator y) IF_F32(f, x operator y)
/* NOLINTEND(bugprone-macro-parentheses) */

/* SPIR-V leaves a division by zero open: it gives 0 here. Comments name SPIR-V's instructions. */
bool lane_math(uint32_t op, size_t n, void *d, const void *a, const void *b, const void *c)
{
    // clang-format off
    switch (op) {
    ROW(109, uint32_t, float, x < 4294967296.0f ? (x > 0 ? (int64_t)x : 0) : 4294967295) /* ConvertFToU */
    ROW(110, int32_t, float, x < 2147483648.0f ? (x >= -2147483648.0f ? (int32_t)x : INT32_MIN) : INT32_MAX)
    ROW(111, float, int32_t, x)  /* ConvertSToF */
    ROW(112, float, uint32_t, x) /* ConvertUToF */
    F32(127, -x)                 /* FNegate */
    ARITHMETIC(128, 129, +)      /* IAdd, FAdd */
    ARITHMETIC(130, 131, -)      /* ISub, FSub */
    ARITHMETIC(132, 133, *)      /* IMul, FMul */
    U32(134, y ? x / y : 0)      /* UDiv */
    F32(136, x / y)              /* FDiv */
    U32(137, y ? x % y : 0)      /* UMod */
    BOTH(149, uint32_t, uint32_t, x + y, x + y < x) /* IAddCarry */
    BOTH(151, uint32_t, uint32_t, x * y, (uint64_t)x * y >> 32) /* UMulExtended */
    U32(166, x | y)              /* LogicalOr */
    U32(167, x & y)              /* LogicalAnd */
    U32(168, x == 0)             /* LogicalNot */
    U32(169, x ? y : w)          /* Select */
    EQUALITY(170, 180, ==)       /* IEqual, FOrdEqual */
    EQUALITY(171, 183, !=)       /* INotEqual, FUnordNotEqual */
    COMPARISON(172, 173, 186, >)  /* UGreaterThan, SGreaterThan, FOrdGreaterThan */
    COMPARISON(174, 175, 190, >=) /* UGreaterThanEqual, SGreaterThanEqual, FOrdGreaterThanEqual */
    COMPARISON(176, 177, 184, <)  /* ULessThan, SLessThan, FOrdLessThan */
    COMPARISON(178, 179, 188, <=) /* ULessThanEqual, SLessThanEqual, FOrdLessThanEqual */
    U32(194, x >> (y & 31))      /* ShiftRightLogical */
    U32(195, (uint32_t)((int32_t)x >> (y & 31))) /* ShiftRightArithmetic */
    U32(196, x << (y & 31))      /* ShiftLeftLogical */
    U32(197, x | y)              /* BitwiseOr */
    U32(198, x ^ y)              /* BitwiseXor */
    U32(199, x & y)              /* BitwiseAnd */
    U32(200, ~x)                 /* Not */
    U32(205, (uint32_t)__builtin_popcount(x)) /* BitCount */
    EXT_F32(2, rintf(x))         /* RoundEven */
    EXT_F32(4, fabsf(x))         /* FAbs */
    EXT_F32(6, (float)((x > 0) - (x < 0))) /* FSign */
    EXT_F32(9, ceilf(x))         /* Ceil */
    EXT_F32(27, expf(x))         /* Exp */
    EXT_F32(29, exp2f(x))        /* Exp2 */
    EXT_F32(31, sqrtf(x))        /* Sqrt */
    EXT_F32(32, 1.0f / sqrtf(x)) /* InverseSqrt */
    EXT_F32(37, y < x ? y : x)   /* FMin */
    EXT_U32(38, x < y ? x : y)   /* UMin */
    EXT_F32(40, x < y ? y : x)   /* FMax */
    EXT_U32(41, x > y ? x : y)   /* UMax */
    EXT_F32(43, x < y ? y : x > w ? w : x) /* FClamp */
    EXT_F32(50, fmaf(x, y, w))   /* Fma */
    ROW(MATH_PACK_HALF, uint32_t, float, half_bits(x) | half_bits(y) << 16)
    BOTH(MATH_UNPACK_HALF, float, uint32_t, f16_to_float((uint16_t)x), f16_to_float((uint16_t)(x >> 16)))
    U32(MATH_MOVE, x)
    F32(MATH_ROUND_HALF, f16_to_float((uint16_t)half_bits(x)))
    ROW(MATH_HALF_BITS, uint32_t, float, half_bits(x))
    ROW(MATH_BITS_HALF, float, uint32_t, f16_to_float((uint16_t)x))
    /* An offset, or an address in two words; an index, a stride. */
    U32(MATH_INDEX, x + y * w)
    BOTH(MATH_ADDRESS, uint32_t, uint32_t, address(x, xs[n + i], y, w), address(x, xs[n + i], y, w) >> 32)
    default:
        return false;
    }
    // clang-format on
}
