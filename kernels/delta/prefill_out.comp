// delta/prefill_out.comp - the third of three: dst = rms(dst) * norm * silu(z), each token and value head by itself, in place.
//
// Grid: x = tokens, y = n_v heads; one subgroup a workgroup. float32, tolerance 1e-5.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint V_DIM = 128;

const uint HELD = (V_DIM + SUBGROUP - 1) / SUBGROUP;

layout(push_constant, std430) uniform Args { delta_prefill_out_args a; };

void main()
{
    uint t = gl_WorkGroupID.x, head = gl_WorkGroupID.y, at = (t * a.n_v + head) * V_DIM;
    float o[HELD], squares = 0.0;
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        uint c = i * SUBGROUP + gl_SubgroupInvocationID;
        o[i] = c < V_DIM ? F32s(a.dst).v[at + c] : 0.0;
        squares += o[i] * o[i];
    }
    float factor = inversesqrt(subgroupAdd(squares) / float(V_DIM) + a.eps);
    [[unroll]] for (uint i = 0; i < HELD; i++) {
        uint c = i * SUBGROUP + gl_SubgroupInvocationID;
        if (c < V_DIM) {
            float z = F32s(a.proj).v[t * a.stride + a.z_at + head * V_DIM + c];
            F32s(a.dst).v[at + c] = o[i] * factor * F32s(a.norm).v[c] * silu(z);
        }
    }
}
