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
            compile_move(c, v.base, compile_slot(c, in[4]), t->n_slots, false);
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
static void add_index(struct spirv_compiler *c, struct spirv_value *v, uint32_t storage, uint32_t id, uint32_t stride,
                      uint32_t count)
{
    uint32_t slot = compile_slot(c, id);
    if (storage == STORAGE_BUFFER) {
        bool is_signed = compile_type_of(c, id)->is_signed;
        v->slot = compile_pure(c, is_signed ? spirv_address_signed : spirv_address, 1, 2, true, v->slot, slot,
                               compile_constant_1(c, stride));
        /* The stride is read for each lane, as a slot. */
        return;
    }
    uint32_t d = compile_new_slots(c, 1);
    compile_emit(c, &(struct spirv_insn){
                        .run = spirv_index, .n = 1, .d = d, .a = slot, .b = v->dynamic, .imm = stride, .more = count});
    v->dynamic = d;
}

static void chain(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    struct spirv_value v = *compile_value(c, in[3]);
    uint32_t type = compile_type(c, v.type)->element, storage = compile_type(c, v.type)->storage;
    for (uint32_t i = 4; i < n && !c->failed; i++) {
        const struct spirv_type *t = compile_type(c, type);
        uint32_t slots, bytes, element, idx = compile_slot(c, in[i]);
        bool is_constant = compile_is_constant(idx);
        if (!compile_element(c, type, is_constant ? compile_number(c, in[i]) : 0, &element, &slots, &bytes))
            return;
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

static void access_vector(struct spirv_compiler *c, const struct spirv_value *v, const struct spirv_type *t,
                          uint32_t slot, uint32_t bytes, uint32_t align, bool is_store)
{
    const struct spirv_type *scalar = compile_scalar(c, t);
    uint32_t storage = compile_type(c, v->type)->storage;
    bool is_half = scalar->form == FORM_FLOAT && scalar->bits == 16, is_wide = scalar->n_slots == 2;
    uint32_t each = scalar->form == FORM_POINTER ? 8 : scalar->bytes;
    struct spirv_insn i = {.n = is_wide ? t->n_slots / 2 : t->n_slots,
                           .is_wide = is_wide,
                           .d = slot,
                           .more = SPIRV_MORE(each, is_half, bytes % align ? 1 : align)};
    if (storage == STORAGE_BUFFER) {
        i.run = is_store ? spirv_store_buffer : spirv_load_buffer;
        i.a = v->slot;
        i.imm = v->more_bytes + bytes;
    } else {
        i.run = storage == STORAGE_PUSH_CONSTANT ? spirv_load_push : is_store ? spirv_store_shared : spirv_load_shared;
        i.a = v->dynamic;
        i.imm = v->base + bytes;
    }
    compile_emit(c, &i);
}

/* A composite's vectors one by one. */
static void access_parts(struct spirv_compiler *c, const struct spirv_value *v, uint32_t type, uint32_t slot,
                         uint32_t bytes, uint32_t align, bool is_store)
{
    const struct spirv_type *t = compile_type(c, type);
    if (t->form != FORM_ARRAY && t->form != FORM_STRUCT) {
        access_vector(c, v, t, slot, bytes, align, is_store);
        return;
    }
    for (uint32_t i = 0; i < t->count && !c->failed; i++) {
        uint32_t element, slots, offset;
        if (compile_element(c, type, i, &element, &slots, &offset))
            access_parts(c, v, element, slot + slots, bytes + offset, align, is_store);
    }
}

/* mask: where the memory operands begin; 0: there are none. */
static uint32_t alignment(const uint32_t *in, uint32_t n, uint32_t mask)
{
    enum { VOLATILE = 1, ALIGNED = 2 };
    return mask < n && in[mask] & ALIGNED && mask + 1 < n ? in[mask + 1] : 1;
}

static void access_slots(struct spirv_compiler *c, const struct spirv_value *v, uint32_t slot, uint32_t n, bool is_wide,
                         bool is_store)
{
    if (v->dynamic == SPIRV_NO_SLOT) {
        compile_move(c, is_store ? v->base : slot, is_store ? slot : v->base, n, is_wide);
        return;
    }
    compile_emit(c, &(struct spirv_insn){.run = is_store ? spirv_store_private : spirv_load_private,
                                         .n = n,
                                         .is_wide = is_wide,
                                         .d = slot,
                                         .a = v->dynamic,
                                         .b = v->base,
                                         .c = v->first,
                                         .more = v->size});
}

static void load(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    const struct spirv_value v = *compile_value(c, in[3]);
    uint32_t storage = compile_type(c, v.type)->storage, slots = compile_type(c, in[1])->n_slots;
    if (storage == STORAGE_INPUT && v.dynamic == SPIRV_NO_SLOT) {
        compile_set(c, in[2], in[1], v.base);
        return;
    }
    uint32_t d = compile_new_slots(c, slots);
    if (is_in_slots(storage))
        access_slots(c, &v, d, slots, compile_kind(c, in[1]) == SPIRV_LONG, false);
    else
        access_parts(c, &v, in[1], d, 0, alignment(in, n, 4), false);
    compile_set(c, in[2], in[1], d);
}

static void store(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    const struct spirv_value v = *compile_value(c, in[1]);
    uint32_t type = compile_value(c, in[2])->type, slot = compile_slot(c, in[2]);
    if (is_in_slots(compile_type(c, v.type)->storage))
        access_slots(c, &v, slot, compile_type(c, type)->n_slots, compile_kind(c, type) == SPIRV_LONG, true);
    else
        access_parts(c, &v, type, slot, 0, alignment(in, n, 3), true);
}

static void atomic(struct spirv_compiler *c, uint32_t op, const uint32_t *in)
{
    bool is_store = op == OP_ATOMIC_STORE;
    const struct spirv_value v = *compile_value(c, is_store ? in[1] : in[3]);
    bool is_buffer = compile_type(c, v.type)->storage == STORAGE_BUFFER;
    uint32_t d = compile_new_slots(c, 1), operand = op == OP_ATOMIC_LOAD ? d : compile_slot(c, in[is_store ? 4 : 6]);
    compile_emit(c, &(struct spirv_insn){.run = is_buffer ? spirv_atomic_buffer : spirv_atomic_shared,
                                         .n = 1,
                                         .d = d,
                                         .a = is_buffer ? v.slot : v.dynamic,
                                         .b = operand,
                                         .imm = is_buffer ? v.more_bytes : v.base,
                                         .more = op});
    if (!is_store)
        compile_set(c, in[2], in[1], d);
}

/* --- matrices --- */

/* c: stride in bytes, a number of each lane; more: bytes of a number, is_by_columns at 256; b: the type's id, for
 * the rows and columns of matrix.c. */
static void access_matrix(struct spirv_compiler *c, const uint32_t *in, bool is_store, bool is_nv)
{
    uint32_t pointer = is_store ? in[1] : in[3], object = is_store ? in[2] : 0, at = is_store ? 3 : 4;
    const struct spirv_value v = *compile_value(c, pointer);
    const struct spirv_type *to = compile_type(c, v.type);
    uint32_t type = is_store ? compile_value(c, object)->type : in[1];
    const struct spirv_type *t = compile_type(c, type);
    /* A pointer to an array is one to its first element. */
    uint32_t element = to->element;
    while (compile_type(c, element)->form == FORM_ARRAY)
        element = compile_type(c, element)->element;
    uint32_t each = compile_constant_1(c, compile_type(c, element)->bytes);
    uint32_t stride = compile_slot(c, is_nv ? in[at] : in[at + 1]), order = compile_number(c, is_nv ? in[at + 1] : in[at]);
    uint32_t d = is_store ? compile_slot(c, object) : compile_new_slots(c, t->n_slots);
    bool is_buffer = to->storage == STORAGE_BUFFER;
    compile_emit(c, &(struct spirv_insn){.run = is_store ? spirv_matrix_store : spirv_matrix_load,
                                         .n = t->n_slots,
                                         .is_wide = is_buffer,
                                         .d = d,
                                         .a = is_buffer ? compile_slot(c, pointer) : v.dynamic,
                                         .b = compile_pure(c, spirv_math(OP_I_MUL, SPIRV_INT), 1, 1, false, stride, each, each),
                                         .imm = is_buffer ? 0 : v.base,
                                         .more = t->bits / 8 | (order ? 256u : 0u) | (t->is_second ? 512u : 0u) |
                                                 t->cols << 16});
    if (!is_store)
        compile_set(c, in[2], in[1], d);
}

static void muladd(struct spirv_compiler *c, const uint32_t *in)
{
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

bool compile_memory(struct spirv_compiler *c, uint32_t op, const uint32_t *in, uint32_t n)
{
    switch (op) {
    case OP_VARIABLE:
        compile_variable(c, in, n);
        return true;
    case OP_ACCESS_CHAIN:
    case OP_IN_BOUNDS_CHAIN:
        chain(c, in, n);
        return true;
    case OP_LOAD:
        load(c, in, n);
        return true;
    case OP_STORE:
        store(c, in, n);
        return true;
    case OP_NV_MATRIX_LOAD:
    case OP_KHR_MATRIX_LOAD:
        access_matrix(c, in, false, op == OP_NV_MATRIX_LOAD);
        return true;
    case OP_NV_MATRIX_STORE:
    case OP_KHR_MATRIX_STORE:
        access_matrix(c, in, true, op == OP_NV_MATRIX_STORE);
        return true;
    case OP_NV_MULADD:
    case OP_KHR_MULADD:
        muladd(c, in);
        return true;
    case OP_KHR_LENGTH:
        compile_set(c, in[2], in[1], compile_constant_1(c, compile_type(c, in[3])->n_slots));
        return true;
    default:
        if (op < OP_ATOMIC_LOAD || op > OP_ATOMIC_XOR)
            return false;
        atomic(c, op, in);
        return true;
    }
}
