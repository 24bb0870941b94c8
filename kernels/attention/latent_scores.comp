// attention/latent_scores.comp - the first pass of attention over latents (latent.glsl):
//   s = log2(e) scale q . k,  m = the largest of 64 positions,  weights = 2^(s - m),  l = sum of the weights
// Grid: x = tiles of 128 positions, y = tiles of 128 rows. Steps of 64 channels go through shared memory; while one is
// multiplied the next is on its way. Queries are rounded to float16, sums are float32. Tolerance 3e-3 after the merge.
#version 460
#include "attention/latent.glsl"

const uint STEPS = KEY_DIM / 64;
const uint STRIDE = 9;           // uvec4 of a row of a step: odd, so that neighbouring rows lie in different banks
const uint KEYS = TILE * STRIDE; // where the keys begin
const uint S_STRIDE = CHUNK / 4 + 1; // uvec4 of four scores
shared uvec4 stage[2 * TILE * STRIDE];

const float LOG2_E = 1.44269504;

uvec4 next_keys[4];
vec4 next_q[4][2];

uint halves2(vec2 v)
{
    return packHalf2x16(clamp(v, vec2(-65504.0), vec2(65504.0)));
}

// Asks for 64 channels: of every 32nd row a unit.
void ask(uvec2 rows, uint from, uint step)
{
    uint row = gl_LocalInvocationID.x / 8, unit = step * 8 + gl_LocalInvocationID.x % 8;
    [[unroll]] for (uint i = 0; i < 4; i++)
        next_keys[i] = latent_at(rows, from, row + 32 * i, unit);
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uint r = min(gl_WorkGroupID.y * TILE + row + 32 * i, a.n * a.n_heads - 1);
        uint at = (r / a.n_heads * a.q_stride + r % a.n_heads * KEY_DIM) / 4 + 2 * unit;
        next_q[i][0] = four_at(a.q, at);
        next_q[i][1] = four_at(a.q, at + 1);
    }
}

void keep()
{
    uint at = gl_LocalInvocationID.x / 8 * STRIDE + gl_LocalInvocationID.x % 8;
    float scale = a.scale * LOG2_E;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        vec4 x = next_q[i][0] * scale, y = next_q[i][1] * scale;
        stage[at + 32 * i * STRIDE] = uvec4(halves2(x.xy), halves2(x.zw), halves2(y.xy), halves2(y.zw));
        stage[KEYS + at + 32 * i * STRIDE] = next_keys[i];
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

// A chunk's scores, in shared memory, become weights: two invocations a row.
void weigh(uint from)
{
    uint mine = gl_LocalInvocationID.x / 2, part = gl_LocalInvocationID.x % 2;
    uint row = gl_WorkGroupID.y * TILE + mine, end = a.pos + min(row / a.n_heads, a.n - 1) + 1;
    vec4 s[8];
    float m = LOWEST, l = 0.0;
    [[unroll]] for (uint i = 0; i < 8; i++) {
        uint p = from + part * 32 + 4 * i;
        s[i] = uintBitsToFloat(stage[mine * S_STRIDE + part * 8 + i]);
        s[i] = mix(vec4(LOWEST), s[i], lessThan(uvec4(p, p + 1, p + 2, p + 3), uvec4(end)));
        m = max(m, max(max(s[i].x, s[i].y), max(s[i].z, s[i].w)));
    }
    m = max(m, subgroupShuffleXor(m, 1));
    [[unroll]] for (uint i = 0; i < 8; i++) {
        s[i] = mix(vec4(0.0), exp2(s[i] - m), greaterThan(s[i], vec4(LOWEST)));
        l += s[i].x + s[i].y + s[i].z + s[i].w;
    }
    l += subgroupShuffleXor(l, 1);
    uint at = row * (a.width / UNIT) + (from + part * 32) / UNIT;
    [[unroll]] for (uint i = 0; i < 4; i++)
        Eights(a.weights).v[at + i] = uvec4(packHalf2x16(s[2 * i].xy), packHalf2x16(s[2 * i].zw),
                                            packHalf2x16(s[2 * i + 1].xy), packHalf2x16(s[2 * i + 1].zw));
    if (part == 0)
        Stats(a.chunks).v[from / CHUNK * a.rows + row] = vec2(m, l);
}

void main()
{
    uint from = gl_WorkGroupID.x * TILE, row = gl_SubgroupID / 2 * 32, col = gl_SubgroupID % 2 * 64;
    uvec2 rows = latent_rows(from);
    ask(rows, from, 0);
    clear_sums();
    [[dont_unroll]] for (uint step = 0; step < STEPS; step++) {
        barrier();
        keep();
        barrier();
        if (step + 1 < STEPS)
            ask(rows, from, step + 1);
        multiply(row, col);
    }
    [[unroll]] for (uint chunk = 0; chunk < TILE / CHUNK; chunk++) {
        barrier();
        if (gl_SubgroupID % 2 == chunk)
            [[unroll]] for (uint i = 0; i < 2; i++)
                [[unroll]] for (uint j = 0; j < 4; j++)
                    matrix_store(acc[i][j], stage, (row + 16 * i) * S_STRIDE + 4 * j, S_STRIDE, BY_ROWS);
        barrier();
        weigh(from + chunk * CHUNK);
    }
}
