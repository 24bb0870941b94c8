// wide_values_shared.glsl - attention/wide_values.comp with the weights in shared memory, too, for
// devices with any layout of matrices.

const uint WEIGHTS = V_SIZE; // start of the weights

uvec4 next_weights[4];
float next_tops[4];

// Starts loading the weights of every 32nd row.
void fetch_weights(uint step)
{
    uint id = gl_LocalInvocationID.x, chunk = step * (STEP / CHUNK) + id % 8 / (CHUNK / UNIT);
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uint row = first_row + id / 8 + 32 * i;
        next_weights[i] = Eights(a.weights).v[(row * a.width + step * STEP) / UNIT + id % 8];
        next_tops[i] = Stats(a.chunks).v[chunk * a.rows + row].x;
    }
}

void keep_weights()
{
    uint id = gl_LocalInvocationID.x;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uint row = id / 8 + 32 * i;
        float f = exp2(next_tops[i] - tops[row]);
        uvec4 w = next_weights[i];
        [[unroll]] for (uint j = 0; j < 4; j++)
            w[j] = scaled(w[j], f);
        stage[WEIGHTS + row * W_STRIDE + id % 8] = w;
    }
}

void multiply_step(uint step, uint to)
{
    barrier();
    keep_weights();
    keep_values(0);
    barrier();
    if (step + 1 < to) {
        fetch_values(step + 1);
        fetch_weights(step + 1);
        find_rows(step + 2, to);
    }
    [[unroll]] for (uint d = 0; d < STEP / 16; d++) {
        MatrixA w[2];
        MatrixB v;
        [[unroll]] for (uint i = 0; i < 2; i++)
            matrix_load(w[i], stage, WEIGHTS + (subgroup_row() + 16 * i) * W_STRIDE + 2 * d, W_STRIDE,
                        BY_ROWS);
        [[unroll]] for (uint j = 0; j < 4; j++) {
            matrix_load(v, stage, 16 * d * V_STRIDE + subgroup_col() / 8 + 2 * j, V_STRIDE, BY_ROWS);
            [[unroll]] for (uint i = 0; i < 2; i++)
                acc[i][j] = matrix_muladd(w[i], v, acc[i][j]);
        }
    }
}
