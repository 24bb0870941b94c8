/* Arithmetic, conversions and composites: what each lane computes from its own numbers. */
#include <string.h>

#include "compile.h"

struct spirv_insn *compile_emit(struct spirv_compiler *c, const struct spirv_insn *i)
{
    struct spirv_program *p = c->p;
    p->insns = compile_room(c, p->insns, &c->insn_room, p->n_insns, sizeof *p->insns);
    if (c->failed)
        return NULL;
    p->insns[p->n_insns] = *i;
    p->insns[p->n_insns].at = c->at;
    if (!i->run && i->n_out > p->most_numbers)
        p->most_numbers = i->n_out;
    return &p->insns[p->n_insns++];
}

/* Computes at once where d is a constant's; then the operands are, too. */
static void math_into(struct spirv_compiler *c, uint32_t op, uint32_t d, uint32_t n, uint32_t n_out,
                      const uint32_t from[3])
{
    uint32_t *k = c->p->constants;
    if (n == 0 || c->failed)
        return;
    if (compile_is_constant(d))
        lane_math(op, n, k + (d - CONSTANT_SLOT), k + (from[0] - CONSTANT_SLOT),
                  k + (from[1] - CONSTANT_SLOT), k + (from[2] - CONSTANT_SLOT));
    else
        compile_emit(
            c, &(struct spirv_insn){
                   .math = op, .n = n, .n_out = n_out, .d = d, .a = from[0], .b = from[1], .c = from[2]});
}

uint32_t compile_math_of(struct spirv_compiler *c, uint32_t op, uint32_t n, uint32_t n_out, uint32_t a,
                         uint32_t b, uint32_t third)
{
    bool is_constant = compile_is_constant(a) && compile_is_constant(b) && compile_is_constant(third);
    uint32_t d = is_constant ? compile_constant(c, NULL, n_out) : compile_new_slots(c, n_out);
    math_into(c, op, d, n, n_out, (const uint32_t[]){a, b, third});
    return d;
}

void compile_move(struct spirv_compiler *c, uint32_t d, uint32_t a, uint32_t n)
{
    math_into(c, MATH_MOVE, d, n, n, (const uint32_t[]){a, a, a});
}

/* --- arithmetic --- */

static bool is_half(struct spirv_compiler *c, uint32_t type)
{
    const struct spirv_type *t = compile_scalar(c, compile_type(c, type));
    return t->form == FORM_FLOAT && t->bits == 16;
}

/* Sets the result of an instruction; float16 numbers have no more than 11 bits. */
static void set(struct spirv_compiler *c, const uint32_t *in, uint32_t slot)
{
    uint32_t n = compile_type(c, in[1])->n_slots;
    compile_set(c, in[2], in[1],
                is_half(c, in[1]) ? compile_math_of(c, MATH_ROUND_HALF, n, n, slot, slot, slot) : slot);
}

/* Up to three operands, number by number; a condition or a factor may be one for all. */
static void by_numbers(struct spirv_compiler *c, uint32_t op, const uint32_t *in, uint32_t n, uint32_t first)
{
    uint32_t slots[3], each[3], n_out = compile_type(c, in[1])->n_slots, numbers = n_out, each_has_all = 0;
    if (op == OP_ADD_CARRY || op == OP_U_MUL_EXTENDED || op == MATH_UNPACK_HALF)
        numbers /= 2;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t id = in[first + (first + i < n ? i : 0)];
        slots[i] = compile_slot(c, id);
        each[i] = compile_type_of(c, id)->n_slots > 1;
        each_has_all += compile_type_of(c, id)->n_slots >= numbers;
    }
    if (op == MATH_PACK_HALF)
        slots[1]++;
    if (each_has_all == 3 || op == MATH_PACK_HALF) {
        set(c, in, compile_math_of(c, op, numbers, n_out, slots[0], slots[1], slots[2]));
        return;
    }
    bool is_constant =
        compile_is_constant(slots[0]) && compile_is_constant(slots[1]) && compile_is_constant(slots[2]);
    uint32_t d = is_constant ? compile_constant(c, NULL, n_out) : compile_new_slots(c, n_out);
    for (uint32_t i = 0; i < n_out; i++)
        math_into(c, op, d + i, 1, 1,
                  (const uint32_t[]){slots[0] + each[0] * i, slots[1] + each[1] * i, slots[2] + each[2] * i});
    set(c, in, d);
}

/* A vector's numbers with each other: a dot product, any, all. */
void compile_fold(struct spirv_compiler *c, const uint32_t *in, uint32_t n_words)
{
    uint32_t op = in[0] & 0xffff;
    (void)n_words;
    uint32_t n = compile_type_of(c, in[3])->n_slots, a = compile_slot(c, in[3]), sum = 0;
    uint32_t with = op == OP_DOT ? OP_F_ADD : op == OP_ANY ? OP_BIT_OR : OP_BIT_AND;
    uint32_t b = op == OP_DOT ? compile_slot(c, in[4]) : a;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t one = op == OP_DOT ? compile_math_of(c, OP_F_MUL, 1, 1, a + i, b + i, b + i) : a + i;
        sum = i ? compile_math_of(c, with, 1, 1, sum, one, one) : one;
    }
    set(c, in, sum);
}

/* Bits of a number as another type's: those of two float16 have an order of their own, all others are the
 * same. */
void compile_bitcast(struct spirv_compiler *c, const uint32_t *in, uint32_t n_words)
{
    (void)n_words;
    uint32_t a = compile_slot(c, in[3]), from = compile_value(c, in[3])->type, slot = a;
    bool packs = is_half(c, from), unpacks = is_half(c, in[1]);
    uint32_t n = compile_type(c, packs ? in[1] : from)->n_slots, each = packs ? 1 : 2;
    if (packs || unpacks)
        slot = compile_new_slots(c, n * each);
    if (compile_type(c, packs ? from : in[1])->n_slots != (packs || unpacks ? 2 * n : n))
        compile_fail(c, "a cast to another number of bits", in[2]);
    for (uint32_t i = 0; i < n && packs; i++)
        compile_move(c, slot + i, compile_math_of(c, MATH_PACK_HALF, 1, 1, a + 2 * i, a + 2 * i + 1, a), 1);
    for (uint32_t i = 0; i < n && unpacks; i++)
        compile_move(c, slot + 2 * i, compile_math_of(c, MATH_UNPACK_HALF, 1, 2, a + i, a, a), 2);
    compile_set(c, in[2], in[1], slot);
}

/* Numbers of less than 32 bits have zeros above. */
void compile_convert(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    (void)n;
    const struct spirv_type *to = compile_type(c, in[1]);
    uint32_t bits = compile_scalar(c, to)->bits, slot = compile_slot(c, in[3]);
    for (uint32_t i = 0, mask; bits < 32 && i < to->n_slots && compile_scalar(c, to)->form == FORM_INT; i++) {
        if (to->n_slots > 1)
            compile_fail(c, "a vector of narrow numbers", bits);
        mask = compile_constant_1(c, (1u << bits) - 1);
        slot = compile_math_of(c, OP_BIT_AND, 1, 1, slot, mask, mask);
    }
    set(c, in, slot);
}

void compile_math(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    uint32_t op = in[0] & 0xffff, first = op == OP_EXT_INST ? 5 : 3;
    if (op == OP_EXT_INST)
        op = MATH_EXTENDED + in[4];
    if (op == OP_VECTOR_TIMES_SCALAR || op == OP_MATRIX_TIMES_SCALAR)
        op = OP_F_MUL;
    if (lane_math(op, 0, NULL, NULL, NULL, NULL))
        by_numbers(c, op, in, n, first);
    else
        compile_fail(c, "an instruction that no kernel has used so far", op);
}

/* --- composites --- */

/* The element that a path of literals leads to: its type and its first slot's offset. */
static void follow(struct spirv_compiler *c, uint32_t type, const uint32_t *path, uint32_t n,
                   uint32_t *element, uint32_t *offset)
{
    *element = type;
    *offset = 0;
    for (uint32_t i = 0, slots, bytes; i < n && !c->failed; i++) {
        compile_element(c, *element, path[i], element, &slots, &bytes);
        *offset += slots;
    }
}

void compile_construct(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    const struct spirv_type *t = compile_type(c, in[1]);
    bool is_constant = true, fills = t->form == FORM_MATRIX && n == 4;
    for (uint32_t i = 3; i < n; i++)
        is_constant &= compile_is_constant(compile_slot(c, in[i]));
    uint32_t d = is_constant ? compile_constant(c, NULL, t->n_slots) : compile_new_slots(c, t->n_slots),
             at = d;
    for (uint32_t i = 3; i < n; i++)
        for (uint32_t j = 0, slots = compile_type_of(c, in[i])->n_slots; j < (fills ? t->n_slots : 1);
             j++, at += slots)
            compile_move(c, at, compile_slot(c, in[i]), slots);
    compile_set(c, in[2], in[1], d);
}

void compile_insert(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    uint32_t element, offset, slots = compile_type(c, in[1])->n_slots;
    uint32_t old = compile_slot(c, in[4]), part = compile_slot(c, in[3]), d = compile_new_slots(c, slots);
    follow(c, in[1], in + 5, n - 5, &element, &offset);
    compile_move(c, d, old, slots);
    compile_move(c, d + offset, part, compile_type(c, element)->n_slots);
    compile_set(c, in[2], in[1], d);
}

void compile_shuffle(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    uint32_t a = compile_slot(c, in[3]), b = compile_slot(c, in[4]),
             n_first = compile_type_of(c, in[3])->n_slots;
    bool is_constant = compile_is_constant(a) && compile_is_constant(b);
    uint32_t d = is_constant ? compile_constant(c, NULL, n - 5) : compile_new_slots(c, n - 5);
    for (uint32_t i = 5; i < n; i++) {
        uint32_t from = in[i] == UINT32_MAX ? a : in[i] < n_first ? a + in[i] : b + in[i] - n_first;
        compile_move(c, d + i - 5, from, 1);
    }
    compile_set(c, in[2], in[1], d);
}

void compile_extract(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    uint32_t element, offset;
    follow(c, compile_value(c, in[3])->type, in + 4, n - 4, &element, &offset);
    compile_set(c, in[2], in[1], compile_slot(c, in[3]) + offset);
}

void compile_copy(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    (void)n;
    compile_set(c, in[2], in[1], compile_slot(c, in[3]));
}
