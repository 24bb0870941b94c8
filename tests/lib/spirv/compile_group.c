/* Instructions of a subgroup, and barriers. */
#include "compile.h"
#include "run.h"

/* One operand or two, at in[first]. math: how two numbers of a sum are added; imm: 0 a sum of all lanes, 1
 * and 2 of those up to or before each; more: the instruction. */
static const struct {
    uint32_t op;
    spirv_run_fn *run;
    uint32_t first, n, math;
} rows[] = {{OP_ELECT, spirv_elect, 4, 0, 0},
            {OP_BALLOT, spirv_ballot, 4, 1, 0},
            {OP_BALLOT_BIT_COUNT, spirv_ballot_count, 5, 1, 0},
            {OP_BALLOT_FIND_LSB, spirv_ballot_find, 4, 1, 0},
            {OP_BROADCAST, spirv_exchange, 4, 2, 0},
            {OP_BROADCAST_FIRST, spirv_exchange, 4, 1, 0},
            {OP_GROUP_SHUFFLE, spirv_exchange, 4, 2, 0},
            {OP_SHUFFLE_XOR, spirv_exchange, 4, 2, 0},
            {OP_GROUP_I_ADD, spirv_reduce, 5, 1, OP_I_ADD},
            {OP_GROUP_F_ADD, spirv_reduce, 5, 1, OP_F_ADD},
            {OP_GROUP_U_MIN, spirv_reduce, 5, 1, MATH_EXTENDED + 38},
            {OP_GROUP_U_MAX, spirv_reduce, 5, 1, MATH_EXTENDED + 41},
            {OP_GROUP_F_MAX, spirv_reduce, 5, 1, MATH_EXTENDED + 40}};
enum { N_ROWS = sizeof rows / sizeof *rows };

void compile_group(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    uint32_t slots = compile_type(c, in[1])->n_slots, d = compile_new_slots(c, slots), k = 0;
    (void)n;
    while (k < N_ROWS && rows[k].op != (in[0] & 0xffff))
        k++;
    if (k == N_ROWS) {
        compile_fail(c, "an instruction that no kernel has used so far", in[0] & 0xffff);
        return;
    }
    const uint32_t *operands = in + rows[k].first;
    compile_emit(c, &(struct spirv_insn){.run = rows[k].run,
                                         .math = rows[k].math,
                                         .n = slots,
                                         .d = d,
                                         .a = rows[k].n ? compile_slot(c, operands[0]) : SPIRV_NO_SLOT,
                                         .b = rows[k].n > 1 ? compile_slot(c, operands[1]) : SPIRV_NO_SLOT,
                                         .imm = rows[k].first > 4 ? in[4] : 0,
                                         .more = rows[k].op});
    compile_set(c, in[2], in[1], d);
}

/* imm: the scope; more: the semantics. */
void compile_barrier(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    bool is_control = (in[0] & 0xffff) == OP_CONTROL_BARRIER;
    compile_emit(c, &(struct spirv_insn){.run = is_control ? spirv_control_barrier : spirv_memory_barrier,
                                         .n = 1,
                                         .imm = compile_number(c, in[1]),
                                         .more = compile_number(c, in[n - 1])});
}
