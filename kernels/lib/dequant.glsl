// dequant.glsl - stored weights as float32, exactly: fma(q, scale, bias) has one right value. The includer has FORMATS.
#ifndef DEQUANT_GLSL
#define DEQUANT_GLSL

// One matrix of a product; the same for all lanes that share its rows.
struct Matrix {
    uvec2 weight, scales, biases;
    uint format, rows, cols;
};

// Whether a matrix is stored as f: a constant wherever FORMATS leaves no choice. A software device computes both sides
// of every branch, so code for a format that does not occur must not be there.
bool is_format(uint f, uint format)
{
    return FORMATS == 1u << f || ((FORMATS >> f & 1u) != 0 && format == f);
}

// Scale and bias of columns 64 * group .. of a row.
void load_group(const uint format, Matrix m, uint row, uint group, out float s, out float b)
{
    s = b = 0.0;
    if (format <= FORMAT_Q8) {
        uint at = row * (m.cols >> 6) + group;
        s = bf16_at(m.scales, at);
        b = bf16_at(m.biases, at);
    }
}

// Eight weights from element `at` of the matrix on.
void weights8(out float w[8], const uint format, uvec2 weight, uint at, float s, float b)
{
    if (format == FORMAT_Q8) {
        [[unroll]] for (uint i = 0; i < 8; i++) {
            uint word = Words(weight).v[(at >> 2) + (i >> 2)];
            w[i] = fma(float((word >> (8 * (i & 3u))) & 255u), s, b);
        }
    } else if (format == FORMAT_BF16) {
        [[unroll]] for (uint i = 0; i < 8; i++) {
            uint pair = Words(weight).v[(at >> 1) + (i >> 1)];
            w[i] = uintBitsToFloat((i & 1u) == 0u ? pair << 16 : pair & 0xffff0000u);
        }
    } else {
        [[unroll]] for (uint i = 0; i < 8; i++)
            w[i] = uintBitsToFloat(Words(weight).v[at + i]);
    }
}

// Element `at` of a matrix of plain numbers.
float plain_at(uvec2 weight, uint format, uint at)
{
    if (is_format(FORMAT_BF16, format))
        return bf16_at(weight, at);
    return F32s(weight).v[at];
}

// float(code) for a code below 2^23 without a conversion instruction, which GPUs run at a quarter of the rate.
float code_value(uint code)
{
    return uintBitsToFloat(code | 0x4b000000u) - 8388608.0;
}

void weights8_q4(out float w[8], uint word, float s, float b)
{
    [[unroll]] for (uint i = 0; i < 8; i++)
        w[i] = fma(code_value((word >> (4 * i)) & 15u), s, b);
}

// Columns 8 * unit .. of a row.
void load_unit(const uint format, Matrix m, uint row, uint unit, out float w[8])
{
    float s, b;
    load_group(format, m, row, unit / 8, s, b);
    if (format == FORMAT_Q4)
        weights8_q4(w, Words(m.weight).v[row * (m.cols >> 3) + unit], s, b);
    else
        weights8(w, format, m.weight, row * m.cols + 8 * unit, s, b);
}

#endif
