// dequant.glsl - stored weights as float32, exactly: code * scale is exact, so code * scale + bias has one
// correct value.
//
// The includer defines FORMATS, a set of basic formats (args.h). Build variants:
//   ONLY_FORMAT   there is code for that one format only
//   EXTENDED      dequant_extended.glsl instead, for the one extended format that FORMATS names
//   BLOCKS        dequant_blocks.glsl instead, for the one block format that FORMATS names
//   LARGE_BOOKS   (with BLOCKS) products of few tokens: code books in shared memory take more room and less
//                 arithmetic
//   WITH_Q4       (with EXTENDED) some matrices are FORMAT_Q4; FORMAT_NONE stands for the extended format of
//                 the others
#ifndef DEQUANT_GLSL
#define DEQUANT_GLSL

// One matrix of a product, the same for all lanes that share its rows.
struct Matrix {
    uvec2 weight, scales, biases;
    uint format, rows, cols;
};

struct Eight { // eight neighbouring elements of a row or a vector
    vec4 a, b;
};

#ifdef BLOCKS
#include "lib/dequant_blocks.glsl"
#else
// Other formats have no code book.
const bool HAS_BOOK = false;

void fill_book(uvec2 books)
{
}

#ifdef EXTENDED
#include "lib/dequant_extended.glsl"
#ifdef WITH_Q4
#define BASIC (1u << FORMAT_Q4)
#include "lib/formats.glsl"
#endif
#else
#define BASIC FORMATS

#include "lib/formats.glsl"

// Finds scale and bias of the group of column `col` in a row.
void load_group(const uint format, Matrix m, uint row, uint col, out float s, out float b)
{
    s = b = 0.0;
    if (format_is_affine(format)) {
        uint shift = format_group_shift(format), at = row * (m.cols >> shift) + (col >> shift);
        s = bf16_at(m.scales, at);
        b = bf16_at(m.biases, at);
    }
}

// Returns float(code) for a code below 2^23 without a conversion instruction, which GPUs run at a quarter of
// the rate. With code = 5: the bits 0x4b000005 are 2^23 + 5, minus 2^23 is 5.
float code_value(uint code)
{
    return uintBitsToFloat(code | 0x4b000000u) - 8388608.0;
}

// Returns the i-th eight codes of a matrix, `bits` bytes.
uvec2 load_codes(const uint format, uvec2 weight, uint i)
{
    return format_bits(format) == 4 ? uvec2(Words(weight).v[i], 0) :
                                      uvec2(Words(weight).v[2 * i], Words(weight).v[2 * i + 1]);
}

// Returns eight codes as weights.
Eight affine_eight(const uint format, uvec2 codes, float s, float b)
{
    uint bits = format_bits(format), mask = (1u << bits) - 1u;
    uint high = codes.x >> 4 * bits; // the last four; the first four are in codes.x
    if (bits == 8)
        high = codes.y;
    else if (bits > 4)
        high |= codes.y << 32 - 4 * bits;
    Eight e;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        e.a[i] = code_value((codes.x >> bits * i) & mask) * s + b;
        e.b[i] = code_value((high >> bits * i) & mask) * s + b;
    }
    return e;
}

vec4 four_bf16(uint low, uint high)
{
    return uintBitsToFloat(uvec4(low << 16, low & 0xffff0000u, high << 16, high & 0xffff0000u));
}

// Returns the i-th eight weights of a matrix; s, b: their group's scale and bias.
Eight eight_at(const uint format, uvec2 weight, uint i, float s, float b)
{
    Eight e;
    if (format_is_affine(format)) {
        e = affine_eight(format, load_codes(format, weight, i), s, b);
    } else if (format == FORMAT_BF16) {
        e.a = four_bf16(Words(weight).v[4 * i], Words(weight).v[4 * i + 1]);
        e.b = four_bf16(Words(weight).v[4 * i + 2], Words(weight).v[4 * i + 3]);
    } else {
        [[unroll]] for (uint j = 0; j < 4; j++) {
            e.a[j] = uintBitsToFloat(Words(weight).v[8 * i + j]);
            e.b[j] = uintBitsToFloat(Words(weight).v[8 * i + 4 + j]);
        }
    }
    return e;
}

// Returns columns 8 * i .. of a row.
Eight load_eight(const uint format, Matrix m, uint row, uint i)
{
    float s, b;
    load_group(format, m, row, 8 * i, s, b);
    return eight_at(format, m.weight, row * (m.cols >> 3) + i, s, b);
}

// Returns element `at` of a matrix of plain numbers.
float plain_at(uvec2 weight, uint format, uint at)
{
    if (is_format(FORMAT_BF16, format))
        return bf16_at(weight, at);
    return F32s(weight).v[at];
}

#endif

#endif

#endif
