// delta/prefill_out.comp - the last kernel of the gated delta net of a chunk: dst = rms(dst) * norm * silu(z)
// for each token and value head, in place or rounded to float16.
//
// Grid: x = tokens, y = n_v heads; one subgroup a workgroup. float32, tolerance 1e-5.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"
#include "lib/put_halves.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint V_DIM = 128;

layout(constant_id = 2) const uint FORM = 2; // FORM_* of put_halves.glsl; 2: float32, in place
layout(constant_id = 3) const uint SIGMOID = 0; // 1: the output gate is sigmoid(z)

const uint FOURS = V_DIM / 4, HELD = (FOURS + SUBGROUP - 1) / SUBGROUP;

layout(push_constant, std430) uniform Args { delta_prefill_out_args a; };

void main()
{
    uint t = gl_WorkGroupID.x, head = gl_WorkGroupID.y, row = t * a.n_v * FOURS, first = head * FOURS;
    vec4 o[HELD];
    float squares = 0.0;
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        uint c = i * SUBGROUP + gl_SubgroupInvocationID;
        o[i] = c < FOURS ? F32x4s(a.dst).v[row + first + c] : vec4(0.0);
        squares += dot(o[i], o[i]);
    }
    float factor = inversesqrt(subgroupAdd(squares) / float(V_DIM) + a.eps);
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        uint c = i * SUBGROUP + gl_SubgroupInvocationID, z_at = t * a.stride + a.z_at + head * V_DIM + 4 * c;
        if (c < FOURS) {
            vec4 z;
            [[unroll]] for (uint j = 0; j < 4; j++) {
                z[j] = F32s(a.proj).v[z_at + j];
                z[j] = SIGMOID != 0 ? sigmoid(z[j]) : silu(z[j]);
            }
            vec4 v = o[i] * factor * F32x4s(a.norm).v[c] * z;
            if (FORM == 2)
                F32x4s(a.dst).v[row + first + c] = v;
            else
                put_four(FORM, a.f16, row, first + c, v);
        }
    }
}
