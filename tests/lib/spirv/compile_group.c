/* Instructions of a subgroup, and barriers. */
#include "compile.h"
#include "run.h"

/* a, b: the slots of the operands at in[first], in[second], 0: none; math: how two numbers of a sum are added; more:
 * the instruction. */
static void emit(struct spirv_compiler *c, const uint32_t *in, spirv_run_fn *run, uint32_t first,
                 uint32_t second, uint32_t imm, uint32_t math)
{
    uint32_t n = compile_type(c, in[1])->n_slots, d = compile_new_slots(c, n);
    compile_emit(c, &(struct spirv_insn){.run = run,
                                         .math = math,
                                         .n = n,
                                         .d = d,
                                         .a = first ? compile_slot(c, in[first]) : SPIRV_NO_SLOT,
                                         .b = second ? compile_slot(c, in[second]) : SPIRV_NO_SLOT,
                                         .imm = imm,
                                         .more = in[0] & 0xffff});
    compile_set(c, in[2], in[1], d);
}

/* A sum, a minimum or a maximum of each number by itself; imm: 0 of all lanes, 1 and 2 of those up to or before each. */
static void reduce(struct spirv_compiler *c, const uint32_t *in, uint32_t math)
{
    emit(c, in, spirv_reduce, 5, 0, in[4], math);
}

static void barrier(struct spirv_compiler *c, const uint32_t *in, spirv_run_fn *run, uint32_t semantics)
{
    compile_emit(
        c, &(struct spirv_insn){
               .run = run, .n = 1, .imm = compile_number(c, in[1]), .more = compile_number(c, semantics)});
}

bool compile_group(struct spirv_compiler *c, uint32_t op, const uint32_t *in)
{
    switch (op) {
    case OP_ELECT:
        return emit(c, in, spirv_elect, 0, 0, 0, 0), true;
    case OP_BALLOT:
        return emit(c, in, spirv_ballot, 4, 0, 0, 0), true;
    case OP_BALLOT_BIT_COUNT:
        return emit(c, in, spirv_ballot_count, 5, 0, in[4], 0), true;
    case OP_BALLOT_FIND_LSB:
        return emit(c, in, spirv_ballot_find, 4, 0, 0, 0), true;
    case OP_BROADCAST:
    case OP_GROUP_SHUFFLE:
    case OP_SHUFFLE_XOR:
        return emit(c, in, spirv_exchange, 4, 5, 0, 0), true;
    case OP_BROADCAST_FIRST:
        return emit(c, in, spirv_exchange, 4, 0, 0, 0), true;
    case OP_GROUP_I_ADD:
        return reduce(c, in, OP_I_ADD), true;
    case OP_GROUP_F_ADD:
        return reduce(c, in, OP_F_ADD), true;
    case OP_GROUP_U_MIN:
        return reduce(c, in, MATH_EXTENDED + 38), true;
    case OP_GROUP_U_MAX:
        return reduce(c, in, MATH_EXTENDED + 41), true;
    case OP_GROUP_F_MAX:
        return reduce(c, in, MATH_EXTENDED + 40), true;
    case OP_CONTROL_BARRIER:
        return barrier(c, in, spirv_control_barrier, in[3]), true;
    case OP_MEMORY_BARRIER:
        return barrier(c, in, spirv_memory_barrier, in[2]), true;
    default:
        return false;
    }
}
