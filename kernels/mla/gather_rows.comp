// mla/gather_rows.comp - copies rows of the cache of latent attention for the products that make keys and
// values: the latents, contiguous, and the rotary key, which all heads share, to its place in each head's
// key.
//   latent[p] = row_p[0 .. latent_dim),  keys[p][h][nope_dim ..) = row_p[latent_dim ..)
// TYPE chooses float32 or float16. Grid: x = positions. Exact unless it rounds to float16.
#version 460
#include "lib/memory.glsl"
#include "lib/kv_cache.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint TYPE = KV_F32;

layout(push_constant, std430) uniform Args { mla_gather_rows_args a; };

// Stores channels 4 * i .. of what begins at dst.
void put_four(uvec2 dst, uint i, vec4 v)
{
    if (TYPE == KV_F32) {
        F32x4s(dst).v[i] = v;
        return;
    }
    v = clamp(v, vec4(-65504.0), vec4(65504.0));
    Pairs(dst).v[i] = uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw));
}

void main()
{
    uint p = gl_WorkGroupID.x, latent = a.latent_dim / 4, rope = a.rope_dim / 4;
    uint nope = a.nope_dim / 4, key = nope + rope, dim = a.latent_dim + a.rope_dim;
    uvec2 row = key_cache_row(a.blocks, a.layer_off, a.pos + p, 0, 1, dim);
    for (uint i = gl_LocalInvocationID.x; i < latent; i += WORKGROUP)
        put_four(a.latent, p * latent + i, cache_four(row, dim, i));
    for (uint i = gl_LocalInvocationID.x; i < a.n_heads * rope; i += WORKGROUP)
        put_four(a.keys, (p * a.n_heads + i / rope) * key + nope + i % rope,
                 cache_four(row, dim, latent + i % rope));
}
