// experts/decode_up.comp - the first half of the chosen experts and of the shared one, p = rms(x[t]) * norm,
// without a norm p = x[t]:
//   act[t][k] = silu(gate p) * (up p), gate and up [inner][hidden] of expert idx[t][k], found through the
//     layer's table
//   act[t][top_k] = w_t silu(gate p) * (up p) of the shared expert, w_t = the sigmoid of its gate's logit, or
//     1
// The addresses of the experts follow all tokens' activations, so that the second half need not look them up.
//
// Grid: x = row blocks of `inner` or of the shared expert's, y = slots: the experts in the router's order,
// then the shared one; z = tokens. float32 sums. Tolerance 1e-5 of the largest output.
// CHOOSES: the choice is made here, by the rules of router/softmax.comp. Each workgroup of a routed expert
// finds its own expert, which takes less time than a dispatch. A workgroup of the last slot also writes idx
// and weights while its matrix is loaded. Without DROPS the caller makes sure that the table has every expert
// that idx names and that is not skipped.
// BIASED: products get the expert's biases. GATING: the activation (ops/gating.h).
// DROPS: idx may be NO_EXPERT, and the table may lack an expert that idx names. Nothing is computed then, and
// the address is 0.
// PASS: experts whose gate and up have different formats take two dispatches, one for each matrix. Both
// halves of its rows are computed as the two matrices otherwise are. The first dispatch leaves gate p in act,
// the second one replaces it by the activation. PASS_ONE: experts without a gate take one dispatch, in which
// the halves of up are computed so.
// variants: plain denorm q4 q8 ext extdenorm extq4 extq4denorm blk blkdenorm
#version 460
#define MATRICES 2
#include "lib/memory.glsl"
#include "lib/gemv.glsl"
#include "lib/math.glsl"

layout(constant_id = 12) const uint N_EXPERTS = 256;
layout(constant_id = 13) const uint TOP_K = 8;
// rows of the shared expert's gate and up; 0: not computed here
layout(constant_id = 14) const uint SHARED = 512;
layout(constant_id = 15) const uint IS_GATED = 0; // 1: the shared expert has a gate
layout(constant_id = 16) const uint CHOOSES = 0;
layout(constant_id = 17) const uint NORM_TOPK = 0; // 1: the chosen weights sum to 1

// 1: some of a token's TOP_K experts may be left out; excludes CHOOSES
layout(constant_id = 18) const uint DROPS = 0;
layout(constant_id = 19) const uint BIASED = 0; // needs SHARED = 0
layout(constant_id = 20) const float GATING = 0.0;
layout(constant_id = 21) const float SHARED_GATING = 0.0; // the shared expert's
layout(constant_id = 22) const uint PASS = PASS_BOTH;     // PASS_GATE, PASS_UP: routed experts only

const uint SHARES = 0;
const uint PER_LANE = (N_EXPERTS + SUBGROUP - 1) / SUBGROUP;
const uint KEEP = (TOP_K + SUBGROUP - 1) / SUBGROUP;

layout(push_constant, std430) uniform Args { experts_decode_up_args a; };
layout(buffer_reference, std430,
       buffer_reference_align = 8) readonly buffer SharedUps { experts_shared_up v; };
layout(buffer_reference, std430, buffer_reference_align = 8) writeonly buffer AddrsOut { uvec2 v[]; };

#include "router/choose.glsl"
#include "router/softmax.glsl"

shared uvec2 found;     // address of this workgroup's expert
shared uint found_idx;
uint biases; // the first bias of this workgroup's expert's gate rows

// Runs on one subgroup: finds the `slot`-th choice. The table's entries are loaded together with the logits;
// a lookup after the choice would take as long again.
void choose_expert(uint token, uint slot)
{
    uint l[PER_LANE];
    uvec2 lies[PER_LANE];
    [[unroll]] for (uint i = 0; i < PER_LANE; i++)
        lies[i] = Addrs(a.table).v[min(i * SUBGROUP + gl_SubgroupInvocationID, N_EXPERTS - 1)];
    load_logits(a.logits, token * a.stride, N_EXPERTS, l);
    uint expert = min(choose_one(l, slot), N_EXPERTS - 1);
    [[unroll]] for (uint i = 0; i < PER_LANE; i++)
        if (i * SUBGROUP + gl_SubgroupInvocationID == expert) {
            found = lies[i];
            found_idx = expert;
        }
}

// Runs on one subgroup.
void store_all_choices(uint token)
{
    uint l[PER_LANE], kept[KEEP], kept_at[KEEP];
    uint nans = load_logits(a.logits, token * a.stride, N_EXPERTS, l);
    Softmax s = softmax_of_all(l, NORM_TOPK == 0);
    choose(l, TOP_K, kept, kept_at);
    store_choice(kept, kept_at, s, NORM_TOPK != 0, nans, N_EXPERTS, TOP_K, 1.0, a.idx, a.weights,
                 uvec2(0), token * TOP_K);
}

// Returns whether this workgroup writes the choice: one of the shared expert's, which has nothing to find, or
// one of the last choice's.
bool stores_choice(uint slot)
{
    uint last = SHARED > 0 ? TOP_K : TOP_K - 1;
    if (PASS == PASS_GATE || PASS == PASS_UP)
        last = TOP_K - 1;
    return gl_WorkGroupID.x == 0 && slot == last;
}

uvec2 find_expert(uint token, uint slot)
{
    if (CHOOSES != 0) {
        if (slot >= TOP_K)
            return uvec2(0);
        if (gl_SubgroupID == 0)
            choose_expert(token, slot);
        barrier();
        return found;
    }
    if (DROPS != 0 && slot < TOP_K && U32s(a.idx).v[token * TOP_K + slot] == NO_EXPERT)
        return uvec2(0);
    return slot < TOP_K ? Addrs(a.table).v[U32s(a.idx).v[token * TOP_K + slot]] : uvec2(0);
}

bool is_skipped(uint slot)
{
    return slot < TOP_K && slot < 64 &&
        ((slot < 32 ? a.skip_low >> slot : a.skip_high >> (slot - 32)) & 1u) != 0;
}

// Returns the rows of each of a routed expert's two matrices.
uint matrix_rows()
{
    return PASS == PASS_BOTH ? a.inner : a.inner / 2;
}

// Returns the rows of each of the shared expert's two matrices.
uint shared_rows()
{
    return PASS == PASS_ONE ? SHARED / 2 : SHARED;
}

void matrices_of(uvec2 expert, bool is_shared, out Matrix m[2])
{
    m[0] = Matrix(addr_add(expert, a.gate_w), addr_add(expert, a.gate_s), addr_add(expert, a.gate_b),
                  a.format, matrix_rows(), a.hidden);
    m[1] = Matrix(addr_add(expert, a.up_w), addr_add(expert, a.up_s), addr_add(expert, a.up_b), a.format,
                  matrix_rows(), a.hidden);
    if (is_shared) {
        experts_shared_up e = SharedUps(a.shared_up).v;
        m[0] = Matrix(e.gate_w, e.gate_s, e.gate_b, e.format, shared_rows(), a.hidden);
        m[1] = Matrix(e.up_w, e.up_s, e.up_b, e.format, shared_rows(), a.hidden);
    }
}

// Stores this lane's r-th sums of both halves of one matrix's rows, at row `mine` of the first half. rows: of
// a half.
void store_pass(float acc[MAX_ACC], uint r, uint act_at, uint mine, uint rows, float factor, float gating)
{
    [[unroll]] for (uint h = 0; h < 2; h++) {
        uint at = mine + h * rows;
        float v = acc[h * ROWS + r] * factor;
        if (BIASED != 0)
            v += F32s(a.shared_up).v[biases + (PASS == PASS_UP ? N_EXPERTS * a.inner : 0) + at];
        if (PASS == PASS_UP)
            v = gated(F32s(a.act).v[act_at + at], v, GATING);
        if (PASS == PASS_ONE)
            v = gated(v, v, gating);
        F32s(a.act).v[act_at + at] = v;
    }
}

void store_act(float acc[MAX_ACC], uint act_at, uint row, uint rows, float weight)
{
    float mean = shared_sum(0) / float(IS_WHOLE ? TILE : a.hidden);
    float factor = addr_is_null(a.norm) ? 1.0 : inversesqrt(mean + a.eps);
    float gating = SHARED > 0 && gl_WorkGroupID.y + a.first_slot == TOP_K ? SHARED_GATING : GATING;
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        uint mine = block_start(row, rows) + lane_row(r);
        if (lane_stores(r) && mine >= row && mine < rows) {
            if (PASS != PASS_BOTH) {
                store_pass(acc, r, act_at, mine, rows, factor, gating);
                continue;
            }
            float g = acc[r] * factor, u = acc[ROWS + r] * factor;
            if (BIASED != 0) {
                g += F32s(a.shared_up).v[biases + mine];
                u += F32s(a.shared_up).v[biases + N_EXPERTS * rows + mine];
            }
            F32s(a.act).v[act_at + mine] = weight * gated(g, u, gating);
        }
    }
}

void clear(out float acc[MAX_ACC])
{
    [[unroll]] for (uint i = 0; i < 2 * ROWS; i++)
        acc[i] = 0.0;
}

void stream(Matrix m[2], uint token, uint slot, uint first, uint act_at, float weight)
{
    const uint BLOCK = SUBGROUPS / SPLIT * BLOCK_ROWS;
    uint rows = m[0].rows, end = min(first + STREAM * BLOCK, rows);
    float squares[4];
    begin_stream(m, first + block_row(), end);
    if (CHOOSES != 0 && stores_choice(slot) && gl_SubgroupID == 0)
        store_all_choices(token);
    squares[0] = put_vector(0, a.x, token * a.hidden, a.norm, 0, TILE / 4);
    share_sums(squares);
    barrier();
    // All subgroups take part if SPLIT > 1, with rows or without.
    for (uint row = first + block_row(), mine = SPLIT > 1 ? first : row; mine < end; row += BLOCK,
         mine += BLOCK) {
        float acc[MAX_ACC];
        clear(acc);
        add_stream(acc, m, end);
        finish_product(acc);
        store_act(acc, act_at, row, rows, weight);
        if (SPLIT > 1)
            barrier(); // before the next sums are shared
    }
}

void main()
{
    uint token = gl_WorkGroupID.z, slot = gl_WorkGroupID.y + a.first_slot;
    bool is_shared = SHARED > 0 && slot == TOP_K;
    uint blocks = STREAM > 0 ? STREAM : 1;
    uint first_row = gl_WorkGroupID.x * blocks * (SUBGROUPS / SPLIT) * BLOCK_ROWS,
         row = first_row + block_row();
    if (is_skipped(slot) || first_row >= (is_shared ? shared_rows() : matrix_rows()))
        return;
    uint act_at = token * (TOP_K * a.inner + SHARED) + slot * a.inner;
    float gate = 0.0;
    if (is_shared && IS_GATED != 0)
        gate = F32s(a.logits).v[token * a.stride + N_EXPERTS];
    uvec2 expert = find_expert(token, slot);
    if (!is_shared && gl_WorkGroupID.x == 0 && gl_LocalInvocationID.x == 0)
        AddrsOut(addr_add(a.act, 4 * a.n * (TOP_K * a.inner + SHARED))).v[token * TOP_K + slot] = expert;
    if (DROPS != 0 && !is_shared && addr_is_null(expert))
        return;
    if (BIASED != 0)
        biases = (CHOOSES != 0 ? found_idx : U32s(a.idx).v[token * TOP_K + slot]) * a.inner;
    Matrix m[2];
    matrices_of(expert, is_shared, m);
    float weight = is_shared && IS_GATED != 0 ? sigmoid(gate) : 1.0;
    if (STREAM > 0) {
        stream(m, token, slot, first_row, act_at, weight);
        return;
    }
    float acc[MAX_ACC];
    float squares[4];
    squares[0] = 0.0;
    clear(acc);

    uint hidden = STEPS > 0 ? TILE : a.hidden;
    for (uint from = 0; from < hidden; from += TILE) {
        uint n = min(TILE, hidden - from);
        fetch_product(m, row, from, n);
        if (CHOOSES != 0 && from == 0 && stores_choice(slot) && gl_SubgroupID == 0)
            store_all_choices(token);
        if (from > 0)
            barrier();
        else
            fill_book(uvec2(a.gate_s, a.gate_b));
        squares[0] += put_vector(0, a.x, token * a.hidden, a.norm, from, n / 4);
        if (from + TILE >= hidden)
            share_sums(squares);
        barrier();
        if (STEPS > 0 || row < m[0].rows)
            add_product(acc, m, row, from, n);
    }

    finish_product(acc);
    store_act(acc, act_at, row, m[0].rows, weight);
}
