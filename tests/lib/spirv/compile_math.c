/* Instructions on registers: arithmetic, conversions, composites, those of a subgroup, barriers. */
#include "compile.h"
#include "run.h"

struct spirv_insn *compile_emit(struct spirv_compiler *c, const struct spirv_insn *i)
{
    struct spirv_insn *new = COMPILE_ADD(c, insns);
    *new = *i;
    new->at = c->at;
    if (i->n_out > c->p->most_numbers)
        c->p->most_numbers = i->n_out;
    return new;
}

/* Numbers of a result for each number of the operands. */
static uint32_t n_results(uint32_t op)
{
    bool has_two =
        op == OP_ADD_CARRY || op == OP_U_MUL_EXTENDED || op == MATH_UNPACK_HALF || op == MATH_ADDRESS;
    return has_two ? 2 : 1;
}

/* Computes at once where d is a constant's; then the operands are, too. */
static void math_into(struct spirv_compiler *c, uint32_t d, const struct spirv_insn *i)
{
    uint32_t *k = c->p->numbers;
    if (i->n == 0)
        return;
    if (is_constant(c, d))
        lane_math(i->math, i->n, k + d, k + i->a, k + i->b, k + i->c);
    else
        compile_emit(c, i)->d = d;
}

uint32_t compile_math_of(struct spirv_compiler *c, uint32_t op, uint32_t n, uint32_t a, uint32_t b,
                         uint32_t third)
{
    uint32_t n_out = n * n_results(op);
    uint32_t d = compile_slots(c, n_out, is_constant(c, a) && is_constant(c, b) && is_constant(c, third));
    math_into(c, d,
              &(struct spirv_insn){
                  .run = spirv_math, .math = op, .n = n, .n_out = n_out, .a = a, .b = b, .c = third});
    return d;
}

void compile_move(struct spirv_compiler *c, uint32_t d, uint32_t a, uint32_t n)
{
    math_into(c, d,
              &(struct spirv_insn){
                  .run = spirv_math, .math = MATH_MOVE, .n = n, .n_out = n, .a = a, .b = a, .c = a});
}

/* --- arithmetic --- */

/* Sets the result of an instruction; float16 numbers have no more than 11 bits. */
static void set_number(struct spirv_compiler *c, const uint32_t *in, uint32_t slot)
{
    const struct spirv_type *t = compile_type(c, in[1]);
    compile_set(c, in, t->is_half ? compile_math_of(c, MATH_ROUND_HALF, t->n_slots, slot, slot, slot) : slot);
}

/* An operand's slots, n of them: a condition or a factor may be one for all numbers. */
static uint32_t operand(struct spirv_compiler *c, uint32_t id, uint32_t n)
{
    uint32_t slot = compile_slot(c, id);
    if (compile_type_of(c, id)->n_slots >= n)
        return slot;
    uint32_t d = compile_slots(c, n, is_constant(c, slot));
    for (uint32_t i = 0; i < n; i++)
        compile_move(c, d + i, slot, 1);
    return d;
}

/* Up to three operands, number by number. */
static void arithmetic(struct spirv_compiler *c, const uint32_t *in)
{
    uint32_t op = op_of(in), first = op == OP_EXT_INST ? 5 : 3, a[3];
    if (op == OP_EXT_INST)
        op = MATH_EXTENDED + in[4];
    if (op == OP_VECTOR_TIMES_SCALAR || op == OP_MATRIX_TIMES_SCALAR)
        op = OP_F_MUL;
    if (!lane_math(op, 0, NULL, NULL, NULL, NULL))
        compile_fail(c, "an instruction that no kernel has used so far", op);
    uint32_t n = compile_type(c, in[1])->n_slots / n_results(op);
    for (uint32_t i = 0; i < 3; i++)
        a[i] = operand(c, in[first + i < length_of(in) ? first + i : first], n);
    a[1] += op == MATH_PACK_HALF;
    set_number(c, in, compile_math_of(c, op, n, a[0], a[1], a[2]));
}

/* A vector's numbers with each other: a dot product, any, all. */
static void fold(struct spirv_compiler *c, const uint32_t *in)
{
    uint32_t op = op_of(in), n = compile_type_of(c, in[3])->n_slots, a = compile_slot(c, in[3]), sum = a;
    uint32_t with = op == OP_DOT ? OP_F_ADD : op == OP_ANY ? OP_BIT_OR : OP_BIT_AND;
    if (op == OP_DOT) {
        uint32_t b = compile_slot(c, in[4]);
        sum = a = compile_math_of(c, OP_F_MUL, n, a, b, b);
    }
    for (uint32_t i = 1; i < n; i++)
        sum = compile_math_of(c, with, 1, sum, a + i, a + i);
    set_number(c, in, sum);
}

/* Bits of a number as another type's: those of two float16 have an order of their own, all others are the
 * same. */
static void bitcast(struct spirv_compiler *c, const uint32_t *in)
{
    const struct spirv_type *from = compile_type_of(c, in[3]), *to = compile_type(c, in[1]);
    uint32_t a = compile_slot(c, in[3]);
    if (from->is_half == to->is_half ? from->n_slots != to->n_slots : from->n_slots + to->n_slots != 3)
        compile_fail(c, "a cast to another number of bits", in[2]);
    if (from->is_half && !to->is_half)
        a = compile_math_of(c, MATH_PACK_HALF, 1, a, a + 1, a);
    if (to->is_half && !from->is_half)
        a = compile_math_of(c, MATH_UNPACK_HALF, 1, a, a, a);
    compile_set(c, in, a);
}

/* Numbers of less than 32 bits have zeros above. */
static void convert(struct spirv_compiler *c, const uint32_t *in)
{
    const struct spirv_type *to = compile_type(c, in[1]);
    uint32_t slot = compile_slot(c, in[3]);
    if (to->bits < 32 && !to->is_half) {
        uint32_t mask = compile_constant(c, (1u << to->bits) - 1);
        if (to->n_slots > 1)
            compile_fail(c, "a vector of narrow numbers", to->bits);
        slot = compile_math_of(c, OP_BIT_AND, 1, slot, mask, mask);
    }
    set_number(c, in, slot);
}

static void convert_signed(struct spirv_compiler *c, const uint32_t *in)
{
    const struct spirv_type *to = compile_type(c, in[1]), *from = compile_type_of(c, in[3]);
    uint32_t above = compile_constant(c, 32 - from->bits);
    if (to->bits != 32 || to->n_slots > 1)
        compile_fail(c, "a signed number of less than 32 bits, or a vector", to->bits);
    uint32_t high = compile_math_of(c, OP_SHIFT_LEFT, 1, compile_slot(c, in[3]), above, above);
    set_number(c, in, compile_math_of(c, OP_SHIFT_RIGHT_SIGNED, 1, high, above, above));
}

/* --- composites --- */

/* Sets a composite of n parts of parts[i].n slots each: a constant if all are. */
static void compose(struct spirv_compiler *c, const uint32_t *in, const struct spirv_move *parts, uint32_t n)
{
    bool are_constant = true;
    for (uint32_t i = 0; i < n; i++)
        are_constant &= parts[i].n == 0 || is_constant(c, parts[i].a);
    uint32_t d = compile_slots(c, compile_type(c, in[1])->n_slots, are_constant), at = d;
    for (uint32_t i = 0; i < n; at += parts[i++].n)
        compile_move(c, at, parts[i].a, parts[i].n);
    compile_set(c, in, d);
}

/* A matrix of one number has it everywhere. */
static void construct(struct spirv_compiler *c, const uint32_t *in)
{
    enum { MOST_PARTS = 2048 };
    struct spirv_move parts[MOST_PARTS];
    bool fills = compile_type(c, in[1])->form == FORM_MATRIX && length_of(in) == 4;
    uint32_t n = fills ? compile_type(c, in[1])->n_slots : length_of(in) - 3;
    if (n > MOST_PARTS)
        compile_fail(c, "parts of a composite", n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = in[fills ? 3 : 3 + i];
        parts[i] = (struct spirv_move){.a = compile_slot(c, id), .n = compile_type_of(c, id)->n_slots};
    }
    compose(c, in, parts, n);
}

static void shuffle(struct spirv_compiler *c, const uint32_t *in)
{
    enum { MOST_NUMBERS = 16 };
    struct spirv_move parts[MOST_NUMBERS];
    uint32_t a = compile_slot(c, in[3]), b = compile_slot(c, in[4]), n = length_of(in) - 5;
    uint32_t n_first = compile_type_of(c, in[3])->n_slots;
    if (n > MOST_NUMBERS)
        compile_fail(c, "numbers of a vector", n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = in[5 + i] == UINT32_MAX ? 0 : in[5 + i];
        parts[i] = (struct spirv_move){.a = from < n_first ? a + from : b + from - n_first, .n = 1};
    }
    compose(c, in, parts, n);
}

/* The element that a path of literals from in[first] on leads to; slots: its offset. */
static struct spirv_part follow(struct spirv_compiler *c, uint32_t type, const uint32_t *in, uint32_t first)
{
    struct spirv_part at = {.type = type};
    for (uint32_t i = first, before = 0; i < length_of(in); i++, before = at.slots) {
        at = compile_part(c, at.type, in[i]);
        at.slots += before;
    }
    return at;
}

static void insert(struct spirv_compiler *c, const uint32_t *in)
{
    const struct spirv_part at = follow(c, in[1], in, 5);
    uint32_t old = compile_slot(c, in[4]), n = compile_type(c, at.type)->n_slots, end = at.slots + n;
    const struct spirv_move parts[] = {{.a = old, .n = at.slots},
                                       {.a = compile_slot(c, in[3]), .n = n},
                                       {.a = old + end, .n = compile_type(c, in[1])->n_slots - end}};
    compose(c, in, parts, 3);
}

/* The whole where there is no path. */
static void extract(struct spirv_compiler *c, const uint32_t *in)
{
    uint32_t offset = follow(c, compile_value(c, in[3])->type, in, 4).slots;
    compile_set(c, in, compile_slot(c, in[3]) + offset);
}

/* --- constants --- */

/* A number, true or false, which the request may replace. */
static void scalar(struct spirv_compiler *c, const uint32_t *in)
{
    uint32_t op = op_of(in), spec = UINT32_MAX;
    bool is_number = op == OP_CONSTANT || op == OP_SPEC_CONSTANT;
    uint32_t number = is_number ? in[3] : op == OP_CONSTANT_TRUE || op == OP_SPEC_TRUE;
    compile_decoration(c, in[2], UINT32_MAX, DECORATION_SPEC_ID, &spec);
    if (spec < c->n_spec)
        number = is_number ? c->spec[spec] : c->spec[spec] != 0;
    uint32_t a = compile_constant(c, number);
    compile_set(c, in, compile_type(c, in[1])->is_half ? compile_math_of(c, MATH_BITS_HALF, 1, a, a, a) : a);
}

static void zeros(struct spirv_compiler *c, const uint32_t *in)
{
    compile_set(c, in, compile_slots(c, compile_type(c, in[1])->n_slots, true));
}

/* OpSpecConstantOp: the instruction without its number, then as in a function. */
static void computed(struct spirv_compiler *c, const uint32_t *in)
{
    enum { MOST_WORDS = 16 };
    uint32_t n = length_of(in), again[MOST_WORDS] = {(n - 1) << 16 | in[3], in[1], in[2]};
    if (n > MOST_WORDS)
        compile_fail(c, "operands", n);
    for (uint32_t i = 4; i < n; i++)
        again[i - 1] = in[i];
    compile_instruction(c, again);
}

/* --- subgroups and barriers --- */

/* How two numbers of a sum are added, and the sum of none. */
static const struct {
    uint32_t op, math, none;
} sums[] = {{OP_GROUP_I_ADD, OP_I_ADD, 0},
            {OP_GROUP_F_ADD, OP_F_ADD, 0},
            {OP_GROUP_U_MIN, MATH_U_MIN, UINT32_MAX},
            {OP_GROUP_U_MAX, MATH_U_MAX, 0},
            {OP_GROUP_F_MAX, MATH_F_MAX, 0xff800000u /* -infinity */},
            {0, 0, 0}};

/* None to two operands after the scope, and after the kind of sums and counts. */
static void group(struct spirv_compiler *c, const uint32_t *in)
{
    uint32_t op = op_of(in), n = compile_type(c, in[1])->n_slots, d = compile_slots(c, n, false), k = 0;
    uint32_t first = op >= OP_GROUP_I_ADD || op == OP_BALLOT_BIT_COUNT ? 5 : 4, end = length_of(in);
    struct spirv_insn i = {.run = spirv_group, .n = n, .n_out = n, .d = d, .more = op};
    while (sums[k].op && sums[k].op != op)
        k++;
    i.math = sums[k].math;
    i.size = sums[k].none;
    i.imm = first == 5 ? in[4] : 0;
    i.a = first < end ? compile_slot(c, in[first]) : SPIRV_NO_SLOT;
    i.b = first + 1 < end ? compile_slot(c, in[first + 1]) : SPIRV_NO_SLOT;
    compile_emit(c, &i);
    compile_set(c, in, d);
}

static void barrier(struct spirv_compiler *c, const uint32_t *in)
{
    struct spirv_insn i = {
        .run = spirv_memory_barrier, .n = 1, .more = compile_number(c, in[length_of(in) - 1])};
    if (op_of(in) == OP_CONTROL_BARRIER)
        i.run = spirv_control_barrier;
    if (op_of(in) == OP_CONTROL_BARRIER && compile_number(c, in[1]) == SCOPE_SUBGROUP) {
        i.run = spirv_group;
        i.more = OP_CONTROL_BARRIER;
    }
    compile_emit(c, &i);
}

static const struct {
    uint32_t first, last;
    compile_fn *fn;
} instructions[] = {{OP_UNDEF, OP_UNDEF, zeros},
                    {OP_CONSTANT_TRUE, OP_CONSTANT, scalar},
                    {OP_CONSTANT_COMPOSITE, OP_CONSTANT_COMPOSITE, construct},
                    {OP_CONSTANT_NULL, OP_CONSTANT_NULL, zeros},
                    {OP_SPEC_TRUE, OP_SPEC_CONSTANT, scalar},
                    {OP_SPEC_COMPOSITE, OP_SPEC_COMPOSITE, construct},
                    {OP_SPEC_OP, OP_SPEC_OP, computed},
                    {OP_VARIABLE, OP_VARIABLE, compile_variable},
                    {OP_LOAD, OP_STORE, compile_access},
                    {OP_ACCESS_CHAIN, OP_IN_BOUNDS_CHAIN, compile_chain},
                    {OP_SHUFFLE, OP_SHUFFLE, shuffle},
                    {OP_CONSTRUCT, OP_CONSTRUCT, construct},
                    {OP_EXTRACT, OP_EXTRACT, extract},
                    {OP_INSERT, OP_INSERT, insert},
                    {OP_U_CONVERT, OP_U_CONVERT, convert},
                    {OP_S_CONVERT, OP_S_CONVERT, convert_signed},
                    {OP_F_CONVERT, OP_F_CONVERT, convert},
                    {OP_BITCAST, OP_BITCAST, bitcast},
                    {OP_DOT, OP_DOT, fold},
                    {OP_ANY, OP_ALL, fold},
                    {OP_CONTROL_BARRIER, OP_MEMORY_BARRIER, barrier},
                    {OP_ATOMIC_ADD, OP_ATOMIC_ADD, compile_access},
                    {OP_ATOMIC_OR, OP_ATOMIC_OR, compile_access},
                    {OP_ELECT, OP_ELECT, group},
                    {OP_BROADCAST, OP_BALLOT, group},
                    {OP_BALLOT_BIT_COUNT, OP_BALLOT_FIND_LSB, group},
                    {OP_GROUP_SHUFFLE, OP_SHUFFLE_XOR, group},
                    {OP_GROUP_I_ADD, OP_GROUP_F_ADD, group},
                    {OP_GROUP_U_MIN, OP_GROUP_U_MIN, group},
                    {OP_GROUP_U_MAX, OP_GROUP_F_MAX, group},
                    {OP_KHR_MATRIX_LOAD, OP_KHR_MATRIX_STORE, compile_access},
                    {OP_KHR_MULADD, OP_KHR_MULADD, compile_muladd},
                    {OP_KHR_LENGTH, OP_KHR_LENGTH, compile_length},
                    {OP_NV_MATRIX_LOAD, OP_NV_MATRIX_STORE, compile_access},
                    {OP_NV_MULADD, OP_NV_MULADD, compile_muladd},
                    {OP_NV_LENGTH, OP_NV_LENGTH, compile_length},
                    {OP_COPY_LOGICAL, OP_COPY_LOGICAL, extract},
                    {0, UINT32_MAX, arithmetic}};

void compile_instruction(struct spirv_compiler *c, const uint32_t *in)
{
    uint32_t op = op_of(in), i = 0;
    while (op < instructions[i].first || op > instructions[i].last)
        i++;
    instructions[i].fn(c, in);
}
