// attention/wide_values.comp - the second pass of attention over wide rows (wide.glsl), over a split's
// positions:
//   partial[t][h][split] = sum_p 2^(s_p - m) v_p,  stats = (m, l),  m the largest of the split's chunks
// A chunk's weights are scaled by 2^(its m - m) in float16, which is exact except for values near 0; sums are
// float32.
// Grid: x = pieces of 128 channels, y = n_splits, z = tiles of 128 rows. While STEP positions are multiplied,
// the next ones are loaded. A subgroup has 32 rows and 64 channels of the tile. Tolerance 3e-3 after the
// merge.
// variants: coop fragcoop
#version 460
#include "attention/wide.glsl"

// uvec4 of a position: odd, so that neighbouring positions lie in different banks
const uint V_STRIDE = TILE / UNIT + 1;
const uint V_SIZE = STEP * V_STRIDE, W_STRIDE = STEP / UNIT + 1;
// A step's values, then its weights or (FRAG) the next step's values, which are fewer.
shared uvec4 stage[V_SIZE + TILE * W_STRIDE];
shared float tops[TILE];

MatrixC acc[2][4];
uvec4 next_values[4];
uint first_row; // first row of the tile
uvec2 next_rows; // address of the positions that are loaded next

void find_rows(uint step, uint to)
{
    next_rows = value_rows(min(step, to - 1) * STEP);
}

// Starts loading the values of every 16th position of a step.
void fetch_values(uint step)
{
    uint id = gl_LocalInvocationID.x, unit = gl_WorkGroupID.x * (TILE / UNIT) + id % 16;
    [[unroll]] for (uint i = 0; i < 4; i++)
        next_values[i] = eight_at(next_rows, step * STEP, id / 16 + 16 * i, VALUE_ROW_DIM, unit);
}

uint subgroup_row()
{
    return gl_SubgroupID / 2 * 32;
}

uint subgroup_col()
{
    return gl_SubgroupID % 2 * 64;
}

void keep_values(uint at)
{
    uint id = gl_LocalInvocationID.x;
    [[unroll]] for (uint i = 0; i < 4; i++)
        stage[at + (id / 16 + 16 * i) * V_STRIDE + id % 16] = stored_halves(next_values[i]);
}

// Scales two weights of a row to its split's m.
uint scaled(uint weights, float factor)
{
    return packFloat2x16(unpackFloat2x16(weights) * float16_t(factor));
}

#ifdef FRAG
#include "attention/wide_values_frag.glsl"
#else
#include "attention/wide_values_shared.glsl"
#endif

// Computes the split's (m, l) of each row.
void find_tops(uint from, uint to)
{
    const uint BATCH = 8; // chunks that are loaded at once
    uint mine = gl_LocalInvocationID.x, row = first_row + mine;
    if (mine >= TILE)
        return;
    float m = LOWEST, l = 0.0;
    [[dont_unroll]] for (uint c = from; c < to; c += BATCH) {
        vec2 s[BATCH];
        float top = m;
        [[unroll]] for (uint i = 0; i < BATCH; i++)
            s[i] = Stats(a.chunks).v[min(c + i, to - 1) * a.rows + row];
        [[unroll]] for (uint i = 0; i < BATCH; i++)
            top = max(top, s[i].x);
        l *= exp2(m - top);
        m = top;
        [[unroll]] for (uint i = 0; i < BATCH; i++)
            l += c + i < to ? s[i].y * exp2(s[i].x - m) : 0.0;
    }
    tops[mine] = m;
    if (gl_WorkGroupID.x == 0)
        Stats(a.partial).v[a.rows * a.n_splits * (VALUE_DIM / 2) + row * a.n_splits + gl_WorkGroupID.y] =
            vec2(m, l);
}

// Stores through shared memory, so that a subgroup writes whole lines. In the order of the matrices it would
// write 32 bytes of each line, which takes an H100 as long as the rest of the kernel.
void store_sums()
{
    uint own = gl_SubgroupID * 16 * V_STRIDE, lane = gl_SubgroupInvocationID;
    uint row = first_row + subgroup_row(), col = gl_WorkGroupID.x * TILE + subgroup_col();
    barrier();
    [[unroll]] for (uint i = 0; i < 2; i++) {
        [[unroll]] for (uint j = 0; j < 4; j++)
            matrix_store(acc[i][j], stage, own + 4 * j, V_STRIDE, BY_ROWS);
        subgroupBarrier();
        [[unroll]] for (uint k = 0; k < 16; k += 2) {
            uint r = k + lane / 16,
                 at = ((row + 16 * i + r) * a.n_splits + gl_WorkGroupID.y) * VALUE_DIM + col;
            Eights(a.partial).v[at / 4 + lane % 16] = stage[own + r * V_STRIDE + lane % 16];
        }
        subgroupBarrier();
    }
}

void main()
{
    uint n_steps = last_position() / STEP + 1;
    uint from = min(gl_WorkGroupID.y * a.share, n_steps), to = min(from + a.share, n_steps);
    first_row = gl_WorkGroupID.z * TILE;
    if (from < to) {
        find_rows(from, to);
        fetch_values(from);
        fetch_weights(from);
        find_rows(from + 1, to);
    }
    find_tops(from * (STEP / CHUNK), to * (STEP / CHUNK));
    [[unroll]] for (uint i = 0; i < 2; i++)
        [[unroll]] for (uint j = 0; j < 4; j++)
            acc[i][j] = MatrixC(0.0);
    barrier();
    // NVIDIA's driver would unroll the loop four times: 53 KB of code instead of 15. A model's other kernels
    // evict that from the instruction cache before each call (H100: 24 us instead of 17).
    [[dont_unroll]] for (uint step = from; step < to; step++)
        multiply_step(step, to);
    store_sums();
}
