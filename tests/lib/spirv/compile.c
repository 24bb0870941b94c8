/* The compiler: blocks in order, what OpPhi copies on each edge, and the whole program. */
#include "compile.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "run.h"

/* --- the order of blocks --- */

/* The word where the label's block ends. */
static uint32_t terminator(const struct spirv_module *m, uint32_t label)
{
    uint32_t at = m->at[label];
    while (spirv_op_at(m, at) < OP_BRANCH || spirv_op_at(m, at) > OP_UNREACHABLE)
        at += spirv_length_at(m, at);
    return at;
}

/* A construct's merge and continue blocks are visited first, so they come last in the reverse of what is
 * left. */
static void visit(struct spirv_compiler *c, uint32_t label)
{
    const struct spirv_module *m = c->m;
    if (label >= m->bound || c->labels[label].is_visited)
        return;
    c->labels[label].is_visited = true;
    uint32_t at = m->at[label], end = terminator(m, label), n = spirv_length_at(m, end);
    const uint32_t *in = m->words + end;
    for (; at < end; at += spirv_length_at(m, at)) {
        uint32_t op = spirv_op_at(m, at);
        if (op == OP_LOOP_MERGE || op == OP_SELECTION_MERGE)
            visit(c, m->words[at + 1]);
        if (op == OP_LOOP_MERGE)
            visit(c, m->words[at + 2]);
    }
    if ((in[0] & 0xffff) == OP_SWITCH)
        for (uint32_t i = 2; i < n; i += 2)
            visit(c, in[i]);
    if ((in[0] & 0xffff) == OP_BRANCH_CONDITIONAL) {
        visit(c, in[3]);
        visit(c, in[2]);
    }
    if ((in[0] & 0xffff) == OP_BRANCH)
        visit(c, in[1]);
    c->order[c->n_order++] = label;
}

static void sort_blocks(struct spirv_compiler *c)
{
    const struct spirv_module *m = c->m;
    uint32_t at = m->main_at;
    while (spirv_op_at(m, at) != OP_LABEL)
        at += spirv_length_at(m, at);
    visit(c, m->words[at + 1]);
    for (uint32_t i = 0; i < c->n_order / 2; i++) {
        uint32_t other = c->order[c->n_order - 1 - i];
        c->order[c->n_order - 1 - i] = c->order[i];
        c->order[i] = other;
    }
    for (uint32_t i = 0; i < c->n_order; i++)
        c->labels[c->order[i]].position = i;
    c->labels[m->words[at + 1]].is_reached = true;
}

/* --- one block --- */

static void add_edge(struct spirv_compiler *c, struct spirv_block *b, uint32_t label)
{
    struct spirv_program *p = c->p;
    p->edges = compile_room(c, p->edges, &c->edge_room, p->n_edges, sizeof *p->edges);
    if (c->failed)
        return;
    p->edges[p->n_edges++] = (struct spirv_edge){.label = label, .from = b->label};
    b->n_edges++;
    c->labels[label].is_reached = true;
}

static bool has_edge(const struct spirv_compiler *c, uint32_t from, uint32_t label)
{
    if (!c->labels[from].block)
        return false;
    const struct spirv_block *b = &c->p->blocks[c->labels[from].block - 1];
    for (uint32_t i = 0; i < b->n_edges; i++)
        if (c->p->edges[b->first_edge + i].label == label)
            return true;
    return false;
}

/* A value that comes from one block alone needs no copy. */
static void phi(struct spirv_compiler *c, uint32_t label, const uint32_t *in, uint32_t n)
{
    uint32_t n_known = 0, only = 0;
    bool is_header = false;
    for (uint32_t i = 3; i < n; i += 2) {
        is_header |=
            c->labels[in[i + 1]].position >= c->labels[label].position && c->labels[in[i + 1]].is_visited;
        if (has_edge(c, in[i + 1], label)) {
            n_known++;
            only = in[i];
        }
    }
    if (n_known == 1 && !is_header)
        compile_set(c, in[2], in[1], compile_slot(c, only));
    else
        compile_set(c, in[2], in[1], compile_new_slots(c, compile_type(c, in[1])->n_slots));
}

static void end_switch(struct spirv_compiler *c, struct spirv_block *b, const uint32_t *in, uint32_t n)
{
    struct spirv_program *p = c->p;
    uint32_t slot = compile_slot(c, in[1]), chosen = in[2];
    if (compile_is_constant(slot)) {
        for (uint32_t i = 3; i < n; i += 2)
            chosen = in[i] == compile_number(c, in[1]) ? in[i + 1] : chosen;
        b->end = SPIRV_JUMP;
        add_edge(c, b, chosen);
        return;
    }
    b->end = SPIRV_SWITCH;
    b->condition = slot;
    b->first_literal = (uint32_t)p->n_literals;
    add_edge(c, b, in[2]);
    for (uint32_t i = 3; i < n && !c->failed; i += 2) {
        p->literals = compile_room(c, p->literals, &c->literal_room, p->n_literals, sizeof *p->literals);
        if (!c->failed)
            p->literals[p->n_literals++] = in[i];
        add_edge(c, b, in[i + 1]);
    }
}

static void end_block(struct spirv_compiler *c, struct spirv_block *b, const uint32_t *in, uint32_t n)
{
    b->first_edge = (uint32_t)c->p->n_edges;
    switch (in[0] & 0xffff) {
    case OP_BRANCH:
        b->end = SPIRV_JUMP;
        add_edge(c, b, in[1]);
        break;
    case OP_BRANCH_CONDITIONAL:
        b->condition = compile_slot(c, in[1]);
        b->end = compile_is_constant(b->condition) ? SPIRV_JUMP : SPIRV_BRANCH;
        if (b->end == SPIRV_JUMP) {
            add_edge(c, b, compile_number(c, in[1]) ? in[2] : in[3]);
        } else {
            add_edge(c, b, in[2]);
            add_edge(c, b, in[3]);
        }
        break;
    case OP_SWITCH:
        end_switch(c, b, in, n);
        break;
    case OP_RETURN:
    case OP_UNREACHABLE:
        b->end = SPIRV_RETURN;
        break;
    default:
        compile_fail(c, "the end of a block", in[0] & 0xffff);
    }
}

static const struct {
    uint32_t first, last;
    compile_fn *fn;
} instructions[] = {{OP_COPY_LOGICAL, OP_COPY_LOGICAL, compile_copy},
                    {OP_VARIABLE, OP_VARIABLE, compile_variable},
                    {OP_LOAD, OP_LOAD, compile_load},
                    {OP_STORE, OP_STORE, compile_store},
                    {OP_ACCESS_CHAIN, OP_IN_BOUNDS_CHAIN, compile_chain},
                    {OP_SHUFFLE, OP_SHUFFLE, compile_shuffle},
                    {OP_CONSTRUCT, OP_CONSTRUCT, compile_construct},
                    {OP_EXTRACT, OP_EXTRACT, compile_extract},
                    {OP_INSERT, OP_INSERT, compile_insert},
                    {OP_U_CONVERT, OP_U_CONVERT, compile_convert},
                    {OP_F_CONVERT, OP_F_CONVERT, compile_convert},
                    {OP_BITCAST, OP_BITCAST, compile_bitcast},
                    {OP_DOT, OP_DOT, compile_fold},
                    {OP_ANY, OP_ALL, compile_fold},
                    {OP_CONTROL_BARRIER, OP_MEMORY_BARRIER, compile_barrier},
                    {OP_ATOMIC_ADD, OP_ATOMIC_ADD, compile_atomic},
                    {OP_ATOMIC_OR, OP_ATOMIC_OR, compile_atomic},
                    {OP_ELECT, OP_GROUP_F_MAX, compile_group},
                    {OP_KHR_MATRIX_LOAD, OP_KHR_MATRIX_STORE, compile_matrix},
                    {OP_KHR_MULADD, OP_KHR_MULADD, compile_muladd},
                    {OP_KHR_LENGTH, OP_KHR_LENGTH, compile_length},
                    {OP_NV_MATRIX_LOAD, OP_NV_MATRIX_STORE, compile_matrix},
                    {OP_NV_MULADD, OP_NV_MULADD, compile_muladd},
                    {OP_NV_LENGTH, OP_NV_LENGTH, compile_length},
                    {0, UINT32_MAX, compile_math}};

void compile_instruction(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    uint32_t op = in[0] & 0xffff, i = 0;
    while (op < instructions[i].first || op > instructions[i].last)
        i++;
    instructions[i].fn(c, in, n);
}

static void compile_block(struct spirv_compiler *c, uint32_t label)
{
    const struct spirv_module *m = c->m;
    struct spirv_program *p = c->p;
    uint32_t at = m->at[label], end = terminator(m, label);
    struct spirv_block b = {.label = label, .first = (uint32_t)p->n_insns};
    for (; at < end && !c->failed; at += spirv_length_at(m, at)) {
        c->at = at;
        uint32_t op = spirv_op_at(m, at);
        if (op == OP_PHI)
            phi(c, label, m->words + at, spirv_length_at(m, at));
        else if (op == OP_UNDEF)
            compile_value(c, m->words[at + 2]);
        else if (op != OP_LABEL && op != OP_LOOP_MERGE && op != OP_SELECTION_MERGE)
            compile_instruction(c, m->words + at, spirv_length_at(m, at));
    }
    c->at = end;
    if (!c->failed)
        end_block(c, &b, m->words + end, spirv_length_at(m, end));
    b.n = (uint32_t)p->n_insns - b.first;
    for (uint32_t i = 0; i < b.n; i++)
        b.n_numbers += p->insns[b.first + i].n;
    p->blocks = compile_room(c, p->blocks, &c->block_room, p->n_blocks, sizeof *p->blocks);
    if (c->failed)
        return;
    p->blocks[p->n_blocks++] = b;
    c->labels[label].block = (uint32_t)p->n_blocks;
}

/* --- edges --- */

static void add_copy(struct spirv_compiler *c, struct spirv_edge *edge, const struct spirv_copy *copy)
{
    struct spirv_program *p = c->p;
    p->copies = compile_room(c, p->copies, &c->copy_room, p->n_copies, sizeof *p->copies);
    if (c->failed)
        return;
    p->copies[p->n_copies++] = *copy;
    edge->n_copies++;
}

static void compile_edge(struct spirv_compiler *c, struct spirv_edge *edge)
{
    const struct spirv_module *m = c->m;
    uint32_t n_numbers = 0;
    edge->block = c->labels[edge->label].block - 1;
    edge->first_copy = (uint32_t)c->p->n_copies;
    c->at = m->at[edge->label];
    while (c->at += spirv_length_at(m, c->at), spirv_op_at(m, c->at) == OP_PHI && !c->failed) {
        const uint32_t *in = m->words + c->at;
        for (uint32_t i = 3; i < spirv_length_at(m, c->at); i += 2) {
            struct spirv_copy copy = {.d = c->values[in[2]].slot, .n = compile_type(c, in[1])->n_slots};
            if (in[i + 1] != edge->from || (copy.a = compile_slot(c, in[i])) == copy.d)
                continue;
            add_copy(c, edge, &copy);
            n_numbers += copy.n;
        }
    }
    c->p->most_numbers = n_numbers > c->p->most_numbers ? n_numbers : c->p->most_numbers;
}

/* --- the program --- */

static void read_group(struct spirv_compiler *c)
{
    const uint32_t *in = c->m->words + c->m->size_at;
    c->at = c->m->size_at;
    c->p->n_lanes = 1;
    for (uint32_t i = 0; i < 3; i++) {
        c->p->group[i] = in[2] == MODE_LOCAL_SIZE_ID ? compile_number(c, in[3 + i]) : in[3 + i];
        c->p->n_lanes *= c->p->group[i];
    }
    if (c->p->group[0] % c->request->lanes)
        compile_fail(c, "the workgroup is no multiple of the subgroup's lanes", c->p->group[0]);
}

static void global_variables(struct spirv_compiler *c)
{
    for (uint32_t at = SPIRV_HEADER_WORDS; at < c->m->main_at; at += spirv_length_at(c->m, at)) {
        c->at = at;
        if (spirv_op_at(c->m, at) == OP_VARIABLE)
            compile_variable(c, c->m->words + at, spirv_length_at(c->m, at));
    }
}

static uint32_t moved(const struct spirv_program *p, uint32_t slot)
{
    return slot == SPIRV_NO_SLOT   ? slot
           : slot >= CONSTANT_SLOT ? slot - CONSTANT_SLOT
                                   : slot + p->n_constants;
}

/* Registers come after the constants, now that these are counted. */
static void place_slots(struct spirv_compiler *c)
{
    struct spirv_program *p = c->p;
    for (size_t i = 0; i < p->n_insns; i++) {
        struct spirv_insn *insn = &p->insns[i];
        insn->d = moved(p, insn->d);
        insn->a = moved(p, insn->a);
        insn->b = moved(p, insn->b);
        insn->c = moved(p, insn->c);
    }
    for (size_t i = 0; i < p->n_blocks; i++)
        p->blocks[i].condition = moved(p, p->blocks[i].condition);
    for (size_t i = 0; i < p->n_copies; i++) {
        p->copies[i].d = moved(p, p->copies[i].d);
        p->copies[i].a = moved(p, p->copies[i].a);
    }
    for (uint32_t i = 0; i < p->n_builtins; i++)
        p->builtins[i].slot = moved(p, p->builtins[i].slot);
    p->n_slots = p->n_constants + c->n_registers;
}

static void compile_all(struct spirv_compiler *c)
{
    struct spirv_program *p = c->p;
    compile_constant_1(c, 0); /* so that no slot is below the first constant */
    read_group(c);
    global_variables(c);
    sort_blocks(c);
    for (uint32_t i = 0; i < c->n_order && !c->failed; i++)
        if (c->labels[c->order[i]].is_reached)
            compile_block(c, c->order[i]);
    size_t n = p->n_insns;
    for (size_t i = 0; i < p->n_edges && !c->failed; i++)
        compile_edge(c, &p->edges[i]);
    if (p->n_insns != n)
        compile_fail(c, "an address that is computed between blocks", 0);
    if (!c->failed)
        place_slots(c);
}

int spirv_compile(struct spirv_program *p, const struct spirv_module *m, const struct spirv_request *r,
                  struct moeflux_err *e)
{
    struct moeflux_err own = {0};
    struct spirv_compiler c = {.m = m, .request = r, .p = p, .e = e ? e : &own};
    *p = (struct spirv_program){.name = r->name, .lanes = r->lanes, .in_quads = r->in_quads};
    c.types = mem_new(m->bound, sizeof *c.types, e);
    c.values = mem_new(m->bound, sizeof *c.values, e);
    c.order = mem_new(m->bound, sizeof *c.order, e);
    c.labels = mem_new(m->bound, sizeof *c.labels, e);
    c.failed = !c.types || !c.values || !c.order || !c.labels;
    if (!c.failed)
        compile_all(&c);
    free(c.types);
    free(c.values);
    free(c.order);
    free(c.labels);
    if (c.failed)
        spirv_program_free(p);
    return c.failed ? ERR_UNSUPPORTED : 0;
}

void spirv_program_free(struct spirv_program *p)
{
    free(p->constants);
    free(p->insns);
    free(p->blocks);
    free(p->edges);
    free(p->copies);
    free(p->literals);
    *p = (struct spirv_program){0};
}
