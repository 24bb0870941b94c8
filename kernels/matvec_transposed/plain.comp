// matvec_transposed/plain.comp - matvec_transposed/groups.comp's product for matrices of plain numbers with
// any number of rows and columns:
//   y[t][h * y_step + c] = sum_r W[h * step + r][c] x[t][h * x_step + r],   r < rows, c < cols
// Grid: x = cols / WORKGROUP, y = tokens / TOKENS, z = matrices. A lane has a column. float32 sums. Tolerance
// 1e-5 of the largest output.
// variants: plain ext
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint FORMATS = 0xffffffff;
layout(constant_id = 3) const uint TOKENS = 1; // TRANSPOSED_TOKENS or fewer

#include "lib/dequant.glsl"

layout(push_constant, std430) uniform Args { matvec_transposed_args a; };

void main()
{
    uint c = gl_GlobalInvocationID.x, h = gl_WorkGroupID.z, token = gl_WorkGroupID.y * TOKENS;
    float acc[TRANSPOSED_TOKENS];
    if (c >= a.cols)
        return;
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        acc[t] = 0.0;
    for (uint r = 0; r < a.rows; r++) {
        float w = plain_at(a.weight, a.format, (h * a.step + r) * a.cols + c);
        [[unroll]] for (uint t = 0; t < TOKENS; t++)
            acc[t] = fma(w, F32s(a.x).v[min(token + t, a.n - 1) * a.x_stride + h * a.x_step + r], acc[t]);
    }
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        if (token + t < a.n)
            F32s(a.y).v[(token + t) * a.y_stride + h * a.y_step + c] = acc[t];
}
