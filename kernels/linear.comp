// linear.comp - y[t] (+)= W rms(x[t]) for several matrices W that share an input.
//
//   y[t][first_row + r] = f_t * sum_c W[r][c] x[t][c] norm[c]   f_t = 1 / sqrt(mean(x[t]^2) + eps), or 1 without norm
//
// Grid: x = the segments' row blocks one after the other, y = tokens / TOKENS. A workgroup computes
// (WORKGROUP / SUBGROUP) * BLOCK_ROWS rows of one segment. x goes through shared memory in tiles of TILE columns; the
// norm's factor is applied at the end, so one pass is enough. float32 sums. Tolerance 1e-5 of the largest output.
#version 460
#include "memory.glsl"
#include "matvec.glsl"

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Segments { linear_segment v[]; };
layout(push_constant, std430) uniform Args { linear_args a; };

linear_segment find_segment()
{
    uint i = 0;
    while (i + 1 < a.n_segments && Segments(a.segments).v[i + 1].first_block <= gl_WorkGroupID.x)
        i++;
    return Segments(a.segments).v[i];
}

// Columns [from, from + 4 * n4) of x[t] into shared memory, weighted by the norm; returns their squares' sum.
float load_tile(uint t, uint token, uint from, uint n4)
{
    float squares = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < n4; i += WORKGROUP) {
        vec4 v = F32x4s(a.x).v[(token * a.x_stride + from) / 4 + i];
        if (!addr_is_null(a.norm)) {
            squares += dot(v, v);
            v *= F32x4s(a.norm).v[from / 4 + i];
        }
        xs_put(xs_index(t, i), v);
    }
    return squares;
}

void main()
{
    linear_segment seg = find_segment();
    Matrix m = Matrix(seg.weight, seg.scales, seg.biases, seg.format, seg.rows, a.cols);
    uint row = (gl_WorkGroupID.x - seg.first_block) * SUBGROUPS * BLOCK_ROWS + block_row();
    uint token = gl_WorkGroupID.y * TOKENS;
    float acc[MAX_ACC];
    float squares[4];
    [[unroll]] for (uint i = 0; i < ROWS * TOKENS; i++)
        acc[i] = 0.0;
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        squares[t] = 0.0;

    for (uint from = 0; from < a.cols; from += TILE) {
        uint n = min(TILE, a.cols - from);
        if (from > 0)
            barrier();
        [[unroll]] for (uint t = 0; t < TOKENS; t++)
            squares[t] += load_tile(t, min(token + t, a.n - 1), from, n / 4);
        barrier();
        if (row < seg.rows)
            for (uint u = unit_first(); u < n / UNIT; u += unit_step())
                add_unit(acc, m, row, from / UNIT + u, u);
    }

    float factor[4];
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        factor[t] = addr_is_null(a.norm) ? 1.0 : inversesqrt(workgroup_sum(squares[t]) / float(a.cols) + a.eps);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            float y = finish(acc[r * TOKENS + t]) * factor[t];
            uint mine = row + lane_row(r);
            uint at = (token + t) * a.y_stride + seg.first_row + mine;
            if (lane_stores(r) && mine < seg.rows && token + t < a.n)
                F32s(a.y).v[at] = a.add != 0 ? F32s(a.y).v[at] + y : y;
        }
    }
}
