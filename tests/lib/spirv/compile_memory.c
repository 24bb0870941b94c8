/* Variables, pointers, loads, stores, atomics and instructions of matrices. */
#include "compile.h"
#include "run.h"

/* The slots of a lane's own variable. */
static uint32_t own_variable(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    struct spirv_program *p = c->p;
    uint32_t slot = compile_slots(c, n, false), builtin = 0;
    if (in[3] == STORAGE_INPUT) {
        compile_decoration(c, in[2], UINT32_MAX, DECORATION_BUILT_IN, &builtin);
        if (builtin < BUILTIN_WORKGROUP_ID || builtin > BUILTIN_LANE || p->n_builtins == SPIRV_MOST_BUILTINS)
            compile_fail(c, "an input", builtin);
        p->builtins[p->n_builtins].builtin = builtin;
        p->builtins[p->n_builtins++].slot = slot;
    }
    if (length_of(in) > 4)
        compile_move(c, slot, compile_slot(c, in[4]), n);
    return slot;
}

static bool is_own(uint32_t storage)
{
    return storage == STORAGE_INPUT || storage == STORAGE_PRIVATE || storage == STORAGE_FUNCTION;
}

void compile_variable(struct spirv_compiler *c, const uint32_t *in)
{
    enum { ALIGN = 16 };
    const struct spirv_type *t = compile_type(c, compile_type(c, in[1])->element);
    uint32_t base = 0;
    if (in[3] == STORAGE_WORKGROUP) {
        base = (c->p->shared_bytes + ALIGN - 1) / ALIGN * ALIGN;
        c->p->shared_bytes = base + t->bytes;
    } else if (is_own(in[3])) {
        base = own_variable(c, in, t->n_slots);
    } else if (in[3] != STORAGE_PUSH_CONSTANT) {
        compile_fail(c, "a variable's storage class", in[3]);
    }
    compile_set(c, in, SPIRV_NO_SLOT);
    struct spirv_value *v = &c->ids[in[2]].value;
    v->base = v->first = base;
    v->size = t->n_slots;
}

void compile_chain(struct spirv_compiler *c, const uint32_t *in)
{
    struct spirv_value v = *compile_value(c, in[3]);
    uint32_t type = compile_type(c, v.type)->element, storage = compile_type(c, v.type)->storage;
    bool has_address = storage == STORAGE_BUFFER;
    for (uint32_t i = 4; i < length_of(in); i++) {
        const struct spirv_type *t = compile_type(c, type);
        uint32_t idx = compile_slot(c, in[i]), number = is_constant(c, idx) ? compile_number(c, in[i]) : 0;
        const struct spirv_part part = compile_part(c, type, number);
        uint32_t stride = is_own(storage) ? compile_type(c, part.type)->n_slots : t->stride;
        type = part.type;
        v.base += is_own(storage) ? part.slots : part.bytes;
        if (is_constant(c, idx))
            continue;
        if (!has_address && t->count) /* else an array without end */
            compile_emit(c, &(struct spirv_insn){.run = spirv_check, .a = idx, .imm = t->count});
        if (v.slot == SPIRV_NO_SLOT)
            v.slot = compile_constant(c, 0);
        v.slot = compile_math_of(c, has_address ? MATH_ADDRESS : MATH_INDEX, 1, v.slot, idx,
                                 compile_constant(c, stride));
    }
    compile_set(c, in, v.slot);
    v.type = in[1];
    c->ids[in[2]].value = v;
}

/* What an access to n numbers through a pointer is; d: the registers. */
static struct spirv_insn access_of(struct spirv_compiler *c, const struct spirv_value *v, enum spirv_use use,
                                   uint32_t n, uint32_t d)
{
    struct spirv_insn i = {.run = spirv_access, .use = use, .n = n, .d = d, .a = v->slot, .imm = v->base};
    i.storage = compile_type(c, v->type)->storage;
    if (is_own(i.storage)) {
        i.storage = STORAGE_FUNCTION;
        i.c = v->first;
        i.imm = v->base - v->first;
        i.size = v->size;
        i.more = SPIRV_MORE(4, false, 1);
    }
    return i;
}

/* A composite's vectors one by one. part: what is accessed; slots: its registers; bytes: its offset. */
static void access_parts(struct spirv_compiler *c, const struct spirv_value *v, struct spirv_part part,
                         uint32_t align, enum spirv_use use)
{
    const struct spirv_type *t = compile_type(c, part.type);
    bool has_parts = t->form == FORM_ARRAY || t->form == FORM_STRUCT;
    for (uint32_t i = 0; has_parts && i < t->count; i++) {
        struct spirv_part inner = compile_part(c, part.type, i);
        inner.slots += part.slots;
        inner.bytes += part.bytes;
        access_parts(c, v, inner, align, use);
    }
    if (has_parts)
        return;
    struct spirv_insn i = access_of(c, v, use, t->n_slots, part.slots);
    i.imm += part.bytes;
    i.more = SPIRV_MORE(t->bits / 8, t->is_half, part.bytes % align ? 1 : align);
    compile_emit(c, &i);
}

/* What a matrix's access has in addition. at: stride and order, in KHR's form order and stride. */
static void add_matrix(struct spirv_compiler *c, const uint32_t *at, bool is_nv,
                       const struct spirv_type *number, const struct spirv_type *t, struct spirv_insn *i)
{
    while (number->form == FORM_ARRAY) /* a pointer to an array is one to its first element */
        number = compile_type(c, number->element);
    uint32_t each = compile_constant(c, number->bytes);
    i->run = spirv_matrix_access;
    i->b = compile_math_of(c, OP_I_MUL, 1, compile_slot(c, at[is_nv ? 0 : 1]), each, each);
    i->size = t->cols;
    i->more = SPIRV_MORE(t->bits / 8, t->is_half, 1) | (t->is_second ? MATRIX_IS_SECOND : 0) |
              (compile_number(c, at[is_nv ? 1 : 0]) ? MATRIX_BY_COLUMNS : 0);
}

/* A pointer and a value, or a type, an id and a pointer; then what each kind has (at). */
void compile_access(struct spirv_compiler *c, const uint32_t *in)
{
    uint32_t op = op_of(in);
    bool is_store = op == OP_STORE || op == OP_KHR_MATRIX_STORE || op == OP_NV_MATRIX_STORE;
    bool is_atomic = op == OP_ATOMIC_ADD || op == OP_ATOMIC_OR;
    enum spirv_use use = is_store ? SPIRV_WRITES : is_atomic ? SPIRV_ATOMIC : SPIRV_READS;
    const uint32_t *at = is_store ? in + 3 : in + 4;
    const struct spirv_value v = *compile_value(c, is_store ? in[1] : in[3]);
    const struct spirv_type *pointer = compile_type(c, v.type);
    struct spirv_part whole = {.type = is_store ? compile_value(c, in[2])->type : in[1]};
    const struct spirv_type *t = compile_type(c, whole.type);
    whole.slots = is_store ? compile_slot(c, in[2]) : compile_slots(c, t->n_slots, false);
    struct spirv_insn i = access_of(c, &v, use, t->n_slots, whole.slots);
    if (is_atomic) {
        i.b = compile_slot(c, at[2]);
        i.math = op == OP_ATOMIC_ADD ? OP_I_ADD : OP_BIT_OR;
        i.more = SPIRV_MORE(4, false, 4);
    }
    if (t->form == FORM_MATRIX && !is_own(pointer->storage))
        add_matrix(c, at, op >= OP_NV_MATRIX_TYPE, compile_type(c, pointer->element), t, &i);
    if (!is_atomic && t->form != FORM_MATRIX && !is_own(pointer->storage))
        access_parts(c, &v, whole, at + 1 < in + length_of(in) && *at & OPERANDS_ALIGNED ? at[1] : 1, use);
    else if (v.slot == SPIRV_NO_SLOT && is_own(pointer->storage))
        compile_move(c, is_store ? v.base : i.d, is_store ? i.d : v.base, i.n);
    else
        compile_emit(c, &i);
    if (!is_store)
        compile_set(c, in, i.d);
}

void compile_muladd(struct spirv_compiler *c, const uint32_t *in)
{
    const struct spirv_type *t = compile_type(c, in[1]), *a = compile_type_of(c, in[3]);
    struct spirv_insn i = {
        .run = spirv_matrix_muladd, .n = t->n_slots, .d = compile_slots(c, t->n_slots, false)};
    if (t->n_slots * c->p->lanes != 16 * 16 || t->cols != 16 || a->cols != 16)
        compile_fail(c, "columns of a matrix", t->cols);
    i.a = compile_slot(c, in[3]);
    i.b = compile_slot(c, in[4]);
    i.c = compile_slot(c, in[5]);
    compile_emit(c, &i);
    compile_set(c, in, i.d);
}

void compile_length(struct spirv_compiler *c, const uint32_t *in)
{
    compile_set(c, in, compile_constant(c, compile_type(c, in[3])->n_slots));
}
