// attention/wide.glsl - attention with more channels than attention/prefill.comp's registers hold, on
// cooperative matrices, in two passes (wide_scores.comp, wide_values.comp). A row is a (token, head) of the
// heads that read one key/value head: 128 rows meet each position that is loaded. With LATENT that is all
// heads, and a key's first VALUE_DIM channels are its value.
// Between the passes lie:
//   weights  f16 = 2^(s - m) of `rows` x `width` (row, position) pairs; 0 for positions that a row does not
//            see
//   chunks   f32 [width / CHUNK][rows][2] = (m, l) of each row and CHUNK positions. m is the largest score in
//            powers of two, rounded up to a whole number, so that rescaling the weights of two chunks to one
//            m is exact. l is the sum of the weights
// rows and width are multiples of 128; rows past the last are computed but not used.
//
// The weights are stored as [row][position]. Where FRAG is defined (kernels named X_fragcoop) they are [row /
// 16][position / 16][lane], eight of a 16 x 16 matrix for each lane: on devices whose matrices have the known
// fragment layout (lib/fragment_layout.glsl) the second pass needs them in this order.
#ifndef ATTENTION_WIDE_GLSL
#define ATTENTION_WIDE_GLSL

#include "lib/memory.glsl"
#include "lib/kv_cache.glsl"
#include "lib/matrices.glsl"

layout(local_size_x = 256) in; // eight subgroups of 32 lanes
layout(constant_id = 2) const uint KEY_DIM = 576; // a multiple of 64
layout(constant_id = 3) const uint VALUE_DIM = 512; // a multiple of 128
layout(constant_id = 5) const uint LATENT = 1;

layout(push_constant, std430) uniform Args { attention_wide_args a; };

// eight halves in each element
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Eights { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Stats { vec2 v[]; };

const uint TILE = 128;  // rows, and positions or channels, of a workgroup
const uint STEP = 64;   // channels, or positions, that are multiplied at once
const uint CHUNK = 32;  // positions that share a row's m
const uint UNIT = 8;    // channels, or positions, in 16 bytes
const float LOWEST = -3.0e38; // finite, so that a difference of two is never NaN

// Returns the last position in the cache.
uint last_position()
{
    return a.pos + a.n - 1;
}

const uint VALUE_ROW_DIM = LATENT != 0 ? KEY_DIM : VALUE_DIM; // numbers of the row that has the value

// Returns channels 8 * unit .. of the i-th row of a tile that begins at position `from`, as they are stored;
// rows past the last repeat it. A tile lies in one block of the cache. dim: the row's numbers.
uvec4 eight_at(uvec2 rows, uint from, uint i, uint dim, uint unit)
{
    i = min(from + i, last_position()) - from;
    return stored_eight(addr_add(rows, i * a.n_kv_heads * row_bytes(dim)), dim, unit);
}

// Return the first row of a tile.
uvec2 key_rows(uint from)
{
    return key_cache_row(a.blocks, a.layer_off, from, a.kv_head, a.n_kv_heads, KEY_DIM);
}

uvec2 value_rows(uint from)
{
    if (LATENT != 0)
        return key_rows(from);
    return value_cache_row(a.blocks, a.layer_off, from, a.kv_head, a.n_kv_heads, KEY_DIM, VALUE_DIM);
}

#endif
