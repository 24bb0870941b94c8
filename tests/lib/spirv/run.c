/* Runs programs: the flow of each team, and the teams of a workgroup one after the other. */
#include "run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "lane_math.h"
#include "numbers.h"

enum { HAS_RETURNED = UINT32_MAX };

void spirv_fault(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane, const char *format, ...)
{
    struct spirv_memory *m = s->run->memory;
    const uint32_t *g = s->run->group;
    if (m->n_faults++)
        return;
    va_list list;
    va_start(list, format);
    int n = vsnprintf(m->fault, sizeof m->fault, format, list);
    va_end(list);
    if (n > 0 && (size_t)n < sizeof m->fault)
        snprintf(m->fault + n, sizeof m->fault - (size_t)n,
                 " (%s, %u lanes: SPIR-V word %u, workgroup %u %u %u, lane %u)", s->p->name, s->size, i->at,
                 g[0], g[1], g[2], s->first + lane);
}

/* --- masks --- */

static void set_mask(struct spirv_lanes *s, uint32_t block)
{
    uint32_t n_active = 0, n = s->n;
    for (uint32_t l = 0; l < n; l++) {
        s->mask[l] = s->where[l] == block ? UINT32_MAX : 0;
        n_active += s->mask[l] & 1;
    }
    s->n_active = n_active;
    s->is_full = n_active == s->n_live;
    s->block = block;
    s->insn = 0;
}

/* Goes on with the lanes that are at the earliest block. */
static void choose_lanes(struct spirv_lanes *s)
{
    uint32_t first = HAS_RETURNED, n = s->n;
    for (uint32_t l = 0; l < n; l++)
        first = s->where[l] < first ? s->where[l] : first;
    if (first == HAS_RETURNED)
        s->stop = SPIRV_DONE;
    else
        set_mask(s, first);
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

/* --- flow --- */

/* All numbers are read before one is written. */
static void copy_edge(struct spirv_lanes *s, const struct spirv_edge *edge)
{
    const struct spirv_copy *copies = s->p->copies + edge->first_copy;
    uint32_t *at = s->run->temporary;
    for (uint32_t i = 0; i < edge->n_copies; at += (size_t)copies[i++].n * s->n)
        memcpy(at, spirv_slot(s, copies[i].a), (size_t)copies[i].n * s->n * sizeof *at);
    at = s->run->temporary;
    for (uint32_t i = 0; i < edge->n_copies; at += (size_t)copies[i++].n * s->n)
        spirv_put(s, spirv_slot(s, copies[i].d), at, copies[i].n);
}

/* Active lanes are at a block. */
static void place(struct spirv_lanes *s, uint32_t block)
{
    for (uint32_t l = 0, n = s->n; l < n; l++)
        s->where[l] = (s->where[l] & ~s->mask[l]) | (block & s->mask[l]);
}

/* All active lanes go the same way. */
static void follow(struct spirv_lanes *s, const struct spirv_edge *edge)
{
    copy_edge(s, edge);
    s->block = edge->block;
    s->insn = 0;
    if (s->is_full)
        return;
    place(s, edge->block);
    choose_lanes(s);
}

/* The edge that a lane takes, among the block's. */
static uint32_t choice(const struct spirv_lanes *s, const struct spirv_block *b, uint32_t lane)
{
    uint32_t value = spirv_slot(s, b->condition)[lane];
    for (uint32_t i = 0; i + 1 < b->n_edges; i++)
        if (s->p->literals[b->first_literal + i] == value)
            return i + 1;
    return 0;
}

/* Lanes go apart: each edge's copies under its own lanes' mask. */
static void part(struct spirv_lanes *s, const struct spirv_block *b, const uint32_t *choices)
{
    uint32_t active[SPIRV_MOST_LANES];
    memcpy(active, s->mask, sizeof active);
    if (s->is_full)
        for (uint32_t l = 0; l < s->n; l++)
            s->where[l] = active[l] ? 0 : HAS_RETURNED;
    s->is_full = false;
    for (uint32_t i = 0; i < b->n_edges; i++) {
        const struct spirv_edge *edge = &s->p->edges[b->first_edge + i];
        uint32_t taken = 0;
        for (uint32_t l = 0, n = s->n; l < n; l++) {
            s->mask[l] = choices[l] == i ? active[l] : 0;
            taken |= s->mask[l];
        }
        place(s, edge->block);
        if (taken)
            copy_edge(s, edge);
    }
    choose_lanes(s);
}

/* Whether all active lanes choose the same edge; then *edge is its number. */
static bool is_uniform_branch(const struct spirv_lanes *s, const struct spirv_block *b, uint32_t *edge)
{
    const uint32_t *condition = spirv_slot(s, b->condition);
    uint32_t n_true = 0, first = 0, differ = 0, n = s->n;
    if (b->end == SPIRV_BRANCH) {
        for (uint32_t l = 0; l < n; l++)
            n_true += condition[l] & s->mask[l];
        *edge = n_true == 0;
        return n_true == 0 || n_true == s->n_active;
    }
    while (!s->mask[first])
        first++;
    for (uint32_t l = 0; l < n; l++)
        differ |= (condition[l] ^ condition[first]) & s->mask[l];
    *edge = choice(s, b, first);
    return differ == 0;
}

static void branch(struct spirv_lanes *s, const struct spirv_block *b)
{
    uint32_t choices[SPIRV_MOST_LANES], edge;
    if (is_uniform_branch(s, b, &edge)) {
        follow(s, &s->p->edges[b->first_edge + edge]);
        return;
    }
    const uint32_t *condition = spirv_slot(s, b->condition);
    for (uint32_t l = 0, n = s->n; l < n; l++)
        choices[l] = b->end == SPIRV_BRANCH ? condition[l] == 0 : choice(s, b, l);
    part(s, b, choices);
}

static void leave(struct spirv_lanes *s)
{
    for (uint32_t l = 0; l < s->n; l++) {
        s->where[l] = s->mask[l] || !s->live[l] ? HAS_RETURNED : s->where[l];
        s->live[l] &= ~s->mask[l];
    }
    s->n_live -= s->n_active;
    if (s->n_live == 0)
        s->stop = SPIRV_DONE;
    else
        choose_lanes(s);
}

static void compute(struct spirv_lanes *s, const struct spirv_insn *i)
{
    uint32_t *d = spirv_slot(s, i->d), *z = s->is_full ? d : s->run->temporary;
    lane_math(i->math, (size_t)i->n * s->n, z, spirv_slot(s, i->a), spirv_slot(s, i->b), spirv_slot(s, i->c));
    if (z != d)
        spirv_put(s, d, z, i->n_out);
}

/* Until a barrier of the workgroup, or the end. */
static void run_team(struct spirv_lanes *s)
{
    const struct spirv_program *p = s->p;
    s->stop = SPIRV_RUNS;
    while (s->stop == SPIRV_RUNS && !s->run->memory->n_faults) {
        const struct spirv_block *b = &p->blocks[s->block];
        const struct spirv_insn *insns = p->insns + b->first;
        if (s->insn == 0)
            s->run->n_lane_operations += b->n_numbers * s->n_active;
        while (s->insn < b->n && s->stop == SPIRV_RUNS) {
            const struct spirv_insn *i = &insns[s->insn++];
            if (i->run)
                i->run(s, i);
            else
                compute(s, i);
        }
        if (s->stop != SPIRV_RUNS)
            return;
        if (b->end == SPIRV_RETURN)
            leave(s);
        else if (b->end == SPIRV_JUMP)
            follow(s, &p->edges[b->first_edge]);
        else
            branch(s, b);
    }
}

/* --- workgroups --- */

static uint32_t builtin(const struct spirv_lanes *s, uint32_t number, uint32_t lane, uint32_t i)
{
    const uint32_t *size = s->p->group, at = s->first + lane;
    const uint32_t local[3] = {at % size[0], at / size[0] % size[1], at / (size[0] * size[1])};
    switch (number) {
    case BUILTIN_NUM_WORKGROUPS:
        return s->run->groups[i];
    case BUILTIN_WORKGROUP_ID:
        return s->run->group[i];
    case BUILTIN_LOCAL_ID:
        return local[i];
    case BUILTIN_GLOBAL_ID:
        return s->run->group[i] * size[i] + local[i];
    case BUILTIN_SUBGROUP_SIZE:
        return s->size;
    case BUILTIN_NUM_SUBGROUPS:
        return (s->p->n_lanes + s->size - 1) / s->size;
    case BUILTIN_SUBGROUP_ID:
        return at / s->size;
    default:
        return lane % s->size;
    }
}

static void set_builtin(struct spirv_lanes *s, uint32_t number, uint32_t slot)
{
    for (uint32_t i = 0; i < (number < BUILTIN_SUBGROUP_SIZE ? 3 : 1); i++)
        for (uint32_t l = 0; l < s->n; l++)
            spirv_slot(s, slot + i)[l] = builtin(s, number, l, i);
}

static void begin_team(struct spirv_lanes *s, bool is_first)
{
    s->n_active = s->n_live = 0;
    for (uint32_t l = 0; l < s->n; l++) {
        s->mask[l] = s->live[l] = s->first + l < s->p->n_lanes ? UINT32_MAX : 0;
        s->n_live += s->mask[l] & 1;
    }
    s->n_active = s->n_live;
    s->is_full = true;
    s->block = s->insn = 0;
    memset(s->epochs, 0, sizeof s->epochs);
    s->orders_buffers = false;
    for (uint32_t i = 0; i < s->p->n_builtins; i++)
        if (s->p->builtins[i].builtin == BUILTIN_WORKGROUP_ID ||
            s->p->builtins[i].builtin == BUILTIN_GLOBAL_ID || is_first)
            set_builtin(s, s->p->builtins[i].builtin, s->p->builtins[i].slot);
}

/* xorshift64 */
static uint64_t next_random(struct spirv_run *run)
{
    run->rng ^= run->rng << 13;
    run->rng ^= run->rng >> 7;
    return run->rng ^= run->rng << 17;
}

static void shuffle(struct spirv_run *run, uint32_t *order, uint32_t n)
{
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)(next_random(run) % i), other = order[j];
        order[j] = order[i - 1];
        order[i - 1] = other;
    }
}

/* All are at one barrier, or all have returned: else lanes wait for some that never come. */
static bool check_barrier(struct spirv_run *run)
{
    struct spirv_lanes *first = &run->teams[0];
    bool orders_buffers = true;
    for (uint32_t i = 0; i < run->n_teams; i++) {
        struct spirv_lanes *s = &run->teams[i];
        if (s->stop == first->stop && (s->stop == SPIRV_DONE || s->barrier == first->barrier)) {
            orders_buffers &= s->orders_buffers;
            s->orders_buffers = false;
            continue;
        }
        const struct spirv_insn *at = s->stop == SPIRV_AT_BARRIER ? s->barrier : first->barrier;
        spirv_fault(s, at, 0, "a barrier that not all lanes of the workgroup reach");
        return false;
    }
    spirv_memory_barrier_passed(run->memory, orders_buffers);
    return true;
}

static void run_workgroup(struct spirv_run *run, bool is_first)
{
    uint32_t order[1024];
    spirv_memory_begin_workgroup(run->memory, is_first);
    for (uint32_t i = 0; i < run->n_teams; i++) {
        order[i] = i;
        begin_team(&run->teams[i], is_first);
    }
    do {
        shuffle(run, order, run->n_teams);
        for (uint32_t i = 0; i < run->n_teams && !run->memory->n_faults; i++)
            run_team(&run->teams[order[i]]);
    } while (!run->memory->n_faults && check_barrier(run) && run->teams[0].stop != SPIRV_DONE);
}

static void put_constants(const struct spirv_program *p, uint32_t *r, uint32_t n)
{
    for (uint32_t i = 0; i < p->n_constants; i++)
        for (uint32_t l = 0; l < n; l++)
            r[(size_t)i * n + l] = p->constants[i];
}

/* Matrices are spread over the lanes of one subgroup. */
static uint32_t team_lanes(const struct spirv_program *p)
{
    enum { TEAM = 64 };
    uint32_t most = p->n_lanes < TEAM ? p->n_lanes : TEAM;
    return p->has_matrices || p->lanes > most ? p->lanes : most / p->lanes * p->lanes;
}

static int open_run(struct spirv_run *run, const struct spirv_program *p, struct moeflux_err *e)
{
    uint32_t n = team_lanes(p);
    size_t each = (size_t)p->n_slots * n;
    run->p = p;
    run->n_teams = (p->n_lanes + n - 1) / n;
    run->teams = mem_new(run->n_teams, sizeof *run->teams, e);
    run->registers = mem_new(run->n_teams * each, sizeof *run->registers, e);
    run->temporary = mem_new((size_t)p->most_numbers * n + 2, sizeof *run->temporary, e);
    if (!run->teams || !run->registers || !run->temporary)
        return ERR_MEMORY;
    put_constants(p, run->registers, n);
    for (uint32_t i = 0; i < run->n_teams; i++) {
        run->teams[i] = (struct spirv_lanes){
            .p = p, .run = run, .r = run->registers + i * each, .n = n, .size = p->lanes, .first = i * n};
        if (i > 0)
            memcpy(run->teams[i].r, run->registers, (size_t)p->n_constants * n * sizeof *run->registers);
    }
    return spirv_memory_begin(run->memory, p->shared_bytes, e);
}

int spirv_dispatch(const struct spirv_program *p, struct spirv_memory *memory, const void *args,
                   uint32_t args_bytes, const uint32_t groups[3], uint64_t seed, uint64_t *n_lane_operations,
                   struct moeflux_err *e)
{
    struct spirv_run run = {.memory = memory,
                            .args = args,
                            .args_bytes = args_bytes,
                            .groups = {groups[0], groups[1], groups[2]},
                            .rng = seed | 1};
    int rc = open_run(&run, p, e);
    uint64_t n = (uint64_t)groups[0] * groups[1] * groups[2];
    for (uint64_t i = 0; rc == 0 && i < n && !memory->n_faults; i++) {
        run.group[0] = (uint32_t)(i % groups[0]);
        run.group[1] = (uint32_t)(i / groups[0] % groups[1]);
        run.group[2] = (uint32_t)(i / groups[0] / groups[1]);
        run_workgroup(&run, i == 0);
    }
    *n_lane_operations += run.n_lane_operations;
    free(run.teams);
    free(run.registers);
    free(run.temporary);
    return rc;
}
