// gemm_coop_blocks.glsl - gemm_coop.glsl's rows for matrices in one block format. The 32 columns that an
// invocation loads at a time are a part of dequant_blocks.glsl.

// Returns the number of the invocation's part of a row in the g-th 64 columns of a step.
uint part_of(uint from, uint g)
{
    return (from >> 5) + 2 * g + (gl_LocalInvocationID.x & 1u);
}

// Starts loading DEPTH columns of the invocation's rows from column `from` on. If a step is 64 columns, bytes
// that it shares with the one before stay.
void fetch_rows(const uint format, uint from, bool is_first)
{
    [[unroll]] for (uint i = 0; i < MY_ROWS; i++)
        [[unroll]] for (uint g = 0; g < GROUPS; g++)
            load_next_part(matrix_of[i], row_of[i], part_of(from, g), GROUPS == 1, next_run[i * GROUPS + g]);
}

// Stores the loaded columns, from `from` on, in shared memory.
void keep_rows(const uint format, uint from)
{
    [[unroll]] for (uint i = 0; i < MY_ROWS; i++) {
        uint tile_row = gl_LocalInvocationID.x / 2 + i * (WORKGROUP / 2);
        [[unroll]] for (uint g = 0; g < GROUPS; g++) {
            Part p = next_run[i * GROUPS + g];
            uint part = part_of(from, g) % PARTS;
            [[unroll]] for (uint j = 0; j < QUARTERS; j++) {
                uvec2 bytes = bytes_of(p.head, p.low[j], p.high[j], part, j);
                ws[tile_row * STRIDE + 8 * g + 4 * (gl_LocalInvocationID.x & 1u) + j] =
                    halves(eight_of(bytes, scales_of(p.head, part, j >> 1)));
            }
        }
    }
}
