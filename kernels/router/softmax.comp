// router/softmax.comp - the top_k experts of each token, best first, and their weights.
//   norm = 1: weights = softmax over the chosen logits; norm = 0: softmax over all n_experts, chosen ones taken.
// Grid: x = tokens, one subgroup each; choose.glsl says which lane has what. Tolerance 1e-6; the choice is exact where
// the logits are.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint PER_LANE = 8; // ceil(n_experts / SUBGROUP)
layout(constant_id = 2) const uint KEEP = 1;     // ceil(top_k / SUBGROUP)

layout(push_constant, std430) uniform Args { router_softmax_args a; };

#include "router/choose.glsl"

// Sum of e^(logit - best) over all experts.
float sum_of_all(uint l[PER_LANE], float best)
{
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < PER_LANE; i++)
        sum += l[i] == NONE ? 0.0 : exp_exact(value_of(l[i]) - best);
    return subgroupAdd(sum);
}

void main()
{
    uint token = gl_WorkGroupID.x, lane = gl_SubgroupInvocationID;
    uint l[PER_LANE], first = NONE, nans = 0;
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        uint e = i * SUBGROUP + lane;
        float v = F32s(a.logits).v[token * a.stride + min(e, a.n_experts - 1)];
        l[i] = e < a.n_experts ? ordered(v) : NONE;
        nans += is_nan(v) ? 1 : 0;
        first = max(first, l[i]);
    }
    float best = value_of(subgroupMax(first)), sum = 0.0;
    if (a.norm == 0)
        sum = sum_of_all(l, best);

    uint kept[KEEP], kept_expert[KEEP];
    choose(l, a.top_k, kept, kept_expert);

    float w[KEEP], mine = 0.0;
    [[unroll]] for (uint j = 0; j < KEEP; j++) {
        w[j] = j * SUBGROUP + lane < a.top_k ? exp_exact(value_of(kept[j]) - best) : 0.0;
        mine += w[j];
    }
    if (a.norm != 0)
        sum = subgroupAdd(mine);
    if (subgroupAdd(nans) > 0)
        sum = not_a_number();
    [[unroll]] for (uint j = 0; j < KEEP; j++) {
        uint k = j * SUBGROUP + lane;
        if (k < a.top_k) {
            // A NaN among the logits may be the largest or the last: the index stays legal.
            U32s(a.idx).v[token * a.top_k + k] = min(kept_expert[j], a.n_experts - 1);
            F32s(a.weights).v[token * a.top_k + k] = w[j] / sum;
        }
    }
}
