// linear/prefill_split.comp - linear/decode.comp's product for many tokens and few rows:
//
//   y[t][first_row + r] (+)= f_t * sum_c W[r][c] x[t][c] norm[c]
//   f_t = 1 / sqrt(mean(x[t]^2) + eps), or 1 without norm
//
// Grid: x = blocks of ROWS rows of consecutive segments, y = tokens / TOKENS, z = matrices of a stack from
// first_stacked on, each with its own part of x and of y. Few rows give a GPU few workgroups, and these wait
// for memory. So all invocations of a workgroup share the columns, eight at a time, and each starts all its
// loads at once. float32 sums: of an invocation, of its subgroup, of the workgroup. Tolerance 1e-5 of the
// largest output.
// variants: plain ext blk
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint ROWS = 8;   // ROWS * TOKENS is at most MAX_ACC
layout(constant_id = 3) const uint TOKENS = 4; // 4 or fewer; ROWS and TOKENS are powers of two
layout(constant_id = 4) const uint FORMATS = 0xffffffff;

const uint MAX_ACC = 32, SUMS = ROWS * TOKENS, SUBGROUPS = WORKGROUP / SUBGROUP;

#include "lib/dequant.glsl"
#include "lib/lane_sums.glsl"

layout(push_constant, std430) uniform Args { linear_args a; };
#include "linear/segments.glsl"

shared float sums_of[SUBGROUPS * SUMS];
shared float squares_of[SUBGROUPS * TOKENS];

uint token_of(uint t)
{
    return gl_WorkGroupID.y * TOKENS + t;
}

// Loads columns 8 * i .. of the tokens, times the norm; adds to the sums of their squares.
void load_tokens(uint i, out Eight x[TOKENS], inout float squares[TOKENS])
{
    Eight norm = Eight(vec4(1.0), vec4(1.0));
    if (!addr_is_null(a.norm)) {
        norm.a = F32x4s(a.norm).v[2 * i];
        norm.b = F32x4s(a.norm).v[2 * i + 1];
    }
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        uint at = (min(token_of(t), a.n - 1) * a.x_stride + gl_WorkGroupID.z * a.x_step) / 4 + 2 * i;
        x[t].a = F32x4s(a.x).v[at];
        x[t].b = F32x4s(a.x).v[at + 1];
    }
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        squares[t] += dot(x[t].a, x[t].a) + dot(x[t].b, x[t].b);
        x[t].a *= norm.a;
        x[t].b *= norm.b;
    }
}

void add_eight(inout float acc[MAX_ACC], const uint format, Matrix m, uint row, uint i, Eight x[TOKENS])
{
    Eight w[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        w[r] = load_eight(format, m, min(row + r, m.rows - 1), i);
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            float sum = acc[r * TOKENS + t];
            [[unroll]] for (uint j = 0; j < 4; j++)
                sum = fma(w[r].a[j], x[t].a[j], sum);
            [[unroll]] for (uint j = 0; j < 4; j++)
                sum = fma(w[r].b[j], x[t].b[j], sum);
            acc[r * TOKENS + t] = sum;
        }
}

void share_sums(inout float acc[MAX_ACC], float squares[TOKENS])
{
    add_lanes(acc);
    if (gl_SubgroupInvocationID % EACH == 0)
        [[unroll]] for (uint i = 0; i < LANE_SUMS; i++)
            sums_of[gl_SubgroupID * SUMS + lane_sum(i)] = acc[i];
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        float all = subgroupAdd(squares[t]);
        if (gl_SubgroupInvocationID == 0)
            squares_of[gl_SubgroupID * TOKENS + t] = all;
    }
    barrier();
}

float factor_of(uint t)
{
    float all = 0.0;
    [[unroll]] for (uint i = 0; i < SUBGROUPS; i++)
        all += squares_of[i * TOKENS + t];
    return addr_is_null(a.norm) ? 1.0 : inversesqrt(all / float(a.cols) + a.eps);
}

void main()
{
    linear_segment seg = find_segment();
    uint first = (a.first_stacked + gl_WorkGroupID.z) * a.step, end = first + seg.rows; // rows of the stack
    Matrix m = Matrix(seg.weight, seg.scales, seg.biases, seg.format, end, a.cols);
    uint row = first + (gl_WorkGroupID.x - seg.first_block) * ROWS;
    float acc[MAX_ACC], squares[TOKENS];
    [[unroll]] for (uint k = 0; k < SUMS; k++)
        acc[k] = 0.0;
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        squares[t] = 0.0;
    fill_book(seg.scales);
    if (HAS_BOOK)
        barrier();
    for (uint i = gl_LocalInvocationID.x; i < a.cols / 8; i += WORKGROUP) {
        Eight x[TOKENS];
        load_tokens(i, x, squares);
        BY_FORMAT(m.format, add_eight(acc, FORMAT, m, row, i, x))
    }
    share_sums(acc, squares);
    for (uint k = gl_LocalInvocationID.x; k < SUMS; k += WORKGROUP) {
        uint mine = row + k / TOKENS, token = token_of(k % TOKENS);
        float y = 0.0;
        [[unroll]] for (uint i = 0; i < SUBGROUPS; i++)
            y += sums_of[i * SUMS + k];
        y *= factor_of(k % TOKENS);
        uint at = token * a.y_stride + gl_WorkGroupID.z * a.y_step + seg.first_row + mine - first;
        if (mine < end && token < a.n)
            F32s(a.y).v[at] = a.store == LINEAR_ADD ? F32s(a.y).v[at] + y : y;
    }
}
