// router/sigmoid.comp - the top_k experts of each token from its best groups of experts, best first, and
// their weights:
//   s = sigmoid(logit), t = s + bias; a group's score is the sum of its two largest t (or its only one);
//   the keep_groups best groups stay, and the top_k largest t of their experts are chosen
//   weight = s / (sum of the chosen s + 1e-20) * scale, or without norm s * scale
// SOFTPLUS: s = sqrt(log(1 + exp(logit))). BY_TOKEN: a.table names the `row` experts that can be chosen, by
// the token's id; t = s, and there is one group.
// The lower index comes first among equal groups and experts. Dropped groups are left out, not set to 0,
// because t may be negative. Grid: x = tokens, one subgroup each; one lane scores a group. float32. Tolerance
// 2e-6.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint PER_LANE = 8; // ceil(n_experts / SUBGROUP)
layout(constant_id = 2) const uint KEEP = 1;     // ceil(top_k / SUBGROUP)
layout(constant_id = 3) const uint SHARES = 0;   // 1: the smallest weights are dropped, down to a.share
layout(constant_id = 4) const uint GROUPS = 8;   // n_groups
layout(constant_id = 5) const bool SOFTPLUS = false;
layout(constant_id = 6) const bool BY_TOKEN = false;
layout(constant_id = 7) const uint FEW_REGISTERS = 0;

layout(push_constant, std430) uniform Args { router_sigmoid_args a; };

#include "router/choose.glsl"
#include "router/share.glsl"

// An Arc A770M spills 111 of 112 keys of a lane, compiled by Mesa 25.0.
const bool SHARED_KEYS = FEW_REGISTERS != 0 && PER_LANE > 48;
const float LOWEST = -3.0e38;
shared float scores[PER_LANE * SUBGROUP], biased[PER_LANE * SUBGROUP];
shared uint keys[PER_LANE * SUBGROUP]; // keys of the experts that may be chosen
shared float group_score[GROUPS];
shared uint group_stays[GROUPS];

// The device's own exp may be off by several units in the last place, and the choice depends on the last one.
float exact_sigmoid(float x)
{
    float e = exp_exact(-abs(x));
    return (x >= 0.0 ? 1.0 : e) / (1.0 + e);
}

float score_of(float logit)
{
    return SOFTPLUS ? sqrt(softplus(logit)) : exact_sigmoid(logit);
}

void score_group(uint g, uint size)
{
    float best = LOWEST, second = LOWEST;
    for (uint e = g * size; e < (g + 1) * size; e++) {
        float t = biased[e];
        second = max(second, min(best, t));
        best = max(best, t);
    }
    group_score[g] = size == 1 ? best : best + second;
}

// Decides whether a group stays: whether fewer than keep_groups come before it.
void judge_group(uint g)
{
    float mine = group_score[g];
    uint before = 0;
    for (uint i = 0; i < GROUPS; i++)
        before += group_score[i] > mine || (group_score[i] == mine && i < g) ? 1 : 0;
    group_stays[g] = before < a.keep_groups ? 1 : 0;
}

void keep_best_groups()
{
    uint size = a.n_experts / GROUPS;
    for (uint g = gl_SubgroupInvocationID; g < GROUPS; g += SUBGROUP)
        score_group(g, size);
    barrier();
    for (uint g = gl_SubgroupInvocationID; g < GROUPS; g += SUBGROUP)
        judge_group(g);
    barrier();
}

uint key_of(uint e)
{
    bool stays = e < a.n_experts && (GROUPS == 1 || group_stays[e / (a.n_experts / GROUPS)] != 0);
    return stays ? ordered(biased[e]) : NONE;
}

// Sets the keys of the experts in the token's row of the table, and those of all others to NONE.
void keep_row(uint token)
{
    uint lane = gl_SubgroupInvocationID;
    uint from = U32s(a.ids).v[token] * a.row;
    [[dont_unroll]] for (uint e = lane; e < PER_LANE * SUBGROUP; e += SUBGROUP)
        keys[e] = NONE;
    barrier();
    for (uint k = lane; k < a.row; k += SUBGROUP) {
        uint e = U32s(a.table).v[from + k];
        keys[e] = ordered(scores[e]);
    }
    barrier();
}

// SHARED_KEYS: puts this lane's logits and biases into shared memory, a few at once.
void stage_logits(uint token)
{
    const uint AT_ONCE = 8;
    [[dont_unroll]] for (uint from = gl_SubgroupInvocationID; from < PER_LANE * SUBGROUP;
                         from += AT_ONCE * SUBGROUP) {
        float logits[AT_ONCE], biases[AT_ONCE];
        [[unroll]] for (uint i = 0; i < AT_ONCE; i++) {
            uint e = min(from + i * SUBGROUP, a.n_experts - 1);
            logits[i] = F32s(a.logits).v[token * a.stride + e];
            biases[i] = BY_TOKEN ? 0.0 : F32s(a.bias).v[e];
        }
        [[unroll]] for (uint i = 0; i < AT_ONCE; i++)
            if (from + i * SUBGROUP < PER_LANE * SUBGROUP) {
                scores[from + i * SUBGROUP] = logits[i];
                biased[from + i * SUBGROUP] = biases[i];
            }
    }
}

// SHARED_KEYS: finds the largest of this lane's keys, the first one on a tie.
void find_top(out uint top, out uint first)
{
    const uint AT_ONCE = 8;
    top = NONE;
    first = 0;
    [[dont_unroll]] for (uint from = 0; from < PER_LANE; from += AT_ONCE)
        [[unroll]] for (uint i = from; i < from + AT_ONCE; i++) {
            uint key = i < PER_LANE ? keys[i * SUBGROUP + gl_SubgroupInvocationID] : NONE;
            first = key > top ? i : first;
            top = max(top, key);
        }
}

// SHARED_KEYS: does what choose() does. Only the lane whose key was chosen looks for its largest again.
void choose_shared(uint top_k, out uint kept[KEEP], out uint kept_at[KEEP])
{
    uint lane = gl_SubgroupInvocationID, top, first;
    [[unroll]] for (uint j = 0; j < KEEP; j++)
        kept[j] = kept_at[j] = 0;
    find_top(top, first);
    for (uint k = 0; k < top_k; k++) {
        uint winner = subgroupMax(top);
        uint expert = subgroupMin(top == winner ? first * SUBGROUP + lane : 0xffffffffu);
        [[unroll]] for (uint j = 0; j < KEEP; j++)
            if (j * SUBGROUP + lane == k) {
                kept[j] = winner;
                kept_at[j] = expert;
            }
        if (lane == expert % SUBGROUP) {
            keys[expert] = NONE;
            find_top(top, first);
        }
    }
}

void main()
{
    uint token = gl_WorkGroupID.x, lane = gl_SubgroupInvocationID;
    uint l[PER_LANE], nans = 0;
    // All loads come before the first branch; after it each would wait for the one before.
    float logits[PER_LANE], biases[PER_LANE];
    if (SHARED_KEYS)
        stage_logits(token);
    [[unroll]] for (uint i = 0; i < PER_LANE && !SHARED_KEYS; i++) {
        uint mine = min(i * SUBGROUP + lane, a.n_experts - 1);
        logits[i] = F32s(a.logits).v[token * a.stride + mine];
        biases[i] = BY_TOKEN ? 0.0 : F32s(a.bias).v[mine];
    }
    [[unroll]] for (uint i = 0; i < PER_LANE && !SHARED_KEYS; i++) {
        scores[i * SUBGROUP + lane] = logits[i];
        biased[i * SUBGROUP + lane] = biases[i];
    }
    // Each lane takes its own, here and below in a loop: unrolled, PER_LANE sigmoids would be more code to
    // fetch than to run.
    [[dont_unroll]] for (uint e = lane; e < PER_LANE * SUBGROUP; e += SUBGROUP) {
        float s = score_of(scores[e]);
        scores[e] = s;
        float t = biased[e] + s;
        biased[e] = t;
        nans += is_nan(t) ? 1 : 0;
    }
    barrier();
    if (GROUPS > 1)
        keep_best_groups();
    if (BY_TOKEN)
        keep_row(token);
    else
        [[dont_unroll]] for (uint e = lane; e < PER_LANE * SUBGROUP; e += SUBGROUP)
            keys[e] = key_of(e);
    [[unroll]] for (uint i = 0; i < PER_LANE && !SHARED_KEYS; i++)
        l[i] = keys[i * SUBGROUP + lane];

    uint kept[KEEP], kept_expert[KEEP];
    if (SHARED_KEYS)
        choose_shared(a.top_k, kept, kept_expert);
    else
        choose(l, a.top_k, kept, kept_expert);

    bool is_broken = subgroupAdd(nans) > 0;
    uint place[KEEP];
    float w[KEEP], mine = 0.0;
    [[unroll]] for (uint j = 0; j < KEEP; j++) {
        // A NaN among the logits may be the largest or the last; the index must stay valid.
        kept_expert[j] = min(kept_expert[j], a.n_experts - 1);
        w[j] = j * SUBGROUP + lane < a.top_k ? scores[kept_expert[j]] : 0.0;
    }
    if (SHARES != 0 && !is_broken)
        keep_share(kept_expert, w, a.share, a.top_k, place);
    else
        places_of_all(place);
    [[unroll]] for (uint j = 0; j < KEEP; j++)
        mine += w[j];
    float factor = a.norm != 0 ? a.scale / (subgroupAdd(mine) + 1e-20) : a.scale;
    if (is_broken)
        factor = not_a_number();
    [[unroll]] for (uint j = 0; j < KEEP; j++)
        if (j * SUBGROUP + lane < a.top_k) {
            U32s(a.idx).v[token * a.top_k + place[j]] = kept_expert[j];
            F32s(a.weights).v[token * a.top_k + place[j]] = w[j] * factor;
        }
}
