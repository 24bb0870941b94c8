// linear/decode.comp - y[t] (+)= W rms(x[t]) for several matrices W that share an input.
//
//   y[t][first_row + r] = f_t * sum_c W[r][c] x[t][c] norm[c]
//   f_t = 1 / sqrt(mean(x[t]^2) + eps), or 1 without norm
//
// Grid: x = the row blocks of consecutive segments, y = tokens / TOKENS, z = matrices of a stack from
// first_stacked on, each with its own part of x and of y. A workgroup computes SUBGROUPS / SPLIT * BLOCK_ROWS
// rows of one segment. x goes through shared memory in tiles of TILE columns. The norm's factor is applied at
// the end, so one pass is enough. float32 sums. Tolerance 1e-5 of the largest output.
// variants: plain denorm q4 q8 bf16 f32 ext extdenorm blk blkdenorm
#version 460
#include "lib/memory.glsl"
#include "lib/gemv.glsl"

layout(push_constant, std430) uniform Args { linear_args a; };
#include "linear/segments.glsl"

void main()
{
    linear_segment seg = find_segment();
    uint first = (a.first_stacked + gl_WorkGroupID.z) * a.step, end = first + seg.rows; // rows of the stack
    Matrix m[1] = {Matrix(seg.weight, seg.scales, seg.biases, seg.format, end, a.cols)};
    uint row = first + (gl_WorkGroupID.x - seg.first_block) * (SUBGROUPS / SPLIT) * BLOCK_ROWS + block_row();
    uint token = gl_WorkGroupID.y * TOKENS, cols = STEPS > 0 ? TILE : a.cols;
    float acc[MAX_ACC];
    float squares[4], factor[4];
    [[unroll]] for (uint i = 0; i < SUMS; i++)
        acc[i] = 0.0;
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        squares[t] = 0.0;

    for (uint from = 0; from < cols; from += TILE) {
        uint n = min(TILE, cols - from);
        fetch_product(m, row, from, n);
        if (from > 0)
            barrier();
        else
            fill_book(seg.scales);
        [[unroll]] for (uint t = 0; t < TOKENS; t++)
            squares[t] += put_vector(t, a.x,
                                     min(token + t, a.n - 1) * a.x_stride + gl_WorkGroupID.z * a.x_step,
                                         a.norm,
                                     from, n / 4);
        if (from + TILE >= cols)
            share_sums(squares);
        barrier();
        if (STEPS > 0 || row < end)
            add_product(acc, m, row, from, n);
    }

    finish_product(acc);
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        factor[t] = addr_is_null(a.norm) ? 1.0 : inversesqrt(shared_sum(t) / float(cols) + a.eps);
    [[unroll]] for (uint i = 0; i < LANE_SUMS; i++) {
        uint mine = block_start(row, end) + lane_sum(i) / TOKENS, t = lane_sum(i) % TOKENS;
        uint at = (token + t) * a.y_stride + gl_WorkGroupID.z * a.y_step + seg.first_row + mine - first;
        float y = acc[i] * factor[t];
        if (lane_stores(i) && mine >= row && mine < end && token + t < a.n)
            F32s(a.y).v[at] = a.store == LINEAR_ADD ? F32s(a.y).v[at] + y : y;
    }
}
