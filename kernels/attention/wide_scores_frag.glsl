// wide_scores_frag.glsl - attention/wide_scores.comp on matrices in the known fragment layout
// (lib/fragment_layout.glsl). Keys are loaded into the registers where matrices have them, and scores become
// weights in place. A subgroup has 64 rows and 32 positions of the tile, one chunk.
//
// The order of a product's channels does not matter if both factors use the same one. Of each 64 channels
// lane q takes units q and q + 4, four channels for each of four matrices. The queries are stored to match:
// word q of a row of matrix 2 h + t, and then word q + 4, are channels 4 t .. 4 t + 3 of unit 4 h + q.

#include "lib/fragment_layout.glsl"

const uint QUERIES = TILE * STRIDE; // size of a step's queries; those of the next step follow

// The smallest m. In a chunk of which a row sees no position, LOWEST lies so far below it that all weights
// become 0.
const float NONE_SEEN = -1.0e30;

MatrixC acc[4][2];
uvec4 keys[4][2]; // units q and q + 4 of every eighth position

void fetch_keys(uvec2 rows, uint from, uint i, uint step, const uint h)
{
    [[unroll]] for (uint o = 0; o < 4; o++)
        keys[o][h] = eight_at(rows, from, i + 8 * o, KEY_DIM, step * 8 + 4 * h + frag_lane());
}

void keep_queries(uint place)
{
    uint unit = gl_LocalInvocationID.x % 8, at = place + gl_LocalInvocationID.x / 8 * STRIDE + unit / 4 * 4;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uvec4 q = query_halves(i);
        [[unroll]] for (uint word = 0; word < 4; word++)
            stage[at + 32 * i * STRIDE + word][unit % 4] = q[word];
    }
}

// Builds the matrices of the t-th four channels of units h, for 32 positions.
void keys_matrices(const uint h, const uint t, out MatrixB k[2])
{
    [[unroll]] for (uint o = 0; o < 4; o++)
        [[unroll]] for (uint word = 0; word < 2; word++) {
            f16vec2 two = unpackFloat2x16(keys[o][h][2 * t + word]);
            k[o / 2][4 * (o % 2) + 2 * word] = two.x;
            k[o / 2][4 * (o % 2) + 2 * word + 1] = two.y;
        }
}

void multiply_half(uint place, uint row, const uint h)
{
    [[unroll]] for (uint o = 0; o < 4; o++)
        keys[o][h] = stored_halves(keys[o][h]);
    [[unroll]] for (uint t = 0; t < 2; t++) {
        MatrixA q;
        MatrixB k[2];
        keys_matrices(h, t, k);
        [[unroll]] for (uint i = 0; i < 4; i++) {
            matrix_load(q, stage, place + (row + 16 * i) * STRIDE + 4 * h + 2 * t, STRIDE, BY_ROWS);
            [[unroll]] for (uint j = 0; j < 2; j++)
                acc[i][j] = matrix_muladd(q, k[j], acc[i][j]);
        }
    }
}

uint first_row()
{
    return gl_SubgroupID / 4 * 64;
}

uint first_position()
{
    return gl_SubgroupID % 4 * CHUNK;
}

void multiply_tile(uint from)
{
    uint mine = first_position() + frag_line();
    uvec2 rows = key_rows(from);
    fetch_queries(0);
    [[unroll]] for (uint h = 0; h < 2; h++)
        fetch_keys(rows, from, mine, 0, h);
    [[unroll]] for (uint i = 0; i < 4; i++)
        [[unroll]] for (uint j = 0; j < 2; j++)
            acc[i][j] = MatrixC(0.0);
    [[dont_unroll]] for (uint step = 0; step < STEPS; step++) {
        uint place = step % 2 * QUERIES, next = min(step + 1, STEPS - 1);
        keep_queries(place);
        barrier();
        fetch_queries(next);
        [[unroll]] for (uint h = 0; h < 2; h++) {
            multiply_half(place, first_row(), h);
            fetch_keys(rows, from, mine, next, h);
        }
    }
}

// Turns the scores of this lane's eight positions of both its rows (`row` and row + 8) into weights, in the
// order of the two matrices. Returns the rows' (m, l).
vec2[2] weigh(const uint i, uint from, uint row, out uvec4 weights[2])
{
    uvec2 end = uvec2(row_end(row), row_end(row + 8));
    float s[2][8];
    vec2 m = vec2(LOWEST), l = vec2(0.0);
    [[unroll]] for (uint j = 0; j < 2; j++)
        [[unroll]] for (uint e = 0; e < 8; e++) {
            s[j][e] = from + 16 * j + frag_col(e) < end[e / 4] ? acc[i][j][e] : LOWEST;
            m[e / 4] = max(m[e / 4], s[j][e]);
        }
    m = max(ceil(frag_max(m)), vec2(NONE_SEEN));
    [[unroll]] for (uint j = 0; j < 2; j++)
        [[unroll]] for (uint e = 0; e < 8; e += 2) {
            vec2 w = exp2(vec2(s[j][e], s[j][e + 1]) - m[e / 4]);
            l[e / 4] += w.x + w.y;
            weights[j][e / 2] = packHalf2x16(w);
        }
    l = frag_add(l);
    return vec2[2](vec2(m.x, l.x), vec2(m.y, l.y));
}

void weigh_tile(uint from)
{
    uint lane = gl_SubgroupInvocationID, first = gl_WorkGroupID.y * TILE + first_row();
    from += first_position();
    vec2 stats[4][2];
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uvec4 weights[2];
        stats[i] = weigh(i, from, first + 16 * i + frag_line(), weights);
        uint matrix = (first / 16 + i) * (a.width / 16) + from / 16;
        [[unroll]] for (uint j = 0; j < 2; j++)
            Eights(a.weights).v[(matrix + j) * 32 + lane] = weights[j];
    }
    // Every lane of a quad has all of them; each stores two.
    uint at = from / CHUNK * a.rows + first + frag_lane() * 16 + frag_line();
    [[unroll]] for (uint h = 0; h < 2; h++) {
        vec2 low = lane % 2 == 0 ? stats[0][h] : stats[1][h],
             high = lane % 2 == 0 ? stats[2][h] : stats[3][h];
        Stats(a.chunks).v[at + 8 * h] = frag_lane() < 2 ? low : high;
    }
}
