/* The compiler: blocks in order, what OpPhi copies on each edge, and the whole program. */
#include "compile.h"

#include <stdlib.h>

#include "base/mem.h"

enum { NOT_VISITED = UINT32_MAX };

void compile_fail(struct spirv_compiler *c, const char *what, uint32_t number)
{
    int rc =
        err_set(c->e, ERR_UNSUPPORTED, "%s: SPIR-V word %u: %s (%u)", c->request->name, c->at, what, number);
    longjmp(c->failed, rc);
}

void *compile_room(struct spirv_compiler *c, void *array, size_t *room, size_t n, size_t size)
{
    int rc = mem_grow(&array, room, n + 1, size, c->e);
    if (rc < 0)
        longjmp(c->failed, rc);
    return array;
}

/* --- the order of blocks --- */

static void add_edge(struct spirv_compiler *c, struct spirv_block *b, uint32_t label, uint32_t literal)
{
    if (label >= c->bound || op_of(c->words + c->def[label]) != OP_LABEL)
        compile_fail(c, "no label", label);
    *COMPILE_ADD(c, edges) = (struct spirv_edge){.label = label, .literal = literal};
    b->n_edges++;
}

static void add_edges(struct spirv_compiler *c, struct spirv_block *b, const uint32_t *in)
{
    b->first_edge = (uint32_t)c->p->n_edges;
    switch (op_of(in)) {
    case OP_BRANCH:
        add_edge(c, b, in[1], 0);
        break;
    case OP_BRANCH_CONDITIONAL:
        add_edge(c, b, in[3], false);
        add_edge(c, b, in[2], true);
        break;
    case OP_SWITCH:
        add_edge(c, b, in[2], 0);
        for (uint32_t i = 3; i + 1 < length_of(in); i += 2)
            add_edge(c, b, in[i + 1], in[i]);
        break;
    case OP_RETURN:
    case OP_UNREACHABLE:
        break;
    default:
        compile_fail(c, "the end of a block", op_of(in));
    }
}

/* The word where the label's block ends. */
static uint32_t terminator(const struct spirv_compiler *c, uint32_t label)
{
    const uint32_t *in = c->words + c->def[label];
    while (op_of(in) < OP_BRANCH || op_of(in) > OP_UNREACHABLE)
        in += length_of(in);
    return (uint32_t)(in - c->words);
}

/* A construct's merge and continue blocks are visited first, so they come last in the reverse of what is
 * left. */
static void visit(struct spirv_compiler *c, uint32_t label)
{
    struct spirv_block b = {.label = label};
    if (c->blocks[label] != NOT_VISITED)
        return;
    c->blocks[label] = 0;
    const uint32_t *in = c->words + c->def[label], *end = c->words + terminator(c, label);
    add_edges(c, &b, end);
    for (; in < end; in += length_of(in)) {
        uint32_t op = op_of(in);
        if (op == OP_LOOP_MERGE || op == OP_SELECTION_MERGE)
            visit(c, in[1]);
        if (op == OP_LOOP_MERGE)
            visit(c, in[2]);
    }
    for (uint32_t i = 0; i < b.n_edges; i++)
        visit(c, c->p->edges[b.first_edge + i].label);
    *COMPILE_ADD(c, blocks) = b;
}

static void sort_blocks(struct spirv_compiler *c)
{
    struct spirv_program *p = c->p;
    const uint32_t *in = c->words + c->main_at;
    for (uint32_t id = 0; id < c->bound; id++)
        c->blocks[id] = NOT_VISITED;
    while (op_of(in) != OP_LABEL)
        in += length_of(in);
    visit(c, in[1]);
    for (size_t i = 0; i < p->n_blocks / 2; i++) {
        struct spirv_block other = p->blocks[i];
        p->blocks[i] = p->blocks[p->n_blocks - 1 - i];
        p->blocks[p->n_blocks - 1 - i] = other;
    }
    for (uint32_t i = 0; i < p->n_blocks; i++)
        c->blocks[p->blocks[i].label] = i;
    for (size_t i = 0; i < p->n_edges; i++)
        p->edges[i].block = c->blocks[p->edges[i].label];
    p->blocks[0].is_reached = true;
}

/* --- one block --- */

/* Whether a block that is compiled, and reached, leads to another. */
static bool leads(const struct spirv_program *p, const struct spirv_block *from, uint32_t label)
{
    bool does = false;
    for (uint32_t i = 0; from->is_reached && i < from->n_edges; i++)
        does |= p->edges[from->first_edge + i].label == label;
    return does;
}

/* A value that comes from one block alone needs no copy. */
static void phi(struct spirv_compiler *c, const struct spirv_block *b, const uint32_t *in)
{
    uint32_t n_known = 0, only = 0;
    for (uint32_t i = 3; i + 1 < length_of(in); i += 2) {
        uint32_t from = c->blocks[in[i + 1]], here = c->blocks[b->label];
        if (from == NOT_VISITED || (from < here && !leads(c->p, &c->p->blocks[from], b->label)))
            continue;
        n_known += from < here ? 1 : 2; /* 2: a loop's */
        only = in[i];
    }
    compile_set(c, in,
                n_known == 1 ? compile_slot(c, only) : compile_registers(c, compile_type(c, in[1])->n_slots));
}

/* A condition that is a constant leaves one edge. */
static void end_block(struct spirv_compiler *c, struct spirv_block *b, const uint32_t *in)
{
    struct spirv_edge *edges = c->p->edges + b->first_edge;
    uint32_t chosen = 0;
    if (b->n_edges > 1)
        b->condition = compile_slot(c, in[1]);
    if (b->n_edges > 1 && is_constant(b->condition)) {
        for (uint32_t i = 1; i < b->n_edges; i++)
            chosen = edges[i].literal == compile_number(c, in[1]) ? i : chosen;
        b->first_edge += chosen;
        b->n_edges = 1;
    }
    for (uint32_t i = 0; i < b->n_edges; i++)
        c->p->blocks[edges[chosen + i].block].is_reached = true;
}

static void compile_block(struct spirv_compiler *c, struct spirv_block *b)
{
    struct spirv_program *p = c->p;
    uint32_t end = terminator(c, b->label);
    b->first = (uint32_t)p->n_insns;
    for (c->at = c->def[b->label]; c->at < end; c->at += length_of(c->words + c->at)) {
        const uint32_t *in = c->words + c->at;
        uint32_t op = op_of(in);
        if (op == OP_PHI)
            phi(c, b, in);
        else if (op != OP_LABEL && op != OP_LOOP_MERGE && op != OP_SELECTION_MERGE && op != OP_UNDEF)
            compile_instruction(c, in);
    }
    end_block(c, b, c->words + end);
    b->n = (uint32_t)p->n_insns - b->first;
    for (uint32_t i = 0; i < b->n; i++)
        b->n_numbers += p->insns[b->first + i].n;
}

/* What OpPhi takes where a block is entered from another. */
static void compile_edge(struct spirv_compiler *c, struct spirv_edge *edge, uint32_t from)
{
    uint32_t n_numbers = 0;
    edge->first_copy = (uint32_t)c->p->n_copies;
    c->at = c->def[edge->label];
    while (c->at += length_of(c->words + c->at), op_of(c->words + c->at) == OP_PHI) {
        const uint32_t *in = c->words + c->at;
        for (uint32_t i = 3; i + 1 < length_of(in); i += 2) {
            struct spirv_copy copy = {.d = c->values[in[2]].slot, .n = compile_type(c, in[1])->n_slots};
            if (in[i + 1] != from || (copy.a = compile_slot(c, in[i])) == copy.d)
                continue;
            *COMPILE_ADD(c, copies) = copy;
            edge->n_copies++;
            n_numbers += copy.n;
        }
    }
    c->p->most_numbers = (uint32_t)size_max(n_numbers, c->p->most_numbers);
}

/* --- the program --- */

static void read_group(struct spirv_compiler *c)
{
    const uint32_t *in = c->words + c->size_at;
    c->at = c->size_at;
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
    for (c->at = SPIRV_HEADER_WORDS; c->at < c->main_at; c->at += length_of(c->words + c->at))
        if (op_of(c->words + c->at) == OP_VARIABLE)
            compile_instruction(c, c->words + c->at);
}

/* Registers come after the constants, now that these are counted. */
static void place(const struct spirv_program *p, uint32_t *slot)
{
    if (*slot != SPIRV_NO_SLOT)
        *slot = is_constant(*slot) ? *slot - CONSTANT_SLOT : *slot + (uint32_t)p->n_constants;
}

static void place_slots(struct spirv_program *p)
{
    for (size_t i = 0; i < p->n_insns; i++) {
        place(p, &p->insns[i].d);
        place(p, &p->insns[i].a);
        place(p, &p->insns[i].b);
        place(p, &p->insns[i].c);
    }
    for (size_t i = 0; i < p->n_blocks; i++)
        place(p, &p->blocks[i].condition);
    for (size_t i = 0; i < p->n_copies; i++) {
        place(p, &p->copies[i].d);
        place(p, &p->copies[i].a);
    }
    for (uint32_t i = 0; i < p->n_builtins; i++)
        place(p, &p->builtins[i].slot);
}

static void compile_all(struct spirv_compiler *c)
{
    struct spirv_program *p = c->p;
    compile_read(c);
    read_group(c);
    global_variables(c);
    sort_blocks(c);
    for (size_t i = 0; i < p->n_blocks; i++)
        if (p->blocks[i].is_reached)
            compile_block(c, &p->blocks[i]);
    size_t n = p->n_insns;
    for (size_t i = 0; i < p->n_blocks; i++)
        for (uint32_t k = 0; p->blocks[i].is_reached && k < p->blocks[i].n_edges; k++)
            compile_edge(c, &p->edges[p->blocks[i].first_edge + k], p->blocks[i].label);
    if (p->n_insns != n)
        compile_fail(c, "an address that is computed between blocks", 0);
    place_slots(p);
    p->n_slots = (uint32_t)p->n_constants + c->n_registers;
}

/* A function of its own, so that none of its variables changes between setjmp and longjmp. */
static int compile_or_fail(struct spirv_compiler *c)
{
    int rc = setjmp(c->failed);
    if (rc == 0)
        compile_all(c);
    return rc;
}

int spirv_compile(struct spirv_program *p, const uint32_t *words, size_t n, const struct spirv_request *r,
                  struct moeflux_err *e)
{
    enum { MOST_IDS = 1 << 20 };
    *p = (struct spirv_program){.name = r->name, .lanes = r->lanes, .in_quads = r->in_quads};
    if (n < SPIRV_HEADER_WORDS || words[0] != SPIRV_MAGIC || words[SPIRV_BOUND_WORD] > MOST_IDS)
        return err_set(e, ERR_FORMAT, "not SPIR-V");
    struct spirv_compiler c = {.words = words, .n_words = n, .request = r, .p = p, .e = e};
    c.bound = words[SPIRV_BOUND_WORD];
    c.at = SPIRV_HEADER_WORDS;
    c.def = mem_new(c.bound, sizeof *c.def, e);
    c.types = mem_new(c.bound, sizeof *c.types, e);
    c.values = mem_new(c.bound, sizeof *c.values, e);
    c.blocks = mem_new(c.bound, sizeof *c.blocks, e);
    int rc = c.def && c.types && c.values && c.blocks ? compile_or_fail(&c) : ERR_MEMORY;
    free(c.def);
    free(c.types);
    free(c.values);
    free(c.blocks);
    if (rc < 0)
        spirv_program_free(p);
    return rc;
}

void spirv_program_free(struct spirv_program *p)
{
    free(p->constants);
    free(p->insns);
    free(p->blocks);
    free(p->edges);
    free(p->copies);
    *p = (struct spirv_program){0};
}
