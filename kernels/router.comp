// router.comp - the top_k experts of each token, best first, and their weights.
//   norm = 1: weights = softmax over the chosen logits; norm = 0: softmax over all n_experts, chosen ones taken.
// Ties go to the lower index. Grid: x = tokens, one subgroup each; a lane keeps PER_LANE logits, expert e in lane
// e % SUBGROUP. Tolerance 1e-6; the choice is exact where the logits are.
#version 460
#include "memory.glsl"
#include "math.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint PER_LANE = 8; // ceil(n_experts / SUBGROUP)

layout(push_constant, std430) uniform Args { router_args a; };

// -infinity: padding and what was already chosen.
#define NONE uintBitsToFloat(0xff800000u)

void main()
{
    uint token = gl_WorkGroupID.x, lane = gl_SubgroupInvocationID;
    float l[PER_LANE];
    for (uint i = 0; i < PER_LANE; i++) {
        uint e = i * SUBGROUP + lane;
        l[i] = e < a.n_experts ? F32s(a.logits).v[token * a.stride + e] : NONE;
    }

    float best = 0.0, sum = 0.0;
    for (uint k = 0; k < a.top_k; k++) {
        float top = NONE;
        uint at = 0xffffffffu;
        for (uint i = 0; i < PER_LANE; i++)
            if (l[i] > top || at == 0xffffffffu) {
                top = l[i];
                at = i * SUBGROUP + lane;
            }
        float winner = subgroupMax(top);
        uint expert = subgroupMin(top == winner ? at : 0xffffffffu);
        if (k == 0) {
            best = winner;
            if (a.norm == 0) {
                for (uint i = 0; i < PER_LANE; i++)
                    sum += l[i] == NONE ? 0.0 : exp_exact(l[i] - best);
                sum = subgroupAdd(sum);
            }
        }
        float w = exp_exact(winner - best);
        if (a.norm != 0)
            sum += w;
        if (lane == 0) {
            // NaN logits find no winner: the index stays legal, the NaN shows in the model's logits.
            U32s(a.idx).v[token * a.top_k + k] = min(expert, a.n_experts - 1);
            F32s(a.weights).v[token * a.top_k + k] = w;
        }
        for (uint i = 0; i < PER_LANE; i++)
            if (i * SUBGROUP + lane == expert)
                l[i] = NONE;
    }
    // The lane that wrote the weights scales them: no other lane has to see them first.
    if (lane == 0)
        for (uint k = 0; k < a.top_k; k++)
            F32s(a.weights).v[token * a.top_k + k] /= sum;
}
