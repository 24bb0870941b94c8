// indexer/choose.comp - the `budget` blocks with the largest scores, by increasing index, then the block that
// follows those that are ranked (ops/attention/choice.h). The lower index wins a tie.
// Grid: x = tokens times their lists, one workgroup each. Three passes over the scores find the digits of the
// last score that is chosen, from the highest on; their counts are integers, so the order of the lanes does
// not matter. Then each subgroup writes the chosen ones of its own range of blocks. Exact.
#version 460
#include "lib/memory.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 512;

const uint SUBGROUPS = WORKGROUP / SUBGROUP;
const uint DIGIT_BITS = 11, DIGITS = 1u << DIGIT_BITS, EACH = DIGITS / SUBGROUP;

layout(push_constant, std430) uniform Args { indexer_choose_args a; };

shared uint counts[DIGITS];
shared uint found_digit, found_left;
shared uint above[SUBGROUPS], equal[SUBGROUPS];

// Returns an integer with the order of the scores; -0 equals 0.
uint ordered_at(uint i)
{
    uint bits = floatBitsToUint(F32s(a.scores).v[gl_WorkGroupID.x * a.score_stride + i]);
    bits = bits == 0x80000000u ? 0 : bits;
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Finds the digit of the left-th largest: the first subgroup adds up the counts from the highest digit on.
void find_digit(uint left)
{
    if (gl_SubgroupID != 0)
        return;
    uint top = DIGITS - 1 - gl_SubgroupInvocationID * EACH, mine = 0;
    for (uint i = 0; i < EACH; i++)
        mine += counts[top - i];
    uint before = subgroupExclusiveAdd(mine);
    if (before < left && left <= before + mine) {
        uint i = 0;
        for (; before + counts[top - i] < left; i++)
            before += counts[top - i];
        found_digit = top - i;
        found_left = left - before;
    }
}

void main()
{
    uint n = (a.pos + gl_WorkGroupID.x / a.n_lists + 1) / a.ratio, least = 0, known = 0, left = a.budget;
    for (uint pass = 0; pass < 3; pass++) {
        uint shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, mask = pass == 2 ? 0x3ffu : DIGITS - 1;
        for (uint i = gl_LocalInvocationID.x; i < DIGITS; i += WORKGROUP)
            counts[i] = 0;
        barrier();
        for (uint i = gl_LocalInvocationID.x; i < n; i += WORKGROUP) {
            uint score = ordered_at(i);
            if ((score & known) == least)
                atomicAdd(counts[score >> shift & mask], 1);
        }
        barrier();
        find_digit(left);
        barrier();
        least |= found_digit << shift;
        known |= mask << shift;
        left = found_left;
    }
    // A subgroup's range of blocks, and how many it has of larger and of equal scores.
    uint share = ((n + SUBGROUPS - 1) / SUBGROUPS + SUBGROUP - 1) / SUBGROUP * SUBGROUP;
    uint from = gl_SubgroupID * share, to = min(from + share, n), n_above = 0, n_equal = 0;
    for (uint i = from + gl_SubgroupInvocationID; i < to; i += SUBGROUP) {
        uint score = ordered_at(i);
        n_above += score > least ? 1 : 0;
        n_equal += score == least ? 1 : 0;
    }
    n_above = subgroupAdd(n_above);
    n_equal = subgroupAdd(n_equal);
    if (gl_SubgroupInvocationID == 0) {
        above[gl_SubgroupID] = n_above;
        equal[gl_SubgroupID] = n_equal;
    }
    barrier();
    n_above = n_equal = 0;
    for (uint i = 0; i < gl_SubgroupID; i++) {
        n_above += above[i];
        n_equal += equal[i];
    }
    uint at = gl_WorkGroupID.x * a.list_stride, place = at + n_above + min(n_equal, left);
    for (uint base = from; base < to; base += SUBGROUP) {
        uint i = base + gl_SubgroupInvocationID, score = i < to ? ordered_at(i) : 0;
        uvec4 equals = subgroupBallot(i < to && score == least);
        bool is_chosen = i < to && (score > least ||
            (score == least && n_equal + subgroupBallotExclusiveBitCount(equals) < left));
        uvec4 chosen = subgroupBallot(is_chosen);
        if (is_chosen)
            U32s(a.chosen).v[place + subgroupBallotExclusiveBitCount(chosen)] = i;
        place += subgroupBallotBitCount(chosen);
        n_equal += subgroupBallotBitCount(equals);
    }
    if (gl_LocalInvocationID.x == 0)
        U32s(a.chosen).v[at + a.budget] = n;
}
