// softmax.glsl - the softmax router of one token, on one subgroup; choose.glsl describes which lane has what.
// Includers define its constants and SHARES, and include lib/math.glsl.
//   norm: softmax over the chosen logits; else softmax over all n_experts, of which the chosen ones are
//         taken.
#include "router/share.glsl"

// Loads the logits from `at` on in the form that choose() takes. Returns how many of this lane's are NaN.
uint load_logits(uvec2 logits, uint at, uint n_experts, out uint l[PER_LANE])
{
    uint nans = 0;
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        uint e = i * SUBGROUP + gl_SubgroupInvocationID;
        float v = F32s(logits).v[at + min(e, n_experts - 1)];
        l[i] = e < n_experts ? ordered(v) : NONE;
        nans += is_nan(v) ? 1 : 0;
    }
    return nans;
}

// The largest logit, and with `sums` the sum of e^(logit - best) over all.
struct Softmax {
    float best, sum;
};

Softmax softmax_of_all(uint l[PER_LANE], bool sums)
{
    uint first = NONE;
    [[unroll]] for (uint i = 0; i < PER_LANE; i++)
        first = max(first, l[i]);
    Softmax s;
    s.best = value_of(subgroupMax(first));
    float mine = 0.0;
    [[unroll]] for (uint i = 0; sums && i < PER_LANE; i++)
        mine += l[i] == NONE ? 0.0 : exp_exact(value_of(l[i]) - s.best);
    s.sum = subgroupAdd(mine);
    return s;
}

// Writes what choose() kept, from `at` on. A NaN among the logits makes all weights NaN; nans: this lane's
// number of them. factors: one for each expert's weight; null: none.
void store_choice(uint kept[KEEP], uint kept_at[KEEP], Softmax s, bool norm, uint nans, uint n_experts,
                  uint top_k,
                  float share, uvec2 idx, uvec2 weights, uvec2 factors, uint at)
{
    uint lane = gl_SubgroupInvocationID, expert[KEEP], place[KEEP];
    float w[KEEP], mine = 0.0;
    bool is_broken = subgroupAdd(nans) > 0;
    [[unroll]] for (uint j = 0; j < KEEP; j++) {
        // A NaN among the logits may be the largest or the last; the index must stay valid.
        expert[j] = min(kept_at[j], n_experts - 1);
        w[j] = j * SUBGROUP + lane < top_k ? exp_exact(value_of(kept[j]) - s.best) : 0.0;
    }
    if (SHARES != 0 && !is_broken)
        keep_share(expert, w, share, top_k, place);
    else
        places_of_all(place);
    [[unroll]] for (uint j = 0; j < KEEP; j++)
        mine += w[j];
    float sum = norm ? subgroupAdd(mine) : s.sum;
    if (is_broken)
        sum = not_a_number();
    [[unroll]] for (uint j = 0; j < KEEP; j++)
        if (j * SUBGROUP + lane < top_k) {
            U32s(idx).v[at + place[j]] = expert[j];
            precise float weight = w[j] / sum;
            if (!addr_is_null(factors) && expert[j] != NO_EXPERT)
                weight *= F32s(factors).v[expert[j]];
            F32s(weights).v[at + place[j]] = weight;
        }
}
