// wide_values_frag.glsl - attention/wide_values.comp on matrices in the known fragment layout
// (lib/fragment_layout.glsl). Weights are loaded into the registers where matrices have them; the values of
// every second step go to the second half of shared memory.

#include "lib/fragment_layout.glsl"

const uint N_CHUNKS = STEP / CHUNK;

uvec4 weights[2][STEP / 16];    // 16 rows and 16 positions each
float chunk_tops[N_CHUNKS][4];  // every eighth row

// Starts loading the weights of the d-th 16 positions of a step.
void fetch_matrices(uint step, const uint d)
{
    uint row = first_row + subgroup_row(), position = step * STEP + 16 * d;
    [[unroll]] for (uint i = 0; i < 2; i++)
        weights[i][d] =
            Eights(a.weights).v[((row / 16 + i) * (a.width / 16) + position / 16) * 32 +
                                gl_SubgroupInvocationID];
}

void fetch_tops(uint step)
{
    uint row = first_row + subgroup_row() + frag_line();
    [[unroll]] for (uint c = 0; c < N_CHUNKS; c++)
        [[unroll]] for (uint i = 0; i < 4; i++)
            chunk_tops[c][i] = Stats(a.chunks).v[(step * N_CHUNKS + c) * a.rows + row + 8 * i].x;
}

void fetch_weights(uint step)
{
    [[unroll]] for (uint d = 0; d < STEP / 16; d++)
        fetch_matrices(step, d);
    fetch_tops(step);
}

// low, high: factors of rows 0 to 7 and 8 to 15.
MatrixA scaled_matrix(uvec4 w, float low, float high)
{
    MatrixA m;
    [[unroll]] for (uint word = 0; word < 4; word++) {
        f16vec2 two = unpackFloat2x16(scaled(w[word], word < 2 ? low : high));
        m[2 * word] = two.x;
        m[2 * word + 1] = two.y;
    }
    return m;
}

void multiply_step(uint step, uint to)
{
    uint values = step % 2 * V_SIZE, next = min(step + 1, to - 1);
    float f[N_CHUNKS][4];
    keep_values(values);
    [[unroll]] for (uint c = 0; c < N_CHUNKS; c++)
        [[unroll]] for (uint i = 0; i < 4; i++)
            f[c][i] = exp2(chunk_tops[c][i] - tops[subgroup_row() + frag_line() + 8 * i]);
    barrier();
    fetch_values(next);
    fetch_tops(next);
    find_rows(step + 2, to);
    [[unroll]] for (uint d = 0; d < STEP / 16; d++) {
        const uint c = 16 * d / CHUNK;
        MatrixA w[2];
        [[unroll]] for (uint i = 0; i < 2; i++)
            w[i] = scaled_matrix(weights[i][d], f[c][2 * i], f[c][2 * i + 1]);
        fetch_matrices(next, d);
        [[unroll]] for (uint j = 0; j < 4; j++) {
            MatrixB v;
            matrix_load(v, stage, values + 16 * d * V_STRIDE + subgroup_col() / 8 + 2 * j, V_STRIDE, BY_ROWS);
            [[unroll]] for (uint i = 0; i < 2; i++)
                acc[i][j] = matrix_muladd(w[i], v, acc[i][j]);
        }
    }
}
