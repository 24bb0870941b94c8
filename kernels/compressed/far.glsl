// far.glsl - where compressed rows lie in the cache. Includers define DIM and RATIO and include
// lib/kv_cache.glsl.

// Returns the address of block b's row: it lies in the cache block that has the block's first position.
uvec2 far_row(uvec2 blocks, uint layer_off, uint b)
{
    uint p = b * RATIO, row = (p & ((1u << KV_BLOCK_SHIFT) - 1)) / max(RATIO, 1);
    return addr_add(Addrs(blocks).v[p >> KV_BLOCK_SHIFT], layer_off + row * row_bytes(DIM));
}
