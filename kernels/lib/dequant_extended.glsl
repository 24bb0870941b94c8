// dequant_extended.glsl - dequant.glsl for one extended format: FORMATS is its word (args.h), a constant.
// RUN_TIME_WORD, if defined, replaces it by a word that is known at run time. Functions have one return,
// because glslc 2023.2 takes long over several, or crashes.
#include "lib/small_floats.glsl"

#ifdef RUN_TIME_WORD
#define BITS        FORMAT_WORD_BITS(RUN_TIME_WORD)
#define SCHEME      FORMAT_WORD_SCHEME(RUN_TIME_WORD)
#define GROUP_SHIFT FORMAT_WORD_GROUP_SHIFT(RUN_TIME_WORD)
#define SCALE       FORMAT_WORD_SCALE(RUN_TIME_WORD)
#else
const uint BITS = FORMAT_WORD_BITS(FORMATS), SCHEME = FORMAT_WORD_SCHEME(FORMATS);
const uint GROUP_SHIFT = FORMAT_WORD_GROUP_SHIFT(FORMATS); // log2 of the columns that share a scale
const uint SCALE = FORMAT_WORD_SCALE(FORMATS);
#endif
#define IS_AFFINE  (SCHEME == SCHEME_AFFINE)
#define HAS_SCALES (SCHEME != SCHEME_PLAIN)
#define HAS_FACTOR (SCALE == SCALE_E4M3_FACTOR)

#define BY_FORMAT(format, call)            \
    {                                      \
        const uint FORMAT = FORMAT_NONE;   \
        call;                              \
    }

// Returns codes below 2^23 as floats without a conversion instruction (see code_value in dequant.glsl).
vec4 code_values(uvec4 codes)
{
    return uintBitsToFloat(codes | 0x4b000000u) - 8388608.0;
}

// Scales and biases are 1 << SCALE_SHIFT bytes each.
#define SCALE_SHIFT (SCALE == SCALE_F32 ? 2 : SCALE <= SCALE_F16 ? 1 : 0)

// Returns the word of an array of scales or biases that contains number i.
uint scale_word(uvec2 p, uint i)
{
    return Words(p).v[i << SCALE_SHIFT >> 2];
}

// Returns number i from its word, without a factor.
float scale_in(uint word, uint i)
{
    uint bits = word >> ((i << SCALE_SHIFT & 3u) << 3);
    float s = uintBitsToFloat(SCALE == SCALE_BF16 ? bits << 16 : bits);
    if (SCALE == SCALE_F16)
        s = f16_value(bits & 0xffffu);
    else if (SCALE == SCALE_E8M0) // 2^(bits - 127)
        s = uintBitsToFloat(max((bits & 0xffu) << 23, 0x00400000u));
    else if (SCALE == SCALE_E4M3 || HAS_FACTOR)
        s = e4m3_value(bits & 0xffu);
    return s;
}

// Returns the number by which a matrix's scales are multiplied.
float scale_factor(uvec2 biases)
{
    return HAS_FACTOR ? F32s(biases).v[0] : 1.0;
}

// Finds scale and bias of the group of column `col` in a row.
void load_group(const uint format, Matrix m, uint row, uint col, out float s, out float b)
{
    uint at = row * (m.cols >> GROUP_SHIFT) + (col >> GROUP_SHIFT);
    s = b = 0.0;
    if (HAS_SCALES)
        s = scale_in(scale_word(m.scales, at), at);
    if (HAS_FACTOR)
        s *= scale_factor(m.biases);
    if (IS_AFFINE)
        b = scale_in(scale_word(m.biases, at), at);
}

// Returns the i-th eight numbers of a matrix, BITS bytes, from bit 0 on. They may begin at any byte; four
// times eight numbers are BITS words.
uvec4 load_codes(uvec2 weight, uint i)
{
    uint byte = (i & 3u) * BITS, word = (i >> 2) * BITS + (byte >> 2), shift = 8 * (byte & 3u);
    uvec4 v = uvec4(Words(weight).v[word], 0, 0, 0);
    if ((byte & 3u) + BITS > 4)
        v.y = Words(weight).v[word + 1];
    if (BITS == 16)
        v.zw = uvec2(Words(weight).v[word + 2], Words(weight).v[word + 3]);
    if (shift > 0)
        v.xy = uvec2(v.x >> shift | v.y << 32 - shift, v.y >> shift);
    return v;
}

// Returns eight codes as weights, rounded as mlx rounds: the product, then the sum.
Eight affine_eight(uvec4 codes, float s, float b)
{
    uint mask = (1u << BITS) - 1u;
    uint high = codes.x >> (4 * BITS & 31u); // the last four; the first four are in codes.x
    if (BITS == 8)
        high = codes.y;
    else if (BITS > 4)
        high |= codes.y << (32 - 4 * BITS & 31u);
    // The shifts are written out: validation layers fold a product of a vector and a pipeline's constant into
    // invalid code.
    uvec4 shifts = uvec4(0, BITS, 2 * BITS, 3 * BITS);
    precise vec4 low_products = code_values(uvec4(codes.x) >> shifts & mask) * s;
    precise vec4 high_products = code_values(uvec4(high) >> shifts & mask) * s;
    precise vec4 low_sums = low_products + b, high_sums = high_products + b;
    return Eight(low_sums, high_sums);
}

// Returns eight numbers as weights.
Eight extended_eight(uvec4 codes, float s, float b)
{
    Eight e;
    if (IS_AFFINE) {
        e = affine_eight(codes, s, b);
    } else if (SCHEME == SCHEME_E2M1) {
        [[unroll]] for (uint i = 0; i < 4; i++) {
            e.a[i] = e2m1_value(codes.x >> 4 * i) * s;
            e.b[i] = e2m1_value(codes.x >> 16 + 4 * i) * s;
        }
    } else if (SCHEME == SCHEME_E4M3) {
        [[unroll]] for (uint i = 0; i < 4; i++) {
            e.a[i] = e4m3_value(codes.x >> 8 * i) * s;
            e.b[i] = e4m3_value(codes.y >> 8 * i) * s;
        }
    } else {
        e.a = vec4(unpackHalf2x16(codes.x), unpackHalf2x16(codes.y));
        e.b = vec4(unpackHalf2x16(codes.z), unpackHalf2x16(codes.w));
    }
    return e;
}

// Returns columns 8 * i .. of a row.
Eight load_eight(const uint format, Matrix m, uint row, uint i)
{
    float s, b;
    load_group(format, m, row, 8 * i, s, b);
    return extended_eight(load_codes(m.weight, row * (m.cols >> 3) + i), s, b);
}

// Returns element `at` of a matrix of plain numbers.
float plain_at(uvec2 weight, uint format, uint at)
{
    return unpackHalf2x16(Words(weight).v[at >> 1] >> 16 * (at & 1u)).x;
}
