// halves.glsl - stored weights as float16, for matrix units. The includer defines FORMATS.
#ifndef HALVES_GLSL
#define HALVES_GLSL

#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

#include "lib/dequant.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Halves { uvec4 v[]; };

uvec4 halves(Eight e)
{
    return uvec4(packHalf2x16(e.a.xy), packHalf2x16(e.a.zw), packHalf2x16(e.b.xy), packHalf2x16(e.b.zw));
}

#ifdef BLOCKS

#define Run Part

#elif defined(EXTENDED)

struct Run { // 32 neighbouring elements of a row in stored form: BITS words
    uint v[17];
};

// Loads columns 32 * i .. of a row.
Run load_run(const uint format, Matrix m, uint row, uint i)
{
    uint at = (row * (m.cols >> 5) + i) * BITS;
    Run e;
    if (BITS % 4 == 0) {
        [[unroll]] for (uint j = 0; j < BITS / 4; j++) {
            uvec4 v = Halves(m.weight).v[at / 4 + j];
            [[unroll]] for (uint k = 0; k < 4; k++)
                e.v[4 * j + k] = v[k];
        }
    } else {
        [[unroll]] for (uint j = 0; j < BITS; j++)
            e.v[j] = Words(m.weight).v[at + j];
    }
    return e;
}

// Returns columns 8 * i .. of a run.
uvec4 halves_of(const uint format, Run e, uint i, float s, float b)
{
    uint at = i * BITS / 4, shift = i * BITS % 4 * 8;
    uvec4 codes = uvec4(e.v[at], e.v[at + 1], 0, 0);
    if (BITS == 16)
        codes.zw = uvec2(e.v[at + 2], e.v[at + 3]);
    if (shift > 0)
        codes.xy = uvec2(codes.x >> shift | codes.y << 32 - shift, codes.y >> shift);
    return BITS == 16 ? codes : halves(extended_eight(codes, s, b));
}

#else

// Returns codes below 1024 in both halves of a word as weights, with half of the instructions that float32
// needs. 1024 + code is a half whose mantissa ends with the code: code 5 | 6400 = 6405 = 1029. Scales and
// biases of bf16 are exact as halves, except for sizes below about 2e-5. The result is rounded like float32's
// if fma() rounds once.
f16vec2 two_of(uint codes, f16vec2 s, f16vec2 b)
{
    return fma(unpackFloat2x16(codes | 0x64006400u) - f16vec2(1024.0), s, b);
}

uvec4 halves_q4(uint word, float scale, float bias)
{
    f16vec2 s = f16vec2(scale), b = f16vec2(bias), e[4]; // columns i and i + 4
    [[unroll]] for (uint i = 0; i < 4; i++)
        e[i] = two_of((word >> (4 * i)) & 0x000f000fu, s, b);
    return uvec4(packFloat2x16(f16vec2(e[0].x, e[1].x)), packFloat2x16(f16vec2(e[2].x, e[3].x)),
                 packFloat2x16(f16vec2(e[0].y, e[1].y)), packFloat2x16(f16vec2(e[2].y, e[3].y)));
}

uvec4 halves_q8(uvec2 words, float scale, float bias)
{
    f16vec2 s = f16vec2(scale), b = f16vec2(bias);
    uvec4 v;
    [[unroll]] for (uint i = 0; i < 2; i++) {
        f16vec2 even = two_of(words[i] & 0x00ff00ffu, s, b),
                odd = two_of((words[i] >> 8) & 0x00ff00ffu, s, b);
        v[2 * i] = packFloat2x16(f16vec2(even.x, odd.x));
        v[2 * i + 1] = packFloat2x16(f16vec2(even.y, odd.y));
    }
    return v;
}

struct Run { // 32 neighbouring elements of a row in stored form
    uvec4 v[8]; // only format_bits / 4 of them are used
};

// Loads columns 32 * i .. of a row.
Run load_run(const uint format, Matrix m, uint row, uint i)
{
    uint n = format_bits(format) / 4, at = row * (m.cols >> 5) + i;
    Run e;
    [[unroll]] for (uint j = 0; j < 8; j++)
        e.v[j] = j < n ? Halves(m.weight).v[at * n + j] : uvec4(0);
    return e;
}

// Returns columns 8 * i .. of a run.
uvec4 halves_of(const uint format, Run e, uint i, float s, float b)
{
    if (format_code_bits(format) == 4)
        return halves_q4(e.v[0][i], s, b);
    if (format_code_bits(format) == 8)
        return halves_q8(i % 2 == 0 ? e.v[i / 2].xy : e.v[i / 2].zw, s, b);
    if (format == FORMAT_BF16)
        return halves(Eight(four_bf16(e.v[i].x, e.v[i].y), four_bf16(e.v[i].z, e.v[i].w)));
    return halves(Eight(uintBitsToFloat(e.v[2 * i]), uintBitsToFloat(e.v[2 * i + 1])));
}

#endif

#endif
