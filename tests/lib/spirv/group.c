/* Instructions of a subgroup. Sums go from lane 0 on in order.
 *
 * SPIR-V lets lanes that part compute sums, votes and ballots of those that are active. Kernels here never mean that:
 * it is a fault while a lane that has not returned is elsewhere. Elections are made for lanes that part. An exchange
 * is a fault where the other lane is not active: pairs of lanes may exchange in a branch that both take. */
#include <string.h>

#include "arithmetic.h"
#include "numbers.h"
#include "run.h"

/* The subgroup from lane `first` on: all of its live lanes are active, or none. */
static void needs_subgroup(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t first)
{
    uint32_t n_active = 0, n_live = 0;
    for (uint32_t l = first; l < first + s->size; l++) {
        n_active += s->mask[l] & 1;
        n_live += s->live[l] & 1;
    }
    if (n_active && n_active != n_live)
        spirv_fault(s, i, first, "%u of the subgroup's %u lanes are at an instruction of all of them", n_active, n_live);
}

static void needs_all(struct spirv_lanes *s, const struct spirv_insn *i)
{
    for (uint32_t first = 0; !s->is_full && first < s->n; first += s->size)
        needs_subgroup(s, i, first);
}

/* The first active lane of lane l's subgroup, which has one. */
static uint32_t first_active(const struct spirv_lanes *s, uint32_t l)
{
    for (l -= l % s->size; !s->mask[l]; l++)
        ;
    return l;
}

void spirv_elect(struct spirv_lanes *s, const struct spirv_insn *i)
{
    uint32_t *d = spirv_slot(s, i->d);
    for (uint32_t l = 0; l < s->n; l++)
        if (s->mask[l])
            d[l] = first_active(s, l) == l;
}

void spirv_vote(struct spirv_lanes *s, const struct spirv_insn *i)
{
    const uint32_t *a = spirv_slot(s, i->a);
    uint32_t *d = spirv_slot(s, i->d);
    needs_all(s, i);
    for (uint32_t first = 0; first < s->n; first += s->size) {
        uint32_t n_yes = 0, n = 0;
        for (uint32_t l = first; l < first + s->size; l++) {
            n += s->mask[l] & 1;
            n_yes += s->mask[l] && a[l];
        }
        for (uint32_t l = first; l < first + s->size; l++)
            if (s->mask[l])
                d[l] = i->more == OP_GROUP_ALL ? n_yes == n : n_yes > 0;
    }
}

/* --- exchanges --- */

/* Each number of lane from[l] of lane l's subgroup to lane l. */
static void exchange(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t *from)
{
    for (uint32_t l = 0; l < s->n; l++) {
        uint32_t other = l - l % s->size + from[l];
        if (s->mask[l] && (from[l] >= s->size || !s->mask[other])) {
            spirv_fault(s, i, l, "a number of lane %u, which is not active", from[l]);
            return;
        }
        from[l] = s->mask[l] ? other : l;
    }
    for (uint32_t k = 0; k < i->n; k++) {
        const uint32_t *a = spirv_slot(s, i->a + k);
        uint32_t *d = spirv_slot(s, i->d + k);
        for (uint32_t l = 0; l < s->n; l++)
            if (s->mask[l])
                d[l] = a[from[l]];
    }
}

void spirv_broadcast(struct spirv_lanes *s, const struct spirv_insn *i)
{
    uint32_t from[SPIRV_MOST_LANES] = {0};
    const uint32_t *b = i->b == SPIRV_NO_SLOT ? NULL : spirv_slot(s, i->b);
    for (uint32_t l = 0; l < s->n; l++) {
        if (!s->mask[l])
            continue;
        uint32_t first = first_active(s, l);
        from[l] = b ? b[l] : first % s->size;
        if (b && b[l] != b[first])
            spirv_fault(s, i, l, "a broadcast from more than one lane");
    }
    exchange(s, i, from);
}

void spirv_shuffle_lanes(struct spirv_lanes *s, const struct spirv_insn *i)
{
    uint32_t from[SPIRV_MOST_LANES];
    const uint32_t *b = spirv_slot(s, i->b);
    for (uint32_t l = 0; l < s->n; l++) {
        uint32_t mine = l % s->size;
        from[l] = i->more == OP_GROUP_SHUFFLE ? b[l]
                  : i->more == OP_SHUFFLE_XOR ? mine ^ b[l]
                  : i->more == OP_SHUFFLE_UP  ? mine - b[l]
                                              : mine + b[l];
    }
    exchange(s, i, from);
}

/* --- ballots: four words, a bit a lane --- */

void spirv_ballot(struct spirv_lanes *s, const struct spirv_insn *i)
{
    const uint32_t *a = spirv_slot(s, i->a);
    needs_all(s, i);
    for (uint32_t first = 0; first < s->n; first += s->size) {
        uint32_t bits[4] = {0};
        for (uint32_t l = 0; l < s->size; l++)
            if (s->mask[first + l] && a[first + l])
                bits[l / 32] |= 1u << l % 32;
        for (uint32_t k = 0; k < 4; k++)
            for (uint32_t l = first; l < first + s->size; l++)
                if (s->mask[l])
                    spirv_slot(s, i->d + k)[l] = bits[k];
    }
}

/* Whether lane `of` is in the ballot that lane l has. */
static bool is_in(const struct spirv_lanes *s, const struct spirv_insn *i, uint32_t l, uint32_t of)
{
    return spirv_slot(s, i->a + of / 32)[l] >> of % 32 & 1;
}

void spirv_ballot_count(struct spirv_lanes *s, const struct spirv_insn *i)
{
    uint32_t *d = spirv_slot(s, i->d);
    for (uint32_t l = 0; l < s->n; l++) {
        uint32_t mine = l % s->size, end = i->imm == 0 ? s->size : i->imm == 1 ? mine + 1 : mine, n = 0;
        for (uint32_t of = 0; of < end; of++)
            n += is_in(s, i, l, of);
        if (s->mask[l])
            d[l] = n;
    }
}

void spirv_ballot_find(struct spirv_lanes *s, const struct spirv_insn *i)
{
    uint32_t *d = spirv_slot(s, i->d);
    for (uint32_t l = 0; l < s->n; l++) {
        uint32_t found = UINT32_MAX;
        for (uint32_t of = 0; of < s->size; of++)
            if (is_in(s, i, l, of) && (found == UINT32_MAX || i->more == OP_BALLOT_FIND_MSB))
                found = of;
        if (s->mask[l])
            d[l] = found;
    }
}

/* --- sums --- */

/* The instruction that adds two numbers of a sum, and what a sum without numbers is. */
static const struct sum {
    uint32_t group, op, extended;
    bool is_float;
    uint32_t none;
} sums[] = {{349, OP_I_ADD, 0, false, 0},
            {350, OP_F_ADD, 0, true, 0},
            {351, OP_I_MUL, 0, false, 1},
            {352, OP_F_MUL, 0, true, 0x3f800000},
            {353, 0, 39, false, INT32_MAX},
            {354, 0, 38, false, UINT32_MAX},
            {355, 0, 37, true, 0x7f800000},
            {356, 0, 42, false, 0x80000000},
            {357, 0, 41, false, 0},
            {358, 0, 40, true, 0xff800000},
            {359, OP_BIT_AND, 0, false, UINT32_MAX},
            {360, OP_BIT_OR, 0, false, 0},
            {361, OP_BIT_XOR, 0, false, 0},
            {362, OP_BIT_AND, 0, false, 1},
            {363, OP_BIT_OR, 0, false, 0},
            {364, OP_BIT_XOR, 0, false, 0}};

/* A number of each lane: the sum of its cluster, or of the lanes before it. */
static void reduce_number(struct spirv_lanes *s, const struct spirv_insn *i, const struct sum *how, uint32_t k)
{
    enum { REDUCE, INCLUSIVE, EXCLUSIVE, CLUSTERED };
    spirv_pure_fn *fn = how->op ? spirv_math(how->op, how->is_float ? SPIRV_FLOAT : SPIRV_INT)
                                : spirv_math_extended(how->extended);
    const uint32_t *a = spirv_slot(s, i->a + k);
    uint32_t *d = spirv_slot(s, i->d + k), cluster = s->size, sum, next;
    if (i->imm == CLUSTERED)
        cluster = spirv_slot(s, i->c)[0];
    for (uint32_t first = 0; first < s->n; first += cluster) {
        sum = how->none;
        for (uint32_t l = first; l < first + cluster; l++) {
            if (!s->mask[l])
                continue;
            fn(1, &next, &sum, &a[l], &a[l]);
            if (i->imm == INCLUSIVE || i->imm == EXCLUSIVE)
                d[l] = i->imm == INCLUSIVE ? next : sum;
            sum = next;
        }
        for (uint32_t l = first; (i->imm == REDUCE || i->imm == CLUSTERED) && l < first + cluster; l++)
            if (s->mask[l])
                d[l] = sum;
    }
}

void spirv_reduce(struct spirv_lanes *s, const struct spirv_insn *i)
{
    needs_all(s, i);
    for (size_t j = 0; j < sizeof sums / sizeof *sums; j++)
        for (uint32_t k = 0; sums[j].group == i->more && k < i->n; k++)
            reduce_number(s, i, &sums[j], k);
}

/* --- barriers --- */

static void subgroup_barrier(struct spirv_lanes *s, const struct spirv_insn *i)
{
    needs_all(s, i);
    for (uint32_t first = 0; first < s->n; first += s->size)
        for (uint32_t l = first; l < first + s->size; l++)
            if (s->mask[l]) {
                s->epochs[first / s->size]++;
                break;
            }
}

void spirv_control_barrier(struct spirv_lanes *s, const struct spirv_insn *i)
{
    if (i->imm == SCOPE_SUBGROUP) {
        subgroup_barrier(s, i);
        return;
    }
    uint32_t n = s->p->n_lanes - s->first < s->n ? s->p->n_lanes - s->first : s->n;
    if (s->n_active != n)
        spirv_fault(s, i, 0, "a barrier that not all lanes of the workgroup reach");
    s->orders_buffers |= (i->more & SEMANTICS_BUFFERS) != 0;
    s->barrier = i;
    s->stop = SPIRV_AT_BARRIER;
}

void spirv_memory_barrier(struct spirv_lanes *s, const struct spirv_insn *i)
{
    s->orders_buffers |= (i->more & SEMANTICS_BUFFERS) != 0;
}
