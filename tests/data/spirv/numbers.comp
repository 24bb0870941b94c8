// numbers.comp - integers of 8 to 64 bits, float16, scans, ballots and lanes that part: tests/unit/test_lanes.c has
// what each number of `v` must be.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(local_size_x = 128) in;
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Numbers {
    uint64_t longs[128];
    uint v[];
};
layout(push_constant) uniform Args { uvec2 dst; };

const uint EACH = 12;

uint steps(uint n)
{
    uint count = 0;
    while (n != 1) {
        if (count == 100)
            break;
        n = n % 2 == 0 ? n / 2 : 3 * n + 1;
        count++;
    }
    return count;
}

uint by_kind(uint n)
{
    switch (n % 4) {
    case 0:
        return 7;
    case 1:
        n += 2;
    case 2:
        return n;
    default:
        return 100 + n;
    }
}

void main()
{
    uint lane = gl_LocalInvocationID.x, at = lane * EACH, inside = gl_SubgroupInvocationID;
    Numbers to = Numbers(dst);
    to.longs[lane] = uint64_t(lane) * 0x123456789ul + 5ul;
    int8_t small = int8_t(lane * 3u);
    int16_t middle = int16_t(lane * 1000u);
    float16_t half_of = float16_t(float(lane) * 0.1);
    to.v[at] = uint(int(small));
    to.v[at + 1] = uint(int(middle / int16_t(7)));
    to.v[at + 2] = packFloat2x16(f16vec2(half_of * half_of, half_of - float16_t(1.5)));
    to.v[at + 3] = uint((uint64_t(lane) << 40) / 1000ul >> 8);
    to.v[at + 4] = steps(lane + 1);
    to.v[at + 5] = by_kind(lane);
    to.v[at + 6] = subgroupInclusiveAdd(lane) - subgroupExclusiveAdd(lane);
    to.v[at + 7] = subgroupBallotExclusiveBitCount(subgroupBallot(lane % 3 == 0)) -
                   subgroupExclusiveAdd(lane % 3 == 0 ? 1u : 0u);
    to.v[at + 8] = subgroupShuffle(lane, inside ^ 3u);
    to.v[at + 9] = subgroupMax(lane) - subgroupMin(lane) + 1u - gl_SubgroupSize;
    to.v[at + 10] = floatBitsToUint(unpackHalf2x16(packHalf2x16(vec2(float(lane) * 1e-7, 0.0))).x);
    to.v[at + 11] = gl_SubgroupID * gl_SubgroupSize + inside;
}
