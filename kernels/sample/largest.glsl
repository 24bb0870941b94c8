// largest.glsl - the largest logit of some ids, and the faults of their logits. Includers define SUBGROUP,
// WORKGROUP and sample_args named a.

struct Largest {
    uint key, id;  // key and lowest id of the largest logit; key 0: all are blocked
    uint nan, inf; // lowest id of a NaN, of +infinity; SAMPLE_NO_ID: none
};

Largest nothing()
{
    return Largest(0u, SAMPLE_NO_ID, SAMPLE_NO_ID, SAMPLE_NO_ID);
}

Largest merge(Largest a, Largest b)
{
    bool first = a.key > b.key || (a.key == b.key && a.id < b.id);
    return Largest(first ? a.key : b.key, first ? a.id : b.id, min(a.nan, b.nan), min(a.inf, b.inf));
}

Largest merge_subgroup(Largest a)
{
    uint key = subgroupMax(a.key);
    return Largest(key, subgroupMin(a.key == key ? a.id : SAMPLE_NO_ID), subgroupMin(a.nan),
                   subgroupMin(a.inf));
}

shared Largest of_subgroup[WORKGROUP / SUBGROUP];

// Returns the same in every invocation of the first subgroup.
Largest merge_workgroup(Largest a)
{
    a = merge_subgroup(a);
    if (gl_SubgroupInvocationID == 0)
        of_subgroup[gl_SubgroupID] = a;
    barrier();
    a = nothing();
    for (uint i = gl_SubgroupInvocationID; i < WORKGROUP / SUBGROUP; i += SUBGROUP)
        a = merge(a, of_subgroup[i]);
    return merge_subgroup(a);
}

// Returns what sample/largest.comp found in all blocks, in every invocation of the first subgroup.
Largest merge_blocks()
{
    Largest best = nothing();
    for (uint i = gl_LocalInvocationID.x; i < (a.n + SAMPLE_BLOCK - 1) / SAMPLE_BLOCK; i += WORKGROUP) {
        uint at = i * 4;
        best = merge(best, Largest(U32s(a.found).v[at], U32s(a.found).v[at + 1], U32s(a.found).v[at + 2],
                                   U32s(a.found).v[at + 3]));
    }
    return merge_workgroup(best);
}

uint fault_of(Largest best)
{
    if (best.nan != SAMPLE_NO_ID)
        return SAMPLE_NAN;
    if (best.inf != SAMPLE_NO_ID)
        return SAMPLE_INFINITE;
    return best.key <= sample_key(0xff800000u) ? SAMPLE_NOTHING : SAMPLE_OK;
}

// Writes the choice, or the fault of the logits.
void answer(Largest best, uint id)
{
    uint fault = fault_of(best);
    U32s(a.id).v[0] = fault == SAMPLE_OK ? id : 0u;
    U32s(a.result).v[0] = fault == SAMPLE_OK ? id : fault == SAMPLE_NAN ? best.nan : fault == SAMPLE_INFINITE
        ? best.inf : 0u;
    U32s(a.result).v[1] = fault;
}
