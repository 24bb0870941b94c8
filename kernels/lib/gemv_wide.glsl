// gemv_wide.glsl - the products of gemv.glsl with rows on lanes: each lane owns ROWS rows and walks all columns;
// the vector is loaded once for the subgroup and broadcast. For software devices: a lane's load costs them 5 to 20 ns
// whatever its width, so memory is read in 64-bit words; a broadcast costs almost nothing. Nothing is gained by loading
// ahead, and SPLIT is 1. Weights are dequantised exactly, products accumulate in float32.

const uint UNIT = PRODUCT_COLS; // columns of one step
// One vec4 of padding per row of the transposed layout.
const uint XS_STRIDE = 8 * (TILE / 32 + 1);
const uint BLOCK_ROWS = ROWS * SUBGROUP; // of a subgroup

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Words4 { u64vec2 v[]; };
shared u64vec2 xs[TOKENS * XS_STRIDE];

uvec4 words4_at(uvec2 p, uint i)
{
    u64vec2 v = Words4(p).v[i];
    return uvec4(unpack32(v.x), unpack32(v.y));
}

vec4 xs_get(uint i)
{
    u64vec2 v = xs[i];
    return vec4(uintBitsToFloat(unpack32(v.x)), uintBitsToFloat(unpack32(v.y)));
}

// Columns 4 * c4 .. 4 * c4 + 3 of vector t in the tile.
void xs_put(uint t, uint c4, vec4 v)
{
    xs[t * XS_STRIDE + c4] = u64vec2(pack64(floatBitsToUint(v.xy)), pack64(floatBitsToUint(v.zw)));
}

// The first row of this subgroup's block within the workgroup's rows.
uint block_row()
{
    return gl_SubgroupID * BLOCK_ROWS;
}

// The row (within the block) of this lane's r-th sum, and whether this lane is the one to store it.
uint lane_row(uint r)
{
    return r * SUBGROUP + gl_SubgroupInvocationID;
}

bool lane_stores(uint r)
{
    return true;
}

float dot8(Eight w, Eight e, float acc)
{
    acc = fma(w.a.x, e.a.x, acc);
    acc = fma(w.a.y, e.a.y, acc);
    acc = fma(w.a.z, e.a.z, acc);
    acc = fma(w.a.w, e.a.w, acc);
    acc = fma(w.b.x, e.b.x, acc);
    acc = fma(w.b.y, e.b.y, acc);
    acc = fma(w.b.z, e.b.z, acc);
    return fma(w.b.w, e.b.w, acc);
}

// Columns 8 * i .. 8 * i + 7 of a row; q: the words of columns 32 * (i / 4) .. of a q4 row.
Eight eight_weights(const uint format, Matrix m, uint row, uint i, uvec4 q, float s, float b)
{
    if (format == FORMAT_Q4)
        return affine_eight(format, uvec2(q[i & 3u], 0), s, b);
    return eight_at(format, m.weight, row * (m.cols >> 3) + i, s, b);
}

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
void add_unit_as(inout float acc[MAX_ACC], const uint first, const uint format, Matrix m, uint row, uint unit, uint xu)
{
    float s[4], b[4];
    uint mine[4];
    uint lane = gl_SubgroupInvocationID & (SUBGROUP >= 8 ? 7u : 3u);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        mine[r] = min(row + lane_row(r), m.rows - 1);
        load_group(format, m, mine[r], UNIT * unit, s[r], b[r]);
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
                Eight w = eight_weights(format, m, mine[r], unit * 8 + part * 4 + k, q[r], s[r], b[r]);
                [[unroll]] for (uint t = 0; t < TOKENS; t++)
                    acc[first + r * TOKENS + t] = dot8(w, e[t], acc[first + r * TOKENS + t]);
            }
        }
    }
}

// acc[first + r * TOKENS + t] += W[row + lane_row(r)][columns of `unit`] . x[t][unit xu of the tile] for all r and t.
// Rows past the last are computed from the last row and never stored.
void add_unit(inout float acc[MAX_ACC], const uint first, Matrix m, uint row, uint unit, uint xu)
{
    BY_FORMAT(m.format, add_unit_as(acc, first, FORMAT, m, row, unit, xu))
}

void fetch_product(Matrix m[MATRICES], uint row, uint from, uint n)
{
}

// acc[(i * ROWS + r) * TOKENS + t] += m[i]'s row `row` + lane_row(r), columns [from, from + n), times the tile of x[t].
void add_product(inout float acc[MAX_ACC], Matrix m[MATRICES], uint row, uint from, uint n)
{
    // Written out: Mesa keeps a loop over m, and with it m and acc in memory.
    for (uint u = 0; u < n / UNIT; u++) {
        add_unit(acc, 0, m[0], row, from / UNIT + u, u);
#if MATRICES > 1
        add_unit(acc, ROWS * TOKENS, m[1], row, from / UNIT + u, u);
#endif
    }
}

void finish_product(inout float acc[MAX_ACC])
{
}
