// merge.glsl - joins the splits of a row of attention:
//   (sum_s acc_s 2^(m_s - m)) / (sum_s l_s 2^(m_s - m))   m the largest m_s
// GROUPS = WORKGROUP / COLS invocations share four channels: each has every GROUPS-th split, and the first
// adds up their sums. Each subgroup computes m and the denominator itself. float32, sums in a fixed order,
// the device's exp2. The includer defines SUBGROUP, WORKGROUP and COLS and includes lib/memory.glsl.
#ifndef ATTENTION_MERGE_GLSL
#define ATTENTION_MERGE_GLSL

const uint GROUPS = WORKGROUP / COLS;
// splits of an invocation that are loaded at once; more would be more code to fetch
const uint BATCH = 5;
const float LOWEST = -3.0e38;

shared vec4 part_sums[GROUPS > 1 ? WORKGROUP : 1];

// The location of a row's splits: sums f32 [rows][n_splits][4 * fours], then (m, l) [rows][n_splits].
struct Row {
    uvec2 partial;
    uint n_splits, sums, stats;
};

Row row_at(uvec2 partial, uint row, uint rows, uint n_splits, uint fours)
{
    return Row(partial, n_splits, row * n_splits * fours, (rows * fours * 2 + row) * n_splits);
}

vec2 stats_of(Row r, uint split)
{
    return uintBitsToFloat(Twos(r.partial).v[r.stats + split]);
}

// Four channels of the sums, and m, of every GROUPS-th split.
struct SplitParts {
    vec4 sum[BATCH];
    float m[BATCH];
};

void fetch(Row r, uint col, uint fours, uint from, out SplitParts p)
{
    [[unroll]] for (uint i = 0; i < BATCH; i++) {
        uint s = from + i * GROUPS;
        p.sum[i] = vec4(0.0);
        p.m[i] = LOWEST;
        if (s < r.n_splits) {
            p.sum[i] = F32x4s(r.partial).v[r.sums + col + s * fours];
            p.m[i] = stats_of(r, s).x;
        }
    }
}

// Returns the largest m of all splits, and the denominator. Each split is read once.
vec2 join_stats(Row r)
{
    float top = LOWEST, total = 0.0;
    for (uint s = gl_SubgroupInvocationID; s < r.n_splits; s += SUBGROUP) {
        vec2 of = stats_of(r, s);
        float both = max(top, of.x);
        total = fma(of.y, exp2(of.x - both), total * exp2(top - both));
        top = both;
    }
    float all = subgroupMax(top);
    return vec2(all, subgroupAdd(total * exp2(top - all)));
}

// Returns four channels, the col-th of `fours`, in the first COLS invocations. All invocations must call it.
vec4 join_parts(Row r, uint col, uint fours)
{
    uint group = gl_LocalInvocationID.x / COLS;
    vec2 joined;
    vec4 sum = vec4(0.0);
    [[dont_unroll]] for (uint from = 0; from < r.n_splits; from += BATCH * GROUPS) {
        SplitParts p;
        fetch(r, col, fours, from + group, p);
        if (from == 0) // while the first ones are loaded
            joined = join_stats(r);
        [[unroll]] for (uint i = 0; i < BATCH; i++)
            sum = fma(p.sum[i], vec4(exp2(p.m[i] - joined.x)), sum);
    }
    if (GROUPS > 1) {
        part_sums[gl_LocalInvocationID.x] = sum;
        barrier();
        if (group == 0)
            [[unroll]] for (uint i = 1; i < GROUPS; i++)
                sum += part_sums[i * COLS + gl_LocalInvocationID.x];
    }
    return sum / joined.y;
}

#endif
