// experts/decode_down_long.comp - the sums of experts/decode_down.comp when the activations of all slots
// exceed shared memory. All slots have COLS columns in one format, and none is dropped.
//
// A workgroup computes SUBGROUPS * ROWS rows and takes the slots in order. Lanes share a row's columns. Each
// lane has its pieces of all slots in one sequence, with the next one always in flight. The activations of
// the next slot are loaded while one is multiplied. A lane adds up the slots, then the lanes are added up,
// then the residual. At most DOWN_LONG_SLOTS slots. Grid: x = row blocks of `hidden`, y = tokens. float32
// sums. Tolerance 1e-5.
// variants: plain denorm q4 q8
#version 460
#include "lib/memory.glsl"
#include "lib/gemv.glsl"

const uint COLS = TILE / 2; // TILE: two slots' columns
const uint ACTS = (COLS / 4 + WORKGROUP - 1) / WORKGROUP; // vec4s of a slot that an invocation loads

layout(push_constant, std430) uniform Args { experts_decode_down_args a; };

shared uvec2 expert_of[DOWN_LONG_SLOTS];
shared float factor_of[DOWN_LONG_SLOTS];

void find_slots(uint token)
{
    for (uint slot = a.first_slot + gl_LocalInvocationID.x; slot < a.end_slot; slot += WORKGROUP) {
        uint at = token * a.top_k + slot;
        bool is_routed = slot < a.top_k;
        expert_of[slot] = is_routed ? Addrs(addr_add(a.act, 4 * a.n * a.act_stride)).v[at] : uvec2(0);
        factor_of[slot] = is_routed ? F32s(a.weights).v[at] : 1.0;
    }
}

Matrix matrix_of(uint slot)
{
    if (slot >= a.top_k)
        return Matrix(a.shared_w, a.shared_s, a.shared_b, a.format, a.hidden, COLS);
    uvec2 expert = expert_of[slot];
    return Matrix(addr_add(expert, a.down_w), addr_add(expert, a.down_s), addr_add(expert, a.down_b),
                  a.format, a.hidden,
                  COLS);
}

vec4 acts[ACTS]; // the next slot's; FEW_REGISTERS: none

void fetch_acts(uint token, uint slot)
{
    uint at = (token * a.act_stride + slot * COLS) / 4;
    [[unroll]] for (uint k = 0; k < ACTS; k++)
        acts[k] = F32x4s(a.act).v[at + min(k * WORKGROUP + gl_LocalInvocationID.x, COLS / 4 - 1)];
}

// FEW_REGISTERS: loads a slot's activations, four at once, and puts them.
void copy_acts(uint token, uint slot)
{
    uint at = (token * a.act_stride + slot * COLS) / 4;
    [[dont_unroll]] for (uint from = gl_LocalInvocationID.x; from < COLS / 4; from += 4 * WORKGROUP) {
        vec4 v[4];
        [[unroll]] for (uint k = 0; k < 4; k++)
            v[k] = F32x4s(a.act).v[at + min(from + k * WORKGROUP, COLS / 4 - 1)];
        [[unroll]] for (uint k = 0; k < 4; k++)
            if (from + k * WORKGROUP < COLS / 4)
                xs_put(0, slot % 2 * (COLS / 4) + from + k * WORKGROUP, v[k]);
    }
}

void put_acts(uint slot)
{
    [[unroll]] for (uint k = 0; k < ACTS; k++) {
        uint i = k * WORKGROUP + gl_LocalInvocationID.x;
        if (i < COLS / 4)
            xs_put(0, slot % 2 * (COLS / 4) + i, acts[k]);
    }
}

// The slot and the part of its columns that are loaded next.
uint ahead_slot, ahead_slot_part;
Matrix ahead;

// Returns the parts of a row. In the last part some lanes may have no piece.
uint n_parts(const uint format)
{
    return (COLS / (4 * piece_vecs(format)) + SUBGROUP - 1) / SUBGROUP;
}

bool has_piece(const uint format, uint piece)
{
    uint pieces = COLS / (4 * piece_vecs(format));
    return pieces % SUBGROUP == 0 || piece < pieces;
}

// Past the last slot it loads pieces that are in the caches (gemv_lanes.glsl says why without a condition).
void fetch_slot(const uint format, uint start)
{
    uint piece = ahead_slot_part * SUBGROUP + gl_SubgroupInvocationID;
    piece = min(piece, COLS / (4 * piece_vecs(format)) - 1);
    begin_step(next);
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        load_piece(next, r, format, ahead.weight, ahead.scales, ahead.biases, (start + r) * COLS, piece);
    ahead_slot_part++;
    if (ahead_slot_part == n_parts(format)) {
        ahead_slot_part = 0;
        ahead_slot++;
        if (ahead_slot < a.end_slot)
            ahead = matrix_of(ahead_slot);
    }
}

void add_slots(const uint format, uint token, uint start, inout float total[MAX_ACC])
{
    const uint vecs = piece_vecs(format);
    fetch_slot(format, start);
    [[dont_unroll]] for (uint slot = a.first_slot; slot < a.end_slot; slot++) {
        float acc[MAX_ACC];
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            acc[r] = 0.0;
        if (FEW_REGISTERS != 0)
            copy_acts(token, slot);
        else
            put_acts(slot);
        barrier(); // after this nobody reads the other half of xs
        if (slot + 1 < a.end_slot && FEW_REGISTERS == 0)
            fetch_acts(token, slot + 1);
        [[dont_unroll]] for (uint i = 0; i < n_parts(format); i++) {
            uint piece = i * SUBGROUP + gl_SubgroupInvocationID;
            now = next;
            fetch_slot(format, start);
            if (has_piece(format, piece))
                add_step(acc, format, now, slot % 2 * (COLS / 4) + piece * vecs);
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            total[r] = fma(acc[r], factor_of[slot], total[r]);
    }
}

void main()
{
    uint token = gl_WorkGroupID.y, row = gl_WorkGroupID.x * SUBGROUPS * ROWS + block_row();
    uint start = block_start(row, a.hidden), mine = start + lane_row(0), at = token * a.hidden + mine;
    bool stores = lane_stores(0) && mine >= row && mine < a.hidden;
    float total[MAX_ACC];
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        total[r] = 0.0;
    if (FEW_REGISTERS == 0)
        fetch_acts(token, a.first_slot);
    find_slots(token);
    float before = stores ? F32s(a.x).v[at] : 0.0;
    barrier();
    ahead_slot = a.first_slot;
    ahead_slot_part = 0;
    ahead = matrix_of(ahead_slot);
    BY_FORMAT(a.format, add_slots(FORMAT, token, start, total))
    finish_product(total);
    if (stores)
        F32s(a.x).v[at] = before + total[0];
}
