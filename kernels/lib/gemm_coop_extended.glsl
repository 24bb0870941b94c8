// gemm_coop_extended.glsl - gemm_coop.glsl's rows for matrices in one extended format. The scales and biases
// of an invocation's 32 columns are loaded together with them: one group, or two of 16 columns.
const uint RUN_GROUPS = GROUP_SHIFT == 4 ? 2 : 1, MAX_RUN_GROUPS = 2;
// The words that contain them.
uint next_scales[MY_ROWS * GROUPS * MAX_RUN_GROUPS], next_biases[MY_ROWS * GROUPS];

// Returns the number of the group that contains column `col` of the i-th row.
uint group_at(uint i, uint col)
{
    return row_of[i] * (matrix_of[i].cols >> GROUP_SHIFT) + (col >> GROUP_SHIFT);
}

// Returns the first of the invocation's columns in the g-th 64 columns of a step.
uint run_col(uint from, uint g)
{
    return from + 64 * g + 32 * (gl_LocalInvocationID.x & 1u);
}

// Starts loading DEPTH columns of the invocation's rows from column `from` on.
void fetch_rows(const uint format, uint from, bool is_first)
{
    [[unroll]] for (uint i = 0; i < MY_ROWS; i++)
        [[unroll]] for (uint g = 0; g < GROUPS; g++) {
            uint run = i * GROUPS + g, col = run_col(from, g), group = group_at(i, col);
            next_run[run] = load_run(format, matrix_of[i], row_of[i], col >> 5);
            if (HAS_SCALES)
                [[unroll]] for (uint k = 0; k < RUN_GROUPS; k++)
                    next_scales[MAX_RUN_GROUPS * run + k] = scale_word(matrix_of[i].scales, group + k);
            if (HAS_FACTOR)
                next_biases[run] = Words(matrix_of[i].biases).v[0];
            if (IS_AFFINE)
                next_biases[run] = scale_word(matrix_of[i].biases, group);
        }
}

// Stores the loaded columns, from `from` on, in shared memory.
void keep_rows(const uint format, uint from)
{
    [[unroll]] for (uint i = 0; i < MY_ROWS; i++) {
        uint tile_row = gl_LocalInvocationID.x / 2 + i * (WORKGROUP / 2);
        [[unroll]] for (uint g = 0; g < GROUPS; g++) {
            uint run = i * GROUPS + g, group = group_at(i, run_col(from, g));
            float s = 0.0, b = 0.0;
            if (IS_AFFINE)
                b = scale_in(next_biases[run], group);
            [[unroll]] for (uint j = 0; j < 4; j++) {
                uint k = RUN_GROUPS == 2 ? j / 2 : 0;
                if (HAS_SCALES)
                    s = scale_in(next_scales[MAX_RUN_GROUPS * run + k], group + k);
                if (HAS_FACTOR)
                    s *= uintBitsToFloat(next_biases[run]);
                ws[tile_row * STRIDE + 8 * g + 4 * (gl_LocalInvocationID.x & 1u) + j] =
                    halves_of(format, next_run[run], j, s, b);
            }
        }
    }
}
