/* Runs programs: the flow of each team, and the teams of a workgroup one after the other. */
#include "run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "numbers.h"

enum { HAS_RETURNED = UINT32_MAX };

void spirv_fault(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane, const char *format, ...)
{
    struct spirv_memory *m = s->run->memory;
    const uint32_t *g = s->run->group;
    if (m->n_faults++)
        return;
    char text[240];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    snprintf(m->fault, sizeof m->fault, "%s (%s, %u lanes: SPIR-V word %u, workgroup %u %u %u, lane %u)",
             text, s->p->name, s->size, i->at, g[0], g[1], g[2], s->first + lane);
}

/* Goes on with the lanes that are at the earliest block; none may be left. */
static void choose_lanes(struct spirv_lanes *s)
{
    uint32_t first = HAS_RETURNED, n_active = 0, n = s->n;
    for (uint32_t l = 0; l < n; l++)
        first = s->where[l] < first ? s->where[l] : first;
    for (uint32_t l = 0; l < n; l++) {
        s->mask[l] = s->where[l] == first ? UINT32_MAX : 0;
        n_active += s->mask[l] & 1;
    }
    s->n_active = n_active;
    s->is_full = n_active == s->n_live;
    s->block = first;
    s->insn = 0;
}

void spirv_put(const struct spirv_lanes *s, uint32_t *restrict d, const uint32_t *restrict a,
               uint32_t n_slots)
{
    if (s->is_full)
        memcpy(d, a, (size_t)n_slots * s->n * sizeof *d);
    for (uint32_t i = 0, n = s->n; i < n_slots && !s->is_full; i++, d += n, a += n)
        for (uint32_t l = 0; l < n; l++)
            d[l] = (d[l] & ~s->mask[l]) | (a[l] & s->mask[l]);
}

bool spirv_is_uniform(const struct spirv_lanes *s, const uint32_t *x, uint32_t *value)
{
    uint32_t first = 0, differ = 0, n = s->n;
    while (!s->mask[first])
        first++;
    *value = x[first];
    for (uint32_t l = 0; l < n; l++)
        differ |= (x[l] ^ *value) & s->mask[l];
    return differ == 0;
}

/* --- flow --- */

/* Active lanes are at a block. */
static void place(struct spirv_lanes *s, uint32_t block)
{
    for (uint32_t l = 0, n = s->n; l < n; l++)
        s->where[l] = (s->where[l] & ~s->mask[l]) | (block & s->mask[l]);
}

static void take(struct spirv_lanes *s, const struct spirv_edge *edge)
{
    const struct spirv_insn *insns = s->p->insns + edge->first;
    for (uint32_t i = 0; i < edge->n; i++)
        insns[i].run(s, &insns[i]);
}

/* Which of n edges a lane with this condition takes. */
static uint32_t choice(const struct spirv_edge *edges, uint32_t n, uint32_t condition)
{
    for (uint32_t i = 1; i < n; i++)
        if (edges[i].literal == condition)
            return i;
    return 0;
}

/* Lanes go apart: what each edge takes, under its own lanes' mask. */
static void part(struct spirv_lanes *s, const struct spirv_edge *edges, uint32_t n_edges,
                 const uint32_t *condition)
{
    uint32_t active[SPIRV_MOST_LANES], choices[SPIRV_MOST_LANES], n = s->n;
    memcpy(active, s->mask, sizeof active);
    s->is_full = false;
    for (uint32_t l = 0; l < n; l++)
        choices[l] = choice(edges, n_edges, condition[l]);
    for (uint32_t i = 0; i < n_edges; i++) {
        uint32_t taken = 0;
        for (uint32_t l = 0; l < n; l++) {
            s->mask[l] = choices[l] == i ? active[l] : 0;
            taken |= s->mask[l];
        }
        place(s, edges[i].block);
        if (taken)
            take(s, &edges[i]);
    }
}

static void end_block(struct spirv_lanes *s, const struct spirv_block *b)
{
    const struct spirv_edge *edge = s->p->edges + b->first_edge;
    const uint32_t *condition = spirv_slot(s, b->condition);
    uint32_t same = 0;
    if (b->n_edges == 0) {
        place(s, HAS_RETURNED);
        for (uint32_t l = 0; l < s->n; l++)
            s->live[l] &= ~s->mask[l];
        s->n_live -= s->n_active;
    } else if (b->n_edges == 1 || spirv_is_uniform(s, condition, &same)) {
        edge += choice(edge, b->n_edges, same);
        take(s, edge);
        s->block = edge->block;
        s->insn = 0;
        if (s->is_full)
            return;
        place(s, edge->block);
    } else {
        part(s, edge, b->n_edges, condition);
    }
    choose_lanes(s);
}

void spirv_math(struct spirv_lanes *s, const struct spirv_insn *i)
{
    uint32_t *d = spirv_slot(s, i->d), *z = s->is_full ? d : s->run->temporary;
    lane_math(i->math, (size_t)i->n * s->n, z, spirv_slot(s, i->a), spirv_slot(s, i->b), spirv_slot(s, i->c));
    if (z != d)
        spirv_put(s, d, z, i->n_out);
}

/* Until a barrier of the workgroup, or the end. */
static void run_team(struct spirv_lanes *s)
{
    s->barrier = NULL;
    while (!s->barrier && s->n_live && !s->run->memory->n_faults) {
        const struct spirv_block *b = &s->p->blocks[s->block];
        const struct spirv_insn *insns = s->p->insns + b->first;
        if (s->insn == 0)
            s->run->n_lane_operations += b->n_numbers * s->n_active;
        while (s->insn < b->n && !s->barrier) {
            const struct spirv_insn *i = &insns[s->insn++];
            i->run(s, i);
        }
        if (!s->barrier)
            end_block(s, b);
    }
}

/* --- workgroups --- */

/* Number i of a built-in variable, for one lane. */
static uint32_t builtin(const struct spirv_lanes *s, uint32_t number, uint32_t lane, uint32_t i)
{
    const uint32_t *size = s->p->group, at = s->first + lane;
    const uint32_t below = i == 0 ? 1 : i == 1 ? size[0] : size[0] * size[1], local = at / below % size[i];
    switch (number) {
    case BUILTIN_WORKGROUP_ID:
        return s->run->group[i];
    case BUILTIN_LOCAL_ID:
        return local;
    case BUILTIN_GLOBAL_ID:
        return s->run->group[i] * size[i] + local;
    case BUILTIN_SUBGROUP_SIZE:
        return s->size;
    case BUILTIN_NUM_SUBGROUPS:
        return div_up(s->p->n_lanes, s->size);
    case BUILTIN_SUBGROUP_ID:
        return at / s->size;
    default: /* BUILTIN_LANE */
        return lane % s->size;
    }
}

static void begin_team(struct spirv_lanes *s, bool is_first)
{
    *s = (struct spirv_lanes){
        .p = s->p, .run = s->run, .r = s->r, .n = s->n, .size = s->size, .first = s->first, .is_full = true};
    for (uint32_t l = 0; l < s->n; l++) {
        s->mask[l] = s->live[l] = s->first + l < s->p->n_lanes ? UINT32_MAX : 0;
        s->where[l] = s->live[l] ? 0 : HAS_RETURNED;
        s->n_active = s->n_live += s->live[l] & 1;
    }
    for (uint32_t k = 0; k < s->p->n_builtins; k++) {
        uint32_t number = s->p->builtins[k].builtin, slot = s->p->builtins[k].slot;
        bool changes = number == BUILTIN_WORKGROUP_ID || number == BUILTIN_GLOBAL_ID;
        for (uint32_t i = 0; (is_first || changes) && i < (number < BUILTIN_SUBGROUP_SIZE ? 3 : 1); i++)
            for (uint32_t l = 0; l < s->n; l++)
                spirv_slot(s, slot + i)[l] = builtin(s, number, l, i);
    }
}

/* A random order, by xorshift64. */
static void shuffle(struct spirv_run *run, uint32_t *order, uint32_t n)
{
    for (uint32_t i = n; i > 1; i--) {
        run->rng ^= run->rng << 13;
        run->rng ^= run->rng >> 7;
        run->rng ^= run->rng << 17;
        uint32_t j = (uint32_t)(run->rng % i), other = order[j];
        order[j] = order[i - 1];
        order[i - 1] = other;
    }
}

/* All are at one barrier, or all have returned: else lanes wait for some that never come. */
static bool check_barrier(struct spirv_run *run)
{
    const struct spirv_insn *barrier = run->teams[0].barrier;
    bool orders_buffers = true;
    for (uint32_t i = 0; i < run->n_teams; i++) {
        struct spirv_lanes *s = &run->teams[i];
        if (s->barrier != barrier) {
            spirv_fault(s, barrier ? barrier : s->barrier, 0,
                        "a barrier that not all lanes of the workgroup reach");
            return false;
        }
        orders_buffers &= s->orders_buffers;
        s->orders_buffers = false;
    }
    run->memory->epoch++;
    if (orders_buffers)
        run->memory->buffer_epoch = run->memory->epoch;
    return barrier != NULL;
}

static void run_workgroup(struct spirv_run *run, bool is_first)
{
    enum { MOST_TEAMS = 1024 };
    struct spirv_memory *m = run->memory;
    uint32_t order[MOST_TEAMS];
    m->workgroup_epoch = m->buffer_epoch = ++m->epoch;
    m->records_reads = is_first;
    for (uint32_t i = 0; i < run->n_teams; i++) {
        order[i] = i;
        begin_team(&run->teams[i], is_first);
    }
    do {
        shuffle(run, order, run->n_teams);
        for (uint32_t i = 0; i < run->n_teams && !m->n_faults; i++)
            run_team(&run->teams[order[i]]);
    } while (!m->n_faults && check_barrier(run));
}

/* --- dispatches --- */

/* Allocates all that a dispatch has, at once. */
static int open_run(struct spirv_run *run, const struct spirv_program *p, struct moeflux_err *e)
{
    enum { TEAM = 64 };
    struct spirv_region *shared = &run->memory->shared;
    uint32_t most_lanes = p->n_lanes < TEAM ? p->n_lanes : TEAM;
    /* Matrices are spread over the lanes of one subgroup. */
    bool is_one = p->has_matrices || p->lanes > most_lanes;
    uint32_t n = is_one ? p->lanes : most_lanes / p->lanes * p->lanes, n_teams = div_up(p->n_lanes, n);
    size_t each = p->n_numbers * n, words = p->shared_bytes / 4 + 2, most = (size_t)p->most_numbers * n + 2;
    size_t bytes = n_teams * sizeof *run->teams + words * sizeof(struct spirv_word);
    run->teams = mem_new(1, bytes + sizeof(uint32_t) * (2 * words + n_teams * each + most), e);
    if (!run->teams)
        return ERR_MEMORY;
    struct spirv_word *touched = (struct spirv_word *)(void *)(run->teams + n_teams);
    uint32_t *since = (uint32_t *)(void *)(touched + words), *r = since + 2 * words;
    *shared = (struct spirv_region){.bytes = p->shared_bytes, .words = touched, .since = since};
    shared->host = (uint8_t *)(since + words);
    shared->written_by = ++run->memory->dispatch;
    for (uint32_t i = 0; i < n_teams; i++, r += each) {
        run->teams[i] =
            (struct spirv_lanes){.p = p, .run = run, .r = r, .n = n, .size = p->lanes, .first = i * n};
        for (size_t k = 0; k < p->n_numbers; k++)
            for (uint32_t l = 0; p->fixed[k] && l < n; l++)
                r[k * n + l] = p->numbers[k];
    }
    run->n_teams = n_teams;
    run->temporary = r;
    return 0;
}

int spirv_dispatch(const struct spirv_program *p, struct spirv_memory *memory, const void *args,
                   uint32_t args_bytes, const uint32_t groups[3], uint64_t seed, uint64_t *n_lane_operations,
                   struct moeflux_err *e)
{
    struct spirv_run run = {.memory = memory, .rng = seed | 1};
    uint64_t n = (uint64_t)groups[0] * groups[1] * groups[2];
    memory->args = (struct spirv_region){.bytes = args_bytes, .host = (uint8_t *)(uintptr_t)args};
    int rc = open_run(&run, p, e);
    for (uint64_t i = 0; rc == 0 && i < n && !memory->n_faults; i++) {
        run.group[0] = (uint32_t)(i % groups[0]);
        run.group[1] = (uint32_t)(i / groups[0] % groups[1]);
        run.group[2] = (uint32_t)(i / groups[0] / groups[1]);
        run_workgroup(&run, i == 0);
    }
    *n_lane_operations += run.n_lane_operations;
    free(run.teams);
    memory->shared = (struct spirv_region){0};
    return rc;
}
