// matvec_transposed/groups.comp - a stack of matrices, each multiplied by its own vector from the left:
//   y[t][h * y_step + c] = sum_r W[h * step + r][c] x[t][h * x_step + r],   r < rows, c < cols
// rows is a multiple of 4, cols of PRODUCT_COLS. Grid: x = cols / (8 * LANES), y = tokens / TOKENS, z =
// matrices. A lane has eight neighbouring columns. SLICES lanes share them; each takes every SLICES-th group
// of four rows. float32 sums. Tolerance 1e-5 of the largest output.
// variants: plain ext blk
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256; // a multiple of LANES
layout(constant_id = 2) const uint FORMATS = 0xffffffff;
layout(constant_id = 3) const uint TOKENS = 1; // TRANSPOSED_TOKENS or fewer
layout(constant_id = 4) const uint LANES = 32;

#include "lib/dequant.glsl"

layout(push_constant, std430) uniform Args { matvec_transposed_args a; };

const uint SLICES = WORKGROUP / LANES, MAX_ACC = 8 * TRANSPOSED_TOKENS;
// The slices' sums of one token, column c of lane l at [(slice * 8 + c) * STRIDE + l]. Neither the lanes that
// write them nor those that add them up, column by column, have bank conflicts.
const uint STRIDE = LANES + 4;
shared float sums[SLICES * 8 * STRIDE];

// Loads four numbers of x, from row 4 * four on, of each token.
void load_inputs(uint token, uint four, out vec4 xs[TRANSPOSED_TOKENS])
{
    uint x = gl_WorkGroupID.z * (a.x_step / 4) + four;
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        xs[t] = F32x4s(a.x).v[min(token + t, a.n - 1) * (a.x_stride / 4) + x];
}

// Adds the products of the lane's columns with the rows of its slice.
void add_slice(const uint format, Matrix m, uint unit, uint slice, uint token, inout float acc[MAX_ACC])
{
    uint first = gl_WorkGroupID.z * a.step;
    for (uint four = slice; four < a.rows / 4; four += SLICES) {
        vec4 xs[TRANSPOSED_TOKENS];
        load_inputs(token, four, xs);
        [[unroll]] for (uint i = 0; i < 4; i++) {
            Eight w = load_eight(format, m, first + 4 * four + i, unit);
            [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                [[unroll]] for (uint c = 0; c < 4; c++) {
                    acc[8 * t + c] += xs[t][i] * w.a[c];
                    acc[8 * t + 4 + c] += xs[t][i] * w.b[c];
                }
            }
        }
    }
}

// Adds up the slices of the token in acc[8 * t ..]. All lanes must call it.
void add_up(uint t, float acc[MAX_ACC], uint y)
{
    uint lane = gl_LocalInvocationID.x % LANES, slice = gl_LocalInvocationID.x / LANES;
    if (t > 0)
        barrier();
    [[unroll]] for (uint c = 0; c < 8; c++)
        sums[(slice * 8 + c) * STRIDE + lane] = acc[8 * t + c];
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < min(8 * LANES,
                                                  a.cols - 8 * LANES * gl_WorkGroupID.x); i += WORKGROUP) {
        float sum = 0.0;
        for (uint s = 0; s < SLICES; s++)
            sum += sums[(s * 8 + i % 8) * STRIDE + i / 8];
        F32s(a.y).v[y + i] = sum;
    }
}

// Not a loop: Mesa unrolls none that has another one in it, and the sums would lie in memory.
#define EACH_TOKEN(t)                    \
    if (t < TOKENS && token + t < a.n) \
        add_up(t, acc, y + t * a.y_stride);

void main()
{
    Matrix m = Matrix(a.weight, a.scales, a.biases, a.format, 0, a.cols);
    uint lane = gl_LocalInvocationID.x % LANES, slice = gl_LocalInvocationID.x / LANES;
    uint unit = gl_WorkGroupID.x * LANES + lane, token = gl_WorkGroupID.y * TOKENS;
    float acc[MAX_ACC];
    [[unroll]] for (uint i = 0; i < 8 * TOKENS; i++)
        acc[i] = 0.0;
    fill_book(a.scales);
    if (HAS_BOOK)
        barrier();
    if (unit < a.cols / 8) {
        BY_FORMAT(a.format, add_slice(FORMAT, m, unit, slice, token, acc))
    }
    uint y = token * a.y_stride + gl_WorkGroupID.z * a.y_step + 8 * LANES * gl_WorkGroupID.x;
    EACH_TOKEN(0) EACH_TOKEN(1) EACH_TOKEN(2) EACH_TOKEN(3)
    EACH_TOKEN(4) EACH_TOKEN(5) EACH_TOKEN(6) EACH_TOKEN(7)
}
