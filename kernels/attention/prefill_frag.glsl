// prefill_frag.glsl - attention/prefill_coop.glsl's softmax in registers, for devices whose matrices lie in
// the known fragment layout (lib/fragment_layout.glsl).

#include "lib/fragment_layout.glsl"

// This lane's two rows: the maximum in powers of two, the sum of the lane's own weights, the rows' first
// hidden position, their first seen one.
vec2 frag_top, frag_sum;
uvec2 frag_end, frag_begin;
// Memory in which the two subgroups of a group exchange, lane by lane, maxima and sums, and weights.
const uint EXCHANGED = KNOWN_LAYOUT != 0 && SHARE > 1 ? WORKGROUP : 1;
shared vec2 exchanged[EXCHANGED];
shared uvec4 exchanged_weights[EXCHANGED];

uint frag_row(uint h)
{
    return group_row + frag_line() + 8 * h;
}

uint exchanged_at(uint of_member)
{
    return (gl_SubgroupID % ROW_GROUPS + of_member * ROW_GROUPS) * 32 + gl_SubgroupInvocationID;
}

// Both return the other subgroup's value.
vec2 exchange(vec2 v)
{
    exchanged[exchanged_at(member)] = v;
    barrier();
    return exchanged[exchanged_at(1 - member)];
}

uvec4 exchange_weights(uvec4 v)
{
    exchanged_weights[exchanged_at(member)] = v;
    barrier();
    return exchanged_weights[exchanged_at(1 - member)];
}

void begin_frag()
{
    frag_top = vec2(LOWEST);
    frag_sum = vec2(0.0);
    frag_end = uvec2(row_end(frag_row(0)), row_end(frag_row(1)));
    frag_begin = uvec2(row_begin(frag_row(0)), row_begin(frag_row(1)));
}

// Raises the rows' maxima to `high` and scales the sums down, but only if float16 would overflow otherwise.
void raise_tops(vec2 high)
{
    high = frag_max(high);
    if (SHARE > 1)
        high = max(high, exchange(high));
    bvec2 grows = greaterThan(high, frag_top + SLACK);
    if (subgroupMax(any(grows) ? 1u : 0u) == 0u)
        return;
    vec2 keep = mix(vec2(1.0), exp2(frag_top - high), grows);
    frag_top = mix(frag_top, high, grows);
    frag_sum *= keep;
    [[unroll]] for (uint d = 0; d < MY_VALUES; d++)
        [[unroll]] for (uint i = 0; i < 8; i++)
            acc[d][i] *= keep[i / 4];
}

// Sets hidden positions to LOWEST. Returns the rows' maxima.
vec2 hide(inout MatrixC s[MY_SCORES], uint at)
{
    // Later rows see more positions; a window hides some.
    bool all_seen = at + POSITIONS <= row_end(group_row);
    if (WINDOW > 0)
        all_seen = all_seen && at >= row_begin(group_row + 15);
    vec2 high = vec2(LOWEST);
    [[unroll]] for (uint j = 0; j < MY_SCORES; j++)
        [[unroll]] for (uint i = 0; i < 8; i++) {
            uint p = at + 16 * (member * MY_SCORES + j) + frag_col(i);
            if (!all_seen && (p >= frag_end[i / 4] || (WINDOW > 0 && p < frag_begin[i / 4])))
                s[j][i] = LOWEST;
            high[i / 4] = max(high[i / 4], s[j][i]);
        }
    return high;
}

// HALVES: adds up the scores of a query's two rows. Both have the sum afterwards.
void join_scores(inout MatrixC s[MY_SCORES])
{
    [[unroll]] for (uint j = 0; j < MY_SCORES; j++)
        [[unroll]] for (uint i = 0; i < 4; i++) {
            float both = s[j][i] + s[j][i + 4];
            s[j][i] = both;
            s[j][i + 4] = both;
        }
}

// Returns what float16 drops of two weights.
f16vec2 dropped(vec2 v, f16vec2 kept)
{
    return f16vec2(v - halves_read(packFloat2x16(kept), a.n_heads >> 31));
}

void run_frag(uint at)
{
    MatrixC s[MY_SCORES];
    MatrixA w[MY_SCORES];
    uvec4 packed;
    score(s, 16 * MY_SCORES * member);
    if (HALVES != 0)
        join_scores(s);
    raise_tops(hide(s, at));
    [[unroll]] for (uint j = 0; j < MY_SCORES; j++)
        [[unroll]] for (uint i = 0; i < 8; i += 2) {
            float top = frag_top[i / 4];
            vec2 v = vec2(s[j][i], s[j][i + 1]);
            v = mix(vec2(0.0), exp2(v - top), greaterThan(v, vec2(LOWEST)));
            frag_sum[i / 4] += v.x + v.y;
            f16vec2 h = f16vec2(v);
            if (HALVES != 0 && i >= 4)
                h = dropped(v, h);
            w[j][i] = h.x;
            w[j][i + 1] = h.y;
            packed[i / 2] = packFloat2x16(h);
        }
    [[unroll]] for (uint j = 0; j < MY_SCORES; j++)
        add_values(w[j], member * MY_SCORES + j);
    if (SHARE > 1) {
        MatrixA other;
        packed = exchange_weights(packed);
        [[unroll]] for (uint i = 0; i < 8; i += 2) {
            f16vec2 h = unpackFloat2x16(packed[i / 2]);
            other[i] = h.x;
            other[i + 1] = h.y;
        }
        add_values(other, 1 - member);
    }
}

void store_frag()
{
    uint first = MY_VALUES * member;
    vec2 both = frag_add(frag_sum);
    if (SHARE > 1)
        both += exchange(both);
    [[unroll]] for (uint h = 0; h < 2; h++) {
        uint row = frag_row(h), dst = partial_row(row);
        bool is_real = row < TILE_ROWS && first_row + row < n_rows;
        float top = frag_top[h], sum = both[h], factor = add_sink(row, top, sum);
        factor = a.is_whole != 0 ? factor / sum : factor;
        [[unroll]] for (uint d = 0; d < MY_VALUES; d++)
            [[unroll]] for (uint i = 0; i < 4; i++)
                if (is_real && first + d < VALUE_BLOCKS) {
                    float v = HALVES != 0 ? acc[d][i] + acc[d][4 + i] : acc[d][4 * h + i];
                    F32s(a.partial).v[dst + 16 * (first + d) + frag_col(i)] = v * factor;
                }
        if (is_real && frag_lane() == 0 && member == 0 && a.is_whole == 0)
            store_stats(row, top, sum);
    }
}
