// attention/latent_values.comp - the second pass of attention over latents (latent.glsl): over a split's positions
//   partial[t][h][split] = sum_p 2^(s_p - m) v_p,  stats = (m, l),  m the largest of the split's chunks
// The weights of a chunk are scaled by 2^(its m - m) and rounded to float16, sums are float32.
// Grid: x = pieces of 128 channels, y = n_splits, z = tiles of 128 rows. While a chunk is multiplied the next is on its way.
#version 460
#include "attention/latent.glsl"

const uint W_STRIDE = 9, V_STRIDE = 17; // uvec4 of a row: odd, so that neighbouring rows lie in different banks
const uint VALUES = TILE * W_STRIDE;    // where the values begin
shared uvec4 stage[TILE * W_STRIDE + CHUNK * V_STRIDE];
shared float tops[TILE];

uvec4 next_weights[4], next_values[4];
float next_tops[4];

uint first_row; // of the tile

uvec2 next_rows; // where the chunk that is asked for next begins

void find_rows(uint chunk, uint to)
{
    next_rows = latent_rows(min(chunk, to - 1) * CHUNK);
}

// Asks for a chunk: weights of every 32nd row, values of every 16th position.
void ask(uint chunk)
{
    uint id = gl_LocalInvocationID.x, from = chunk * CHUNK;
    uvec2 rows = next_rows;
    [[unroll]] for (uint i = 0; i < 4; i++)
        next_values[i] = latent_at(rows, from, id / 16 + 16 * i, gl_WorkGroupID.x * (TILE / UNIT) + id % 16);
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uint row = first_row + id / 8 + 32 * i;
        next_weights[i] = Eights(a.weights).v[(row * a.width + from) / UNIT + id % 8];
        next_tops[i] = Stats(a.chunks).v[chunk * a.rows + row].x;
    }
}

void keep()
{
    uint id = gl_LocalInvocationID.x;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uint row = id / 8 + 32 * i;
        float f = exp2(next_tops[i] - tops[row]);
        uvec4 w = next_weights[i];
        [[unroll]] for (uint j = 0; j < 4; j++)
            w[j] = packHalf2x16(unpackHalf2x16(w[j]) * f);
        stage[row * W_STRIDE + id % 8] = w;
        stage[VALUES + (id / 16 + 16 * i) * V_STRIDE + id % 16] = next_values[i];
    }
}

void multiply(uint row, uint col)
{
    [[unroll]] for (uint d = 0; d < CHUNK / 16; d++) {
        MatrixA w[2];
        MatrixB v;
        [[unroll]] for (uint i = 0; i < 2; i++)
            matrix_load(w[i], stage, (row + 16 * i) * W_STRIDE + 2 * d, W_STRIDE, BY_ROWS);
        [[unroll]] for (uint j = 0; j < 4; j++) {
            matrix_load(v, stage, VALUES + 16 * d * V_STRIDE + col / 8 + 2 * j, V_STRIDE, BY_ROWS);
            [[unroll]] for (uint i = 0; i < 2; i++)
                acc[i][j] = matrix_muladd(w[i], v, acc[i][j]);
        }
    }
}

// The split's (m, l) of each row.
void find_tops(uint from, uint to)
{
    const uint BATCH = 8; // chunks that are loaded at once
    uint mine = gl_LocalInvocationID.x, row = first_row + mine;
    if (mine >= TILE)
        return;
    float m = LOWEST, l = 0.0;
    for (uint c = from; c < to; c += BATCH) {
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
        Stats(a.partial).v[a.rows * a.n_splits * (VALUE_DIM / 2) + row * a.n_splits + gl_WorkGroupID.y] = vec2(m, l);
}

void main()
{
    uint n_chunks = last_position() / CHUNK + 1;
    uint from = min(gl_WorkGroupID.y * a.share, n_chunks), to = min(from + a.share, n_chunks);
    uint row = gl_SubgroupID / 2 * 32, col = gl_SubgroupID % 2 * 64;
    first_row = gl_WorkGroupID.z * TILE;
    if (from < to) {
        find_rows(from, to);
        ask(from);
        find_rows(from + 1, to);
    }
    find_tops(from, to);
    clear_sums();
    for (uint chunk = from; chunk < to; chunk++) {
        barrier();
        keep();
        barrier();
        if (chunk + 1 < to) {
            ask(chunk + 1);
            find_rows(chunk + 2, to);
        }
        multiply(row, col);
    }
    uint at = ((first_row + row) * a.n_splits + gl_WorkGroupID.y) * VALUE_DIM + gl_WorkGroupID.x * TILE + col;
    [[unroll]] for (uint i = 0; i < 2; i++)
        [[unroll]] for (uint j = 0; j < 4; j++)
            matrix_store(acc[i][j], F32s(a.partial).v, at + 16 * i * a.n_splits * VALUE_DIM + 16 * j,
                           a.n_splits * VALUE_DIM, BY_ROWS);
}
