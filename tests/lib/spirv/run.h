/* run.h - a kernel's state while it runs, and the instructions that look at more than a lane's own
 * registers.
 *
 * Lanes go in lockstep under a mask: the lanes at the earliest block run, the others wait, so that all meet
 * at a construct's merge block. Small subgroups go with others, for speed, as a team of up to 64 lanes;
 * instructions of a subgroup see its own lanes alone. The teams of a workgroup take turns at barriers, in a
 * random order. */
#ifndef MOEFLUX_TESTS_SPIRV_RUN_H
#define MOEFLUX_TESTS_SPIRV_RUN_H

#include "memory.h"
#include "program.h"

enum spirv_stop { SPIRV_RUNS, SPIRV_AT_BARRIER, SPIRV_DONE };

/* A team: one subgroup or more. */
struct spirv_lanes {
    const struct spirv_program *p;
    struct spirv_run *run;
    uint32_t *r;    /* registers: [n_slots][lanes] */
    uint32_t n;     /* lanes */
    uint32_t size;  /* lanes of a subgroup */
    uint32_t first; /* its first lane in the workgroup */
    /* All bits or none. live: the lane has not returned. */
    uint32_t mask[SPIRV_MOST_LANES], live[SPIRV_MOST_LANES];
    uint32_t where[SPIRV_MOST_LANES]; /* its block, while the team is apart */
    bool is_full;                     /* the mask has all live lanes */
    uint32_t n_active, n_live;
    uint32_t block, insn;
    uint32_t epochs[SPIRV_MOST_LANES]; /* barriers of each subgroup so far */
    enum spirv_stop stop;
    const struct spirv_insn *barrier;
    bool orders_buffers; /* a memory barrier for buffers came since the last control barrier */
};

struct spirv_run {
    const struct spirv_program *p;
    struct spirv_memory *memory;
    const uint8_t *args;
    uint32_t args_bytes, groups[3], group[3];
    struct spirv_lanes *teams;
    uint32_t n_teams;
    uint32_t *registers, *temporary;
    uint8_t *shared;
    uint64_t rng;
    uint64_t n_lane_operations;
};

/* Runs groups[0] * groups[1] * groups[2] workgroups. What it finds goes to memory->fault. ERR_MEMORY. */
int spirv_dispatch(const struct spirv_program *p, struct spirv_memory *memory, const void *args,
                   uint32_t args_bytes, const uint32_t groups[3], uint64_t seed, uint64_t *n_lane_operations,
                   struct moeflux_err *e);

/* Keeps the first fault with the instruction's place; the others are counted. */
void spirv_fault(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static inline uint32_t *spirv_slot(const struct spirv_lanes *s, uint32_t slot)
{
    return s->r + (size_t)slot * s->n;
}

/* Copies n slots, active lanes alone. */
void spirv_put(const struct spirv_lanes *s, uint32_t *d, const uint32_t *a, uint32_t n_slots);

/* --- memory (memory.c) --- */

/* d: the registers, n numbers; a, imm, storage: where; more: SPIRV_MORE. An atomic has its operand at b and
 * `math`. A variable of the lane's own begins at slot c, has `more` slots and is accessed at b + a. */
enum { SPIRV_IS_HALF = 256 };
#define SPIRV_MORE(bytes, is_half, align) ((bytes) | ((is_half) ? SPIRV_IS_HALF : 0u) | (align) << 16)
spirv_run_fn spirv_load, spirv_store, spirv_atomic;
/* d = a * imm + b; a is below `more`, or that is 0. b may be SPIRV_NO_SLOT. */
spirv_run_fn spirv_index;

/* An address, or an offset in shared memory or the arguments. */
uint64_t spirv_place(const struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane);
/* Returns the bytes of one lane's access, after all checks, or NULL: it is a fault, and reported. */
enum spirv_use { SPIRV_READS, SPIRV_WRITES, SPIRV_ATOMIC };
uint8_t *spirv_at(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane, uint64_t place,
                  uint32_t bytes, enum spirv_use use);
/* A number as registers have it, in memory as `more` says. */
uint32_t spirv_get(const uint8_t *at, uint32_t more);
void spirv_set(uint8_t *at, uint32_t more, uint32_t value);

/* --- subgroups (group.c) --- */

spirv_run_fn spirv_elect, spirv_exchange, spirv_ballot, spirv_ballot_count, spirv_ballot_find, spirv_reduce,
    spirv_control_barrier, spirv_memory_barrier;

/* --- matrices (matrix.c) --- */

/* Bits of `more`, above the bytes of a number and below the matrix's columns; b: the stride in bytes. */
enum { MATRIX_BY_COLUMNS = 512, MATRIX_IS_SECOND = 1024 };
spirv_run_fn spirv_matrix_load, spirv_matrix_store, spirv_matrix_muladd;

#endif
