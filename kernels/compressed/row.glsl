// row.glsl - what turn.comp and pool.comp share: the norm of a vector in shared memory, RoPE over its last
// ROTARY channels in pairs (2i, 2i + 1), and rows of the cache. Includers define SUBGROUP, WORKGROUP, DIM and
// ROTARY.
#include "lib/kv_store.glsl"

const uint SUBGROUPS = WORKGROUP / SUBGROUP;

shared float head[DIM];
shared float sums[SUBGROUPS];
shared vec4 staged[KV_TYPE == KV_Q8_0 ? DIM / 4 : 1];

vec4 staged_four(uint at)
{
    return staged[at];
}

// Returns 1 / rms of the vector, of which every invocation sees its own channels.
float unit_factor(float eps)
{
    float squares = 0.0;
    for (uint c = gl_LocalInvocationID.x; c < DIM; c += WORKGROUP)
        squares = fma(head[c], head[c], squares);
    squares = subgroupAdd(squares);
    if (gl_SubgroupInvocationID == 0)
        sums[gl_SubgroupID] = squares;
    barrier();
    squares = 0.0;
    for (uint i = 0; i < SUBGROUPS; i++)
        squares += sums[i];
    return inversesqrt(squares / float(DIM) + eps);
}

// Returns channels 2 * i and 2 * i + 1 of the vector times `factor` and the norm's weights, turned. angles:
// cosine and sine of each pair, from index `at` on.
vec2 turned_two(uint i, float factor, uvec2 norm, uvec2 angles, uint at)
{
    const uint first = (DIM - ROTARY) / 2;
    vec2 v = vec2(head[2 * i], head[2 * i + 1]) * factor;
    if (!addr_is_null(norm))
        v *= vec2(F32s(norm).v[2 * i], F32s(norm).v[2 * i + 1]);
    if (i < first)
        return v;
    float co = F32s(angles).v[at + 2 * (i - first)], si = F32s(angles).v[at + 2 * (i - first) + 1];
    float across = v.y * si, along = v.x * si;
    return vec2(fma(v.x, co, -across), fma(v.y, co, along));
}

// Stores channels 2 * i and 2 * i + 1 of a row of the cache; of q8_0 in shared memory.
void store_two(uvec2 row, uint i, vec2 v)
{
    if (KV_TYPE == KV_Q8_0) {
        if (i % 2 == 0)
            staged[i / 2].xy = v;
        else
            staged[i / 2].zw = v;
    } else if (KV_TYPE == KV_F16) {
        U32s(row).v[i] = halves2(v);
    } else {
        F32s(row).v[2 * i] = v.x;
        F32s(row).v[2 * i + 1] = v.y;
    }
}

// Ends a row whose channels are stored.
void end_row(uvec2 row)
{
    if (KV_TYPE != KV_Q8_0)
        return;
    barrier();
    store_staged(row, 0, DIM, gl_LocalInvocationID.x, WORKGROUP);
}
