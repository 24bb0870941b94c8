/* Arithmetic, conversions and composites: what each lane computes of its own numbers. */
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
    if (i->pure && i->n_out > p->most_numbers)
        p->most_numbers = i->n_out;
    return &p->insns[p->n_insns++];
}

static uint32_t fold(struct spirv_compiler *c, spirv_pure_fn *fn, uint32_t n, uint32_t n_out, bool is_wide,
                     const uint32_t from[3])
{
    const void *in[3];
    uint32_t d = compile_constant(c, NULL, n_out);
    if (c->failed)
        return d;
    for (int i = 0; i < 3; i++)
        in[i] = from[i] == SPIRV_NO_SLOT ? NULL : c->p->constants + (from[i] - CONSTANT_SLOT);
    fn(n, c->p->constants + (d - CONSTANT_SLOT), in[0], in[1], in[2]);
    for (uint32_t i = 0; is_wide && i < n_out; i += 2)
        c->p->is_wide[d - CONSTANT_SLOT + i] = 1;
    return d;
}

uint32_t compile_pure(struct spirv_compiler *c, spirv_pure_fn *fn, uint32_t n, uint32_t n_out, bool is_wide, uint32_t a,
                      uint32_t b, uint32_t third)
{
    if (compile_is_constant(a) && compile_is_constant(b) && compile_is_constant(third))
        return fold(c, fn, n, n_out, is_wide, (const uint32_t[]){a, b, third});
    uint32_t d = compile_new_slots(c, n_out);
    compile_emit(c, &(struct spirv_insn){
                        .pure = fn, .n = n, .n_out = n_out, .is_wide = is_wide, .d = d, .a = a, .b = b, .c = third});
    return d;
}

void compile_move(struct spirv_compiler *c, uint32_t d, uint32_t a, uint32_t n, bool is_wide)
{
    if (n == 0 || c->failed)
        return;
    if (compile_is_constant(d)) {
        memmove(c->p->constants + (d - CONSTANT_SLOT), c->p->constants + (a - CONSTANT_SLOT), n * sizeof(uint32_t));
        memmove(c->p->is_wide + (d - CONSTANT_SLOT), c->p->is_wide + (a - CONSTANT_SLOT), n);
        return;
    }
    spirv_pure_fn *fn = is_wide ? spirv_move_long : spirv_move;
    compile_emit(c, &(struct spirv_insn){.pure = fn,
                                         .n = is_wide ? n / 2 : n,
                                         .n_out = n,
                                         .is_wide = is_wide,
                                         .d = d,
                                         .a = a,
                                         .b = a,
                                         .c = a});
}

/* --- arithmetic --- */

static bool is_half(struct spirv_compiler *c, uint32_t type)
{
    const struct spirv_type *t = compile_scalar(c, compile_type(c, type));
    return t->form == FORM_FLOAT && t->bits == 16;
}

/* Narrow numbers have zeros above, float16 ones no more than 11 bits. */
static uint32_t trimmed(struct spirv_compiler *c, uint32_t type, uint32_t slot, uint32_t n)
{
    const struct spirv_type *t = compile_scalar(c, compile_type(c, type));
    if (is_half(c, type)) {
        if (compile_is_constant(slot) && !c->failed)
            spirv_round_half(n, c->p->constants + (slot - CONSTANT_SLOT), NULL, NULL, NULL);
        else
            compile_emit(c, &(struct spirv_insn){
                                .pure = spirv_round_half, .n = n, .n_out = n, .d = slot, .a = slot, .b = slot, .c = slot});
        return slot;
    }
    if (t->form != FORM_INT || t->bits >= 32)
        return slot;
    return compile_pure(c, t->bits == 8 ? spirv_keep_8 : spirv_keep_16, n, n, false, slot, slot, slot);
}

/* An operand of a signed instruction with its sign in all bits. */
static uint32_t with_sign(struct spirv_compiler *c, uint32_t id, uint32_t n)
{
    const struct spirv_type *t = compile_scalar(c, compile_type_of(c, id));
    uint32_t slot = compile_slot(c, id);
    if (t->form != FORM_INT || t->bits >= 32)
        return slot;
    return compile_pure(c, t->bits == 8 ? spirv_sign_8 : spirv_sign_16, n, n, false, slot, slot, slot);
}

static bool looks_at_signs(uint32_t op)
{
    return op == OP_S_DIV || op == OP_S_REM || op == OP_S_MOD || op == OP_SHIFT_RIGHT_SIGNED || op == OP_S_TO_F ||
           (op >= OP_I_EQUAL + 2 && op <= OP_S_LESS_EQUAL && (op - OP_I_EQUAL) % 2 == 1);
}

static bool is_conversion(uint32_t op)
{
    return op >= OP_F_TO_U && op <= OP_U_TO_F;
}

/* Up to three operands, number by number. */
static bool by_numbers(struct spirv_compiler *c, uint32_t op, const uint32_t *in, uint32_t n)
{
    uint32_t first = op == OP_SELECT ? in[4] : in[3], slots[3];
    enum spirv_kind kind = compile_kind(c, compile_value(c, first)->type);
    spirv_pure_fn *fn = spirv_math(op, kind);
    if (!fn)
        return false;
    const struct spirv_type *t = compile_type(c, in[1]);
    bool is_wide = compile_kind(c, in[1]) == SPIRV_LONG && !is_conversion(op);
    uint32_t numbers = is_wide ? t->n_slots / 2 : t->n_slots;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t id = in[3 + (i < n - 3 ? i : 0)];
        slots[i] = looks_at_signs(op) ? with_sign(c, id, numbers) : compile_slot(c, id);
    }
    uint32_t slot = compile_pure(c, fn, numbers, t->n_slots, is_wide, slots[0], slots[1], slots[2]);
    compile_set(c, in[2], in[1], compile_kind(c, in[1]) == SPIRV_BOOL ? slot : trimmed(c, in[1], slot, numbers));
    return true;
}

/* OpSelect of composites and wide numbers: one condition for all numbers, or one for each. */
static void choose_wide(struct spirv_compiler *c, const uint32_t *in)
{
    const struct spirv_type *t = compile_type(c, in[1]), *condition = compile_type_of(c, in[3]);
    uint32_t each = condition->form == FORM_VECTOR ? 1 : 0, slot = compile_slot(c, in[3]);
    uint32_t yes = compile_slot(c, in[4]), no = compile_slot(c, in[5]);
    spirv_pure_fn *fn = spirv_math(OP_SELECT, SPIRV_INT);
    uint32_t d = compile_new_slots(c, t->n_slots), halves[2];
    if (compile_kind(c, in[1]) != SPIRV_LONG) {
        for (uint32_t i = 0; i < t->n_slots; i++)
            compile_emit(c, &(struct spirv_insn){
                                .pure = fn, .n = 1, .n_out = 1, .d = d + i, .a = slot + each * i, .b = yes + i, .c = no + i});
        compile_set(c, in[2], in[1], d);
        return;
    }
    yes = compile_pure(c, spirv_split, 1, 2, false, yes, yes, yes);
    no = compile_pure(c, spirv_split, 1, 2, false, no, no, no);
    d = compile_new_slots(c, 2);
    for (uint32_t i = 0; i < 2; i++) {
        halves[i] = compile_pure(c, fn, 1, 1, false, slot, yes + i, no + i);
        compile_move(c, d + i, halves[i], 1, false);
    }
    compile_set(c, in[2], in[1], compile_pure(c, spirv_join, 1, 2, true, d, d, d));
}

static void times_scalar(struct spirv_compiler *c, const uint32_t *in)
{
    const struct spirv_type *t = compile_type(c, in[1]);
    uint32_t a = compile_slot(c, in[3]), b = compile_slot(c, in[4]);
    bool is_constant = compile_is_constant(a) && compile_is_constant(b);
    uint32_t d = is_constant ? compile_constant(c, NULL, t->n_slots) : compile_new_slots(c, t->n_slots);
    for (uint32_t i = 0; i < t->n_slots; i++)
        compile_move(c, d + i, compile_pure(c, spirv_math(OP_F_MUL, SPIRV_FLOAT), 1, 1, false, a + i, b, b), 1, false);
    compile_set(c, in[2], in[1], trimmed(c, in[1], d, t->n_slots));
}

static void dot(struct spirv_compiler *c, const uint32_t *in)
{
    uint32_t n = compile_type_of(c, in[3])->n_slots, a = compile_slot(c, in[3]), b = compile_slot(c, in[4]), sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t one = compile_pure(c, spirv_math(OP_F_MUL, SPIRV_FLOAT), 1, 1, false, a + i, b + i, b + i);
        sum = i ? compile_pure(c, spirv_math(OP_F_ADD, SPIRV_FLOAT), 1, 1, false, sum, one, one) : one;
    }
    compile_set(c, in[2], in[1], trimmed(c, in[1], sum, 1));
}

/* Two results as a structure: a sum and its carry, or the halves of a product. */
static void both_parts(struct spirv_compiler *c, uint32_t op, const uint32_t *in)
{
    bool is_sum = op == OP_ADD_CARRY || op == OP_SUB_BORROW;
    spirv_pure_fn *low = spirv_math(op == OP_ADD_CARRY ? OP_I_ADD : is_sum ? OP_I_SUB : OP_I_MUL, SPIRV_INT);
    spirv_pure_fn *high = is_sum                    ? spirv_math(op, SPIRV_INT)
                          : op == OP_S_MUL_EXTENDED ? spirv_mul_high_signed
                                                    : spirv_mul_high;
    uint32_t n = compile_type_of(c, in[3])->n_slots, a = compile_slot(c, in[3]), b = compile_slot(c, in[4]);
    uint32_t parts[2] = {compile_pure(c, low, n, n, false, a, b, b), compile_pure(c, high, n, n, false, a, b, b)};
    bool is_constant = compile_is_constant(parts[0]);
    uint32_t d = is_constant ? compile_constant(c, NULL, 2 * n) : compile_new_slots(c, 2 * n);
    compile_move(c, d, parts[0], n, false);
    compile_move(c, d + n, parts[1], n, false);
    compile_set(c, in[2], in[1], d);
}

static void any_or_all(struct spirv_compiler *c, uint32_t op, const uint32_t *in)
{
    uint32_t n = compile_type_of(c, in[3])->n_slots, a = compile_slot(c, in[3]), sum = a;
    for (uint32_t i = 1; i < n; i++)
        sum = compile_pure(c, spirv_math(op == OP_ANY ? OP_BIT_OR : OP_BIT_AND, SPIRV_INT), 1, 1, false, sum, a + i, sum);
    compile_set(c, in[2], in[1], sum);
}

/* Bits of a number as another type's. */
static void bitcast(struct spirv_compiler *c, const uint32_t *in)
{
    uint32_t a = compile_slot(c, in[3]), from = compile_value(c, in[3])->type, slot = a;
    bool is_long = compile_kind(c, in[1]) == SPIRV_LONG, was_long = compile_kind(c, from) == SPIRV_LONG;
    uint32_t n = compile_type(c, in[1])->n_slots;
    uint32_t bits = compile_scalar(c, compile_type(c, in[1]))->bits, had = compile_scalar(c, compile_type(c, from))->bits;
    if (is_half(c, from) && bits == 32) {
        slot = compile_new_slots(c, n);
        for (uint32_t i = 0; i < n; i++)
            compile_move(c, slot + i, compile_pure(c, spirv_pack_half, 1, 1, false, a + 2 * i, a + 2 * i + 1, a), 1, false);
    } else if (is_half(c, in[1]) && had == 32) {
        slot = compile_new_slots(c, n);
        for (uint32_t i = 0; i < n / 2; i++)
            compile_move(c, slot + 2 * i, compile_pure(c, spirv_unpack_half, 1, 2, false, a + i, a, a), 2, false);
    } else if (is_half(c, in[1]) != is_half(c, from) && bits == had) {
        slot = compile_pure(c, is_half(c, from) ? spirv_half_bits : spirv_bits_half, n, n, false, a, a, a);
    } else if (is_long && !was_long && had == 32 && n == 2) {
        slot = compile_pure(c, spirv_join, 1, 2, true, a, a, a);
    } else if (was_long && !is_long && bits == 32 && n == 2) {
        slot = compile_pure(c, spirv_split, 1, 2, false, a, a, a);
    } else if (bits != had) {
        compile_fail(c, "bits of a cast", had);
    }
    compile_set(c, in[2], in[1], slot);
}

static void convert_int(struct spirv_compiler *c, uint32_t op, const uint32_t *in)
{
    const struct spirv_type *to = compile_type(c, in[1]), *from = compile_type_of(c, in[3]);
    bool is_long = compile_kind(c, in[1]) == SPIRV_LONG, was_long = compile_kind(c, compile_value(c, in[3])->type) == SPIRV_LONG;
    uint32_t n = is_long ? to->n_slots / 2 : to->n_slots;
    uint32_t slot = op == OP_S_CONVERT ? with_sign(c, in[3], from->n_slots) : compile_slot(c, in[3]);
    if (is_long && !was_long)
        slot = compile_pure(c, op == OP_S_CONVERT ? spirv_widen_signed : spirv_widen, n, 2 * n, true, slot, slot, slot);
    else if (was_long && !is_long)
        slot = compile_pure(c, spirv_narrow, n, n, false, slot, slot, slot);
    compile_set(c, in[2], in[1], trimmed(c, in[1], slot, n));
}

static void convert_float(struct spirv_compiler *c, const uint32_t *in)
{
    uint32_t n = compile_type(c, in[1])->n_slots, slot = compile_slot(c, in[3]);
    if (is_half(c, in[1]) && !is_half(c, compile_value(c, in[3])->type))
        slot = trimmed(c, in[1], compile_pure(c, spirv_move, n, n, false, slot, slot, slot), n);
    compile_set(c, in[2], in[1], slot);
}

static bool extended(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    enum { PACK_HALF_2 = 58, UNPACK_HALF_2 = 62 };
    uint32_t number = in[4], a = compile_slot(c, in[5]), out = compile_type(c, in[1])->n_slots;
    if (number == PACK_HALF_2 || number == UNPACK_HALF_2) {
        bool packs = number == PACK_HALF_2;
        compile_set(c, in[2], in[1],
                    compile_pure(c, packs ? spirv_pack_half : spirv_unpack_half, 1, packs ? 1 : 2, false, a,
                                 packs ? a + 1 : a, a));
        return true;
    }
    spirv_pure_fn *fn = spirv_math_extended(number);
    if (!fn || compile_kind(c, in[1]) == SPIRV_LONG) {
        compile_fail(c, "an extended instruction", number);
        return true;
    }
    uint32_t b = n > 6 ? compile_slot(c, in[6]) : a, third = n > 7 ? compile_slot(c, in[7]) : a;
    compile_set(c, in[2], in[1], trimmed(c, in[1], compile_pure(c, fn, out, out, false, a, b, third), out));
    return true;
}

bool compile_math(struct spirv_compiler *c, uint32_t op, const uint32_t *in, uint32_t n)
{
    switch (op) {
    case OP_EXT_INST:
        return extended(c, in, n);
    case OP_VECTOR_TIMES_SCALAR:
    case OP_MATRIX_TIMES_SCALAR:
        times_scalar(c, in);
        return true;
    case OP_DOT:
        dot(c, in);
        return true;
    case OP_ADD_CARRY:
    case OP_SUB_BORROW:
    case OP_U_MUL_EXTENDED:
    case OP_S_MUL_EXTENDED:
        both_parts(c, op, in);
        return true;
    case OP_ANY:
    case OP_ALL:
        any_or_all(c, op, in);
        return true;
    case OP_BITCAST:
    case OP_CONVERT_PTR_U:
    case OP_CONVERT_U_PTR:
        bitcast(c, in);
        return true;
    case OP_U_CONVERT:
    case OP_S_CONVERT:
        convert_int(c, op, in);
        return true;
    case OP_F_CONVERT:
        convert_float(c, in);
        return true;
    case OP_COPY:
    case OP_COPY_LOGICAL:
        c->values[in[2]] = *compile_value(c, in[3]);
        c->values[in[2]].type = in[1];
        return true;
    case OP_SELECT:
        if (compile_type(c, in[1])->n_slots != compile_type_of(c, in[3])->n_slots) {
            choose_wide(c, in);
            return true;
        }
        return by_numbers(c, op, in, n);
    default:
        return (spirv_math(op, SPIRV_INT) || spirv_math(op, SPIRV_FLOAT)) && by_numbers(c, op, in, n);
    }
}

/* --- composites --- */

/* The element that a path of literals leads to: its type and its first slot's offset. */
static bool follow(struct spirv_compiler *c, uint32_t type, const uint32_t *path, uint32_t n, uint32_t *element,
                   uint32_t *offset)
{
    *element = type;
    *offset = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slots, bytes;
        if (!compile_element(c, *element, path[i], element, &slots, &bytes))
            return false;
        *offset += slots;
    }
    return true;
}

static bool is_wide(struct spirv_compiler *c, uint32_t type)
{
    return compile_type(c, type)->form != FORM_STRUCT && compile_kind(c, type) == SPIRV_LONG;
}

static void construct(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    const struct spirv_type *t = compile_type(c, in[1]);
    bool is_constant = true, fills = t->form == FORM_MATRIX && n == 4;
    for (uint32_t i = 3; i < n; i++)
        is_constant &= compile_is_constant(compile_slot(c, in[i]));
    uint32_t d = is_constant ? compile_constant(c, NULL, t->n_slots) : compile_new_slots(c, t->n_slots), at = d;
    for (uint32_t i = 3; i < n; i++) {
        uint32_t slots = compile_type_of(c, in[i])->n_slots, type = compile_value(c, in[i])->type;
        for (uint32_t j = 0; j < (fills ? t->n_slots : 1); j++, at += slots)
            compile_move(c, at, compile_slot(c, in[i]), slots, is_wide(c, type));
    }
    compile_set(c, in[2], in[1], d);
}

static void insert(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    uint32_t element, offset, slots = compile_type(c, in[1])->n_slots;
    if (!follow(c, in[1], in + 5, n - 5, &element, &offset))
        return;
    uint32_t old = compile_slot(c, in[4]), part = compile_slot(c, in[3]), d = compile_new_slots(c, slots);
    compile_move(c, d, old, slots, is_wide(c, in[1]));
    compile_move(c, d + offset, part, compile_type(c, element)->n_slots, is_wide(c, element));
    compile_set(c, in[2], in[1], d);
}

static void shuffle(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    uint32_t a = compile_slot(c, in[3]), b = compile_slot(c, in[4]), n_first = compile_type_of(c, in[3])->n_slots;
    bool is_constant = compile_is_constant(a) && compile_is_constant(b), in_order = true;
    for (uint32_t i = 6; i < n; i++)
        in_order &= in[i] == in[i - 1] + 1 && (in[i] < n_first) == (in[5] < n_first);
    uint32_t first = in[5] < n_first ? a + in[5] : b + in[5] - n_first;
    if (in_order) {
        compile_set(c, in[2], in[1], first);
        return;
    }
    uint32_t d = is_constant ? compile_constant(c, NULL, n - 5) : compile_new_slots(c, n - 5);
    for (uint32_t i = 5; i < n; i++) {
        uint32_t from = in[i] == UINT32_MAX ? a : in[i] < n_first ? a + in[i] : b + in[i] - n_first;
        compile_move(c, d + i - 5, from, 1, false);
    }
    compile_set(c, in[2], in[1], d);
}

bool compile_composite(struct spirv_compiler *c, uint32_t op, const uint32_t *in, uint32_t n)
{
    uint32_t element, offset;
    switch (op) {
    case OP_CONSTRUCT:
        construct(c, in, n);
        return true;
    case OP_EXTRACT:
        if (follow(c, compile_value(c, in[3])->type, in + 4, n - 4, &element, &offset))
            compile_set(c, in[2], in[1], compile_slot(c, in[3]) + offset);
        return true;
    case OP_INSERT:
        insert(c, in, n);
        return true;
    case OP_SHUFFLE:
        shuffle(c, in, n);
        return true;
    default:
        return false;
    }
}
