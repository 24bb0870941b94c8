// few.glsl - gemv.glsl for the few vectors that chose one expert: up to TOKENS whole vectors lie in shared memory, and block
// after block of the expert's rows meets them. So a weight is loaded and unpacked once for all of them, and the next ones are
// on their way meanwhile.
//
// LANES lanes share a row, a subgroup has SUBGROUP / LANES rows side by side and ROWS of each matrix a lane. TILE: the columns.
// The order of a row's sum depends on LANES alone: neither on how many vectors there are nor on which.
#ifndef FEW_GLSL
#define FEW_GLSL

#include "lib/gemv.glsl"

layout(constant_id = 12) const uint LANES = 32; // a power of two; a row's pieces are a multiple of it
layout(constant_id = 13) const uint TURNS = 8;  // blocks of rows that a workgroup takes one after the other, at most

const uint TURN_ROWS = SUBGROUP / LANES * ROWS; // of a subgroup, of each matrix
const uint GROUP_ROWS = SUBGROUPS * TURNS * TURN_ROWS;

// Takes the sum of a row and vector t; with two matrices the second one's as well.
void store_row(uint row, uint t, float sum, float second_sum);

uint row_lane()
{
    return gl_SubgroupInvocationID % LANES;
}

// A lane's rows are this one and every SUBGROUP / LANES behind it.
uint turn_row(uint turn)
{
    return gl_WorkGroupID.x * GROUP_ROWS + (turn * SUBGROUPS + gl_SubgroupID) * TURN_ROWS + gl_SubgroupInvocationID / LANES;
}

// The blocks of this workgroup that have rows.
uint n_turns(uint rows)
{
    uint from = gl_WorkGroupID.x * GROUP_ROWS, each = SUBGROUPS * TURN_ROWS;
    return min(TURNS, (max(rows, from) - from + each - 1) / each);
}

void load_next(const uint format, Matrix m[MATRICES], uint turn, uint step)
{
    begin_step(next);
    [[unroll]] for (uint k = 0; k < MATRICES; k++)
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            load_piece(next, k * ROWS + r, format, m[k].weight, m[k].scales, m[k].biases,
                       min(turn_row(turn) + r * (SUBGROUP / LANES), m[k].rows - 1) * m[k].cols, step * LANES + row_lane());
}

// Ends the sums of a block and stores them.
void end_turn(inout float acc[MAX_ACC], const uint n, const uint width, uint turn, uint rows)
{
    const uint sums = MATRICES * ROWS * width, mine = sums > LANES ? sums / LANES : 1, each = sums > LANES ? 1 : LANES / sums;
    add_values(acc, sums, LANES);
    [[unroll]] for (uint i = 0; i < mine; i++) {
        float second = 0.0;
        if (MATRICES == 2) // the second half of the lanes has it, or this lane
            second = LANES == 1 ? acc[(i + sums / 2) % MAX_ACC] : subgroupShuffleXor(acc[i], LANES / 2);
        uint at = row_lane() / each * mine + i, row = turn_row(turn) + at / width * (SUBGROUP / LANES), t = at % width;
        if (at < ROWS * width && row_lane() % each == 0 && t < n && row < rows)
            store_row(row, t, acc[i], second);
    }
    [[unroll]] for (uint i = 0; i < sums; i++)
        acc[i] = 0.0;
}

// For n vectors, a constant.
void multiply_as(const uint format, const uint n, Matrix m[MATRICES])
{
    const uint width = n == 3 ? 4 : n;
    uint pieces = m[0].cols / (4 * piece_vecs(format)), piece = 0, turn = 0, turns = n_turns(m[0].rows);
    float acc[MAX_ACC];
    [[unroll]] for (uint i = 0; i < MATRICES * ROWS * width; i++)
        acc[i] = 0.0;
    [[dont_unroll]] while (turn < turns) {
        uint this_turn = turn, c4 = (piece + row_lane()) * piece_vecs(format);
        now = next;
        piece += LANES;
        if (piece == pieces) {
            piece = 0;
            turn++;
        }
        if (turn < turns)
            load_next(format, m, turn, piece / LANES);
        add_step_of(acc, format, n, width, true, now, c4);
        if (piece == 0)
            end_turn(acc, n, width, this_turn, m[0].rows);
    }
}

void multiply_by_count(const uint format, uint n, Matrix m[MATRICES])
{
    if (n == 1)
        multiply_as(format, 1, m);
    else if (TOKENS == 2 || n == 2)
        multiply_as(format, 2, m);
    else if (n == 3)
        multiply_as(format, 3, m);
    else
        multiply_as(format, 4, m);
}

// Asks for the first weights: before the barrier that publishes the vectors.
void begin_few(Matrix m[MATRICES])
{
    BY_FORMAT(m[0].format, load_next(FORMAT, m, 0, 0))
}

// The products with n <= TOKENS vectors. All invocations call it.
void multiply_few(Matrix m[MATRICES], uint n)
{
    BY_FORMAT(m[0].format, multiply_by_count(FORMAT, n, m))
}

#endif
