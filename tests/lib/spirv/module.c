/* Reads a SPIR-V module once: where ids are defined that are looked up later, decorations, the function. */
#include "base/mem.h"
#include "compile.h"

/* The word of its id, if an instruction is a type, a constant or a label: others come in order. */
static uint32_t id_word(uint32_t op)
{
    if ((op >= OP_TYPE_VOID && op <= OP_TYPE_FUNCTION) || op == OP_LABEL || op == OP_KHR_MATRIX_TYPE ||
        op == OP_NV_MATRIX_TYPE)
        return 1;
    return op == OP_UNDEF || (op >= OP_CONSTANT_TRUE && op <= OP_SPEC_OP) ? 2 : 0;
}

static void learn(struct spirv_compiler *c, uint32_t at)
{
    const uint32_t *in = c->words + at;
    uint32_t op = op_of(in), id = id_word(op);
    if (id && (length_of(in) <= id || in[id] == 0 || in[id] >= c->bound))
        compile_fail(c, "no id of this module", op);
    if (id)
        c->def[in[id]] = at;
    if (op == OP_DECORATE && c->decorations_at == 0)
        c->decorations_at = at;
    if ((op == OP_EXECUTION_MODE && in[2] == MODE_LOCAL_SIZE) ||
        (op == OP_EXECUTION_MODE_ID && in[2] == MODE_LOCAL_SIZE_ID))
        c->size_at = at;
    if (op == OP_FUNCTION && c->main_at)
        compile_fail(c, "a second function; expected optimised code", op);
    if (op == OP_FUNCTION)
        c->main_at = at;
}

void compile_read(struct spirv_compiler *c)
{
    for (size_t length; c->at < c->n_words; c->at += (uint32_t)length) {
        length = length_of(c->words + c->at);
        if (length == 0 || length > c->n_words - c->at)
            compile_fail(c, "an instruction that is longer than the module, or empty", (uint32_t)length);
        learn(c, c->at);
    }
    if (!c->main_at || !c->size_at || !c->decorations_at)
        compile_fail(c, "no function, no workgroup's size or no decorations", c->main_at);
}

bool compile_decoration(const struct spirv_compiler *c, uint32_t id, uint32_t member, uint32_t decoration,
                        uint32_t *value)
{
    const uint32_t *in = c->words + c->decorations_at;
    for (; op_of(in) == OP_DECORATE || op_of(in) == OP_MEMBER_DECORATE; in += length_of(in)) {
        uint32_t at = op_of(in) == OP_DECORATE ? 2 : 3;
        if (in[1] == id && in[at] == decoration && (at == 2 ? UINT32_MAX : in[2]) == member) {
            *value = in[at + 1];
            return true;
        }
    }
    return false;
}
