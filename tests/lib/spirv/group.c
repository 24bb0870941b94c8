/* Instructions of a subgroup, and barriers. Sums go from lane 0 on in order.
 *
 * SPIR-V lets lanes that part compute sums and ballots of those that are active. Kernels here never mean
 * that: it is a fault while a lane that has not returned is elsewhere. Elections are made for lanes that
 * part. An exchange is a fault where the other lane is not active: pairs of lanes may exchange in a branch
 * that both take. */
#include "numbers.h"
#include "run.h"

/* What an instruction does for the subgroup from lane `first` on, which has an active lane. out: [numbers]
 * [lanes], active lanes alone count. */
typedef void group_fn(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t first, uint32_t *out);

/* The first active lane from lane l on; there is one. */
static uint32_t first_active(const struct spirv_lanes *s, uint32_t l)
{
    while (!s->mask[l])
        l++;
    return l;
}

static void elect(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t first, uint32_t *out)
{
    (void)i;
    for (uint32_t l = first; l < first + s->size; l++)
        out[l] = l == first_active(s, first);
}

/* Each number of the lane that `more` and b name, in the lane's own subgroup. */
static void exchange(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t first, uint32_t *out)
{
    const uint32_t *a = spirv_slot(s, i->a), *b = i->b == SPIRV_NO_SLOT ? NULL : spirv_slot(s, i->b);
    uint32_t leader = first_active(s, first);
    for (uint32_t l = first; l < first + s->size; l++) {
        if (!s->mask[l])
            continue;
        uint32_t of = !b ? leader - first : i->more == OP_SHUFFLE_XOR ? (l - first) ^ b[l] : b[l];
        if (i->more == OP_BROADCAST && of != b[leader])
            spirv_fault(s, i, l, "a broadcast from more than one lane");
        if (of >= s->size || !s->mask[first + of]) {
            spirv_fault(s, i, l, "a number of lane %u, which is not active", of);
            return;
        }
        for (uint32_t k = 0; k < i->n; k++)
            out[k * s->n + l] = a[k * s->n + first + of];
    }
}

/* Four words, a bit a lane. */
static void ballot(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t first, uint32_t *out)
{
    const uint32_t *a = spirv_slot(s, i->a);
    uint32_t bits[4] = {0};
    for (uint32_t l = 0; l < s->size; l++)
        if (s->mask[first + l] && a[first + l])
            bits[l / 32] |= 1u << l % 32;
    for (uint32_t k = 0; k < 4; k++)
        for (uint32_t l = first; l < first + s->size; l++)
            out[k * s->n + l] = bits[k];
}

/* Counts a ballot's lanes, or finds the first one. */
static void read_ballot(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t first, uint32_t *out)
{
    const uint32_t *a = spirv_slot(s, i->a);
    for (uint32_t l = first; l < first + s->size; l++) {
        uint32_t mine = l - first, end = i->imm == 0 ? s->size : i->imm == 1 ? mine + 1 : mine, n = 0;
        uint32_t least = UINT32_MAX;
        for (uint32_t of = 0; of < end; of++) {
            bool is_in = a[of / 32 * s->n + l] >> of % 32 & 1;
            least = is_in && n == 0 ? of : least;
            n += is_in;
        }
        out[l] = i->more == OP_BALLOT_BIT_COUNT ? n : least;
    }
}

static void reduce(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t first, uint32_t *out)
{
    enum { REDUCE, INCLUSIVE, EXCLUSIVE };
    for (uint32_t k = 0; k < i->n; k++, out += s->n) {
        const uint32_t *a = spirv_slot(s, i->a + k);
        uint32_t sum = i->size, next;
        for (uint32_t l = first; l < first + s->size; l++) {
            if (!s->mask[l])
                continue;
            lane_math(i->math, 1, &next, &sum, &a[l], &a[l]);
            out[l] = i->imm == INCLUSIVE ? next : sum;
            sum = next;
        }
        for (uint32_t l = first; i->imm == REDUCE && l < first + s->size; l++)
            out[l] = sum;
    }
}

/* The signature is the table's. NOLINTNEXTLINE(readability-non-const-parameter) */
static void subgroup_barrier(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t first, uint32_t *out)
{
    (void)i, (void)out;
    s->epochs[first / s->size]++;
}

void spirv_control_barrier(struct spirv_lanes *s, const struct spirv_insn *i)
{
    uint32_t n = s->p->n_lanes - s->first < s->n ? s->p->n_lanes - s->first : s->n;
    if (s->n_active != n)
        spirv_fault(s, i, 0, "a barrier that not all lanes of the workgroup reach");
    spirv_memory_barrier(s, i);
    s->barrier = i;
}

void spirv_memory_barrier(struct spirv_lanes *s, const struct spirv_insn *i)
{
    s->orders_buffers |= (i->more & SEMANTICS_BUFFERS) != 0;
}

void spirv_group(struct spirv_lanes *s, const struct spirv_insn *i)
{
    static const struct {
        uint32_t first, last;
        bool is_of_all;
        group_fn *fn;
    } rows[] = {{OP_ELECT, OP_ELECT, false, elect},
                {OP_BALLOT, OP_BALLOT, true, ballot},
                {OP_BALLOT_BIT_COUNT, OP_BALLOT_FIND_LSB, false, read_ballot},
                {OP_BROADCAST, OP_SHUFFLE_XOR, false, exchange},
                {OP_CONTROL_BARRIER, OP_CONTROL_BARRIER, true, subgroup_barrier},
                {OP_GROUP_I_ADD, OP_GROUP_F_MAX, true, reduce}};
    uint32_t k = 0;
    while (i->more < rows[k].first || i->more > rows[k].last)
        k++;
    for (uint32_t first = 0; first < s->n; first += s->size) {
        uint32_t n_active = 0, n_live = 0;
        for (uint32_t l = first; l < first + s->size; l++) {
            n_active += s->mask[l] & 1;
            n_live += s->live[l] & 1;
        }
        if (rows[k].is_of_all && n_active && n_active != n_live)
            spirv_fault(s, i, first, "%u of the subgroup's %u lanes are at an instruction of all of them",
                        n_active, n_live);
        if (n_active)
            rows[k].fn(s, i, first, s->run->temporary);
    }
    spirv_put(s, spirv_slot(s, i->d), s->run->temporary, i->n_out);
}
