/* Instructions of a subgroup, and barriers. */
#include "compile.h"
#include "run.h"

/* OpGroupNonUniform of each number by itself: `more` is the instruction, imm the operation (0 reduce, 1 inclusive,
 * 2 exclusive, 3 clusters of `c` lanes). */
static void reduce(struct spirv_compiler *c, uint32_t op, const uint32_t *in, uint32_t n)
{
    const struct spirv_type *t = compile_type(c, in[1]);
    uint32_t d = compile_new_slots(c, t->n_slots);
    compile_emit(c, &(struct spirv_insn){.run = spirv_reduce,
                                         .n = t->n_slots,
                                         .d = d,
                                         .a = compile_slot(c, in[5]),
                                         .c = n > 6 ? compile_slot(c, in[6]) : SPIRV_NO_SLOT,
                                         .imm = in[4],
                                         .more = op});
    compile_set(c, in[2], in[1], d);
}

/* a: the value, b: which lane; more: the instruction. */
static void exchange(struct spirv_compiler *c, uint32_t op, const uint32_t *in, spirv_run_fn *run)
{
    const struct spirv_type *t = compile_type(c, in[1]);
    uint32_t d = compile_new_slots(c, t->n_slots);
    bool has_lane = op != OP_BROADCAST_FIRST;
    compile_emit(c, &(struct spirv_insn){.run = run,
                                         .n = t->n_slots,
                                         .d = d,
                                         .a = compile_slot(c, in[4]),
                                         .b = has_lane ? compile_slot(c, in[5]) : SPIRV_NO_SLOT,
                                         .more = op});
    compile_set(c, in[2], in[1], d);
}

/* What has one operand, at `operand`, 0: none. */
static void ask(struct spirv_compiler *c, uint32_t op, const uint32_t *in, spirv_run_fn *run, uint32_t operand,
                uint32_t imm)
{
    uint32_t n = compile_type(c, in[1])->n_slots, d = compile_new_slots(c, n);
    compile_emit(c, &(struct spirv_insn){.run = run,
                                         .n = n,
                                         .d = d,
                                         .a = operand ? compile_slot(c, in[operand]) : SPIRV_NO_SLOT,
                                         .imm = imm,
                                         .more = op});
    compile_set(c, in[2], in[1], d);
}

static void barrier(struct spirv_compiler *c, uint32_t op, const uint32_t *in)
{
    bool is_control = op == OP_CONTROL_BARRIER;
    compile_emit(c, &(struct spirv_insn){.run = is_control ? spirv_control_barrier : spirv_memory_barrier,
                                         .n = 1,
                                         .imm = compile_number(c, in[1]),
                                         .more = compile_number(c, in[is_control ? 3 : 2])});
}

bool compile_group(struct spirv_compiler *c, uint32_t op, const uint32_t *in, uint32_t n)
{
    switch (op) {
    case OP_ELECT:
        ask(c, op, in, spirv_elect, 0, 0);
        return true;
    case OP_GROUP_ALL:
    case OP_GROUP_ANY:
        ask(c, op, in, spirv_vote, 4, 0);
        return true;
    case OP_BALLOT:
        ask(c, op, in, spirv_ballot, 4, 0);
        return true;
    case OP_BALLOT_BIT_COUNT:
        ask(c, op, in, spirv_ballot_count, 5, in[4]);
        return true;
    case OP_BALLOT_FIND_LSB:
    case OP_BALLOT_FIND_MSB:
        ask(c, op, in, spirv_ballot_find, 4, 0);
        return true;
    case OP_BROADCAST:
    case OP_BROADCAST_FIRST:
        exchange(c, op, in, spirv_broadcast);
        return true;
    case OP_GROUP_SHUFFLE:
    case OP_SHUFFLE_XOR:
    case OP_SHUFFLE_UP:
    case OP_SHUFFLE_DOWN:
        exchange(c, op, in, spirv_shuffle_lanes);
        return true;
    case OP_CONTROL_BARRIER:
    case OP_MEMORY_BARRIER:
        barrier(c, op, in);
        return true;
    default:
        if (op < OP_GROUP_I_ADD || op > OP_GROUP_LOGICAL_XOR)
            return false;
        reduce(c, op, in, n);
        return true;
    }
}
