// choose.glsl - the top_k largest of the numbers that a subgroup holds, best first, the lower index on a tie.
// Number e is in lane e % SUBGROUP; each lane has PER_LANE of them, as unsigned integers with the order of
// the numbers (GPUs reduce integers in one instruction). Lane k % SUBGROUP keeps the k-th choice; each lane
// has KEEP of them. FEW_REGISTERS: see exec_has_few_registers.

// Smaller than every number: padding, and what has been chosen.
const uint NONE = 0;

uint ordered(float v)
{
    uint bits = floatBitsToUint(v);
    bits = bits == 0x80000000u ? 0 : bits; // -0 equals 0
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

float value_of(uint key)
{
    return uintBitsToFloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// Replaces the chosen ones by NONE. Returns the last.
uint choose(inout uint l[PER_LANE], uint top_k, out uint kept[KEEP], out uint kept_at[KEEP])
{
    uint lane = gl_SubgroupInvocationID;
    [[unroll]] for (uint j = 0; j < KEEP; j++)
        kept[j] = kept_at[j] = 0;
    uint expert = 0;
    for (uint k = 0; k < top_k; k++) {
        uint top = NONE, first = 0;
        [[unroll]] for (uint i = 0; i < PER_LANE; i++)
            top = max(top, l[i]);
        uint winner = subgroupMax(top);
        [[unroll]] for (uint i = PER_LANE; i > 0 && FEW_REGISTERS == 0; i--)
            first = l[i - 1] == top ? i - 1 : first;
        // Mesa does not unroll loops that count down: Intel's driver would put l into memory.
        [[unroll]] for (uint i = 0; i < PER_LANE && FEW_REGISTERS != 0; i++)
            first = l[PER_LANE - 1 - i] == top ? PER_LANE - 1 - i : first;
        // Lanes that have it; hardly ever more than one.
        uvec4 have = subgroupBallot(top == winner);
        uint owner = subgroupBallotFindLSB(have);
        if (subgroupBallotBitCount(have) > 1)
            owner = subgroupMin(top == winner ? first * SUBGROUP + lane : 0xffffffffu) % SUBGROUP;
        [[unroll]] for (uint i = 0; i < PER_LANE; i++)
            l[i] = lane == owner && i == first ? NONE : l[i];
        expert = subgroupShuffle(first, owner) * SUBGROUP + owner;
        [[unroll]] for (uint j = 0; j < KEEP; j++)
            if (j * SUBGROUP + lane == k) {
                kept[j] = winner;
                kept_at[j] = expert;
            }
    }
    return expert;
}

// Returns choice number k, counted from 0. If two equal numbers are large enough to be chosen, choose()
// decides.
uint choose_one(inout uint l[PER_LANE], uint k)
{
    uint last = 0xffffffffu, mine = 0, place = 0;
    bool has_it = false;
    for (uint j = 0; j <= k; j++) {
        uint top = NONE;
        [[unroll]] for (uint i = 0; i < PER_LANE; i++)
            top = max(top, l[i] < last ? l[i] : NONE);
        last = subgroupMax(top);
    }
    [[unroll]] for (uint i = 0; i < PER_LANE; i++) {
        mine += l[i] >= last ? 1 : 0;
        place = l[i] == last ? i : place;
        has_it = has_it || l[i] == last;
    }
    uint owner = subgroupBallotFindLSB(subgroupBallot(has_it));
    uint expert = subgroupShuffle(place, owner) * SUBGROUP + owner;
    if (subgroupAdd(mine) != k + 1) {
        uint kept[KEEP], kept_at[KEEP];
        expert = choose(l, k + 1, kept, kept_at);
    }
    return expert;
}
