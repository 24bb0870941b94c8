/* host.h - what an implementation on the host gets besides its call: threads, an instruction set, scratch
 * memory and a place for errors. */
#ifndef MOEFLUX_EXEC_HOST_H
#define MOEFLUX_EXEC_HOST_H

#include <stdbool.h>
#include <stdint.h>

struct cpu_isa;
struct team;

struct host {
    struct team *team; /* of the cpu, like the next; NULL on the reference */
    const struct cpu_isa *isa;
    bool takes_fixed;           /* many tokens go through isa->gemm_fixed, where a matrix can */
    bool is_batch_invariant;    /* exec_set_batch_invariant */
    struct host_memory *memory; /* private */
};

/* Uninitialised scratch memory for n items of `size` bytes, aligned to 64 bytes, until the operation returns.
 * NULL: there is none; the implementation returns host_error. Once an operation has run, the same call
 * allocates nothing. */
void *host_scratch(struct host *h, uint64_t n, uint64_t size);
/* ERR_MEMORY when host_scratch failed, else 0: the last line of an implementation. */
int host_error(const struct host *h);

/* Addresses of a call are pointers here. */
static inline void *host_at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}
static inline const float *host_floats(uint64_t address)
{
    return (const float *)(uintptr_t)address;
}
static inline float *host_floats_mut(uint64_t address)
{
    return (float *)(uintptr_t)address;
}
static inline const uint32_t *host_words(uint64_t address)
{
    return (const uint32_t *)(uintptr_t)address;
}

#endif
