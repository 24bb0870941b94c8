/* Translates SPIR-V of NV's matrices to KHR's. Opcodes and operands: SPIR-V specification 1.6,
 * SPV_NV_cooperative_matrix, SPV_KHR_cooperative_matrix. */
#include "vulkan/khr_kernel.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"

enum { HEADER_WORDS = 5, BOUND_WORD = 3, SPIRV_MAGIC = 0x07230203 };
enum {
    OP_EXTENSION = 10,
    OP_CAPABILITY = 17,
    OP_TYPE_INT = 21,
    OP_TYPE_FLOAT = 22,
    OP_CONSTANT_TRUE = 41,
    OP_CONSTANT_FALSE = 42,
    OP_CONSTANT = 43,
    OP_SPEC_CONSTANT_OP = 52,
    OP_FUNCTION = 54,
    OP_VARIABLE = 59,
    OP_DECORATE = 71,
    OP_LABEL = 248,
    DECORATION_SPEC_ID = 1
};
enum {
    CAPABILITY_NV = 5357,
    CAPABILITY_KHR = 6022,
    NV_TYPE = 5358,
    NV_LOAD = 5359,
    NV_STORE = 5360,
    NV_MULADD = 5361,
    NV_LENGTH = 5362,
    KHR_TYPE = 4456,
    KHR_LOAD = 4457,
    KHR_STORE = 4458,
    KHR_MULADD = 4459,
    KHR_LENGTH = 4460
};
static const char extension_nv[] = "SPV_NV_cooperative_matrix",
                  extension_khr[] = "SPV_KHR_cooperative_matrix";

/* A matrix's use and its order in memory: constants that KHR's instructions refer to by id. */
enum { FIRST_FACTOR = 0, SECOND_FACTOR = 1, SUMS = 2, BY_ROWS = 0, BY_COLUMNS = 1, N_NUMBERS = 3 };

struct translation {
    uint32_t *out, *late; /* late: instructions to insert at the start of main */
    size_t n, n_late;
    bool is_in_main, begins;
    uint32_t uint_type, float_type; /* ids of the 32-bit types */
    uint32_t false_id, true_id;     /* NV's BY_ROWS and BY_COLUMNS */
    uint32_t second_id;             /* id of the number of rows of second factors */
    uint32_t numbers;               /* id of the constant 0; those of 1 and 2 follow. 0: not declared yet */
    const char *fault;
};

static void put(struct translation *t, uint32_t word)
{
    t->out[t->n++] = word;
}

static void put_head(struct translation *t, uint32_t op, uint32_t n_words)
{
    put(t, n_words << 16 | op);
}

static void put_all(struct translation *t, const uint32_t *words, uint32_t n)
{
    memcpy(t->out + t->n, words, n * sizeof *words);
    t->n += n;
}

/* Copies an instruction of n words with another opcode. */
static void put_as(struct translation *t, uint32_t op, const uint32_t *in, uint32_t n)
{
    put_head(t, op, n);
    put_all(t, in + 1, n - 1);
}

/* Declares the constants before the first matrix type, after the integer type. */
static void put_numbers(struct translation *t)
{
    if (t->numbers)
        return;
    if (!t->uint_type)
        t->fault = "integers of 32 bits before the first matrix";
    t->numbers = t->out[BOUND_WORD];
    t->out[BOUND_WORD] += N_NUMBERS;
    for (uint32_t i = 0; i < N_NUMBERS; i++) {
        put_head(t, OP_CONSTANT, 4);
        put(t, t->uint_type);
        put(t, t->numbers + i);
        put(t, i);
    }
}

/* NV's operands are result, component, scope, rows, columns; KHR's has the use after them. */
static void put_type(struct translation *t, const uint32_t *in)
{
    bool is_second = t->second_id && in[4] == t->second_id;
    put_numbers(t);
    put_head(t, KHR_TYPE, 7);
    put_all(t, in + 1, 3);
    put(t, is_second ? in[5] : in[4]);
    put(t, in[5]);
    put(t, t->numbers + (is_second ? SECOND_FACTOR : in[2] == t->float_type ? SUMS : FIRST_FACTOR));
}

static uint32_t order(struct translation *t, uint32_t is_by_columns)
{
    if (is_by_columns != t->false_id && is_by_columns != t->true_id)
        t->fault = "matrices' order as a constant";
    return t->numbers + (is_by_columns == t->true_id ? BY_COLUMNS : BY_ROWS);
}

/* Translates a load or store. NV's operands are two or three words (load: result type, result, pointer;
 * store: pointer, matrix), then stride and order; KHR's has order before stride. */
static void put_access(struct translation *t, uint32_t op, const uint32_t *in, uint32_t n, uint32_t stride_at)
{
    put_head(t, op, n);
    put_all(t, in + 1, stride_at - 1);
    put(t, order(t, in[stride_at + 1]));
    put(t, in[stride_at]);
    put_all(t, in + stride_at + 2, n - stride_at - 2);
}

static void put_extension(struct translation *t, const uint32_t *in, uint32_t n)
{
    enum { WORDS = (sizeof extension_khr + 3) / 4 };
    uint32_t name[WORDS] = {0};
    if (strcmp((const char *)(in + 1), extension_nv) != 0) {
        put_all(t, in, n);
        return;
    }
    memcpy(name, extension_khr, sizeof extension_khr);
    put_head(t, OP_EXTENSION, 1 + WORDS);
    put_all(t, name, WORDS);
}

static bool is_late(const struct translation *t, uint32_t id)
{
    for (size_t i = 0; i < t->n_late; i += t->late[i] >> 16)
        if (t->late[i + 2] == id)
            return true;
    return false;
}

/* Whether a constant has to move into main. In NV's form a matrix's length (numbers per lane) is a constant,
 * and so is what is computed from it; in KHR's both are results inside a function. */
static bool takes_late(struct translation *t, const uint32_t *in, uint32_t n)
{
    bool is_length = in[3] == NV_LENGTH, is_late_too = is_length;
    for (uint32_t i = 4; i < n; i++)
        is_late_too |= is_late(t, in[i]);
    if (!is_late_too)
        return false;
    uint32_t *to = t->late + t->n_late;
    to[0] = (n - 1) << 16 | (is_length ? KHR_LENGTH : in[3]);
    to[1] = in[1];
    to[2] = in[2];
    memcpy(to + 3, in + 4, (n - 4) * sizeof *in);
    t->n_late += n - 1;
    return true;
}

/* Finds where main begins: an optimised kernel is one function. Its variables come before everything else. */
static void follow(struct translation *t, uint32_t op)
{
    if (op == OP_FUNCTION && t->is_in_main)
        t->fault = "one function";
    t->is_in_main |= op == OP_FUNCTION;
    if (t->begins && op != OP_VARIABLE) {
        put_all(t, t->late, (uint32_t)t->n_late);
        t->begins = false;
        t->n_late = 0;
    }
    t->begins |= op == OP_LABEL && t->n_late > 0;
}

/* Notes the ids that later instructions refer to. */
static void learn(struct translation *t, uint32_t op, const uint32_t *in, uint32_t n)
{
    if (op == OP_TYPE_INT && in[2] == 32 && in[3] == 0)
        t->uint_type = in[1];
    if (op == OP_TYPE_FLOAT && in[2] == 32)
        t->float_type = in[1];
    if (op == OP_CONSTANT_FALSE)
        t->false_id = in[2];
    if (op == OP_CONSTANT_TRUE)
        t->true_id = in[2];
    if (op == OP_DECORATE && n == 4 && in[2] == DECORATION_SPEC_ID && in[3] == MATRIX_SECOND_SPEC)
        t->second_id = in[1];
}

static void translate(struct translation *t, const uint32_t *in, uint32_t n)
{
    uint32_t op = in[0] & 0xffff;
    learn(t, op, in, n);
    follow(t, op);
    switch (op) {
    case OP_EXTENSION:
        put_extension(t, in, n);
        return;
    case OP_CAPABILITY:
        put_head(t, op, n);
        put(t, in[1] == CAPABILITY_NV ? CAPABILITY_KHR : in[1]);
        return;
    case NV_TYPE:
        put_type(t, in);
        return;
    case NV_LOAD:
        put_access(t, KHR_LOAD, in, n, 4);
        return;
    case NV_STORE:
        put_access(t, KHR_STORE, in, n, 3);
        return;
    case NV_MULADD:
        put_as(t, KHR_MULADD, in, n);
        return;
    case NV_LENGTH:
        put_as(t, KHR_LENGTH, in, n);
        return;
    case OP_SPEC_CONSTANT_OP:
        if (!takes_late(t, in, n))
            put_all(t, in, n);
        return;
    default:
        put_all(t, in, n);
    }
}

int khr_kernel(const uint32_t *words, size_t n, uint32_t **out, size_t *n_out, struct moeflux_err *e)
{
    /* An instruction grows by at most one word, and three constants are added. */
    size_t most = 2 * n + (size_t)4 * N_NUMBERS;
    struct translation t = {.out = mem_new(most + n, sizeof *t.out, e)};
    if (!t.out)
        return ERR_MEMORY;
    t.late = t.out + most;
    if (n < HEADER_WORDS || words[0] != SPIRV_MAGIC)
        t.fault = "SPIR-V";
    else
        put_all(&t, words, HEADER_WORDS);
    for (size_t i = HEADER_WORDS, length; i < n && !t.fault; i += length) {
        length = words[i] >> 16;
        if (length == 0 || length > n - i)
            t.fault = "whole instructions";
        else
            translate(&t, words + i, (uint32_t)length);
    }
    if (t.fault) {
        free(t.out);
        return err_set(e, ERR_DEVICE, "kernel for KHR's matrices: expected %s", t.fault);
    }
    *out = t.out;
    *n_out = t.n;
    return 0;
}
