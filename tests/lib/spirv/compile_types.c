/* Types, constants and the slots of values. */
#include "args.h"
#include "base/mem.h"
#include "compile.h"

/* A struct's member; one without an offset follows those before it. */
static struct spirv_part member(struct spirv_compiler *c, const uint32_t *in, uint32_t idx)
{
    struct spirv_part part = {.type = in[2 + idx]};
    for (uint32_t i = 0; i < idx; i++) {
        const struct spirv_type *t = compile_type(c, in[2 + i]);
        part.slots += t->n_slots;
        part.bytes += t->bytes;
    }
    compile_decoration(c, in[1], idx, DECORATION_OFFSET, &part.bytes);
    return part;
}

static void read_struct(struct spirv_compiler *c, const uint32_t *in, struct spirv_type *t)
{
    t->form = FORM_STRUCT;
    t->count = length_of(in) - 2;
    for (uint32_t i = 0; i < t->count; i++) {
        const struct spirv_part part = member(c, in, i);
        t->n_slots = part.slots + compile_type(c, part.type)->n_slots;
        t->bytes = (uint32_t)size_max(t->bytes, part.bytes + compile_type(c, part.type)->bytes);
    }
}

static void read_sequence(struct spirv_compiler *c, const uint32_t *in, enum spirv_form form, uint32_t count,
                          struct spirv_type *t)
{
    const struct spirv_type *element = compile_type(c, in[2]);
    *t = (struct spirv_type){.form = form,
                             .is_half = element->is_half,
                             .bits = element->bits,
                             .element = in[2],
                             .count = count,
                             .n_slots = count * element->n_slots,
                             .stride = element->bytes};
    compile_decoration(c, in[1], UINT32_MAX, DECORATION_ARRAY_STRIDE, &t->stride);
    t->bytes = count * t->stride;
}

static void read_matrix(struct spirv_compiler *c, const uint32_t *in, struct spirv_type *t)
{
    uint32_t rows = compile_number(c, in[4]), cols = compile_number(c, in[5]), spec = UINT32_MAX;
    read_sequence(c, in, FORM_MATRIX, rows * cols / c->p->lanes, t);
    c->p->has_matrices = true;
    t->cols = cols;
    /* NV's types do not say what they are for; the constant of the rows does (kernels/lib/matrices.glsl). */
    if (length_of(in) > 6)
        t->is_second = compile_number(c, in[6]) == 1;
    else
        t->is_second =
            compile_decoration(c, in[4], UINT32_MAX, DECORATION_SPEC_ID, &spec) && spec == MATRIX_SECOND_SPEC;
}

static void read_type(struct spirv_compiler *c, const uint32_t *in, struct spirv_type *t)
{
    uint32_t op = op_of(in), bits = op == OP_TYPE_BOOL ? 32 : in[2];
    if (op >= OP_TYPE_BOOL && op <= OP_TYPE_FLOAT)
        *t = (struct spirv_type){.form = FORM_SCALAR, .bits = bits, .bytes = bits / 8, .n_slots = 1};
    else if (op == OP_TYPE_VECTOR)
        read_sequence(c, in, FORM_VECTOR, in[3], t);
    else if (op == OP_TYPE_ARRAY)
        read_sequence(c, in, FORM_ARRAY, compile_number(c, in[3]), t);
    else if (op == OP_TYPE_RUNTIME_ARRAY)
        read_sequence(c, in, FORM_ARRAY, 0, t);
    else if (op == OP_TYPE_STRUCT)
        read_struct(c, in, t);
    else if (op == OP_TYPE_POINTER) /* an address is two words; what it points to may be declared later */
        *t = (struct spirv_type){
            .form = FORM_POINTER, .element = in[3], .storage = in[2], .bits = 32, .bytes = 8};
    else if (op == OP_NV_MATRIX_TYPE || op == OP_KHR_MATRIX_TYPE)
        read_matrix(c, in, t);
    else
        compile_fail(c, "no type", op);
    if (t->bits > 32)
        compile_fail(c, "bits of a number", t->bits);
    t->is_half |= op == OP_TYPE_FLOAT && bits == 16;
    if (t->storage == STORAGE_BUFFER)
        t->n_slots = 2;
}

const struct spirv_type *compile_type(struct spirv_compiler *c, uint32_t id)
{
    struct spirv_id *i = &c->ids[id < c->bound ? id : 0];
    if (i->type.form == FORM_NONE)
        read_type(c, c->words + i->def, &i->type);
    return &i->type;
}

const struct spirv_type *compile_type_of(struct spirv_compiler *c, uint32_t id)
{
    return compile_type(c, compile_value(c, id)->type);
}

struct spirv_part compile_part(struct spirv_compiler *c, uint32_t type, uint32_t idx)
{
    const struct spirv_type *t = compile_type(c, type);
    if (t->form < FORM_VECTOR || t->form == FORM_POINTER || (idx >= t->count && t->count))
        compile_fail(c, "no element", idx);
    if (t->form == FORM_STRUCT)
        return member(c, c->words + c->ids[type].def, idx);
    return (struct spirv_part){t->element, idx * compile_type(c, t->element)->n_slots, idx * t->stride};
}

uint32_t compile_slots(struct spirv_compiler *c, uint32_t n, bool are_fixed)
{
    uint32_t first = (uint32_t)c->p->n_numbers;
    for (uint32_t i = 0; i < n; i++) {
        *COMPILE_ADD(c, numbers) = 0;
        *COMPILE_ADD(c, fixed) = are_fixed;
    }
    return first;
}

uint32_t compile_constant(struct spirv_compiler *c, uint32_t number)
{
    uint32_t slot = compile_slots(c, 1, true);
    c->p->numbers[slot] = number;
    return slot;
}

void compile_set(struct spirv_compiler *c, const uint32_t *in, uint32_t slot)
{
    if (in[2] >= c->bound)
        compile_fail(c, "no id of this module", in[2]);
    c->ids[in[2]].value = (struct spirv_value){.type = in[1], .slot = slot, .is_known = true};
}

struct spirv_value *compile_value(struct spirv_compiler *c, uint32_t id)
{
    struct spirv_id *i = &c->ids[id < c->bound ? id : 0];
    uint32_t before = c->at;
    if (i->value.is_known)
        return &i->value;
    c->at = i->def;
    if (c->at == 0)
        compile_fail(c, "a value that is used before it is there", id);
    compile_instruction(c, c->words + c->at);
    c->at = before;
    return &i->value;
}

uint32_t compile_slot(struct spirv_compiler *c, uint32_t id)
{
    const struct spirv_value *v = compile_value(c, id);
    if (v->base == 0)
        return v->slot;
    return compile_math_of(c, MATH_ADDRESS, 1, v->slot, compile_constant(c, v->base), compile_constant(c, 1));
}

uint32_t compile_number(struct spirv_compiler *c, uint32_t id)
{
    uint32_t slot = compile_slot(c, id);
    if (!is_constant(c, slot))
        compile_fail(c, "not a constant", id);
    return c->p->numbers[slot];
}
