// matvec.glsl - rows of quantised matrices times vectors kept in shared memory: the core of every product kernel.
//
// A subgroup computes a block of rows against TOKENS vectors. Two mappings, chosen at build:
//   columns on lanes: the lanes share ROWS rows, each lane takes units of 32 columns, a subgroup reduction ends it.
//     Loads are coalesced: for GPUs.
//   rows on lanes (WIDE, kernels named X_wide): each lane owns ROWS rows and walks all columns; the vector is loaded
//     once for the subgroup and broadcast. For software devices: a lane's load costs them 5 to 20 ns whatever its
//     width, so memory is read in 64-bit words; a broadcast costs almost nothing.
// Weights are dequantised exactly (fma(q, scale, bias) has one right float32 value), products accumulate in float32.
#ifndef MATVEC_GLSL
#define MATVEC_GLSL

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint ROWS = 1;   // at most 4
layout(constant_id = 3) const uint TOKENS = 1; // at most 4
layout(constant_id = 4) const uint TILE = 2048; // columns held in shared memory at a time, a multiple of 64
layout(constant_id = 5) const uint FORMATS = 15; // bit f: some matrix of the dispatch is stored as FORMAT_f

#ifdef WIDE
const bool ROWS_ON_LANES = true;
#else
const bool ROWS_ON_LANES = false;
#endif

// Columns of one step of add_unit.
const uint UNIT = ROWS_ON_LANES ? 64 : 32;
const uint UNITS = TILE / 32;
// One vec4 of padding per row of the transposed layout keeps both its writes and its reads free of bank conflicts.
const uint XS_STRIDE = 8 * (UNITS + 1);
const uint SUBGROUPS = WORKGROUP / SUBGROUP;
const uint BLOCK_ROWS = ROWS * (ROWS_ON_LANES ? SUBGROUP : 1); // of a subgroup
const uint MAX_ACC = 16;

#ifdef WIDE
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Words4 { u64vec2 v[]; };
shared u64vec2 xs[TOKENS * XS_STRIDE];

uvec4 words4_at(uvec2 p, uint i)
{
    u64vec2 v = Words4(p).v[i];
    return uvec4(unpack32(v.x), unpack32(v.y));
}

void xs_put(uint i, vec4 v)
{
    xs[i] = u64vec2(pack64(floatBitsToUint(v.xy)), pack64(floatBitsToUint(v.zw)));
}

vec4 xs_get(uint i)
{
    u64vec2 v = xs[i];
    return vec4(uintBitsToFloat(unpack32(v.x)), uintBitsToFloat(unpack32(v.y)));
}
#else
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Words4 { uvec4 v[]; };
shared vec4 xs[TOKENS * XS_STRIDE];

uvec4 words4_at(uvec2 p, uint i)
{
    return Words4(p).v[i];
}

void xs_put(uint i, vec4 v)
{
    xs[i] = v;
}

vec4 xs_get(uint i)
{
    return xs[i];
}
#endif
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
    if (ROWS_ON_LANES)
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
    return ROWS_ON_LANES ? r * SUBGROUP + gl_SubgroupInvocationID : r;
}

bool lane_stores(uint r)
{
    return ROWS_ON_LANES || gl_SubgroupInvocationID == r;
}

// Loop over the units of a tile: for (u = unit_first(); u < n; u += unit_step()).
uint unit_first()
{
    return ROWS_ON_LANES ? 0 : gl_SubgroupInvocationID;
}

uint unit_step()
{
    return ROWS_ON_LANES ? 1 : SUBGROUP;
}

// Eight weights from element `at` of the matrix on.
void weights8(out float w[8], const uint format, uvec2 weight, uint at, float s, float b)
{
    if (format == FORMAT_Q8) {
        [[unroll]] for (uint i = 0; i < 8; i++) {
            uint word = Words(weight).v[(at >> 2) + (i >> 2)];
            w[i] = fma(float((word >> (8 * (i & 3u))) & 255u), s, b);
        }
    } else if (format == FORMAT_BF16) {
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

struct Eight { // eight neighbouring elements of a vector
    vec4 a, b;
};

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

// One matrix of a product; the same for all lanes that share its rows.
struct Matrix {
    uvec2 weight, scales, biases;
    uint format, rows, cols;
};

// Scale and bias of the group that holds columns 64 * group .. of a row.
void load_group(const uint format, Matrix m, uint row, uint group, out float s, out float b)
{
    s = b = 0.0;
    if (format <= FORMAT_Q8) {
        uint at = row * (m.cols >> 6) + group;
        s = bf16_at(m.scales, at);
        b = bf16_at(m.biases, at);
    }
}

// Columns 8 * i .. 8 * i + 7 of a row; q: the words of columns 32 * (i / 4) .. of a q4 row.
void eight_weights(out float w[8], const uint format, Matrix m, uint row, uint i, uvec4 q, float s, float b)
{
    if (format == FORMAT_Q4)
        weights8_q4(w, q[i & 3u], s, b);
    else
        weights8(w, format, m.weight, row * m.cols + 8 * i, s, b);
}

#ifndef WIDE
// Columns on lanes: this lane's unit of 32 columns for each of the ROWS rows.
void add_unit_as(inout float acc[MAX_ACC], const uint format, Matrix m, uint row, uint unit, uint xu)
{
    uvec4 q[4];
    float s[4], b[4];
    uint mine[4];
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        mine[r] = min(row + r, m.rows - 1);
        if (format == FORMAT_Q4)
            q[r] = words4_at(m.weight, mine[r] * (m.cols >> 5) + unit);
        load_group(format, m, mine[r], unit >> 1, s[r], b[r]);
    }
    [[unroll]] for (uint k = 0; k < 4; k++) {
        Eight e[4];
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            e[t].a = xs_get(t * XS_STRIDE + (2 * k) * (UNITS + 1) + xu);
            e[t].b = xs_get(t * XS_STRIDE + (2 * k + 1) * (UNITS + 1) + xu);
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            float w[8];
            eight_weights(w, format, m, mine[r], unit * 4 + k, q[r], s[r], b[r]);
            [[unroll]] for (uint t = 0; t < TOKENS; t++)
                acc[r * TOKENS + t] = dot8(w, e[t], acc[r * TOKENS + t]);
        }
    }
}

#else
// The eight elements 8 * k .. of the 32 that the lanes hold, four each: lane l of v0 has 4l .. 4l + 3; where a subgroup
// has only four lanes, v1 continues. Broadcasts take constant lanes only, hence the ladder.
Eight broadcast_eight(uint k, vec4 v0, vec4 v1)
{
    if (SUBGROUP < 8) {
        vec4 v = k < 2 ? v0 : v1;
        if ((k & 1u) == 0)
            return Eight(subgroupBroadcast(v, 0), subgroupBroadcast(v, 1));
        return Eight(subgroupBroadcast(v, 2), subgroupBroadcast(v, 3));
    }
    if (k == 0)
        return Eight(subgroupBroadcast(v0, 0), subgroupBroadcast(v0, 1));
    if (k == 1)
        return Eight(subgroupBroadcast(v0, 2), subgroupBroadcast(v0, 3));
    if (k == 2)
        return Eight(subgroupBroadcast(v0, 4), subgroupBroadcast(v0, 5));
    return Eight(subgroupBroadcast(v0, 6), subgroupBroadcast(v0, 7));
}

// Rows on lanes: 64 columns, one group, for this lane's ROWS rows.
void add_unit_as(inout float acc[MAX_ACC], const uint format, Matrix m, uint row, uint unit, uint xu)
{
    float s[4], b[4];
    uint mine[4];
    uint lane = gl_SubgroupInvocationID & (SUBGROUP >= 8 ? 7u : 3u);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        mine[r] = min(row + lane_row(r), m.rows - 1);
        load_group(format, m, mine[r], unit, s[r], b[r]);
    }
    // Not unrolled: drivers take long over large bodies.
    [[dont_unroll]] for (uint part = 0; part < 2; part++) {
        uvec4 q[4];
        vec4 v0[4], v1[4];
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            if (format == FORMAT_Q4)
                q[r] = words4_at(m.weight, mine[r] * (m.cols >> 5) + 2 * unit + part);
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            v0[t] = xs_get(t * XS_STRIDE + xu * 16 + 8 * part + lane);
            v1[t] = SUBGROUP < 8 ? xs_get(t * XS_STRIDE + xu * 16 + 8 * part + 4 + lane) : v0[t];
        }
        [[unroll]] for (uint k = 0; k < 4; k++) {
            Eight e[4];
            [[unroll]] for (uint t = 0; t < TOKENS; t++)
                e[t] = broadcast_eight(k, v0[t], v1[t]);
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                float w[8];
                eight_weights(w, format, m, mine[r], unit * 8 + part * 4 + k, q[r], s[r], b[r]);
                [[unroll]] for (uint t = 0; t < TOKENS; t++)
                    acc[r * TOKENS + t] = dot8(w, e[t], acc[r * TOKENS + t]);
            }
        }
    }
}

#endif

// acc[r * TOKENS + t] += W[row + lane_row(r)][columns of `unit`] . x[t][unit xu of the tile] for all r and t.
// Rows past the last are computed from the last row and never stored.
// The branch on the format stands outside of everything: inside, it would multiply the work of shader compilers.
void add_unit(inout float acc[MAX_ACC], Matrix m, uint row, uint unit, uint xu)
{
    if (is_format(FORMAT_Q4, m.format))
        add_unit_as(acc, FORMAT_Q4, m, row, unit, xu);
    else if (is_format(FORMAT_Q8, m.format))
        add_unit_as(acc, FORMAT_Q8, m, row, unit, xu);
    else if (is_format(FORMAT_BF16, m.format))
        add_unit_as(acc, FORMAT_BF16, m, row, unit, xu);
    else if (is_format(FORMAT_F32, m.format))
        add_unit_as(acc, FORMAT_F32, m, row, unit, xu);
}

// Ends a sum: in the columns mapping every lane gets the total, in the rows mapping it has it already.
float finish(float acc)
{
    return ROWS_ON_LANES ? acc : subgroupAdd(acc);
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
