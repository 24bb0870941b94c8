// largest.glsl - the largest logit of some ids, and what is wrong with them. Includers define SUBGROUP and WORKGROUP.

struct Largest {
    uint key, id;  // of the largest logit, the lowest id; key 0: all are blocked
    uint nan, inf; // the lowest ids of such logits; SAMPLE_NO_ID: none
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
    return Largest(key, subgroupMin(a.key == key ? a.id : SAMPLE_NO_ID), subgroupMin(a.nan), subgroupMin(a.inf));
}

shared Largest of_subgroup[WORKGROUP / SUBGROUP];

// The same in every invocation of the first subgroup.
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
