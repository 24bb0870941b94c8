/* The compiler: each block that is reached, what OpPhi takes on each edge, and the whole program. */
#include "compile.h"

#include <stdlib.h>

#include "base/mem.h"

void compile_fail(struct spirv_compiler *c, const char *what, uint32_t number)
{
    err_set(c->e, ERR_UNSUPPORTED, "%s: SPIR-V word %u: %s (%u)", c->p->name, c->at, what, number);
    longjmp(c->failed, 1);
}

void *compile_room(struct spirv_compiler *c, void *array, size_t *room, size_t n, size_t size)
{
    if (mem_grow(&array, room, n + 1, size, c->e) < 0)
        longjmp(c->failed, 1);
    return array;
}

/* A value that comes from one block alone, which is before this one and is reached, needs no copy. */
static void phi(struct spirv_compiler *c, uint32_t label, const uint32_t *in)
{
    uint32_t n_known = 0, only = 0, n = compile_type(c, in[1])->n_slots;
    for (uint32_t i = 3; i + 1 < length_of(in); i += 2) {
        const struct spirv_block *from = &c->p->blocks[c->ids[in[i + 1]].block - 1];
        bool is_loops = c->ids[from->label].block >= c->ids[label].block, leads = is_loops;
        for (uint32_t k = 0; from->is_reached && k < from->n_edges; k++)
            leads |= c->p->edges[from->first_edge + k].label == label;
        n_known += is_loops ? 2 : leads;
        only = leads ? in[i] : only;
    }
    compile_set(c, in, n_known == 1 ? compile_slot(c, only) : compile_slots(c, n, false));
}

/* Lanes wait for those at an earlier block. So a construct's merge block comes after its other blocks, as
 * shader compilers write them; what goes back is a loop. */
static void reach(struct spirv_compiler *c, const struct spirv_block *b, struct spirv_edge *edge)
{
    uint32_t to = edge->label < c->bound ? c->ids[edge->label].block : 0;
    if (to == 0 || (to <= c->ids[b->label].block && !c->p->blocks[to - 1].is_loop))
        compile_fail(c, "a branch to no block, or back to no loop", edge->label);
    edge->block = to - 1;
    c->p->blocks[edge->block].is_reached = true;
}

/* A condition that is a constant leaves one edge. */
static void end_block(struct spirv_compiler *c, struct spirv_block *b, const uint32_t *in)
{
    struct spirv_edge *edges = c->p->edges + b->first_edge;
    uint32_t chosen = 0;
    if (b->n_edges == 0 && op_of(in) != OP_RETURN && op_of(in) != OP_UNREACHABLE)
        compile_fail(c, "the end of a block", op_of(in));
    b->condition = b->n_edges > 1 ? compile_slot(c, in[1]) : 0;
    if (b->n_edges > 1 && is_constant(c, b->condition)) {
        for (uint32_t i = 1; i < b->n_edges; i++)
            chosen = edges[i].literal == compile_number(c, in[1]) ? i : chosen;
        b->first_edge += chosen;
        b->n_edges = 1;
    }
    for (uint32_t i = 0; i < b->n_edges; i++)
        reach(c, b, &edges[chosen + i]);
}

static void compile_block(struct spirv_compiler *c, struct spirv_block *b)
{
    struct spirv_program *p = c->p;
    const uint32_t *in = c->words + c->ids[b->label].def;
    b->first = (uint32_t)p->n_insns;
    for (; op_of(in) < OP_BRANCH || op_of(in) > OP_UNREACHABLE; in += length_of(in)) {
        uint32_t op = op_of(in);
        c->at = (uint32_t)(in - c->words);
        if (op == OP_PHI)
            phi(c, b->label, in);
        else if (op != OP_LABEL && op != OP_LOOP_MERGE && op != OP_SELECTION_MERGE)
            compile_instruction(c, in);
    }
    end_block(c, b, in);
    b->n = (uint32_t)p->n_insns - b->first;
    for (uint32_t i = 0; i < b->n; i++)
        b->n_numbers += p->insns[b->first + i].n;
}

/* Whether the number that a move reads is overwritten by one before it. */
static bool comes_late(const struct spirv_move *moves, uint32_t k)
{
    bool is_late = false;
    for (uint32_t i = 0; i < k; i++)
        is_late |= moves[k].a < moves[i].d + moves[i].n && moves[i].d < moves[k].a + moves[k].n;
    return is_late;
}

/* What OpPhi takes where a block is entered from another: all numbers are read before one is written. */
static void compile_edge(struct spirv_compiler *c, struct spirv_edge *edge, uint32_t from)
{
    enum { MOST = 1024 };
    struct spirv_move moves[MOST];
    const uint32_t *in = c->words + c->ids[edge->label].def;
    uint32_t n = 0;
    c->at = c->ids[edge->label].def;
    edge->first = (uint32_t)c->p->n_insns;
    while (in += length_of(in), op_of(in) == OP_PHI)
        for (uint32_t i = 3; i + 1 < length_of(in); i += 2) {
            if (in[i + 1] != from)
                continue;
            if (n == MOST)
                compile_fail(c, "values of a block", n);
            moves[n] = (struct spirv_move){.d = c->ids[in[2]].value.slot,
                                           .a = compile_slot(c, in[i]),
                                           .n = compile_type(c, in[1])->n_slots};
            n++;
        }
    for (uint32_t k = 0; k < n; k++)
        if (comes_late(moves, k)) {
            uint32_t kept = compile_slots(c, moves[k].n, false);
            compile_move(c, kept, moves[k].a, moves[k].n);
            moves[k].a = kept;
        }
    for (uint32_t k = 0; k < n; k++)
        if (moves[k].a != moves[k].d)
            compile_move(c, moves[k].d, moves[k].a, moves[k].n);
    edge->n = (uint32_t)c->p->n_insns - edge->first;
}

static void read_group(struct spirv_compiler *c)
{
    const uint32_t *in = c->words + c->size_at;
    c->at = c->size_at;
    c->p->n_lanes = 1;
    for (uint32_t i = 0; i < 3; i++) {
        c->p->group[i] = in[2] == MODE_LOCAL_SIZE_ID ? compile_number(c, in[3 + i]) : in[3 + i];
        c->p->n_lanes *= c->p->group[i];
    }
    if (c->p->group[0] % c->p->lanes)
        compile_fail(c, "the workgroup is no multiple of the subgroup's lanes", c->p->group[0]);
}

/* A function of its own, so that no variable that matters changes between setjmp and longjmp. */
static int compile_all(struct spirv_compiler *c)
{
    struct spirv_program *p = c->p;
    if (setjmp(c->failed) != 0)
        return (int)c->e->code;
    compile_read(c);
    read_group(c);
    p->blocks[0].is_reached = true;
    for (size_t i = 0; i < p->n_blocks; i++)
        if (p->blocks[i].is_reached)
            compile_block(c, &p->blocks[i]);
    for (size_t i = 0; i < p->n_blocks; i++)
        for (uint32_t k = 0; p->blocks[i].is_reached && k < p->blocks[i].n_edges; k++)
            compile_edge(c, &p->edges[p->blocks[i].first_edge + k], p->blocks[i].label);
    return 0;
}

int spirv_compile(struct spirv_program *p, const uint32_t *words, size_t n, const uint32_t *spec,
                  uint32_t n_spec, struct moeflux_err *e)
{
    enum { MOST_IDS = 1 << 20 };
    struct spirv_compiler c = {.words = words, .n_words = n, .spec = spec, .n_spec = n_spec, .p = p, .e = e};
    if (n < SPIRV_HEADER_WORDS || words[0] != SPIRV_MAGIC || words[SPIRV_BOUND_WORD] > MOST_IDS)
        return err_set(e, ERR_FORMAT, "not SPIR-V");
    c.bound = words[SPIRV_BOUND_WORD];
    c.at = SPIRV_HEADER_WORDS;
    c.ids = mem_new(c.bound, sizeof *c.ids, e);
    int rc = c.ids ? compile_all(&c) : ERR_MEMORY;
    free(c.ids);
    if (rc < 0)
        spirv_program_free(p);
    return rc;
}

void spirv_program_free(struct spirv_program *p)
{
    free(p->numbers);
    free(p->fixed);
    free(p->insns);
    free(p->blocks);
    free(p->edges);
    *p = (struct spirv_program){0};
}
