/* compile.h - what the files of the compiler share. An instruction is given as its first word on: length and
 * number, for most of them its type and its id, operands. */
#ifndef MOEFLUX_TESTS_SPIRV_COMPILE_H
#define MOEFLUX_TESTS_SPIRV_COMPILE_H

#include <setjmp.h>

#include "base/err.h"
#include "numbers.h"
#include "program.h"

enum spirv_form { FORM_NONE, FORM_SCALAR, FORM_VECTOR, FORM_MATRIX, FORM_ARRAY, FORM_STRUCT, FORM_POINTER };
struct spirv_type {
    enum spirv_form form;
    bool is_half;            /* its numbers are float16 */
    bool is_second;          /* a matrix: the second factor */
    uint32_t bits;           /* those of a number in memory, where all are alike */
    uint32_t element, count; /* type id; count 0: an array without end */
    uint32_t n_slots;
    uint32_t bytes, stride; /* memory's */
    uint32_t storage;       /* a pointer's */
    uint32_t cols;          /* a matrix's */
};
/* A composite's element: its type's id, and where it is. */
struct spirv_part {
    uint32_t type, slots, bytes;
};

/* n slots that go from a to d. */
struct spirv_move {
    uint32_t d, a, n;
};

struct spirv_value {
    uint32_t type;
    bool is_known;
    uint32_t slot;        /* a pointer: its address, or an offset without one, which may be SPIRV_NO_SLOT */
    uint32_t base;        /* a pointer: what is to be added; slots in a lane's own variable, else bytes */
    uint32_t first, size; /* a pointer into a lane's own variable: the variable's slots */
};

struct spirv_compiler {
    const uint32_t *words;
    size_t n_words;
    uint32_t bound;
    uint32_t decorations_at, decorations_end; /* words at which the first decoration and the last one begin */
    uint32_t size_at;                         /* the execution mode that has the workgroup's size */
    const uint32_t *spec;
    uint32_t n_spec;
    struct spirv_program *p;
    struct moeflux_err *e;
    jmp_buf failed; /* where failures go; `e` says which */
    struct spirv_id {
        uint32_t def;   /* the first word of what may be looked up; 0: none */
        uint32_t block; /* a label's block in p->blocks, plus 1 */
        struct spirv_type type;
        struct spirv_value value;
    } * ids;     /* [bound] */
    uint32_t at; /* the instruction that is compiled */
    struct {
        size_t insns, blocks, edges, numbers, fixed;
    } room;
};

static inline uint32_t op_of(const uint32_t *in)
{
    return in[0] & 0xffff;
}
static inline uint32_t length_of(const uint32_t *in)
{
    return in[0] >> 16;
}
static inline bool is_constant(const struct spirv_compiler *c, uint32_t slot)
{
    return slot < c->p->n_fixed && c->p->fixed[slot];
}

/* Does not return. The text names the kernel and the word. */
void compile_fail(struct spirv_compiler *c, const char *what, uint32_t number) __attribute__((noreturn));
/* Returns an array with room for one more item. */
void *compile_room(struct spirv_compiler *c, void *array, size_t *room, size_t n, size_t size);
/* A new item of one of the program's arrays. */
#define COMPILE_ADD(c, items)                                                                                \
    ((c)->p->items =                                                                                         \
         compile_room(c, (c)->p->items, &(c)->room.items, (c)->p->n_##items, sizeof *(c)->p->items),         \
     &(c)->p->items[(c)->p->n_##items++])

/* --- the module (module.c) --- */

/* Finds what is defined where, blocks and edges. Checks the lengths of all instructions. */
void compile_read(struct spirv_compiler *c);
/* Sets *value where the id, or its member, has the decoration. member: UINT32_MAX for the id itself. */
bool compile_decoration(const struct spirv_compiler *c, uint32_t id, uint32_t member, uint32_t decoration,
                        uint32_t *value);

/* --- types and values (compile_types.c) --- */

const struct spirv_type *compile_type(struct spirv_compiler *c, uint32_t id);
/* Returns the type of an id's value. */
const struct spirv_type *compile_type_of(struct spirv_compiler *c, uint32_t id);
struct spirv_part compile_part(struct spirv_compiler *c, uint32_t type, uint32_t idx);
/* Returns the value of an id, a constant's or a variable's when it is first asked for. */
struct spirv_value *compile_value(struct spirv_compiler *c, uint32_t id);
/* Returns the slot that holds an id's value, a whole address included. */
uint32_t compile_slot(struct spirv_compiler *c, uint32_t id);
/* Returns the number that a constant has. */
uint32_t compile_number(struct spirv_compiler *c, uint32_t id);
/* Returns n new slots, registers or constants of 0. */
uint32_t compile_slots(struct spirv_compiler *c, uint32_t n, bool are_fixed);
uint32_t compile_constant(struct spirv_compiler *c, uint32_t number);
/* The value of the instruction's id. */
void compile_set(struct spirv_compiler *c, const uint32_t *in, uint32_t slot);

/* --- instructions (compile_math.c, compile_memory.c) --- */

struct spirv_insn *compile_emit(struct spirv_compiler *c, const struct spirv_insn *i);
/* Computes n numbers (lane_math), at once what depends on constants alone. Returns the result's slot. */
uint32_t compile_math_of(struct spirv_compiler *c, uint32_t op, uint32_t n, uint32_t a, uint32_t b,
                         uint32_t third);
/* Copies n slots to a place that is there. */
void compile_move(struct spirv_compiler *c, uint32_t d, uint32_t a, uint32_t n);

typedef void compile_fn(struct spirv_compiler *c, const uint32_t *in);
/* Any instruction that is not about the flow. */
compile_fn compile_instruction, compile_variable, compile_chain, compile_access, compile_muladd,
    compile_length;

#endif
