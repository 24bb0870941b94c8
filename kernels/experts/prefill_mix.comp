// experts/prefill_mix.comp - adds the experts' outputs of a chunk to the residual, and computes the input of
// the shared expert's down projection:
//   x[t] += sum_k weights[t][k] parts[t][k]    in the router's order, then the shared expert's part, if there
//                                              is one; only the part of the experts that n_cpu and
//                                              is_cpus name
//   shared_act[t] = w_t silu(g_t) * u_t        g_t, u_t follow the router logits in shared_in[t];
//                                              w_t = sigmoid of the logit before them, or 1 without a gate;
//                                              in general gated() in math.glsl
//
// Grid: x = blocks of WORKGROUP * 4 columns of [hidden | shared_inner], y = tokens. float32 sums. Tolerance
// 2e-6.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;
layout(constant_id = 1) const uint DROPS = 0; // 1: some of a token's top_k experts may be left out

layout(push_constant, std430) uniform Args { experts_prefill_mix_args a; };

bool is_left_out(uint expert)
{
    return expert == NO_EXPERT ||
        (a.n_cpu != 0 && uint(IS_CPU_EXPERT(expert, a.n_cpu, a.n_experts)) != a.is_cpus);
}

void mix_columns(uint t, uint c4)
{
    uint row4 = a.hidden / 4;
    vec4 sum = vec4(0.0);
    for (uint k = a.from_slot; k < a.top_k; k++) {
        uint pair = t * a.top_k + k;
        if (DROPS != 0 && is_left_out(U32s(a.idx).v[pair]))
            continue;
        sum += F32s(a.weights).v[pair] * F32x4s(a.parts).v[(t * a.slots + k) * row4 + c4];
    }
    if (a.end_slot > a.top_k)
        sum += F32x4s(a.parts).v[(t * a.slots + a.top_k) * row4 + c4];
    F32x4s(a.x).v[t * row4 + c4] += sum;
}

void activate_shared(uint t, uint c)
{
    uint i = t * a.shared_stride + a.shared_at, up = i + (a.gating == GATING_RELU ? 0 : a.shared_inner);
    float gate = a.is_gated != 0 ? sigmoid(F32s(a.shared_in).v[i - 1]) : 1.0;
    vec4 v;
    [[unroll]] for (uint j = 0; j < 4; j++)
        v[j] = gate * gated(F32s(a.shared_in).v[i + c + j], F32s(a.shared_in).v[up + c + j], a.gating);
    F32x4s(a.shared_act).v[(t * a.shared_inner + c) / 4] = v;
}

void main()
{
    uint c = 4 * (gl_WorkGroupID.x * WORKGROUP + gl_LocalInvocationID.x);
    if (c < a.hidden)
        mix_columns(gl_WorkGroupID.y, c / 4);
    else if (c < a.hidden + a.shared_inner)
        activate_shared(gl_WorkGroupID.y, c - a.hidden);
}
