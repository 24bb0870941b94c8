// gemm_coop.glsl - gemm.glsl on cooperative matrices.
//
// The inputs are float16 with their norm applied (cast_f16.comp), the weights are rounded to float16. Both
// are multiplied 16 x 16 x 16 at a time (matrices.glsl), sums in float32. While a step is multiplied, the
// next one is loaded. Two invocations load a row: each loads 32 neighbouring columns at a time, and the
// scales and biases of eight groups at once, because with few tokens a product waits for its weights.
// gemm_coop_extended.glsl has the loads of extended formats, gemm_coop_blocks.glsl those of block formats.
#ifndef GEMM_COOP_GLSL
#define GEMM_COOP_GLSL

#include "lib/halves.glsl"
#include "lib/matrices.glsl"

// Subgroups of 32 lanes, each with ROWS x ACROSS matrices of sums.
const uint ALONG_ROWS = WORKGROUP / 32 / ALONG;
const uint ACROSS = TOKENS / 8;
const uint BLOCK_ROWS = 16 * ROWS * ALONG_ROWS;
const uint TILE_TOKENS = 16 * ACROSS * ALONG;
// Stride in uvec4 of eight halves: odd, so that neighbouring rows lie in different banks.
const uint STRIDE = DEPTH / 8 + 1;
shared uvec4 ws[BLOCK_ROWS * STRIDE];
shared uvec4 xs[TILE_TOKENS * STRIDE];
shared float sums[8 * WORKGROUP]; // one matrix for each subgroup

// Returns the row of this invocation's r-th accumulator in its half of the block.
uint half_row(uint r)
{
    return gl_SubgroupID % ALONG_ROWS * (8 * ROWS) + r % (ROWS / 2) * 16 + gl_SubgroupInvocationID % 16;
}

// Returns what the lane with the next row has; for even rows.
float next_row(float v)
{
    return subgroupShuffleXor(v, 1);
}

// Rows are stored in order.
float next_stored(float v)
{
    return next_row(v);
}

uint tile_token(uint t)
{
    return gl_SubgroupID / ALONG_ROWS * (16 * ACROSS) + t / 8 * 16 + t % 8 * 2 + gl_SubgroupInvocationID / 16;
}

const uint X_UNITS = TILE_TOKENS * DEPTH / 8;
const uint MY_X = X_UNITS / WORKGROUP; // units of an invocation
// MY_ROWS: rows of an invocation. GROUPS: 64-column parts of a step; the invocation has the first or the
// second half of each. A quantisation group is one half, or one or two whole parts.
const uint MY_ROWS = 2 * BLOCK_ROWS / WORKGROUP, GROUPS = DEPTH / 64;

MatrixC sum_of[ROWS][ACROSS];

void multiply_step(uint rows, uint tokens)
{
    [[unroll]] for (uint k = 0; k < DEPTH / 16; k++) {
        MatrixB v[ACROSS];
        [[unroll]] for (uint j = 0; j < ACROSS; j++)
            matrix_load(v[j], xs, (tokens + 16 * j) * STRIDE + 2 * k, STRIDE, BY_COLUMNS);
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            MatrixA w;
            uint row = i / (ROWS / 2) * (BLOCK_ROWS / 2) + rows + i % (ROWS / 2) * 16;
            matrix_load(w, ws, row * STRIDE + 2 * k, STRIDE, BY_ROWS);
            [[unroll]] for (uint j = 0; j < ACROSS; j++)
                sum_of[i][j] = matrix_muladd(w, v[j], sum_of[i][j]);
        }
    }
}

// What an invocation has loaded for the next step: vectors, rows.
uvec4 next_x[MY_X];
Run next_run[MY_ROWS * GROUPS];
Matrix matrix_of[MY_ROWS];
uint row_of[MY_ROWS];

void choose_rows(Matrix first, Matrix second, uint row, uint second_row)
{
    [[unroll]] for (uint i = 0; i < MY_ROWS; i++) {
        uint tile_row = gl_LocalInvocationID.x / 2 + i * (WORKGROUP / 2);
        bool in_first = tile_row < BLOCK_ROWS / 2;
        matrix_of[i] = first;
        if (!in_first)
            matrix_of[i] = second;
        row_of[i] = min(in_first ? row + tile_row : second_row + tile_row - BLOCK_ROWS / 2,
                        matrix_of[i].rows - 1);
    }
}

#ifdef EXTENDED
#include "lib/gemm_coop_extended.glsl"
#elif defined(BLOCKS)
#include "lib/gemm_coop_blocks.glsl"
#else

// Returns eight groups' scales or biases: words 4 * i .. of their array, whose last word is `last`.
uvec4 load_groups(uvec2 p, uint i, uint last)
{
    uvec4 v;
    [[unroll]] for (uint j = 0; j < 4; j++)
        v[j] = Words(p).v[min(4 * i + j, last)];
    return v;
}

float group_of(uvec4 v, uint i)
{
    uint pair = (i & 4u) == 0 ? ((i & 2u) == 0 ? v.x : v.y) : ((i & 2u) == 0 ? v.z : v.w);
    return uintBitsToFloat((i & 1u) == 0 ? pair << 16 : pair & 0xffff0000u);
}

uvec4 scales[MY_ROWS], biases[MY_ROWS]; // eight groups each; they contain the step's

// Starts loading DEPTH columns of the invocation's rows from column `from` on. is_first: this is the first
// step.
void fetch_rows(const uint format, uint from, bool is_first)
{
    [[unroll]] for (uint i = 0; i < MY_ROWS; i++) {
        Matrix m = matrix_of[i];
        uint shift = format_group_shift(format), groups = m.cols >> shift,
             at = row_of[i] * groups + (from >> shift);
        if (format_is_affine(format) && (is_first || (at & 7u) == 0)) {
            uint last = (m.rows * groups - 1) >> 1;
            scales[i] = load_groups(m.scales, at >> 3, last);
            biases[i] = load_groups(m.biases, at >> 3, last);
        }
        [[unroll]] for (uint g = 0; g < GROUPS; g++)
            next_run[i * GROUPS + g] =
                load_run(format, m, row_of[i], (from >> 5) + 2 * g + (gl_LocalInvocationID.x & 1u));
    }
}

// Stores the loaded columns, from `from` on, in shared memory.
void keep_rows(const uint format, uint from)
{
    [[unroll]] for (uint i = 0; i < MY_ROWS; i++) {
        uint tile_row = gl_LocalInvocationID.x / 2 + i * (WORKGROUP / 2);
        uint shift = format_group_shift(format),
             at = row_of[i] * (matrix_of[i].cols >> shift) + (from >> shift);
        [[unroll]] for (uint g = 0; g < GROUPS; g++) {
            uint group = at + (64 * g >> shift) + (shift < 6 ? gl_LocalInvocationID.x & 1u : 0);
            float s = group_of(scales[i], group), b = group_of(biases[i], group);
            [[unroll]] for (uint j = 0; j < 4; j++)
                ws[tile_row * STRIDE + 8 * g + 4 * (gl_LocalInvocationID.x & 1u) + j] =
                    halves_of(format, next_run[i * GROUPS + g], j, s, b);
        }
    }
}

#endif

void multiply_as(const uint format, Matrix first, Matrix second, uint row, uint second_row, Input x)
{
    // rows: the subgroup's first row, in both halves of the block.
    uint rows = gl_SubgroupID % ALONG_ROWS * (8 * ROWS), tokens = gl_SubgroupID / ALONG_ROWS * (16 * ACROSS);
    uint id = gl_LocalInvocationID.x, at[MY_X];
    bool has_tokens = tokens < input_tokens(); // some subgroups of a partly filled tile have no tokens
    [[unroll]] for (uint i = 0; i < MY_X; i++) {
        uint u = id + i * WORKGROUP;
        at[i] = input_row(u / (DEPTH / 8)) / 8 + u % (DEPTH / 8);
        next_x[i] = Halves(x.x).v[at[i]];
    }
    choose_rows(first, second, row, second_row);
    fetch_rows(format, 0, true);
    fill_book(book_address());

    for (uint from = 0; from < first.cols; from += DEPTH) {
        barrier();
        [[unroll]] for (uint i = 0; i < MY_X; i++)
            xs[(id + i * WORKGROUP) / (DEPTH / 8) * STRIDE + id % (DEPTH / 8)] = next_x[i];
        keep_rows(format, from);
        barrier();
        // The last step loads itself again; a branch would cost more.
        uint next = min(from + DEPTH, first.cols - DEPTH);
        [[unroll]] for (uint i = 0; i < MY_X; i++)
            next_x[i] = Halves(x.x).v[at[i] + next / 8];
        fetch_rows(format, next, false);
        if (has_tokens)
            multiply_step(rows, tokens);
    }
}

// The factors are already applied.
void multiply(out float factors[16], Matrix first, Matrix second, uint row, uint second_row, Input x,
              float eps)
{
    [[unroll]] for (uint i = 0; i < ROWS; i++)
        [[unroll]] for (uint j = 0; j < ACROSS; j++)
            sum_of[i][j] = MatrixC(0.0);
    BY_FORMAT(first.format, multiply_as(FORMAT, first, second, row, second_row, x))
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        factors[t] = 1.0;
}

const uint PART = 8;

bool has_sums()
{
    return true;
}

void take(uint j)
{
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        subgroupBarrier();
        matrix_store(sum_of[i][j], sums, gl_SubgroupID * 256, 16, BY_COLUMNS);
        subgroupBarrier();
        [[unroll]] for (uint t = 0; t < PART; t++)
            acc[i * PART + t] = sums[gl_SubgroupID * 256 + 32 * t + gl_SubgroupInvocationID];
    }
}

#endif
