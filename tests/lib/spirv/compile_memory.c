/* Variables, pointers, loads, stores, atomics and the loads and stores of matrices. */
#include "compile.h"
#include "run.h"

/* --- variables --- */

static void input_variable(struct spirv_compiler *c, uint32_t id, uint32_t slot)
{
    struct spirv_program *p = c->p;
    uint32_t builtin;
    if (!spirv_decoration(c->m, id, UINT32_MAX, DECORATION_BUILT_IN, &builtin) ||
        p->n_builtins == SPIRV_MOST_BUILTINS) {
        compile_fail(c, "an input", id);
        return;
    }
    p->builtins[p->n_builtins].builtin = builtin;
    p->builtins[p->n_builtins++].slot = slot;
}

void compile_variable(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    enum { ALIGN = 16 };
    struct spirv_program *p = c->p;
    const struct spirv_type *pointer = compile_type(c, in[1]), *t = compile_type(c, pointer->element);
    struct spirv_value v = {.type = in[1], .is_known = true, .dynamic = SPIRV_NO_SLOT, .size = t->bytes};
    switch (in[3]) {
    case STORAGE_WORKGROUP:
        p->shared_bytes = (p->shared_bytes + ALIGN - 1) / ALIGN * ALIGN;
        v.base = v.first = p->shared_bytes;
        p->shared_bytes += t->bytes;
        break;
    case STORAGE_PUSH_CONSTANT:
        break;
    case STORAGE_INPUT:
    case STORAGE_PRIVATE:
    case STORAGE_FUNCTION:
        v.base = v.first = compile_new_slots(c, t->n_slots);
        v.size = t->n_slots;
        if (in[3] == STORAGE_INPUT)
            input_variable(c, in[2], v.base);
        if (n > 4)
            compile_move(c, v.base, compile_slot(c, in[4]), t->n_slots);
        break;
    default:
        compile_fail(c, "a variable's storage class", in[3]);
    }
    c->values[in[2]] = v;
}

/* --- pointers --- */

static bool is_in_slots(uint32_t storage)
{
    return storage == STORAGE_INPUT || storage == STORAGE_PRIVATE || storage == STORAGE_FUNCTION;
}

/* Adds an index that is no constant; `count` elements, 0: no end. */
static void add_index(struct spirv_compiler *c, struct spirv_value *v, uint32_t storage, uint32_t id,
                      uint32_t stride, uint32_t count)
{
    uint32_t slot = compile_slot(c, id);
    if (storage == STORAGE_BUFFER) {
        v->slot = compile_math_of(c, MATH_ADDRESS, 1, 2, v->slot, slot, compile_constant_1(c, stride));
        return;
    }
    uint32_t d = compile_new_slots(c, 1);
    compile_emit(
        c, &(struct spirv_insn){
               .run = spirv_index, .n = 1, .d = d, .a = slot, .b = v->dynamic, .imm = stride, .more = count});
    v->dynamic = d;
}

void compile_chain(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    struct spirv_value v = *compile_value(c, in[3]);
    uint32_t type = compile_type(c, v.type)->element, storage = compile_type(c, v.type)->storage;
    for (uint32_t i = 4; i < n && !c->failed; i++) {
        const struct spirv_type *t = compile_type(c, type);
        uint32_t slots, bytes, element, idx = compile_slot(c, in[i]);
        bool is_constant = compile_is_constant(idx);
        compile_element(c, type, is_constant ? compile_number(c, in[i]) : 0, &element, &slots, &bytes);
        if (t->form == FORM_VECTOR)
            bytes = is_constant ? compile_number(c, in[i]) * compile_type(c, element)->bytes : 0;
        if (is_constant) {
            v.base += is_in_slots(storage) ? slots : bytes;
            v.more_bytes += storage == STORAGE_BUFFER ? bytes : 0;
        } else {
            uint32_t each = t->form == FORM_MATRIX ? 1 : compile_type(c, element)->n_slots;
            uint32_t stride = t->form == FORM_VECTOR ? compile_type(c, element)->bytes : t->stride;
            add_index(c, &v, storage, in[i], is_in_slots(storage) ? each : stride, t->count);
        }
        type = element;
    }
    v.type = in[1];
    v.is_known = true;
    c->values[in[2]] = v;
}

/* --- loads and stores --- */

static struct spirv_insn *emit_access(struct spirv_compiler *c, const struct spirv_value *v,
                                      spirv_run_fn *run, uint32_t n, uint32_t slot, uint32_t bytes,
                                      uint32_t more)
{
    static struct spirv_insn dropped;
    uint32_t storage = compile_type(c, v->type)->storage;
    bool is_buffer = storage == STORAGE_BUFFER, is_own = is_in_slots(storage);
    struct spirv_insn *i =
        compile_emit(c, &(struct spirv_insn){.run = run,
                                             .n = n,
                                             .d = slot,
                                             .a = is_buffer ? v->slot : v->dynamic,
                                             .b = is_own ? v->base : SPIRV_NO_SLOT,
                                             .c = is_own ? v->first : SPIRV_NO_SLOT,
                                             .imm = (is_buffer ? v->more_bytes : v->base) + bytes,
                                             .more = is_own ? v->size : more,
                                             .storage = is_own ? STORAGE_FUNCTION : storage});
    return i ? i : &dropped;
}

/* A composite's vectors one by one. */
static void access_parts(struct spirv_compiler *c, const struct spirv_value *v, uint32_t type, uint32_t slot,
                         uint32_t bytes, uint32_t align, bool is_store)
{
    const struct spirv_type *t = compile_type(c, type), *scalar = compile_scalar(c, t);
    if (t->form != FORM_ARRAY && t->form != FORM_STRUCT) {
        uint32_t each = t->form == FORM_POINTER ? 4 : scalar->bytes;
        bool is_half = scalar->form == FORM_FLOAT && each == 2;
        emit_access(c, v, is_store ? spirv_store : spirv_load, t->n_slots, slot, bytes,
                    SPIRV_MORE(each, is_half, bytes % align ? 1 : align));
        return;
    }
    for (uint32_t i = 0, element, slots, offset; i < t->count && !c->failed; i++) {
        compile_element(c, type, i, &element, &slots, &offset);
        access_parts(c, v, element, slot + slots, bytes + offset, align, is_store);
    }
}

/* at: where the memory operands begin. */
static void access_value(struct spirv_compiler *c, const struct spirv_value *v, uint32_t type, uint32_t slot,
                         const uint32_t *in, uint32_t n, uint32_t at, bool is_store)
{
    enum { ALIGNED = 2 };
    uint32_t slots = compile_type(c, type)->n_slots;
    if (!is_in_slots(compile_type(c, v->type)->storage))
        access_parts(c, v, type, slot, 0, at + 1 < n && in[at] & ALIGNED ? in[at + 1] : 1, is_store);
    else if (v->dynamic == SPIRV_NO_SLOT)
        compile_move(c, is_store ? v->base : slot, is_store ? slot : v->base, slots);
    else
        emit_access(c, v, is_store ? spirv_store : spirv_load, slots, slot, 0, 0);
}

void compile_load(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    const struct spirv_value v = *compile_value(c, in[3]);
    bool is_input = compile_type(c, v.type)->storage == STORAGE_INPUT && v.dynamic == SPIRV_NO_SLOT;
    uint32_t d = is_input ? v.base : compile_new_slots(c, compile_type(c, in[1])->n_slots);
    if (!is_input)
        access_value(c, &v, in[1], d, in, n, 4, false);
    compile_set(c, in[2], in[1], d);
}

void compile_store(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    const struct spirv_value v = *compile_value(c, in[1]);
    access_value(c, &v, compile_value(c, in[2])->type, compile_slot(c, in[2]), in, n, 3, true);
}

void compile_atomic(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    (void)n;
    const struct spirv_value v = *compile_value(c, in[3]);
    uint32_t d = compile_new_slots(c, 1), operand = compile_slot(c, in[6]);
    struct spirv_insn *i = emit_access(c, &v, spirv_atomic, 1, d, 0, SPIRV_MORE(4, false, 4));
    i->b = operand;
    i->math = (in[0] & 0xffff) == OP_ATOMIC_ADD ? OP_I_ADD : OP_BIT_OR;
    compile_set(c, in[2], in[1], d);
}

/* --- matrices --- */

/* b: stride in bytes; more: bytes of a number, flags and columns (run.h). */
void compile_matrix(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    uint32_t op = in[0] & 0xffff;
    bool is_nv = op >= OP_NV_MATRIX_TYPE, is_store = op == OP_NV_MATRIX_STORE || op == OP_KHR_MATRIX_STORE;
    (void)n;
    const struct spirv_value v = *compile_value(c, is_store ? in[1] : in[3]);
    const uint32_t *at = is_store ? in + 3 : in + 4;
    const struct spirv_type *t = compile_type(c, is_store ? compile_value(c, in[2])->type : in[1]);
    /* A pointer to an array is one to its first element. */
    const struct spirv_type *number = compile_type(c, compile_type(c, v.type)->element);
    while (number->form == FORM_ARRAY)
        number = compile_type(c, number->element);
    uint32_t each = compile_constant_1(c, number->bytes), stride = compile_slot(c, is_nv ? at[0] : at[1]);
    uint32_t order = compile_number(c, is_nv ? at[1] : at[0]);
    uint32_t d = is_store ? compile_slot(c, in[2]) : compile_new_slots(c, t->n_slots);
    stride = compile_math_of(c, OP_I_MUL, 1, 1, stride, each, each);
    emit_access(c, &v, is_store ? spirv_matrix_store : spirv_matrix_load, t->n_slots, d, 0,
                t->bits / 8 | (order ? MATRIX_BY_COLUMNS : 0) | (t->is_second ? MATRIX_IS_SECOND : 0) |
                    t->cols << 16)
        ->b = stride;
    if (!is_store)
        compile_set(c, in[2], in[1], d);
}

void compile_muladd(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    (void)n;
    const struct spirv_type *t = compile_type(c, in[1]), *a = compile_type_of(c, in[3]);
    uint32_t d = compile_new_slots(c, t->n_slots);
    if (t->rows != 16 || t->cols != 16 || a->cols != 16)
        compile_fail(c, "rows of a matrix", t->rows);
    compile_emit(c, &(struct spirv_insn){.run = spirv_matrix_muladd,
                                         .n = t->n_slots,
                                         .d = d,
                                         .a = compile_slot(c, in[3]),
                                         .b = compile_slot(c, in[4]),
                                         .c = compile_slot(c, in[5])});
    compile_set(c, in[2], in[1], d);
}

void compile_length(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    (void)n;
    compile_set(c, in[2], in[1], compile_constant_1(c, compile_type(c, in[3])->n_slots));
}
