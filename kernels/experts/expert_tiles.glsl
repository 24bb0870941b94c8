// expert_tiles.glsl - this workgroup's tile of experts/prefill_sort.comp. The includer defines Args `a` with
// rows and tiles.
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Tiles { uvec4 v[]; };

bool tile_is_there()
{
    return gl_WorkGroupID.y < Tiles(a.tiles).v[0].x;
}

// Returns (expert, first of rows, number of pairs, 0).
uvec4 this_tile()
{
    return Tiles(a.tiles).v[1 + gl_WorkGroupID.y];
}

// Returns the pair token * slots + slot of token t of the tile; tokens past the last repeat it.
uint tile_pair(uvec4 tile, uint t)
{
    return U32s(a.rows).v[tile.y + min(t, tile.z - 1)];
}
