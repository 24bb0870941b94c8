// put_halves.glsl - stores rows in float16, four columns at a time. Values beyond +-65504 become +-65504.
//   FORM_PLAIN    in order
//   FORM_BLOCKED  in the order of gemm_frag.glsl: of each 128 columns the groups of eight 0, 4, 8, 12, then
//                 1, 5, 9, 13 and so on; each group in the order 0, 4, 1, 5, 2, 6, 3, 7. Neighbouring
//                 invocations, an even one first, must have neighbouring groups of four columns and call it
//                 at the same time
layout(buffer_reference, std430, buffer_reference_align = 8) writeonly buffer Pairs { uvec2 v[]; };

const uint FORM_PLAIN = 0, FORM_BLOCKED = 1;

// Stores the c-th group of four of a row; the row begins at group row4 of dst. FORM_BLOCKED moves group
// number ..hhggx to ..gghhx.
void put_four(const uint form, uvec2 dst, uint row4, uint c, vec4 v)
{
    uint at = c;
    v = clamp(v, vec4(-65504.0), vec4(65504.0));
    if (form == FORM_BLOCKED) {
        bool even = c % 2 == 0;
        vec2 other = vec2(subgroupShuffleXor(even ? v.z : v.x, 1), subgroupShuffleXor(even ? v.w : v.y, 1));
        v = even ? vec4(v.x, other.x, v.y, other.y) : vec4(other.x, v.z, other.y, v.w);
        at = c & ~31u | (c >> 1 & 3u) << 3 | (c >> 3 & 3u) << 1 | c & 1u;
    }
    Pairs(dst).v[row4 + at] = uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw));
}
