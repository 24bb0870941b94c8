// embed.comp - out[t] = row ids[t] of the embedding matrix, dequantised exactly.
// Grid: x = blocks of WORKGROUP * 8 columns, y = tokens; an invocation writes eight columns.
#version 460
#include "lib/memory.glsl"
#include "lib/gemv.glsl"

layout(push_constant, std430) uniform Args { embed_args a; };

void main()
{
    uint c = gl_GlobalInvocationID.x * 8;
    uint token = gl_WorkGroupID.y;
    if (c >= a.cols)
        return;
    uint row = U32s(a.ids).v[token];
    float s = 0.0, b = 0.0, w[8];
    if ((FORMATS & 3u) != 0) {
        uint group = row * (a.cols >> 6) + (c >> 6);
        s = bf16_at(a.scales, group);
        b = bf16_at(a.biases, group);
    }
    if (is_format(FORMAT_Q4, a.format))
        weights8_q4(w, Words(a.weight).v[(row * a.cols + c) >> 3], s, b);
    else if (is_format(FORMAT_Q8, a.format))
        weights8(w, FORMAT_Q8, a.weight, row * a.cols + c, s, b);
    else if (is_format(FORMAT_BF16, a.format))
        weights8(w, FORMAT_BF16, a.weight, row * a.cols + c, s, b);
    else
        weights8(w, FORMAT_F32, a.weight, row * a.cols + c, s, b);
    [[unroll]] for (uint i = 0; i < 8; i++)
        F32s(a.dst).v[token * a.cols + c + i] = w[i];
}
