// share.glsl - keeps the few of a token's chosen experts that carry a share of the weights, on the subgroup
// that chose them. Lane k % SUBGROUP has the k-th choice (choose.glsl). Includers define choose.glsl's
// constants and SHARES; SHARES 0 keeps all.

// Returns the place where each of this lane's choices is stored.
void places_of_all(out uint place[KEEP])
{
    [[unroll]] for (uint j = 0; j < KEEP; j++)
        place[j] = j * SUBGROUP + gl_SubgroupInvocationID;
}

// Drops the smallest of the weights w that `share` of their sum does not need (src/ops/router/router.h). What
// stays is stored first, in the order of the choice; a dropped expert becomes NO_EXPERT with weight 0.
void keep_share(inout uint expert[KEEP], inout float w[KEEP], float share, uint top_k, out uint place[KEEP])
{
    uint lane = gl_SubgroupInvocationID;
    float before[KEEP], total = 0.0; // before: sum of the weights that stay in preference to this one
    places_of_all(place);
    [[unroll]] for (uint j = 0; j < KEEP; j++)
        before[j] = 0.0;
    [[unroll]] for (uint i = 0; i < KEEP; i++)
        for (uint n = 0; n < min(SUBGROUP, top_k - i * SUBGROUP); n++) {
            float other = subgroupShuffle(w[i], n);
            total += other;
            [[unroll]] for (uint j = 0; j < KEEP; j++)
                before[j] += other > w[j] || (other == w[j] && i * SUBGROUP + n < place[j]) ? other : 0.0;
        }
    uint n_stay = 0, first[KEEP];
    bool stays[KEEP];
    [[unroll]] for (uint j = 0; j < KEEP; j++) {
        stays[j] = place[j] < top_k && !(before[j] > 0.0 && before[j] >= share * total);
        uvec4 all = subgroupBallot(stays[j]);
        first[j] = n_stay + subgroupBallotExclusiveBitCount(all);
        n_stay += subgroupBallotBitCount(all);
    }
    [[unroll]] for (uint j = 0; j < KEEP; j++) {
        place[j] = stays[j] ? first[j] : n_stay + j * SUBGROUP + lane - first[j];
        expert[j] = stays[j] ? expert[j] : NO_EXPERT;
        w[j] = stays[j] ? w[j] : 0.0;
    }
}
