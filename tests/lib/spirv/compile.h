/* compile.h - what the files of the compiler share. */
#ifndef MOEFLUX_TESTS_SPIRV_COMPILE_H
#define MOEFLUX_TESTS_SPIRV_COMPILE_H

#include "base/err.h"
#include "lane_math.h"
#include "module.h"
#include "numbers.h"
#include "program.h"

enum spirv_form {
    FORM_NONE,
    FORM_BOOL,
    FORM_INT,
    FORM_FLOAT,
    FORM_VECTOR,
    FORM_MATRIX,
    FORM_ARRAY,
    FORM_STRUCT,
    FORM_POINTER
};
struct spirv_type {
    enum spirv_form form;
    uint32_t bits;           /* those of a scalar, or of a composite's scalars where all are alike */
    uint32_t element, count; /* type id; count 0: an array without end */
    uint32_t n_slots;
    uint32_t bytes, stride; /* bytes in memory */
    uint32_t storage;       /* a pointer's */
    uint32_t rows, cols;    /* a matrix's */
    bool is_second;
};

/* A slot below CONSTANT_SLOT is a register's until the program is done, one above it a constant's. */
enum { CONSTANT_SLOT = 1 << 30 };

struct spirv_value {
    uint32_t type, slot;
    bool is_known;
    /* A pointer into memory that has no address: an offset, in slots (function's variables) or bytes. */
    uint32_t base, dynamic; /* dynamic: a slot, or SPIRV_NO_SLOT */
    uint32_t first, size;   /* the variable's */
    uint32_t more_bytes;    /* an address's: what is to be added to the slot */
};

struct spirv_compiler {
    const struct spirv_module *m;
    const struct spirv_request *request;
    struct spirv_program *p;
    struct moeflux_err *e;
    bool failed;
    struct spirv_type *types;   /* [bound] */
    struct spirv_value *values; /* [bound] */
    uint32_t n_registers;
    uint32_t at; /* the instruction that is compiled */
    size_t insn_room, block_room, edge_room, copy_room, literal_room, constant_room;
    uint32_t *order, n_order; /* labels, as spirv_program.blocks are sorted */
    struct spirv_label {
        uint32_t position; /* the label's in order */
        uint32_t block;    /* index in p->blocks, plus 1; 0: not reached */
        bool is_visited, is_reached;
    } * labels; /* [bound] */
};

/* Keeps the first error; the text names the kernel and the word. */
void compile_fail(struct spirv_compiler *c, const char *what, uint32_t number);
/* Grows an array for one more item. */
void *compile_room(struct spirv_compiler *c, void *array, size_t *room, size_t n, size_t size);

/* --- types and values (compile_types.c) --- */

const struct spirv_type *compile_type(struct spirv_compiler *c, uint32_t id);
/* The type of an id's value. */
const struct spirv_type *compile_type_of(struct spirv_compiler *c, uint32_t id);
/* A composite's element: its type's id, and where it is in slots and bytes. */
void compile_element(struct spirv_compiler *c, uint32_t type, uint32_t idx, uint32_t *element,
                     uint32_t *slots, uint32_t *bytes);
/* The scalar type of a scalar, a vector or a matrix. */
const struct spirv_type *compile_scalar(struct spirv_compiler *c, const struct spirv_type *t);

/* Returns the value of an id, a constant's when it is first asked for. */
struct spirv_value *compile_value(struct spirv_compiler *c, uint32_t id);
/* The slot that holds an id's value, address included. */
uint32_t compile_slot(struct spirv_compiler *c, uint32_t id);
/* The number of an id that is constant; an error where it is not. */
uint32_t compile_number(struct spirv_compiler *c, uint32_t id);
bool compile_is_constant(uint32_t slot);
uint32_t compile_new_slots(struct spirv_compiler *c, uint32_t n);
/* Slots of n constants of 32 bits, alike or not. */
uint32_t compile_constant(struct spirv_compiler *c, const uint32_t *numbers, uint32_t n);
uint32_t compile_constant_1(struct spirv_compiler *c, uint32_t number);
void compile_set(struct spirv_compiler *c, uint32_t id, uint32_t type, uint32_t slot);

/* --- instructions (compile_math.c, compile_memory.c) --- */

struct spirv_insn *compile_emit(struct spirv_compiler *c, const struct spirv_insn *i);
/* Computes n numbers (lane_math.h), at once what depends on constants alone. Returns the result's slot. */
uint32_t compile_math_of(struct spirv_compiler *c, uint32_t op, uint32_t n, uint32_t n_out, uint32_t a,
                         uint32_t b, uint32_t third);
/* Copies n slots to a place that is there. */
void compile_move(struct spirv_compiler *c, uint32_t d, uint32_t a, uint32_t n);
/* `in` begins at the instruction's number: number, type, id, operands; n words. */
typedef void compile_fn(struct spirv_compiler *c, const uint32_t *in, uint32_t n);
compile_fn compile_math, compile_fold, compile_bitcast, compile_convert, compile_copy;
compile_fn compile_construct, compile_extract, compile_insert, compile_shuffle;
compile_fn compile_variable, compile_chain, compile_load, compile_store, compile_atomic;
compile_fn compile_matrix, compile_muladd, compile_length, compile_group, compile_barrier;
/* Any instruction that is not about the flow. */
compile_fn compile_instruction;

#endif
