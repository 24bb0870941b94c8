/* Reads a SPIR-V module once: where ids are defined that are looked up later, decorations, the function's
 * blocks. */
#include "compile.h"

/* The word of its id, if an instruction may be looked up by it: others come in order. */
static uint32_t id_word(uint32_t op)
{
    if ((op >= OP_TYPE_VOID && op <= OP_TYPE_FUNCTION) || op == OP_LABEL || op == OP_KHR_MATRIX_TYPE ||
        op == OP_NV_MATRIX_TYPE)
        return 1;
    return op == OP_UNDEF || (op >= OP_CONSTANT_TRUE && op <= OP_SPEC_OP) || op == OP_VARIABLE ? 2 : 0;
}

static void add_edge(struct spirv_compiler *c, uint32_t label, uint32_t literal)
{
    *COMPILE_ADD(c, edges) = (struct spirv_edge){.label = label, .literal = literal};
    c->p->blocks[c->p->n_blocks - 1].n_edges++;
}

/* Blocks and where they lead: first to what is taken where no literal fits. A block without edges returns. */
static void learn_flow(struct spirv_compiler *c, const uint32_t *in)
{
    struct spirv_program *p = c->p;
    uint32_t op = op_of(in);
    if (op == OP_LABEL) {
        *COMPILE_ADD(c, blocks) = (struct spirv_block){.label = in[1], .first_edge = (uint32_t)p->n_edges};
        c->ids[in[1]].block = (uint32_t)p->n_blocks;
    }
    if (op == OP_LOOP_MERGE)
        p->blocks[p->n_blocks - 1].is_loop = true;
    if (op == OP_BRANCH)
        add_edge(c, in[1], 0);
    if (op == OP_BRANCH_CONDITIONAL)
        add_edge(c, in[3], false);
    if (op == OP_BRANCH_CONDITIONAL || op == OP_SWITCH)
        add_edge(c, in[2], true);
    for (uint32_t i = 3; op == OP_SWITCH && i + 1 < length_of(in); i += 2)
        add_edge(c, in[i + 1], in[i]);
}

static void learn(struct spirv_compiler *c, const uint32_t *in)
{
    uint32_t op = op_of(in), id = id_word(op);
    if (length_of(in) <= id || (id && (in[id] == 0 || in[id] >= c->bound)))
        compile_fail(c, "no id of this module", op);
    if (id)
        c->ids[in[id]].def = c->at;
    if (op == OP_DECORATE || op == OP_MEMBER_DECORATE) {
        c->decorations_at = c->decorations_at ? c->decorations_at : c->at;
        c->decorations_end = c->at;
    }
    if ((op == OP_EXECUTION_MODE && in[2] == MODE_LOCAL_SIZE) ||
        (op == OP_EXECUTION_MODE_ID && in[2] == MODE_LOCAL_SIZE_ID))
        c->size_at = c->at;
    if (op == OP_FUNCTION && c->p->n_blocks)
        compile_fail(c, "a second function; expected optimised code", op);
    learn_flow(c, in);
}

void compile_read(struct spirv_compiler *c)
{
    for (uint32_t length; c->at < c->n_words; c->at += length) {
        length = length_of(c->words + c->at);
        if (length == 0 || length > c->n_words - c->at)
            compile_fail(c, "an instruction that is longer than the module, or empty", length);
        learn(c, c->words + c->at);
    }
    if (!c->p->n_blocks || !c->size_at || !c->decorations_at)
        compile_fail(c, "no function, no workgroup's size or no decorations", c->size_at);
}

bool compile_decoration(const struct spirv_compiler *c, uint32_t id, uint32_t member, uint32_t decoration,
                        uint32_t *value)
{
    const uint32_t *in = c->words + c->decorations_at;
    for (; in <= c->words + c->decorations_end; in += length_of(in)) {
        uint32_t at = op_of(in) == OP_DECORATE ? 2 : op_of(in) == OP_MEMBER_DECORATE ? 3 : 0;
        if (at && in[1] == id && in[at] == decoration && (at == 2 ? UINT32_MAX : in[2]) == member) {
            *value = in[at + 1];
            return true;
        }
    }
    return false;
}
