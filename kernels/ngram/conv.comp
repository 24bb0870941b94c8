// ngram/conv.comp - adds gated n-gram rows and their dilated depthwise convolution to the residual's streams:
//   x[t][c] += gates[t][s] * v[t][c mod hidden] + silu(sum_j conv[c][j] u[t - (TAPS - 1 - j) dilation][c])
// and writes the rows of u that the next chunk needs. c counts the channels of all streams. Without TAPS the
// gated rows alone are added.
// Grid: x = blocks of WORKGROUP channels, y = tokens or rows of the window, whichever are more. float32, the
// sum in the order of the taps. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint TAPS = 4;

// Rows of the window, in units of the dilation.
const uint HELD = TAPS - (TAPS > 0 ? 1 : 0);

layout(push_constant, std430) uniform Args { ngram_conv_args a; };

// Returns row r of the sequence [window; chunk].
float u_at(uint r, uint width, uint c)
{
    uint held = HELD * a.dilation;
    return r < held ? F32s(a.window_in).v[r * width + c] : F32s(a.u).v[(r - held) * width + c];
}

void main()
{
    uint c = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y, width = a.n_streams * a.hidden;
    if (c >= width)
        return;
    if (t < HELD * a.dilation)
        F32s(a.window_out).v[t * width + c] = u_at(a.n + t, width, c);
    if (t >= a.n)
        return;
    float sum = 0.0;
    [[unroll]] for (uint j = 0; j < TAPS; j++)
        sum = fma(F32s(a.conv).v[c * TAPS + j], u_at(t + j * a.dilation, width, c), sum);
    float gate = F32s(a.gates).v[t * a.n_streams + c / a.hidden];
    float value = F32s(a.proj).v[t * a.stride + width + c % a.hidden];
    F32s(a.x).v[t * width + c] += fma(gate, value, silu(sum));
}
