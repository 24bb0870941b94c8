// lane_sums.glsl - SUMS sums over the lanes of a subgroup, a power of two of them. The includer has SUMS,
// SUBGROUP and MAX_ACC.
#ifndef LANE_SUMS_GLSL
#define LANE_SUMS_GLSL

// Each lane ends with LANE_SUMS of them, EACH neighbouring lanes with the same.
const uint LANE_SUMS = SUMS > SUBGROUP ? SUMS / SUBGROUP : 1;
const uint EACH = SUMS > SUBGROUP ? 1 : SUBGROUP / SUMS;

// The number of the i-th sum that this lane ends with, i < LANE_SUMS.
uint lane_sum(uint i)
{
    return gl_SubgroupInvocationID / EACH * LANE_SUMS + i;
}

// Adds up SUMS values over the lanes. Of two lanes that add, each goes on with half of the values while there
// is more than one; so a sum costs two exchanges where one by one it would be five. The tree is the same for
// each value and for any SUMS.
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
