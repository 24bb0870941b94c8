// gemv.glsl - rows of quantised matrices times vectors in shared memory: the core of every product of few
// tokens.
//
// A block of ROWS rows (of each of MATRICES matrices, if a kernel needs two at once) meets TOKENS vectors.
// gemv_lanes.glsl has the products: lanes share rows, each takes pieces of 16 bytes, or of 32 columns of a
// block format.
//     fetch_product   starts loading the first weights of a tile; call it before the barrier that publishes
//                     the tile
//     add_product     adds the tile's products to the sums
//     finish_product  ends the sums; lane_row and lane_stores say which of them a lane has to store
// ROWS, TOKENS and MATRICES are powers of two.
#ifndef GEMV_GLSL
#define GEMV_GLSL

#ifndef MATRICES
#define MATRICES 1
#endif

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint ROWS = 1;   // ROWS * MATRICES is at most 4
layout(constant_id = 3) const uint TOKENS = 1; // 4 or fewer
// columns in shared memory at a time, a multiple of PRODUCT_COLS
layout(constant_id = 4) const uint TILE = 2048;
#ifdef ONLY_FORMAT
const uint FORMATS = 1u << ONLY_FORMAT;
#else
// bit f: some matrix of the dispatch is stored as FORMAT_f; EXTENDED, BLOCKS: a format's word
layout(constant_id = 5) const uint FORMATS = 0xffffffff;
#endif
// subgroups that share a block of rows, each with its part of the columns
layout(constant_id = 6) const uint SPLIT = 1;
// 0: a lane takes its pieces in a loop. Otherwise a row is one tile of TILE columns, of which a lane takes at
// most STEPS pieces in any format: all are loaded at once, and the loops are unrolled.
#if defined(EXTENDED) && !defined(DENORM)
const uint STEPS = 0;
#else
layout(constant_id = 7) const uint STEPS = 0;
#endif
// STREAM > 0 (with STEPS 0): a row is one tile that may be too long for a lane to hold its part. A workgroup
// takes STREAM consecutive blocks of rows. Each lane has its pieces of all of them in one sequence, with the
// next one always in flight. Many short rows may be taken in this way, too. All matrices have one format.
#if defined(EXTENDED) || defined(BLOCKS)
const uint STREAM = 0;
#else
layout(constant_id = 8) const uint STREAM = 0;
#endif
// 1: lanes have so few registers that loads to shared memory are in flight in smaller rounds
layout(constant_id = 9) const uint FEW_REGISTERS = 0;
const bool IS_WHOLE = STEPS > 0 || STREAM > 0; // a row is one tile

const uint SUBGROUPS = WORKGROUP / SUBGROUP;
const uint MAX_ROWS = 4, MAX_ACC = 16;

#define LARGE_BOOKS
#include "lib/dequant.glsl"
#include "lib/gemv_lanes.glsl"

// vec4s that an invocation loads at once when it copies a tile to shared memory
const uint MOST_LOADS = FEW_REGISTERS != 0 ? 4 : 8;
const uint LOADS = TILE > 4 * MOST_LOADS * WORKGROUP ? MOST_LOADS : (TILE / 4 + WORKGROUP - 1) / WORKGROUP;

shared float xs_sums[TOKENS * SUBGROUPS];

// Copies columns [from, from + 4 * n4) of vector t to shared memory, multiplied by the norm unless that is 0.
// at: first element of the vector in x. Returns this invocation's sum of their squares.
float put_vector(uint t, uvec2 x, uint at, uvec2 norm, uint from, uint n4)
{
    float squares = 0.0;
    bool has_norm = !addr_is_null(norm);
    if (IS_WHOLE && TILE / 4 == LOADS * WORKGROUP && WORKGROUP % 64 == 0) {
        // All addresses are at constant distances from this invocation's first.
        uint mine = gl_LocalInvocationID.x, to = xs_index(t, piece_vec(mine));
        uvec2 x_at = addr_add(x, 4 * at + 16 * mine), norm_at = addr_add(norm, 16 * mine);
        [[unroll]] for (uint k = 0; k < LOADS; k++) {
            vec4 v = F32x4s(x_at).v[k * WORKGROUP];
            squares += dot(v, v);
            if (has_norm)
                v *= F32x4s(norm_at).v[k * WORKGROUP];
            xs[to + k * WORKGROUP / 8] = v;
        }
        return squares;
    }
    const uint ROUND = FEW_REGISTERS != 0 && STEPS > 1 && LOADS > 2 ? 2 : LOADS;
    for (uint first = gl_LocalInvocationID.x; first < n4; first += ROUND * WORKGROUP) {
        vec4 v[ROUND], w[ROUND];
        [[unroll]] for (uint k = 0; k < ROUND; k++) {
            uint i = min(first + k * WORKGROUP, n4 - 1);
            v[k] = F32x4s(x).v[(at + from) / 4 + i];
            w[k] = vec4(1.0);
            if (has_norm)
                w[k] = F32x4s(norm).v[from / 4 + i];
        }
        [[unroll]] for (uint k = 0; k < ROUND; k++)
            if (first + k * WORKGROUP < n4) {
                squares += dot(v[k], v[k]);
                xs_put(t, first + k * WORKGROUP, v[k] * w[k]);
            }
    }
    return squares;
}

// Does the same for TOKENS vectors and adds to the sums of squares. All loads of a round start before the
// first one is used; the norm is loaded once for all.
void put_vectors(uvec2 x, uint at[4], uvec2 norm, uint from, uint n4, inout float squares[4])
{
    const uint MOST = (FEW_REGISTERS != 0 ? 8 : 16) / TOKENS, ROUND = LOADS < MOST ? LOADS : MOST;
    bool has_norm = !addr_is_null(norm);
    float sums[4];
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        sums[t] = 0.0;
    for (uint first = gl_LocalInvocationID.x; first < n4; first += ROUND * WORKGROUP) {
        vec4 v[ROUND * TOKENS], w[ROUND];
        [[unroll]] for (uint k = 0; k < ROUND; k++) {
            uint i = from / 4 + min(first + k * WORKGROUP, n4 - 1);
            w[k] = vec4(1.0);
            if (has_norm)
                w[k] = F32x4s(norm).v[i];
            [[unroll]] for (uint t = 0; t < TOKENS; t++)
                v[k * TOKENS + t] = F32x4s(x).v[at[t] / 4 + i];
        }
        [[unroll]] for (uint k = 0; k < ROUND; k++)
            if (first + k * WORKGROUP < n4)
                [[unroll]] for (uint t = 0; t < TOKENS; t++) {
                    vec4 u = v[k * TOKENS + t];
                    sums[t] += dot(u, u);
                    xs_put(t, first + k * WORKGROUP, u * w[k]);
                }
    }
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        squares[t] += sums[t];
}

// Adds up a value over the workgroup for each vector. All subgroups call it before a barrier, shared_sum
// after it.
void share_sums(float value[4])
{
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        float part = subgroupAdd(value[t]);
        if (gl_SubgroupInvocationID == 0)
            xs_sums[t * SUBGROUPS + gl_SubgroupID] = part;
    }
}

float shared_sum(uint t)
{
    float total = 0.0;
    [[unroll]] for (uint i = 0; i < SUBGROUPS; i++)
        total += xs_sums[t * SUBGROUPS + i];
    return total;
}

#endif
