// linear/plain.comp - linear/decode.comp's product for matrices of plain numbers with any number of columns.
// Groups of 64 columns do not divide it, so nothing is quantised, and rows may begin at any element. It is
// slow: one element a load.
//
//   y[t][first_row + r] (+)= f_t * sum_c W[r][c] x[t][c] norm[c]
//   f_t = 1 / sqrt(mean(x[t]^2) + eps), or 1 without norm
//
// Grid: x = the rows of consecutive segments, SUBGROUPS at a time, y = tokens / TOKENS, z = matrices of a
// stack from first_stacked on. A subgroup has a row: each lane takes every SUBGROUP-th column. float32 sums.
// Tolerance 1e-5 of the largest output.
// variants: plain ext
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint FORMATS = 0xffffffff;
layout(constant_id = 3) const uint TOKENS = 1; // MAX_TOKENS or fewer

#include "lib/dequant.glsl"

const uint SUBGROUPS = WORKGROUP / SUBGROUP, MAX_TOKENS = 4;

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Segments { linear_segment v[]; };
layout(push_constant, std430) uniform Args { linear_args a; };

linear_segment find_segment()
{
    uint i = 0;
    while (i + 1 < a.n_segments && Segments(a.segments).v[i + 1].first_block <= gl_WorkGroupID.x)
        i++;
    return Segments(a.segments).v[i];
}

void main()
{
    linear_segment seg = find_segment();
    uint first = (a.first_stacked + gl_WorkGroupID.z) * a.step;
    uint row = (gl_WorkGroupID.x - seg.first_block) * SUBGROUPS + gl_SubgroupID,
         token = gl_WorkGroupID.y * TOKENS;
    bool has_norm = !addr_is_null(a.norm);
    float acc[MAX_TOKENS], squares[MAX_TOKENS];
    if (row >= seg.rows)
        return;
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        acc[t] = squares[t] = 0.0;
    for (uint c = gl_SubgroupInvocationID; c < a.cols; c += SUBGROUP) {
        float w = plain_at(seg.weight, seg.format, (first + row) * a.cols + c);
        w *= has_norm ? F32s(a.norm).v[c] : 1.0;
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            float x = F32s(a.x).v[min(token + t, a.n - 1) * a.x_stride + gl_WorkGroupID.z * a.x_step + c];
            squares[t] = fma(x, x, squares[t]);
            acc[t] = fma(w, x, acc[t]);
        }
    }
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        float y = subgroupAdd(acc[t]), mean = subgroupAdd(squares[t]) / float(a.cols);
        uint at = (token + t) * a.y_stride + gl_WorkGroupID.z * a.y_step + seg.first_row + row;
        y *= has_norm ? inversesqrt(mean + a.eps) : 1.0;
        if (gl_SubgroupInvocationID == 0 && token + t < a.n)
            F32s(a.y).v[at] = a.store == LINEAR_ADD ? F32s(a.y).v[at] + y : y;
    }
}
