// dequant.glsl - stored weights as float32, exactly: code * scale is exact, so code * scale + bias has one right value. The
// includer has FORMATS; with ONLY_FORMAT that is the one format there is code for. The table of formats is in args.h; what is
// written here for a scheme serves all rows of it.
#ifndef DEQUANT_GLSL
#define DEQUANT_GLSL

// One matrix of a product; the same for all lanes that share its rows.
struct Matrix {
    uvec2 weight, scales, biases;
    uint format, rows, cols;
};

struct Eight { // eight neighbouring elements of a row or a vector
    vec4 a, b;
};

// Columns of the table: constants where f is one.
#define ROW_BITS(name, number, bits, group, scheme, scale, f) f == number ? bits :
#define ROW_SHIFT(name, number, bits, group, scheme, scale, f) \
    f == number ? (group == 128 ? 7 : group == 64 ? 6 : group == 32 ? 5 : 0) :
#define ROW_IS_AFFINE(name, number, bits, group, scheme, scale, f) f == number ? SCHEME_##scheme == SCHEME_AFFINE :
#define ROW_CODE_BITS(name, number, bits, group, scheme, scale, f) \
    f == number ? (SCHEME_##scheme == SCHEME_AFFINE ? bits : 0) :
uint format_bits(uint f)
{
    return FORMAT_TABLE(ROW_BITS, f) 0;
}

uint format_group_shift(uint f)
{
    return FORMAT_TABLE(ROW_SHIFT, f) 0;
}

// format_code_bits(f) > 0 says the same, but glslc 2023.2 folds that too late to leave the code of other formats out.
bool format_is_affine(uint f)
{
    return FORMAT_TABLE(ROW_IS_AFFINE, f) false;
}

// Of a code of an affine format; else 0.
uint format_code_bits(uint f)
{
    return FORMAT_TABLE(ROW_CODE_BITS, f) 0;
}

// Whether a matrix is stored as f: a constant wherever FORMATS leaves no choice. A software device computes both sides
// of every branch, so code for a format that does not occur must not be there.
bool is_format(uint f, uint format)
{
    return (FORMATS & 0xffffu) == 1u << f || ((FORMATS >> f & 1u) != 0 && (format & FORMAT_KIND_MASK) == f);
}

// Runs `call` with FORMAT, a constant, standing for the format: a branch for each format that kernels compute. It stands
// outside of everything: inside, it multiplies the work of shader compilers.
#ifdef ONLY_FORMAT
#define BY_FORMAT(format, call)            \
    {                                      \
        const uint FORMAT = ONLY_FORMAT;   \
        call;                              \
    }
#else
#define FORMAT_BRANCH(f, call)    \
    if (is_format(f, by_format)) { \
        const uint FORMAT = f;     \
        call;                      \
    } else
#define BY_FORMAT(format, call)              \
    {                                        \
        const uint by_format = format;       \
        FORMAT_BRANCH(FORMAT_Q4, call)       \
        FORMAT_BRANCH(FORMAT_Q8, call)       \
        FORMAT_BRANCH(FORMAT_BF16, call)     \
        FORMAT_BRANCH(FORMAT_F32, call) {}   \
    }
#endif

// Scale and bias of the group that column `col` of a row is in.
void load_group(const uint format, Matrix m, uint row, uint col, out float s, out float b)
{
    s = b = 0.0;
    if (format_is_affine(format)) {
        uint shift = format_group_shift(format), at = row * (m.cols >> shift) + (col >> shift);
        s = bf16_at(m.scales, at);
        b = bf16_at(m.biases, at);
    }
}

// float(code) for a code below 2^23 without a conversion instruction, which GPUs run at a quarter of the rate.
float code_value(uint code)
{
    return uintBitsToFloat(code | 0x4b000000u) - 8388608.0;
}

// The i-th eight codes of a matrix, `bits` bytes, from bit 0 on. One return at the end: glslc 2023.2 crashes on several.
uvec2 load_codes(const uint format, uvec2 weight, uint i)
{
    uint bits = format_bits(format);
    uvec2 v = uvec2(0);
    if (bits == 4) {
        v.x = Words(weight).v[i];
    } else if (bits == 8) {
        v = uvec2(Words(weight).v[2 * i], Words(weight).v[2 * i + 1]);
    } else {
        // They begin on any byte: four eights are `bits` words.
        uint byte = (i & 3u) * bits, word = (i >> 2) * bits + (byte >> 2), shift = 8 * (byte & 3u);
        v.x = Words(weight).v[word];
        if ((byte & 3u) + bits > 4)
            v.y = Words(weight).v[word + 1];
        if (shift > 0)
            v = uvec2(v.x >> shift | v.y << (32 - shift), v.y >> shift);
    }
    return v;
}

// Eight codes as weights.
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

// The i-th eight weights of a matrix; s, b: of their group.
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

// Columns 8 * i .. of a row.
Eight load_eight(const uint format, Matrix m, uint row, uint i)
{
    float s, b;
    load_group(format, m, row, 8 * i, s, b);
    return eight_at(format, m.weight, row * (m.cols >> 3) + i, s, b);
}

// Element `at` of a matrix of plain numbers.
float plain_at(uvec2 weight, uint format, uint at)
{
    if (is_format(FORMAT_BF16, format))
        return bf16_at(weight, at);
    return F32s(weight).v[at];
}

#endif
