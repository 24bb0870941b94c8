// gemm_wide.glsl - gemm.glsl for software devices, rows on lanes: each lane owns ROWS rows, the tokens' values are
// loaded once for the subgroup and handed round by shuffles.
//
// A lane's load costs these devices 5 to 10 ns a word of up to 64 bits, a shuffle by a constant one instruction (a
// broadcast as much as a load), fma() up to a function call.
#ifndef GEMM_WIDE_GLSL
#define GEMM_WIDE_GLSL

const uint BLOCK_ROWS = ROWS * SUBGROUP; // of a workgroup, which is one subgroup
const uint TILE_TOKENS = TOKENS;
// Eight columns of how many tokens one load of four floats a lane brings.
const uint PER_LOAD = SUBGROUP / 2;
const uint LOADS = (TOKENS + PER_LOAD - 1) / PER_LOAD;
const uint MAX_LOADS = 8;

// The row of this lane's r-th accumulator in its half of the block.
uint half_row(uint r)
{
    return (r % (ROWS / 2)) * SUBGROUP + gl_SubgroupInvocationID;
}

// Columns 8 * i .. of a row that is not q4.
Eight eight_plain(const uint format, Matrix m, uint row, uint i, float s, float b)
{
    uint at = row * (m.cols >> 3) + i;
    if (format == FORMAT_Q8)
        return affine_eight(FORMAT_Q8, two_at(m.weight, at), s, b);
    if (format == FORMAT_BF16) {
        uvec2 low = two_at(m.weight, 2 * at), high = two_at(m.weight, 2 * at + 1);
        return Eight(four_bf16(low.x, low.y), four_bf16(high.x, high.y));
    }
    return Eight(four_at(m.weight, 2 * at), four_at(m.weight, 2 * at + 1));
}

// The part of the norm's 32 weights that this lane's four columns of the k-th eight meet. n: four weights a lane.
vec4 norm_of(vec4 n, uint k)
{
    uint from = 2 * k + (gl_SubgroupInvocationID & 1u);
    return vec4(subgroupShuffle(n.x, from), subgroupShuffle(n.y, from), subgroupShuffle(n.z, from),
                subgroupShuffle(n.w, from));
}

vec4 from_lane(vec4 v, uint lane)
{
    return vec4(subgroupShuffle(v.x, lane), subgroupShuffle(v.y, lane), subgroupShuffle(v.z, lane),
                subgroupShuffle(v.w, lane));
}

void multiply_as(inout float acc[MAX_ACC], inout float squares[MAX_LOADS], const uint format, Matrix first,
                 Matrix second, uint row, uint second_row, Input x)
{
    uint mine[8], at[MAX_LOADS];
    uint lane = gl_SubgroupInvocationID;
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        mine[r] = r < ROWS / 2 ? min(row + half_row(r), first.rows - 1)
                               : min(second_row + half_row(r), second.rows - 1);
    [[unroll]] for (uint i = 0; i < LOADS; i++)
        at[i] = input_row(min(i * PER_LOAD + lane / 2, TOKENS - 1)) / 4 + (lane & 1u);
    bool has_norm = !addr_is_null(x.norm);

    for (uint unit = 0; unit < first.cols / 32; unit++) {
        float s[8], b[8];
        uvec2 q[8][2];
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            Matrix m = first;
            if (r >= ROWS / 2)
                m = second;
            load_group(format, m, mine[r], 32 * unit, s[r], b[r]);
            if (format == FORMAT_Q4) {
                q[r][0] = two_at(m.weight, (mine[r] * (m.cols >> 5) + unit) * 2);
                q[r][1] = two_at(m.weight, (mine[r] * (m.cols >> 5) + unit) * 2 + 1);
            }
        }
        vec4 norms = vec4(1.0);
        if (has_norm && SUBGROUP >= 8)
            norms = four_at(x.norm, unit * 8 + (lane & 7u));
        // Not unrolled: compilers take long over large bodies.
        [[dont_unroll]] for (uint k = 0; k < 4; k++) {
            vec4 v[MAX_LOADS], nk = vec4(1.0);
            if (SUBGROUP >= 8)
                nk = norm_of(norms, k);
            else if (has_norm)
                nk = four_at(x.norm, unit * 8 + 2 * k + (lane & 1u));
            [[unroll]] for (uint i = 0; i < LOADS; i++) {
                v[i] = four_at(x.x, at[i] + unit * 8 + 2 * k);
                squares[i] += dot(v[i], v[i]);
                v[i] *= nk;
            }
            Eight w[8];
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                Matrix m = first;
                if (r >= ROWS / 2)
                    m = second;
                if (format == FORMAT_Q4) {
                    uvec2 pair = k < 2 ? q[r][0] : q[r][1];
                    w[r] = affine_eight(FORMAT_Q4, uvec2((k & 1u) == 0 ? pair.x : pair.y, 0), s[r], b[r]);
                } else {
                    w[r] = eight_plain(format, m, mine[r], unit * 4 + k, s[r], b[r]);
                }
            }
            [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                uint from = 2 * (t % PER_LOAD);
                vec4 ea = from_lane(v[t / PER_LOAD], from), eb = from_lane(v[t / PER_LOAD], from + 1);
                [[unroll]] for (uint r = 0; r < ROWS; r++)
                    acc[r * TOKENS + t] += dot(w[r].a, ea) + dot(w[r].b, eb);
            }
        }
    }
}

// acc[r * TOKENS + t] = row half_row(r) of this lane's half of the rows . the vector of token t of the tile: `first`
// from `row` on for r < ROWS / 2, `second` from `second_row` on for the others. factors[t] = 1 / sqrt(mean(x[t]^2) +
// eps). Rows past a matrix's last are computed from the last row. Both matrices have one format.
void multiply(out float acc[MAX_ACC], out float factors[16], Matrix first, Matrix second, uint row,
              uint second_row, Input x, float eps)
{
    float squares[MAX_LOADS];
    [[unroll]] for (uint i = 0; i < ROWS * TOKENS; i++)
        acc[i] = 0.0;
    [[unroll]] for (uint i = 0; i < LOADS; i++)
        squares[i] = 0.0;
    BY_FORMAT(first.format, multiply_as(acc, squares, FORMAT, first, second, row, second_row, x))
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        uint from = 2 * (t % PER_LOAD);
        float sum = subgroupShuffle(squares[t / PER_LOAD], from) + subgroupShuffle(squares[t / PER_LOAD], from + 1);
        factors[t] = addr_is_null(x.norm) ? 1.0 : inversesqrt(sum / float(first.cols) + eps);
    }
}

// The token (of the tile) of this invocation's t-th accumulators.
uint tile_token(uint t)
{
    return t;
}

#endif
