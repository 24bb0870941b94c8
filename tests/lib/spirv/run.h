/* run.h - a kernel's state while it runs: lanes, and the memory that they may reach.
 *
 * Lanes go in lockstep under a mask: the lanes at the earliest block run, the others wait, so that all meet
 * at a construct's merge block. Small subgroups go with others, for speed, as a team of up to 64 lanes;
 * instructions of a subgroup see its own lanes alone. The teams of a workgroup take turns at barriers, in a
 * random order.
 *
 * Two lanes of a workgroup that touch one 32-bit word, one of them writing, need a barrier in between:
 *   lanes of different subgroups   OpControlBarrier of the workgroup
 *   lanes of one subgroup          that, or OpControlBarrier of the subgroup. Lockstep orders nothing:
 *                                  devices that run lanes apart are allowed
 * For buffers the barrier's semantics, or those of an OpMemoryBarrier before it, include buffers. Atomic
 * accesses are exempt, and so are accesses of less than a word. Reads of a buffer count in the first
 * workgroup of a dispatch, and in the others once the dispatch has written to that buffer. */
#ifndef MOEFLUX_TESTS_SPIRV_RUN_H
#define MOEFLUX_TESTS_SPIRV_RUN_H

#include "program.h"

/* --- memory (memory.c) --- */

/* One access: when, and by which lane of the workgroup. */
struct spirv_access {
    uint32_t epoch;    /* workgroup barriers so far, over all dispatches; 0: never */
    uint16_t subgroup; /* SPIRV_SEVERAL: more than one */
    uint16_t lane;     /* SPIRV_SEVERAL: more than one of the subgroup's */
    uint32_t sub_epoch;
};
enum { SPIRV_SEVERAL = 0xffff };
struct spirv_word {
    struct spirv_access read, write;
};

/* A buffer, the shared memory of the workgroup that runs, or the arguments. */
struct spirv_region {
    uint64_t address, bytes; /* the kernel's view: 0 where there are no addresses */
    uint8_t *host;
    struct spirv_word *words; /* NULL: nobody writes */
    uint32_t *since;          /* shared memory: [words] the epoch of the first write */
    uint64_t written_by;      /* the last dispatch that wrote */
};

struct spirv_memory {
    struct spirv_region *buffers; /* sorted by address */
    size_t n_buffers, room, last; /* last: the one that was found last */
    struct spirv_region shared, args;
    uint32_t epoch, buffer_epoch, workgroup_epoch;
    uint64_t dispatch;
    bool records_reads;
    char fault[400];
    uint64_t n_faults;
};

/* The memory is the caller's until spirv_memory_drop. ERR_MEMORY. */
int spirv_memory_add(struct spirv_memory *m, uint64_t address, uint64_t bytes, struct moeflux_err *e);
void spirv_memory_drop(struct spirv_memory *m, uint64_t address);
void spirv_memory_close(struct spirv_memory *m);

/* --- lanes (run.c) --- */

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
    const struct spirv_insn *barrier;  /* the one that it waits at, or NULL */
    bool orders_buffers;               /* a memory barrier for buffers came since the last control barrier */
};

struct spirv_run {
    struct spirv_memory *memory;
    uint32_t group[3];         /* the workgroup that runs */
    struct spirv_lanes *teams; /* and all other memory of the run */
    uint32_t n_teams;
    uint32_t *temporary;
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
/* Whether all active lanes have the same number; then *value is it. */
bool spirv_is_uniform(const struct spirv_lanes *s, const uint32_t *x, uint32_t *value);

/* --- instructions --- */

/* Computes d from a, b and c. */
spirv_run_fn spirv_math;

/* Moves n numbers of each active lane between slots from d on and memory, as `use` says. a, imm, storage:
 * where. An atomic has its operand at b and `math`. A lane's own variable begins at slot c and has `size`
 * slots. */
spirv_run_fn spirv_access;
/* A number in memory: its bytes, whether it is a float16; the alignment of the first one. */
enum { SPIRV_IS_HALF = 256 };
#define SPIRV_MORE(bytes, is_half, align) ((bytes) | ((is_half) ? SPIRV_IS_HALF : 0u) | (align) << 16)
/* An address, or an offset where there is none. */
uint64_t spirv_place(const struct spirv_lanes *s, const struct spirv_insn *i, uint32_t lane);
/* Does the same with slots from `slot` on and each lane at a place of its own. */
void spirv_move(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t slot, uint32_t n,
                const uint64_t *places);

/* a is below imm. */
spirv_run_fn spirv_check;

/* The subgroup's instruction `more` (group.c). imm: 0 a sum of all lanes, 1 and 2 of those up to or before
 * each; math: how two are added; size: the sum of none. */
spirv_run_fn spirv_group;
/* more: the semantics. */
spirv_run_fn spirv_control_barrier, spirv_memory_barrier;

/* Accesses to matrices (matrix.c), with bits of `more` that SPIRV_MORE does not use. b: the stride in bytes;
 * size: columns. */
enum { MATRIX_BY_COLUMNS = 512, MATRIX_IS_SECOND = 1024 };
spirv_run_fn spirv_matrix_access, spirv_matrix_muladd;

#endif
