/* memory.h - the buffers that kernels may reach, and who touched which word since when.
 *
 * Two lanes of a workgroup that touch one 32-bit word, one of them writing, need a barrier in between:
 *   lanes of different subgroups   OpControlBarrier of the workgroup
 *   lanes of one subgroup          that, or OpControlBarrier of the subgroup. Lockstep orders nothing:
 *                                  devices that run lanes apart are allowed
 * For buffers the barrier's semantics, or those of an OpMemoryBarrier before it, include buffers. Atomic
 * accesses are exempt, and so are accesses of less than a word. Reads of a buffer count in the first
 * workgroup of a dispatch, and in the others once the dispatch has written to that buffer. */
#ifndef MOEFLUX_TESTS_SPIRV_MEMORY_H
#define MOEFLUX_TESTS_SPIRV_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

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

struct spirv_buffer {
    uint64_t address, bytes;
    struct spirv_word *words;
    uint64_t written_by; /* the last dispatch that wrote */
};

struct spirv_memory {
    struct spirv_buffer **buffers; /* sorted by address */
    size_t n_buffers, room;
    struct spirv_buffer *last;
    /* Shared memory of the workgroup that runs. */
    uint8_t *shared;
    struct spirv_word *shared_words;
    uint32_t *shared_since; /* [words] the epoch of the first write */
    uint32_t shared_bytes;
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
/* Before a dispatch with so much shared memory, and before each of its workgroups. */
int spirv_memory_begin(struct spirv_memory *m, uint32_t shared_bytes, struct moeflux_err *e);
void spirv_memory_begin_workgroup(struct spirv_memory *m, bool is_first);
/* After a barrier of all lanes. */
void spirv_memory_barrier_passed(struct spirv_memory *m, bool orders_buffers);

#endif
