// attention.comp - causal attention of the chunk's queries over the cache, with an online softmax:
//   partial[t][h][split] = (sum_p e^(s_p - m) v_p, m, l = sum_p e^(s_p - m)),  s_p = scale q . k_p,  p <= pos + t
// over the split's share of the positions. A key/value head is loaded once for its GROUP query heads.
//
// Grid: x = n_kv_heads * n_splits, y = tokens. The subgroups of a workgroup take positions in turn, each with its own
// (m, l, sums) per query head, merged through shared memory at the end, in subgroup order. A lane holds PER_LANE
// channels. A split without positions writes l = 0. float32. Tolerance 1e-5 of the largest output after the merge.
#version 460
#include "memory.glsl"
#include "math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 128;
layout(constant_id = 2) const uint GROUP = 8;    // query heads per key/value head
layout(constant_id = 3) const uint PER_LANE = 8; // ceil(head_dim / SUBGROUP)

const uint SUBGROUPS = WORKGROUP / SUBGROUP;
const float LOWEST = -3.0e38; // finite, so that a difference of two is never NaN

layout(push_constant, std430) uniform Args { attention_args a; };

shared float merged[PER_LANE * SUBGROUP];
shared float part_max[SUBGROUPS], part_sum[SUBGROUPS];

uvec2 cache_row(uint p, uint value, uint kv_head)
{
    uvec2 block = Addrs(a.blocks).v[p >> KV_BLOCK_SHIFT];
    uint row = (value << KV_BLOCK_SHIFT) + (p & ((1u << KV_BLOCK_SHIFT) - 1));
    return addr_add(block, a.layer_off + 4 * (row * a.n_kv_heads + kv_head) * a.head_dim);
}

void load_row(uvec2 row, out float v[PER_LANE])
{
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        uint c = i * SUBGROUP + gl_SubgroupInvocationID;
        v[i] = c < a.head_dim ? F32s(row).v[c] : 0.0;
    }
}

void main()
{
    uint kv_head = gl_WorkGroupID.x / a.n_splits, split = gl_WorkGroupID.x % a.n_splits;
    uint token = gl_WorkGroupID.y, lane = gl_SubgroupInvocationID;
    uint n_pos = a.pos + token + 1;
    uint share = (n_pos + a.n_splits - 1) / a.n_splits;
    uint from = min(split * share, n_pos), to = min(from + share, n_pos);

    float q[GROUP][PER_LANE], acc[GROUP][PER_LANE], m[GROUP], l[GROUP];
    [[unroll]] for (uint g = 0; g < GROUP; g++) {
        uint row = (token * a.n_heads + kv_head * GROUP + g) * a.head_dim;
        m[g] = LOWEST;
        l[g] = 0.0;
        [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
            uint c = i * SUBGROUP + lane;
            q[g][i] = c < a.head_dim ? F32s(a.q).v[row + c] * a.scale : 0.0;
            acc[g][i] = 0.0;
        }
    }

    for (uint p = from + gl_SubgroupID; p < to; p += SUBGROUPS) {
        float k[PER_LANE], v[PER_LANE];
        load_row(cache_row(p, 0, kv_head), k);
        load_row(cache_row(p, 1, kv_head), v);
        [[unroll]] for (uint g = 0; g < GROUP; g++) {
            float s = 0.0;
            [[unroll]] for (uint i = 0; i < PER_LANE; i++)
                s = fma(q[g][i], k[i], s);
            s = subgroupAdd(s);
            float top = max(m[g], s);
            float old = exp_exact(m[g] - top), now = exp_exact(s - top);
            m[g] = top;
            l[g] = fma(l[g], old, now);
            [[unroll]] for (uint i = 0; i < PER_LANE; i++)
                acc[g][i] = fma(acc[g][i], old, now * v[i]);
        }
    }

    [[unroll]] for (uint g = 0; g < GROUP; g++) {
        if (lane == 0) {
            part_max[gl_SubgroupID] = m[g];
            part_sum[gl_SubgroupID] = l[g];
        }
        barrier();
        float top = LOWEST, sum = 0.0;
        for (uint i = 0; i < SUBGROUPS; i++)
            top = max(top, part_max[i]);
        for (uint i = 0; i < SUBGROUPS; i++)
            sum += part_sum[i] * exp_exact(part_max[i] - top);
        float factor = exp_exact(m[g] - top);
        uint out_row = ((token * a.n_heads + kv_head * GROUP + g) * a.n_splits + split) * (a.head_dim + 2);
        for (uint turn = 0; turn < SUBGROUPS; turn++) {
            if (gl_SubgroupID == turn) {
                [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
                    uint c = i * SUBGROUP + lane;
                    float sofar = turn == 0 ? 0.0 : merged[c];
                    sofar = fma(acc[g][i], factor, sofar);
                    merged[c] = sofar;
                    if (turn + 1 == SUBGROUPS && c < a.head_dim)
                        F32s(a.partial).v[out_row + c] = sofar;
                }
                if (turn + 1 == SUBGROUPS && lane == 0) {
                    F32s(a.partial).v[out_row + a.head_dim] = top;
                    F32s(a.partial).v[out_row + a.head_dim + 1] = sum;
                }
            }
            barrier();
        }
    }
}
