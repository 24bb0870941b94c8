// linear/decode_long.comp - linear/decode_token.comp for one matrix whose rows exceed shared memory:
//   y[r] (+)= f sum_c W[r][c] x[c] norm[c],   f = 1 / sqrt(mean x^2 + eps)
//   without norm: y[r] (+)= sum_c W[r][c] x[c]
//
// A workgroup computes SUBGROUPS * ROWS rows. COLS columns of the vector are in shared memory while the next
// ones are loaded. Lanes share a row's columns; each has its pieces in one sequence, with the next one always
// in flight. cols is a multiple of COLS. Grid: x = row blocks, y = tokens. float32 sums: pieces in order,
// then lanes. Tolerance 1e-5 of the largest output.
// variants: denorm q4 q8 bf16 f32
#version 460
#include "lib/memory.glsl"
#include "lib/gemv.glsl"

const uint COLS = TILE / 2;
const uint BRINGS = (COLS / 4 + WORKGROUP - 1) / WORKGROUP; // vec4s that an invocation loads

layout(constant_id = 11) const uint SEVERAL = 0; // 1: several tokens

layout(push_constant, std430) uniform Args { linear_decode_token_args a; };

uvec2 part_address(uint words)
{
    return addr_add(a.base + uvec2(0, words >> 30), words << 2);
}

vec4 x_next[BRINGS], norm_next[BRINGS];
bool has_norm;

void fetch_x(uint tile)
{
    [[unroll]] for (uint k = 0; k < BRINGS; k++) {
        uint i = tile * (COLS / 4) + min(k * WORKGROUP + gl_LocalInvocationID.x, COLS / 4 - 1);
        x_next[k] = F32x4s(a.x).v[(SEVERAL != 0 ? gl_WorkGroupID.y * (a.x_stride / 4) : 0) + i];
        norm_next[k] = vec4(1.0);
        if (has_norm)
            norm_next[k] = F32x4s(a.norm).v[i];
    }
}

// Returns this invocation's sum of squares.
float put_x(uint tile)
{
    float squares = 0.0;
    [[unroll]] for (uint k = 0; k < BRINGS; k++) {
        uint i = k * WORKGROUP + gl_LocalInvocationID.x;
        if (i < COLS / 4) {
            squares += dot(x_next[k], x_next[k]);
            xs_put(0, tile % 2 * (COLS / 4) + i, x_next[k] * norm_next[k]);
        }
    }
    return squares;
}

uint ahead_of; // the part of the rows that is loaded next, into `next`

// Past the last part it loads pieces that are in the caches (gemv_lanes.glsl says why without a condition).
void fetch_part(const uint format, uvec2 weight, uvec2 scales, uvec2 biases, uint start)
{
    uint piece =
        min(ahead_of * SUBGROUP + gl_SubgroupInvocationID, a.cols / (4 * piece_vecs(format)) - 1);
    begin_step(next);
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        load_piece(next, r, format, weight, scales, biases, (start + r) * a.cols, piece);
    ahead_of++;
}

// Returns this invocation's sum of squares.
float add_rows(const uint format, uint start, inout float acc[MAX_ACC])
{
    const uint vecs = piece_vecs(format), n_parts = COLS / (4 * vecs) / SUBGROUP;
    uvec2 weight = part_address(a.weight[0]), scales = part_address(a.scales[0]),
          biases = part_address(a.biases[0]);
    float squares = 0.0;
    ahead_of = 0;
    fetch_part(format, weight, scales, biases, start);
    fetch_x(0);
    [[dont_unroll]] for (uint tile = 0; tile < a.cols / COLS; tile++) {
        squares += put_x(tile);
        barrier(); // after this nobody reads the other half of xs
        if ((tile + 1) * COLS < a.cols)
            fetch_x(tile + 1);
        [[dont_unroll]] for (uint i = 0; i < n_parts; i++) {
            now = next;
            fetch_part(format, weight, scales, biases, start);
            add_step(acc, format, now,
                     tile % 2 * (COLS / 4) + (i * SUBGROUP + gl_SubgroupInvocationID) * vecs);
        }
    }
    return squares;
}

void main()
{
    uint rows = a.end_row[0], row = gl_WorkGroupID.x * SUBGROUPS * ROWS + block_row();
    uint start = block_start(row, rows), mine = start + lane_row(0);
    bool stores = lane_stores(0) && mine >= row && mine < rows;
    float acc[MAX_ACC], squares[4];
    has_norm = !addr_is_null(a.norm);
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        acc[r] = 0.0;
    uint at = (SEVERAL != 0 ? gl_WorkGroupID.y * a.y_stride : 0) + mine;
    float before = stores && LINEAR_TOKEN_ADDS(a.call) != 0 ? F32s(a.y).v[at] : 0.0;
    BY_FORMAT(LINEAR_TOKEN_FORMAT(a.call, 0), squares[0] = add_rows(FORMAT, start, acc))
    finish_product(acc);
    float factor = 1.0;
    if (has_norm) {
        share_sums(squares);
        barrier();
        factor = inversesqrt(shared_sum(0) / float(a.cols) + a.eps);
    }
    if (stores)
        F32s(a.y).v[at] = fma(acc[0], factor, before);
}
