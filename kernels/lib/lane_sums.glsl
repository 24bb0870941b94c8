// lane_sums.glsl - SUMS sums over the lanes of a subgroup; SUMS is a power of two. The includer defines SUMS,
// SUBGROUP and MAX_ACC.
#ifndef LANE_SUMS_GLSL
#define LANE_SUMS_GLSL

// Each lane ends with LANE_SUMS of the sums; EACH neighbouring lanes have the same ones.
const uint LANE_SUMS = SUMS > SUBGROUP ? SUMS / SUBGROUP : 1;
const uint EACH = SUMS > SUBGROUP ? 1 : SUBGROUP / SUMS;

// Returns the number of the i-th sum that this lane ends with, i < LANE_SUMS.
uint lane_sum(uint i)
{
    return gl_SubgroupInvocationID / EACH * LANE_SUMS + i;
}

// Adds up SUMS values over the lanes. While there is more than one value, each of two lanes that add
// continues with half of them. So a sum costs two exchanges instead of five. The tree is the same for each
// value and for any SUMS.
void add_lanes(inout float v[MAX_ACC])
{
    uint n = SUMS;
    [[unroll]] for (uint bit = SUBGROUP / 2; bit > 0; bit /= 2) {
        bool is_high = (gl_SubgroupInvocationID & bit) != 0;
        if (n > 1) {
            n /= 2;
            [[unroll]] for (uint i = 0; i < MAX_ACC / 2; i++)
                if (i < n) {
                    float keep = is_high ? v[i + n] : v[i], give = is_high ? v[i] : v[i + n];
                    v[i] = keep + subgroupShuffleXor(give, bit);
                }
        } else {
            v[0] += subgroupShuffleXor(v[0], bit);
        }
    }
}

#endif
