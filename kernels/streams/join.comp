// streams/join.comp - the end of a sublayer in a residual of N_STREAMS streams, and sums of squares:
//   x[t][k] = post[t][k] * add[t] + sum_j comb[t][j][k] * x[t][j]     only if there is `add`
//   squares[t][piece] = sum of x^2 over the piece of all streams      only if there is `squares`
// Grid: x = pieces of STREAMS_PIECE channels, y = tokens. float32; sums over streams in their order, the
// order of the sum of squares depends on the workgroup alone. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint N_STREAMS = 4;

const uint SUBGROUPS = WORKGROUP / SUBGROUP;
const uint FOURS = STREAMS_PIECE / 4;

layout(push_constant, std430) uniform Args { streams_join_args a; };

shared float sums[SUBGROUPS];

// Returns the squares of group c of four channels, after the addition.
float join_fours(uint t, uint c)
{
    uint fours = a.hidden / 4, at = t * N_STREAMS * fours + c, by = t * a.by_stride;
    bool adds = !addr_is_null(a.add);
    vec4 old[N_STREAMS], add = vec4(0.0);
    float squares = 0.0;
    for (uint s = 0; s < N_STREAMS; s++)
        old[s] = F32x4s(a.x).v[at + s * fours];
    if (adds)
        add = F32x4s(a.add).v[t * fours + c];
    for (uint k = 0; k < N_STREAMS; k++) {
        vec4 sum = old[k];
        if (adds) {
            sum = F32s(a.by).v[by + k] * add;
            for (uint j = 0; j < N_STREAMS; j++)
                sum = fma(vec4(F32s(a.by).v[by + N_STREAMS * (1 + j) + k]), old[j], sum);
            F32x4s(a.x).v[at + k * fours] = sum;
        }
        squares += dot(sum, sum);
    }
    return squares;
}

void main()
{
    uint t = gl_WorkGroupID.y, first = gl_WorkGroupID.x * FOURS;
    float squares = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < FOURS && first + i < a.hidden / 4; i += WORKGROUP)
        squares += join_fours(t, first + i);
    if (addr_is_null(a.squares))
        return;
    squares = subgroupAdd(squares);
    if (gl_SubgroupInvocationID == 0)
        sums[gl_SubgroupID] = squares;
    barrier();
    if (gl_LocalInvocationID.x > 0)
        return;
    squares = 0.0;
    for (uint i = 0; i < SUBGROUPS; i++)
        squares += sums[i];
    F32s(a.squares).v[t * STREAMS_PIECES(a.hidden) + gl_WorkGroupID.x] = squares;
}
