// matvec.glsl - rows of quantised matrices times vectors kept in shared memory: the core of every product kernel.
//
// A subgroup computes a block of rows against TOKENS vectors. Two mappings, chosen when the pipeline is made:
//   columns on lanes (ROWS_ON_LANES = 0): the lanes share ROWS rows, each lane takes units of 32 columns, a
//     subgroup reduction ends it. Loads are coalesced: for GPUs.
//   rows on lanes (ROWS_ON_LANES = 1): each lane owns ROWS rows and walks all columns; the vector is loaded once for
//     the subgroup and broadcast. A lane's load costs a software device 5 to 20 ns, a broadcast almost nothing.
// Weights are dequantised exactly (fma(q, scale, bias) has one right float32 value), products accumulate in float32.
#ifndef MATVEC_GLSL
#define MATVEC_GLSL

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint ROWS = 1;   // at most 4
layout(constant_id = 3) const uint TOKENS = 1; // at most 4
layout(constant_id = 4) const uint ROWS_ON_LANES = 0;
layout(constant_id = 5) const uint TILE = 2048; // columns held in shared memory at a time, a multiple of 64
layout(constant_id = 6) const uint FORMATS = 15; // bit f: some matrix of the dispatch is stored as FORMAT_f

const uint UNIT = 32;
const uint UNITS = TILE / UNIT;
// One vec4 of padding per row of the transposed layout keeps both its writes and its reads free of bank conflicts.
const uint XS_STRIDE = 8 * (UNITS + 1);
const uint SUBGROUPS = WORKGROUP / SUBGROUP;
const uint BLOCK_ROWS = ROWS * (ROWS_ON_LANES != 0 ? SUBGROUP : 1); // of a subgroup
const uint MAX_ACC = 16;

shared vec4 xs[TOKENS * XS_STRIDE];
shared float xs_sum[SUBGROUPS];

// Whether a matrix is stored as f: a constant wherever FORMATS leaves no choice. A software device computes both sides
// of every branch, so code for a format that does not occur must not be there.
bool is_format(uint f, uint format)
{
    return FORMATS == 1u << f || ((FORMATS >> f & 1u) != 0 && format == f);
}

// Where columns 4*c4 .. 4*c4+3 of a tile are kept.
uint xs_index(uint t, uint c4)
{
    if (ROWS_ON_LANES != 0)
        return t * XS_STRIDE + c4;
    return t * XS_STRIDE + (c4 & 7u) * (UNITS + 1) + (c4 >> 3);
}

// The first row of this subgroup's block within the workgroup's rows.
uint block_row()
{
    return gl_SubgroupID * BLOCK_ROWS;
}

// The row (within the block) of this lane's r-th accumulator, and whether this lane is the one to store it.
uint lane_row(uint r)
{
    return ROWS_ON_LANES != 0 ? r * SUBGROUP + gl_SubgroupInvocationID : r;
}

bool lane_stores(uint r)
{
    return ROWS_ON_LANES != 0 || gl_SubgroupInvocationID == r;
}

// Loop over the units of a tile: for (u = unit_first(); u < n; u += unit_step()).
uint unit_first()
{
    return ROWS_ON_LANES != 0 ? 0 : gl_SubgroupInvocationID;
}

uint unit_step()
{
    return ROWS_ON_LANES != 0 ? 1 : SUBGROUP;
}

// Eight weights, columns c .. c + 7 of a row that starts at element `row * cols`.
void weights8(out float w[8], uint format, uvec2 weight, uint at, float s, float b)
{
    if (is_format(FORMAT_Q8, format)) {
        [[unroll]] for (uint i = 0; i < 8; i++) {
            uint word = Words(weight).v[(at >> 2) + (i >> 2)];
            w[i] = fma(float((word >> (8 * (i & 3u))) & 255u), s, b);
        }
    } else if (is_format(FORMAT_BF16, format)) {
        [[unroll]] for (uint i = 0; i < 8; i++) {
            uint pair = Words(weight).v[(at >> 1) + (i >> 1)];
            w[i] = uintBitsToFloat((i & 1u) == 0u ? pair << 16 : pair & 0xffff0000u);
        }
    } else {
        [[unroll]] for (uint i = 0; i < 8; i++)
            w[i] = uintBitsToFloat(Words(weight).v[at + i]);
    }
}

// float(code) for a code below 2^23 without a conversion instruction, which GPUs run at a quarter of the rate.
float code_value(uint code)
{
    return uintBitsToFloat(code | 0x4b000000u) - 8388608.0;
}

void weights8_q4(out float w[8], uint word, float s, float b)
{
    [[unroll]] for (uint i = 0; i < 8; i++)
        w[i] = fma(code_value((word >> (4 * i)) & 15u), s, b);
}

// The eight vector elements of columns 8*k .. 8*k+7 of unit u, k < 4; v holds what the lanes loaded of the unit.
struct Eight {
    vec4 a, b;
};

Eight eight_of(uint t, uint u, uint k, vec4 v0, vec4 v1)
{
    Eight e;
    if (ROWS_ON_LANES != 0) {
        // Lane l of v0 (and v1 where a subgroup has only four lanes) holds columns 4l .. 4l+3 of the unit.
        vec4 src = SUBGROUP >= 8 || k < 2 ? v0 : v1;
        uint l = SUBGROUP >= 8 ? 2 * k : (2 * k) & 3u;
        if (SUBGROUP >= 8) {
            if (k == 0) { e.a = subgroupBroadcast(v0, 0); e.b = subgroupBroadcast(v0, 1); }
            else if (k == 1) { e.a = subgroupBroadcast(v0, 2); e.b = subgroupBroadcast(v0, 3); }
            else if (k == 2) { e.a = subgroupBroadcast(v0, 4); e.b = subgroupBroadcast(v0, 5); }
            else { e.a = subgroupBroadcast(v0, 6); e.b = subgroupBroadcast(v0, 7); }
        } else {
            if ((k & 1u) == 0) { e.a = subgroupBroadcast(src, 0); e.b = subgroupBroadcast(src, 1); }
            else { e.a = subgroupBroadcast(src, 2); e.b = subgroupBroadcast(src, 3); }
        }
    } else {
        e.a = xs[t * XS_STRIDE + (2 * k) * (UNITS + 1) + u];
        e.b = xs[t * XS_STRIDE + (2 * k + 1) * (UNITS + 1) + u];
    }
    return e;
}

float dot8(float w[8], Eight e, float acc)
{
    acc = fma(w[0], e.a.x, acc);
    acc = fma(w[1], e.a.y, acc);
    acc = fma(w[2], e.a.z, acc);
    acc = fma(w[3], e.a.w, acc);
    acc = fma(w[4], e.b.x, acc);
    acc = fma(w[5], e.b.y, acc);
    acc = fma(w[6], e.b.z, acc);
    return fma(w[7], e.b.w, acc);
}

// acc[r * TOKENS + t] += W[row + lane_row(r)][columns of `unit`] . x[t][unit xu of the tile] for all r and t.
// Rows past `rows` are computed from the last row and never stored.
void add_unit(inout float acc[MAX_ACC], uint format, uvec2 weight, uvec2 scales, uvec2 biases, uint rows, uint cols,
              uint row, uint unit, uint xu)
{
    uvec4 q[4];
    float s[4], b[4];
    uint at[4];
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        uint mine = min(row + lane_row(r), rows - 1);
        at[r] = mine * cols + unit * UNIT;
        if (is_format(FORMAT_Q4, format))
            q[r] = Words4(weight).v[mine * (cols >> 5) + unit];
        if ((FORMATS & 3u) != 0) {
            uint group = mine * (cols >> 6) + (unit >> 1);
            s[r] = bf16_at(scales, group);
            b[r] = bf16_at(biases, group);
        }
    }
    vec4 v0[4], v1[4];
    if (ROWS_ON_LANES != 0) {
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            uint lane = gl_SubgroupInvocationID & (SUBGROUP >= 8 ? 7u : 3u);
            v0[t] = xs[t * XS_STRIDE + xu * 8 + lane];
            if (SUBGROUP < 8)
                v1[t] = xs[t * XS_STRIDE + xu * 8 + 4 + lane];
        }
    }
    [[unroll]] for (uint k = 0; k < 4; k++) {
        Eight e[4];
        [[unroll]] for (uint t = 0; t < TOKENS; t++)
            e[t] = eight_of(t, xu, k, v0[t], v1[t]);
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            float w[8];
            if (is_format(FORMAT_Q4, format))
                weights8_q4(w, q[r][k], s[r], b[r]);
            else
                weights8(w, format, weight, at[r] + 8 * k, s[r], b[r]);
            [[unroll]] for (uint t = 0; t < TOKENS; t++)
                acc[r * TOKENS + t] = dot8(w, e[t], acc[r * TOKENS + t]);
        }
    }
}

// Ends a sum: in the columns mapping every lane gets the total, in the rows mapping it has it already.
float finish(float acc)
{
    return ROWS_ON_LANES != 0 ? acc : subgroupAdd(acc);
}

// Sum of one value per invocation over the workgroup; all must call it.
float workgroup_sum(float value)
{
    float part = subgroupAdd(value);
    if (gl_SubgroupInvocationID == 0)
        xs_sum[gl_SubgroupID] = part;
    barrier();
    float total = 0.0;
    for (uint i = 0; i < SUBGROUPS; i++)
        total += xs_sum[i];
    barrier();
    return total;
}

#endif
