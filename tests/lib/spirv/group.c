/* Instructions of a subgroup. Sums go from lane 0 on in order.
 *
 * SPIR-V lets lanes that part compute sums and ballots of those that are active. Kernels here never mean
 * that: it is a fault while a lane that has not returned is elsewhere. Elections are made for lanes that
 * part. An exchange is a fault where the other lane is not active: pairs of lanes may exchange in a branch
 * that both take. */
#include <string.h>

#include "lane_math.h"
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
        spirv_fault(s, i, first, "%u of the subgroup's %u lanes are at an instruction of all of them",
                    n_active, n_live);
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

/* Each number of the lane that `more` and b name, in the lane's own subgroup. */
void spirv_exchange(struct spirv_lanes *s, const struct spirv_insn *i)
{
    uint32_t from[SPIRV_MOST_LANES];
    const uint32_t *b = i->b == SPIRV_NO_SLOT ? NULL : spirv_slot(s, i->b);
    for (uint32_t l = 0; l < s->n; l++) {
        from[l] = l;
        if (!s->mask[l])
            continue;
        uint32_t first = first_active(s, l), begin = l - l % s->size;
        uint32_t of = !b ? first - begin : i->more == OP_SHUFFLE_XOR ? (l - begin) ^ b[l] : b[l];
        if (i->more == OP_BROADCAST && of != b[first])
            spirv_fault(s, i, l, "a broadcast from more than one lane");
        if (of >= s->size || !s->mask[begin + of]) {
            spirv_fault(s, i, l, "a number of lane %u, which is not active", of);
            return;
        }
        from[l] = begin + of;
    }
    for (uint32_t k = 0; k < i->n; k++) {
        const uint32_t *a = spirv_slot(s, i->a + k);
        uint32_t *d = spirv_slot(s, i->d + k);
        for (uint32_t l = 0; l < s->n; l++)
            if (s->mask[l])
                d[l] = a[from[l]];
    }
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
        uint32_t of = 0;
        while (of < s->size && !is_in(s, i, l, of))
            of++;
        if (s->mask[l])
            d[l] = of < s->size ? of : UINT32_MAX;
    }
}

/* --- sums --- */

/* The sum of the subgroup from lane `first` on, or of the lanes up to or before each. */
static void reduce(const struct spirv_lanes *s, const struct spirv_insn *i, uint32_t first, uint32_t k)
{
    enum { REDUCE, INCLUSIVE, EXCLUSIVE };
    const uint32_t *a = spirv_slot(s, i->a + k);
    uint32_t *d = spirv_slot(s, i->d + k), next;
    uint32_t sum = i->more == OP_GROUP_U_MIN ? UINT32_MAX : i->more == OP_GROUP_F_MAX ? 0xff800000u : 0;
    for (uint32_t l = first; l < first + s->size; l++) {
        if (!s->mask[l])
            continue;
        lane_math(i->math, 1, &next, &sum, &a[l], &a[l]);
        if (i->imm != REDUCE)
            d[l] = i->imm == INCLUSIVE ? next : sum;
        sum = next;
    }
    for (uint32_t l = first; i->imm == REDUCE && l < first + s->size; l++)
        d[l] = s->mask[l] ? sum : d[l];
}

void spirv_reduce(struct spirv_lanes *s, const struct spirv_insn *i)
{
    needs_all(s, i);
    for (uint32_t k = 0; k < i->n; k++)
        for (uint32_t first = 0; first < s->n; first += s->size)
            reduce(s, i, first, k);
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
