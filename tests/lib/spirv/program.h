/* program.h - a kernel made ready for one set of constants and one subgroup size: flat instructions whose
 * operands are slots. A slot is a 32-bit number of each lane: slot s of a team lies at registers + s *
 * lanes.
 *
 *   bool            0 or 1
 *   int, uint       narrow ones with zeros above
 *   float16         as a float32 of the same value
 *   addresses       two slots, the low word first
 *   composites      their numbers in order
 *   matrices        numbers of each lane (matrix.c)
 * Constants have slots, too. */
#ifndef MOEFLUX_TESTS_SPIRV_PROGRAM_H
#define MOEFLUX_TESTS_SPIRV_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct spirv_insn;
struct spirv_lanes;

enum { SPIRV_MOST_LANES = 128, SPIRV_NO_SLOT = 0x7fffffff, SPIRV_MOST_BUILTINS = 16 };

/* Reads and writes the registers of active lanes. */
typedef void spirv_run_fn(struct spirv_lanes *s, const struct spirv_insn *i);

enum spirv_use { SPIRV_READS, SPIRV_WRITES, SPIRV_ATOMIC };
struct spirv_insn {
    spirv_run_fn *run;
    uint32_t n;                /* numbers of a lane that are computed */
    uint32_t n_out;            /* slots of d that are written through a temporary */
    uint32_t d, a, b, c;       /* slots */
    uint32_t math;             /* lane_math's number */
    uint32_t imm, more, size;  /* what `run` says (run.h) */
    uint32_t storage, use, at; /* an access's; at: the SPIR-V instruction's first word */
};

struct spirv_edge {
    uint32_t label, block; /* where it leads; block: in spirv_program.blocks */
    uint32_t literal;      /* the condition's value, except on a block's first edge */
    uint32_t first, n;     /* instructions: what OpPhi takes */
};
struct spirv_block {
    uint32_t label, first, n;     /* instructions */
    uint32_t first_edge, n_edges; /* 0: the lane returns; the first one is taken where no literal fits */
    uint32_t condition;           /* slot, where there are several edges */
    bool is_reached, is_loop;     /* is_loop: the header of one */
    uint64_t n_numbers;           /* the work of a lane: those of all instructions */
};

struct spirv_program {
    const char *name;
    uint32_t lanes, group[3], n_lanes; /* n_lanes: of a workgroup */
    uint32_t shared_bytes;
    uint32_t most_numbers; /* slots of the largest temporary */
    uint32_t *numbers;     /* [n_numbers] what each slot begins with */
    bool *fixed;           /* [n_fixed = n_numbers] whether it is a constant's */
    struct spirv_insn *insns;
    struct spirv_block *blocks; /* a construct's merge block follows its other blocks */
    struct spirv_edge *edges;
    size_t n_numbers, n_fixed, n_insns, n_blocks, n_edges;
    struct {
        uint32_t builtin, slot;
    } builtins[SPIRV_MOST_BUILTINS];
    uint32_t n_builtins;
    bool has_matrices, in_quads; /* in_quads: how matrices lie (matrix.c) */
};

/* Makes p, whose name, lanes (4 to 128, a power of two) and in_quads the caller has set; all else is zero.
 * words: [n] a module whose rules spirv-val has checked; spec: values of constants 0 .. n_spec - 1. A failure
 * leaves nothing to free. ERR_UNSUPPORTED names an instruction that no kernel has used so far; ERR_FORMAT,
 * ERR_MEMORY. */
int spirv_compile(struct spirv_program *p, const uint32_t *words, size_t n, const uint32_t *spec,
                  uint32_t n_spec, struct moeflux_err *e);
void spirv_program_free(struct spirv_program *p);

/* --- what each lane computes from its own numbers (lane_math.c) --- */

/* Numbers of operations: those of SPIR-V's instructions and, from MATH_EXTENDED on, GLSL.std.450's. */
enum { MATH_EXTENDED = 1 << 16, MATH_U_MIN = MATH_EXTENDED + 38, MATH_U_MAX = MATH_EXTENDED + 41 };
enum {
    MATH_F_MAX = MATH_EXTENDED + 40,
    MATH_PACK_HALF = MATH_EXTENDED + 58,
    MATH_UNPACK_HALF = MATH_EXTENDED + 62
};
enum { MATH_MOVE = 1 << 17, MATH_ROUND_HALF, MATH_HALF_BITS, MATH_BITS_HALF, MATH_INDEX, MATH_ADDRESS };

/* Computes n numbers of each operand; d overlaps none. What has two results writes 2 n numbers. False: there
 * is no such instruction. */
bool lane_math(uint32_t op, size_t n, void *d, const void *a, const void *b, const void *c);

#endif
