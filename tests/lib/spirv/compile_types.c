/* Types, constants and the slots of values. */
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "compile.h"

void compile_fail(struct spirv_compiler *c, const char *what, uint32_t number)
{
    if (!c->failed)
        err_set(c->e, ERR_UNSUPPORTED, "%s: SPIR-V word %u: %s (%u)", c->request->name, c->at, what, number);
    c->failed = true;
}

void *compile_room(struct spirv_compiler *c, void *array, size_t *room, size_t n, size_t size)
{
    if (!c->failed && mem_grow(&array, room, n + 1, size, c->e) < 0)
        c->failed = true;
    return array;
}

/* --- types --- */

static uint32_t member_offset(struct spirv_compiler *c, const uint32_t *in, uint32_t idx)
{
    uint32_t offset = 0;
    if (!spirv_decoration(c->m, in[1], idx, DECORATION_OFFSET, &offset))
        for (uint32_t i = 0; i < idx; i++)
            offset += compile_type(c, in[2 + i])->bytes;
    return offset;
}

static void read_struct(struct spirv_compiler *c, const uint32_t *in, uint32_t n, struct spirv_type *t)
{
    t->form = FORM_STRUCT;
    t->count = n - 2;
    for (uint32_t i = 0; i < t->count; i++) {
        const struct spirv_type *member = compile_type(c, in[2 + i]);
        t->n_slots += member->n_slots;
        t->bytes = (uint32_t)size_max(t->bytes, member_offset(c, in, i) + member->bytes);
    }
}

static void read_sequence(struct spirv_compiler *c, const uint32_t *in, uint32_t count, struct spirv_type *t)
{
    const struct spirv_type *element = compile_type(c, in[2]);
    t->element = in[2];
    t->count = count;
    t->bits = element->bits;
    t->n_slots = count * element->n_slots;
    if (!spirv_decoration(c->m, in[1], UINT32_MAX, DECORATION_ARRAY_STRIDE, &t->stride))
        t->stride = element->bytes;
    t->bytes = count * t->stride;
}

static void read_matrix(struct spirv_compiler *c, const uint32_t *in, uint32_t n, struct spirv_type *t)
{
    uint32_t spec;
    t->form = FORM_MATRIX;
    c->p->has_matrices = true;
    t->element = in[2];
    t->bits = compile_type(c, in[2])->bits;
    t->rows = compile_number(c, in[4]);
    t->cols = compile_number(c, in[5]);
    /* NV's types do not say what they are for; the constant of the rows does (kernels/lib/matrices.glsl). */
    if (n > 6)
        t->is_second = compile_number(c, in[6]) == 1;
    else
        t->is_second = spirv_decoration(c->m, in[4], UINT32_MAX, DECORATION_SPEC_ID, &spec) &&
                       spec == MATRIX_SECOND_SPEC;
    t->count = t->n_slots = t->rows * t->cols / c->request->lanes;
}

static void read_type(struct spirv_compiler *c, const uint32_t *in, uint32_t n, struct spirv_type *t)
{
    switch (in[0] & 0xffff) {
    case OP_TYPE_BOOL:
        *t = (struct spirv_type){.form = FORM_BOOL, .bits = 32, .n_slots = 1, .bytes = 4};
        break;
    case OP_TYPE_INT:
    case OP_TYPE_FLOAT:
        *t = (struct spirv_type){.bits = in[2], .bytes = in[2] / 8, .n_slots = 1};
        t->form = (in[0] & 0xffff) == OP_TYPE_INT ? FORM_INT : FORM_FLOAT;
        if (in[2] > 32)
            compile_fail(c, "bits of a number", in[2]);
        break;
    case OP_TYPE_VECTOR:
        t->form = FORM_VECTOR;
        read_sequence(c, in, in[3], t);
        break;
    case OP_TYPE_ARRAY:
        t->form = FORM_ARRAY;
        read_sequence(c, in, compile_number(c, in[3]), t);
        break;
    case OP_TYPE_RUNTIME_ARRAY:
        t->form = FORM_ARRAY;
        read_sequence(c, in, 0, t);
        break;
    case OP_TYPE_STRUCT:
        read_struct(c, in, n, t);
        break;
    case OP_TYPE_POINTER: /* what it points to may be declared later */
        *t = (struct spirv_type){
            .form = FORM_POINTER, .element = in[3], .storage = in[2], .bytes = 8, .bits = 64};
        t->n_slots = in[2] == STORAGE_BUFFER ? 2 : 0;
        break;
    case OP_NV_MATRIX_TYPE:
    case OP_KHR_MATRIX_TYPE:
        read_matrix(c, in, n, t);
        break;
    default:
        compile_fail(c, "no type", in[0] & 0xffff);
    }
}

const struct spirv_type *compile_type(struct spirv_compiler *c, uint32_t id)
{
    struct spirv_type *t = &c->types[id < c->m->bound ? id : 0];
    if (t->form == FORM_NONE && !c->failed) {
        struct spirv_type read = {0};
        uint32_t at = c->m->at[id];
        if (at)
            read_type(c, c->m->words + at, spirv_length_at(c->m, at), &read);
        *t = read;
    }
    return t;
}

const struct spirv_type *compile_type_of(struct spirv_compiler *c, uint32_t id)
{
    return compile_type(c, compile_value(c, id)->type);
}

void compile_element(struct spirv_compiler *c, uint32_t type, uint32_t idx, uint32_t *element,
                     uint32_t *slots, uint32_t *bytes)
{
    const struct spirv_type *t = compile_type(c, type);
    const uint32_t *in = spirv_def(c->m, type);
    *element = *slots = *bytes = 0;
    if (t->form < FORM_VECTOR || t->form == FORM_POINTER || (idx >= t->count && t->count)) {
        compile_fail(c, "no element", idx);
        return;
    }
    *element = t->form == FORM_STRUCT ? in[2 + idx] : t->element;
    *bytes = t->form == FORM_STRUCT ? member_offset(c, in, idx) : idx * t->stride;
    *slots = t->form == FORM_MATRIX ? idx : idx * compile_type(c, *element)->n_slots;
    if (t->form == FORM_STRUCT)
        *slots = 0;
    for (uint32_t i = 0; t->form == FORM_STRUCT && i < idx; i++)
        *slots += compile_type(c, in[2 + i])->n_slots;
}

const struct spirv_type *compile_scalar(struct spirv_compiler *c, const struct spirv_type *t)
{
    while (t->form == FORM_VECTOR || t->form == FORM_MATRIX || t->form == FORM_ARRAY)
        t = compile_type(c, t->element);
    return t;
}

/* --- slots --- */

bool compile_is_constant(uint32_t slot)
{
    return slot >= CONSTANT_SLOT; /* SPIRV_NO_SLOT, too */
}

uint32_t compile_new_slots(struct spirv_compiler *c, uint32_t n)
{
    uint32_t first = c->n_registers;
    c->n_registers += n;
    return first;
}

uint32_t compile_constant(struct spirv_compiler *c, const uint32_t *numbers, uint32_t n)
{
    struct spirv_program *p = c->p;
    uint32_t first = p->n_constants;
    p->constants = compile_room(c, p->constants, &c->constant_room, first + n, sizeof *p->constants);
    for (uint32_t i = 0; i < n && !c->failed; i++)
        p->constants[p->n_constants++] = numbers ? numbers[i] : 0;
    return CONSTANT_SLOT + first;
}

uint32_t compile_constant_1(struct spirv_compiler *c, uint32_t number)
{
    return compile_constant(c, &number, 1);
}

void compile_set(struct spirv_compiler *c, uint32_t id, uint32_t type, uint32_t slot)
{
    c->values[id] =
        (struct spirv_value){.type = type, .slot = slot, .is_known = true, .dynamic = SPIRV_NO_SLOT};
}

/* --- constants --- */

static uint32_t spec_value(struct spirv_compiler *c, uint32_t id, uint32_t otherwise)
{
    uint32_t n;
    bool is_given = spirv_decoration(c->m, id, UINT32_MAX, DECORATION_SPEC_ID, &n) && n < c->request->n_spec;
    return is_given ? c->request->spec[n] : otherwise;
}

static uint32_t scalar_constant(struct spirv_compiler *c, const uint32_t *in)
{
    const struct spirv_type *t = compile_type(c, in[1]);
    uint32_t word = (in[0] & 0xffff) == OP_SPEC_CONSTANT ? spec_value(c, in[2], in[3]) : in[3];
    uint32_t slot = compile_constant_1(c, word);
    bool is_half = t->form == FORM_FLOAT && t->bits == 16;
    return is_half ? compile_math_of(c, MATH_BITS_HALF, 1, 1, slot, slot, slot) : slot;
}

/* OpSpecConstantOp: the instruction without its number, then as in a function. */
static void computed_constant(struct spirv_compiler *c, const uint32_t *in, uint32_t n)
{
    uint32_t again[16];
    if (n > 16) {
        compile_fail(c, "operands", n);
        return;
    }
    again[0] = (n - 1) << 16 | in[3];
    again[1] = in[1];
    again[2] = in[2];
    memcpy(again + 3, in + 4, (n - 4) * sizeof *in);
    compile_instruction(c, again, n - 1);
}

static void make_constant(struct spirv_compiler *c, uint32_t id)
{
    uint32_t at = c->m->at[id], before = c->at;
    const uint32_t *in = c->m->words + at;
    uint32_t n = spirv_length_at(c->m, at);
    c->at = at;
    switch (in[0] & 0xffff) {
    case OP_CONSTANT:
    case OP_SPEC_CONSTANT:
        compile_set(c, id, in[1], scalar_constant(c, in));
        break;
    case OP_CONSTANT_TRUE:
    case OP_CONSTANT_FALSE:
        compile_set(c, id, in[1], compile_constant_1(c, (in[0] & 0xffff) == OP_CONSTANT_TRUE));
        break;
    case OP_SPEC_TRUE:
    case OP_SPEC_FALSE:
        compile_set(c, id, in[1],
                    compile_constant_1(c, spec_value(c, id, (in[0] & 0xffff) == OP_SPEC_TRUE) != 0));
        break;
    case OP_CONSTANT_NULL:
    case OP_UNDEF:
        compile_set(c, id, in[1], compile_constant(c, NULL, compile_type(c, in[1])->n_slots));
        break;
    case OP_CONSTANT_COMPOSITE:
    case OP_SPEC_COMPOSITE:
        compile_construct(c, in, n);
        break;
    case OP_SPEC_OP:
        computed_constant(c, in, n);
        break;
    default:
        compile_fail(c, "a value that is used before it is there", id);
    }
    c->at = before;
}

struct spirv_value *compile_value(struct spirv_compiler *c, uint32_t id)
{
    struct spirv_value *v = &c->values[id];
    if (!v->is_known && !c->failed)
        make_constant(c, id);
    return v;
}

uint32_t compile_slot(struct spirv_compiler *c, uint32_t id)
{
    struct spirv_value *v = compile_value(c, id);
    uint32_t bytes = v->more_bytes ? compile_constant_1(c, v->more_bytes) : 0;
    return bytes ? compile_math_of(c, MATH_ADDRESS, 1, 2, v->slot, bytes, compile_constant_1(c, 1)) : v->slot;
}

uint32_t compile_number(struct spirv_compiler *c, uint32_t id)
{
    uint32_t slot = compile_slot(c, id);
    if (c->failed)
        return 0;
    if (!compile_is_constant(slot) || slot == SPIRV_NO_SLOT) {
        compile_fail(c, "not a constant", id);
        return 0;
    }
    return c->p->constants[slot - CONSTANT_SLOT];
}
