// attention/merge.comp - joins attention's splits (merge.glsl) and applies the output gate if there is one:
//   out[t][h] = (joined row (t, h)) * sigmoid(gate[t][h])
// Grid: x = n_heads times pieces of 4 * COLS channels, y = tokens; RECORDS: z = sequences. float32, sums in a
// fixed order. Tolerance 1e-5 of the largest output, including attention's.
// variants: plain each
#version 460
#include "lib/memory.glsl"
#include "lib/each.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint COLS = 16;

ARGS(attention_merge_args)
#include "attention/merge.glsl"

void main()
{
    take_args();
    uint fours = a.value_dim / 4, pieces = (fours + COLS - 1) / COLS;
    uint h = gl_WorkGroupID.x / pieces, token = gl_WorkGroupID.y;
    uint own = gl_WorkGroupID.x % pieces * COLS + gl_LocalInvocationID.x % COLS, col = min(own, fours - 1);
    uint group = gl_LocalInvocationID.x / COLS;
    Row row = row_at(a.partial, token * a.n_heads + h, a.rows, a.n_splits, fours);
    vec4 gate = vec4(0.0);
    if (!addr_is_null(a.qkv) && group == 0)
        gate = four_at(a.qkv, (token * a.stride + (2 * h + 1) * a.value_dim) / 4 + col);
    vec4 sum = join_parts(row, col, fours);
    if (group > 0 || own >= fours)
        return;
    if (!addr_is_null(a.qkv))
        sum *= vec4(sigmoid(gate.x), sigmoid(gate.y), sigmoid(gate.z), sigmoid(gate.w));
    F32x4s(a.dst).v[(token * a.dst_stride + h * a.value_dim) / 4 + col] = sum;
}
