// experts/decode_down.comp - the second half of the feed-forward part, with the residual:
//   x[t] += sum_k weights[t][k] down_{idx[t][k]} act[t][k]  +  shared_down act[t][top_k]
// decode_up.comp left the activations (the shared expert's already multiplied by w_t) and the experts'
// addresses. With shared_in the router's product made the shared expert's gate and up rows, g_t and u_t,
// which follow its logits, or up rows alone (GATING_RELU). Then act[t][top_k] is w_t silu(g_t) * u_t, as
// gated() in math.glsl has it, and w_t = sigmoid of the logit before them, or 1 if the shared expert has no
// gate.
//
// A slot is an expert in the router's order, then the shared one. TEAMS subgroups compute a slot, each its
// own rows. LANES lanes share a row's columns, ROWS rows a lane, in consecutive 16-byte pieces. A row is
// summed over a slot's columns, then over the slots in order, then the residual is added. If there are more
// slots than subgroups, or more columns than fit shared memory, there are several passes. With STEPS there is
// one pass: every slot has AREA columns, and a lane takes at most STEPS pieces of each row. Then loads need
// no condition and do not wait for one another, and a workgroup may take several blocks of rows. DROPS: the
// address of a slot may be 0; such a slot has no columns.
// Grid: x = row blocks of `hidden`, y = tokens. float32 sums. Tolerance 1e-5.
// variants: plain denorm q4 q8 ext extdenorm extq4 extq4denorm blk blkdenorm
#version 460
#include "lib/memory.glsl"
#define BY_PARTS // rows are short: the code of scales of a piece costs more than its loads save
#include "lib/gemv.glsl"
#include "lib/math.glsl"

layout(constant_id = 12) const uint LANES = 16; // a power of two, at most SUBGROUP
layout(constant_id = 13) const uint TEAMS = 1;
layout(constant_id = 14) const uint DROPS = 0; // 1: some of a token's top_k experts may be left out
layout(constant_id = 15) const uint BIASED = 0; // 1: each expert's rows have biases; excludes a shared expert
layout(constant_id = 16) const uint BLOCKS_EACH = 1; // STEPS only: consecutive blocks of rows of a workgroup

const uint SLOTS = SUBGROUPS / TEAMS;          // slots of a pass
// columns of a slot in shared memory, a multiple of PRODUCT_COLS
const uint AREA = TILE / SLOTS;
const uint SIDE = SUBGROUP / LANES;            // rows that a subgroup computes at the same time
const uint GROUP_ROWS = TEAMS * SIDE * ROWS;   // rows of a workgroup
// vec4s of activations that an invocation loads
const uint ACTS = (SLOTS * AREA / 4 + WORKGROUP - 1) / WORKGROUP;
const uint OUTS = (GROUP_ROWS + WORKGROUP - 1) / WORKGROUP;

layout(push_constant, std430) uniform Args { experts_decode_down_args a; };

// Two blocks of rows meet there if there are several.
shared float sums[(BLOCKS_EACH > 1 ? 2 : 1) * SLOTS * GROUP_ROWS];

uint block; // the current block of rows

// A subgroup's rows of its matrix are first, first + SIDE, ...
uint first_row()
{
    return block * GROUP_ROWS + gl_SubgroupID % TEAMS * SIDE * ROWS +
        gl_SubgroupInvocationID / LANES;
}

struct Slot {
    uvec2 weight, scales, biases;
    uint format, cols;
    float factor;
    uint first_bias; // the first of its rows' biases
};

Slot slot_of(uint token, uint slot)
{
    bool is_dropped = false;
    if (STEPS > 0) // surplus subgroups repeat the last slot; their results are not added
        slot = min(slot, a.end_slot - 1);
    Slot s = Slot(a.shared_w, a.shared_s, a.shared_b, a.shared_format, a.shared_inner, 1.0, 0);
    if (slot < a.top_k) {
        uint at = token * a.top_k + slot;
        uvec2 expert = Addrs(addr_add(a.act, 4 * a.n * a.act_stride)).v[at];
        is_dropped = DROPS != 0 && addr_is_null(expert);
        s = Slot(addr_add(expert, a.down_w), addr_add(expert, a.down_s), addr_add(expert, a.down_b), a.format,
                 a.inner,
                 F32s(a.weights).v[at], 0);
        if (BIASED != 0 && !is_dropped)
            s.first_bias = U32s(a.shared_s).v[at] * a.hidden;
    }
    s.cols = STEPS > 0 ? AREA : slot < a.end_slot ? s.cols : 0;
    s.cols = is_dropped ? 0 : s.cols;
    return s;
}

// Returns the columns of a slot from `from` on that are in shared memory.
uint cols_here(Slot s, uint from)
{
    return min(max(s.cols, from) - from, AREA);
}

void load_rows(out Step p, const uint format, Slot s, uint piece)
{
    uint first = first_row(), last = a.hidden - 1;
    if (STEPS > 0) // whole blocks of rows exist or not
        first = min(first, last - (ROWS - 1) * SIDE);
    begin_step(p);
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        load_piece(p, r, format, s.weight, s.scales, s.biases,
                   (STEPS > 0 ? first + r * SIDE : min(first + r * SIDE, last)) * s.cols, piece);
}

// STEPS only: returns the pieces of a row that a lane takes.
uint steps_of(const uint format)
{
    return AREA / (4 * piece_vecs(format)) / LANES;
}

void fetch_slot_as(const uint format, Slot s, uint from)
{
    uint cols = 4 * piece_vecs(format), pieces = cols_here(s, from) / cols;
    uint i = gl_SubgroupInvocationID % LANES;
    if (STEPS > 0) {
        [[unroll]] for (uint k = 0; k < STEPS; k++)
            if (k < steps_of(format))
                load_rows(held[k], format, s, i + k * LANES);
    } else if (LOADS_IN_LOOP) {
        [[dont_unroll]] for (uint k = 0; k < 2; k++) {
            now = next;
            if (i + k * LANES < pieces)
                load_rows(next, format, s, from / cols + i + k * LANES);
        }
    } else {
        if (i < pieces)
            load_rows(now, format, s, from / cols + i);
        if (i + LANES < pieces)
            load_rows(next, format, s, from / cols + i + LANES);
    }
}

void add_slot_as(inout float acc[MAX_ACC], const uint format, Slot s, uint from)
{
    uint vecs = piece_vecs(format), pieces = cols_here(s, from) / (4 * vecs);
    uint area = gl_SubgroupID / TEAMS * AREA / 4, lane = gl_SubgroupInvocationID % LANES;
    if (STEPS > 0) {
        [[unroll]] for (uint k = 0; k < STEPS; k++)
            if (k < steps_of(format))
                add_step(acc, format, held[k], area + (lane + k * LANES) * vecs);
    } else {
        [[dont_unroll]] for (uint i = lane; i < pieces; i += LANES) {
            add_step(acc, format, now, area + i * vecs);
            now = next;
            load_rows(next, format, s, from / (4 * vecs) + min(i + 2 * LANES, pieces - 1));
        }
    }
}

void fetch_slot(Slot s, uint from)
{
    if (DROPS == 0 || s.cols > 0)
        BY_FORMAT(s.format, fetch_slot_as(FORMAT, s, from))
}

void add_slot(inout float acc[MAX_ACC], Slot s, uint from)
{
    if (DROPS == 0 || s.cols > 0)
        BY_FORMAT(s.format, add_slot_as(acc, FORMAT, s, from))
}

// Returns four columns of the shared expert's activations, computed from the rows of the router's product.
vec4 shared_act(uint token, uint col)
{
    uint i = token * a.shared_stride + a.shared_at, g = i + col,
         up = g + (a.gating == GATING_RELU ? 0 : a.shared_inner);
    float gate = 1.0;
    vec4 v, u;
    [[unroll]] for (uint j = 0; j < 4; j++) {
        v[j] = F32s(a.shared_in).v[g + j];
        u[j] = F32s(a.shared_in).v[up + j];
    }
    if (a.is_gated != 0)
        gate = sigmoid(F32s(a.shared_in).v[i - 1]);
    [[unroll]] for (uint j = 0; j < 4; j++)
        v[j] = gate * gated(v[j], u[j], a.gating);
    return v;
}

// Copies the columns from `from` on of the pass's slots, from slot `first` on, to shared memory.
void load_acts(uint token, uint first, uint from)
{
    for (uint i = gl_LocalInvocationID.x; i < SLOTS * AREA / 4; i += WORKGROUP) {
        uint slot = first + i / (AREA / 4), col = from + 4 * (i % (AREA / 4));
        if (slot >= a.end_slot || col >= (slot < a.top_k ? a.inner : a.shared_inner))
            continue;
        if (slot == a.top_k && !addr_is_null(a.shared_in))
            xs_put(0, i, shared_act(token, col));
        else
            xs_put(0, i, F32x4s(a.act).v[(token * a.act_stride + slot * a.inner + col) / 4]);
    }
}

// This invocation's share of all activations, which are contiguous. Their loads need not wait for the slots'
// addresses.
vec4 acts[ACTS];

uint n_all_acts()
{
    return (a.end_slot - a.first_slot) * (AREA / 4);
}

void load_all_acts(uint token)
{
    uint at = (token * a.act_stride + a.first_slot * AREA) / 4;
    [[unroll]] for (uint k = 0; k < ACTS; k++)
        acts[k] = F32x4s(a.act).v[at + min(k * WORKGROUP + gl_LocalInvocationID.x, n_all_acts() - 1)];
}

// Slots that nobody adds up get numbers too: their subgroups read them.
void put_all_acts()
{
    [[unroll]] for (uint k = 0; k < ACTS; k++)
        if (k * WORKGROUP + gl_LocalInvocationID.x < SLOTS * AREA / 4)
            xs_put(0, k * WORKGROUP + gl_LocalInvocationID.x, acts[k]);
}

// Returns the place of a block's sums.
uint sums_at(uint of)
{
    return BLOCKS_EACH > 1 ? (of & 1u) * SLOTS * GROUP_ROWS : 0;
}

// Stores a row's sum over the lanes that share it, for this subgroup's slot.
void share_rows(float acc[MAX_ACC], Slot s)
{
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float v = acc[r], bias = 0.0;
        if (BIASED != 0 && s.cols > 0)
            bias = F32s(a.shared_w).v[s.first_bias + min(first_row() + r * SIDE, a.hidden - 1)];
        [[unroll]] for (uint mask = 1; mask < LANES; mask <<= 1)
            v += subgroupShuffleXor(v, mask);
        if (gl_SubgroupInvocationID % LANES == 0)
            sums[sums_at(block) + gl_SubgroupID / TEAMS * GROUP_ROWS + gl_SubgroupID % TEAMS * SIDE * ROWS +
                 r * SIDE + gl_SubgroupInvocationID / LANES] = (v + bias) * s.factor;
    }
}

uint out_row(uint i)
{
    return i * WORKGROUP + gl_LocalInvocationID.x;
}

bool has_out(uint of, uint i)
{
    return out_row(i) < GROUP_ROWS && of * GROUP_ROWS + out_row(i) < a.hidden;
}

uint out_at(uint token, uint of, uint i)
{
    return token * a.hidden + of * GROUP_ROWS + out_row(i);
}

void clear(out float acc[MAX_ACC])
{
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        acc[r] = 0.0;
}

// Loads the rows that the block's sums are added to.
void load_before(out float before[OUTS], uint token)
{
    [[unroll]] for (uint i = 0; i < OUTS; i++)
        before[i] = has_out(block, i) ? F32s(a.x).v[out_at(token, block, i)] : 0.0;
}

// Adds a block's sums of the slots from `first` on.
void add_sums(inout float total[OUTS], uint of, uint first)
{
    [[unroll]] for (uint i = 0; i < OUTS; i++)
        if (has_out(of, i))
            [[unroll]] for (uint k = 0; k < SLOTS; k++)
                total[i] += first + k < a.end_slot ? sums[sums_at(of) + k * GROUP_ROWS + out_row(i)] : 0.0;
}

void store(float before[OUTS], float total[OUTS], uint token, uint of)
{
    [[unroll]] for (uint i = 0; i < OUTS; i++)
        if (has_out(of, i))
            F32s(a.x).v[out_at(token, of, i)] = before[i] + total[i];
}

void end_block(float before[OUTS], uint token, uint of)
{
    float total[OUTS];
    [[unroll]] for (uint i = 0; i < OUTS; i++)
        total[i] = 0.0;
    barrier();
    add_sums(total, of, a.first_slot);
    store(before, total, token, of);
}

// STEPS > 0. The next block is loaded before this one's sums are stored. Two barriers lie between two blocks
// whose sums have the same place.
void run_whole(uint token)
{
    uint last = min((gl_WorkGroupID.x + 1) * BLOCKS_EACH, (a.hidden + GROUP_ROWS - 1) / GROUP_ROWS) - 1;
    float acc[MAX_ACC], before[OUTS], old[OUTS];
    load_all_acts(token);
    load_before(before, token);
    Slot s = slot_of(token, a.first_slot + gl_SubgroupID / TEAMS);
    fetch_slot(s, 0);
    fill_book(uvec2(a.down_s, a.down_b));
    put_all_acts();
    barrier();
    [[dont_unroll]] for (;;) {
        clear(acc);
        add_slot(acc, s, 0);
        share_rows(acc, s);
        if (BLOCKS_EACH == 1 || block == last)
            break;
        [[unroll]] for (uint i = 0; i < OUTS; i++)
            old[i] = before[i];
        block++;
        fetch_slot(s, 0);
        load_before(before, token);
        end_block(old, token, block - 1);
    }
    end_block(before, token, block);
}

void run_rounds(uint token)
{
    uint rounds = (a.end_slot - a.first_slot + SLOTS - 1) / SLOTS, longest = max(a.inner, a.shared_inner);
    float before[OUTS], total[OUTS];
    load_before(before, token);
    [[unroll]] for (uint i = 0; i < OUTS; i++)
        total[i] = 0.0;
    for (uint round = 0; round < rounds; round++) {
        uint first = a.first_slot + round * SLOTS;
        Slot s = slot_of(token, first + gl_SubgroupID / TEAMS);
        float acc[MAX_ACC];
        clear(acc);
        for (uint from = 0; from < longest; from += AREA) {
            fetch_slot(s, from);
            if (round > 0 || from > 0)
                barrier();
            else
                fill_book(uvec2(a.down_s, a.down_b));
            load_acts(token, first, from);
            barrier();
            add_slot(acc, s, from);
        }
        share_rows(acc, s);
        barrier();
        add_sums(total, block, first);
    }
    store(before, total, token, block);
}

void main()
{
    block = gl_WorkGroupID.x * BLOCKS_EACH;
    if (STEPS > 0)
        run_whole(gl_WorkGroupID.y);
    else
        run_rounds(gl_WorkGroupID.y);
}
