// embed.comp - out[t] = factor * row ids[t] of the embedding matrix, dequantised exactly.
// Grid: x = blocks of WORKGROUP * 8 columns, y = tokens; an invocation writes eight columns.
// variants: plain ext blk
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;
layout(constant_id = 1) const uint FORMATS = 0xffffffff;
#include "lib/dequant.glsl"

layout(push_constant, std430) uniform Args { embed_args a; };

void main()
{
    uint c = gl_GlobalInvocationID.x * 8;
    uint token = gl_WorkGroupID.y;
    fill_book(a.scales);
    if (HAS_BOOK)
        barrier();
    if (c >= a.cols)
        return;
    uint row = U32s(a.ids).v[token];
    Matrix m = Matrix(a.weight, a.scales, a.biases, a.format, 0, a.cols);
    Eight w;
    BY_FORMAT(a.format, w = load_eight(FORMAT, m, row, c / 8))
    [[unroll]] for (uint i = 0; i < 4; i++) {
        F32s(a.dst).v[token * a.cols + c + i] = w.a[i] * a.factor;
        F32s(a.dst).v[token * a.cols + c + 4 + i] = w.b[i] * a.factor;
    }
}
