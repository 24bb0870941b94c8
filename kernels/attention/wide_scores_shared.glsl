// wide_scores_shared.glsl - attention/wide_scores.comp with queries, keys and scores in shared memory,
// for devices with any layout of matrices. A subgroup has 32 rows and 64 positions of the tile.

const uint KEYS = TILE * STRIDE;     // start of the keys
const uint S_STRIDE = STEP / 4 + 1;  // uvec4 of four scores

MatrixC acc[2][4];
uvec4 next_keys[4];

void fetch(uvec2 rows, uint from, uint step)
{
    uint row = gl_LocalInvocationID.x / 8, unit = step * 8 + gl_LocalInvocationID.x % 8;
    [[unroll]] for (uint i = 0; i < 4; i++)
        next_keys[i] = eight_at(rows, from, row + 32 * i, KEY_DIM, unit);
    fetch_queries(step);
}

void keep()
{
    uint at = gl_LocalInvocationID.x / 8 * STRIDE + gl_LocalInvocationID.x % 8;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        stage[at + 32 * i * STRIDE] = query_halves(i);
        stage[KEYS + at + 32 * i * STRIDE] = stored_halves(next_keys[i]);
    }
}

void multiply(uint row, uint col)
{
    [[unroll]] for (uint d = 0; d < 4; d++) {
        MatrixA q[2];
        MatrixB k;
        [[unroll]] for (uint i = 0; i < 2; i++)
            matrix_load(q[i], stage, (row + 16 * i) * STRIDE + 2 * d, STRIDE, BY_ROWS);
        [[unroll]] for (uint j = 0; j < 4; j++) {
            matrix_load(k, stage, KEYS + (col + 16 * j) * STRIDE + 2 * d, STRIDE, BY_COLUMNS);
            [[unroll]] for (uint i = 0; i < 2; i++)
                acc[i][j] = matrix_muladd(q[i], k, acc[i][j]);
        }
    }
}

void multiply_tile(uint from)
{
    uint row = gl_SubgroupID / 2 * 32, col = gl_SubgroupID % 2 * 64;
    uvec2 rows = key_rows(from);
    fetch(rows, from, 0);
    [[unroll]] for (uint i = 0; i < 2; i++)
        [[unroll]] for (uint j = 0; j < 4; j++)
            acc[i][j] = MatrixC(0.0);
    [[dont_unroll]] for (uint step = 0; step < STEPS; step++) {
        barrier();
        keep();
        barrier();
        if (step + 1 < STEPS)
            fetch(rows, from, step + 1);
        multiply(row, col);
    }
}

// Turns the scores of 64 positions, in shared memory, into weights. Two invocations share a row, one chunk
// each.
void weigh(uint from)
{
    uint mine = gl_LocalInvocationID.x / 2, part = gl_LocalInvocationID.x % 2;
    uint row = gl_WorkGroupID.y * TILE + mine, end = row_end(row);
    vec4 s[8];
    float m = LOWEST, l = 0.0;
    [[unroll]] for (uint i = 0; i < 8; i++) {
        uint p = from + part * CHUNK + 4 * i;
        s[i] = uintBitsToFloat(stage[mine * S_STRIDE + part * 8 + i]);
        s[i] = mix(vec4(LOWEST), s[i], lessThan(uvec4(p, p + 1, p + 2, p + 3), uvec4(end)));
        m = max(m, max(max(s[i].x, s[i].y), max(s[i].z, s[i].w)));
    }
    m = ceil(m);
    [[unroll]] for (uint i = 0; i < 8; i++) {
        s[i] = mix(vec4(0.0), exp2(s[i] - m), greaterThan(s[i], vec4(LOWEST)));
        l += s[i].x + s[i].y + s[i].z + s[i].w;
    }
    uint at = row * (a.width / UNIT) + (from + part * CHUNK) / UNIT;
    [[unroll]] for (uint i = 0; i < 4; i++)
        Eights(a.weights).v[at + i] = uvec4(packHalf2x16(s[2 * i].xy), packHalf2x16(s[2 * i].zw),
                                            packHalf2x16(s[2 * i + 1].xy), packHalf2x16(s[2 * i + 1].zw));
    Stats(a.chunks).v[(from / CHUNK + part) * a.rows + row] = vec2(m, l);
}

void weigh_tile(uint from)
{
    uint row = gl_SubgroupID / 2 * 32;
    [[unroll]] for (uint half_tile = 0; half_tile < 2; half_tile++) {
        barrier();
        if (gl_SubgroupID % 2 == half_tile)
            [[unroll]] for (uint i = 0; i < 2; i++)
                [[unroll]] for (uint j = 0; j < 4; j++)
                    matrix_store(acc[i][j], stage, (row + 16 * i) * S_STRIDE + 4 * j, S_STRIDE, BY_ROWS);
        barrier();
        weigh(from + half_tile * STEP);
    }
}
