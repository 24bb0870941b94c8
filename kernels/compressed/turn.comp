// compressed/turn.comp - y = rope(x), rope(rms(x)) or rope(rms(x) * norm) of each head of each token; to
// floats, to the position's row of the window, or to the compressed row that ends at the position
// (ops/compressed/compressed.h).
// Grid: x = heads, y = tokens. float32. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 128;
layout(constant_id = 2) const uint DIM = 512;
layout(constant_id = 3) const uint ROTARY = 64;
layout(constant_id = 4) const uint RATIO = 4;

layout(push_constant, std430) uniform Args { compressed_turn_args a; };
#include "compressed/row.glsl"
#include "compressed/far.glsl"

void main()
{
    uint h = gl_WorkGroupID.x, t = gl_WorkGroupID.y;
    bool is_row = addr_is_null(a.y);
    uvec2 row = uvec2(0);
    if (a.is_far != 0 && (a.pos + t + 1) % max(RATIO, 1) != 0)
        return;
    // An invocation reads the pairs that it writes, since y may be x.
    for (uint i = gl_LocalInvocationID.x; i < DIM / 2; i += WORKGROUP) {
        uint at = t * a.x_stride + h * DIM + 2 * i;
        head[2 * i] = F32s(a.x).v[at];
        head[2 * i + 1] = F32s(a.x).v[at + 1];
    }
    barrier();
    float factor = a.norms != 0 ? unit_factor(a.eps) : 1.0;
    if (is_row)
        row = a.is_far != 0 ? far_row(a.blocks, a.row_off, (a.pos + t) / max(RATIO, 1))
                            : key_cache_row(a.blocks, a.row_off, a.pos + t, 0, 1, DIM);
    for (uint i = gl_LocalInvocationID.x; i < DIM / 2; i += WORKGROUP) {
        vec2 v = turned_two(i, factor, a.norm, a.rope, t * ROTARY);
        uint at = t * a.y_stride + h * DIM + 2 * i;
        if (is_row) {
            store_two(row, i, v);
        } else {
            F32s(a.y).v[at] = v.x;
            F32s(a.y).v[at + 1] = v.y;
        }
    }
    if (is_row)
        end_row(row);
}
