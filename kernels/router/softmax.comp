// router/softmax.comp - the top_k experts of each token, best first, and their weights.
//   norm = 1: softmax over the chosen logits
//   norm = 0: softmax over all n_experts, of which the chosen ones are taken
// With factors each weight is multiplied by its expert's.
// Grid: x = tokens, one subgroup each; choose.glsl describes which lane has what. float32. Tolerance 1e-6;
// the choice is exact if the logits are.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint PER_LANE = 8; // ceil(n_experts / SUBGROUP)
layout(constant_id = 2) const uint KEEP = 1;     // ceil(top_k / SUBGROUP)
layout(constant_id = 3) const uint SHARES = 0;   // 1: the smallest weights are dropped, down to a.share
layout(constant_id = 4) const uint FEW_REGISTERS = 0;

layout(push_constant, std430) uniform Args { router_softmax_args a; };

#include "router/choose.glsl"
#include "router/softmax.glsl"

void main()
{
    uint token = gl_WorkGroupID.x, l[PER_LANE], kept[KEEP], kept_at[KEEP];
    uint nans = load_logits(a.logits, token * a.stride, a.n_experts, l);
    Softmax s = softmax_of_all(l, a.norm == 0);
    choose(l, a.top_k, kept, kept_at);
    store_choice(kept, kept_at, s, a.norm != 0, nans, a.n_experts, a.top_k, a.share, a.idx, a.weights,
                 a.factors, token * a.top_k);
}
