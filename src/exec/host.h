/* host.h - what an implementation on the host gets in addition to its call: threads, an instruction set,
 * scratch memory and a place for errors. */
#ifndef MOEFLUX_EXEC_HOST_H
#define MOEFLUX_EXEC_HOST_H

#include <stdbool.h>
#include <stdint.h>

struct cpu_isa;
struct team;

struct host {
    struct team *team; /* the cpu's threads; NULL, like isa, on the reference */
    const struct cpu_isa *isa;
    /* products of many tokens use isa->gemm_fixed or isa->gemm_int16 if the matrix allows it */
    bool takes_fixed, takes_int16;
    bool is_batch_invariant;    /* exec_set_batch_invariant */
    struct host_memory *memory; /* private */
};

/* Returns uninitialised scratch memory for n items of `size` bytes, aligned to 64 bytes, valid until the
 * operation returns. NULL: out of memory; the implementation returns host_error. Once an operation has run,
 * the same call allocates nothing. */
void *host_scratch(struct host *h, uint64_t n, uint64_t size);
/* Returns ERR_MEMORY when host_scratch failed, else 0. Every implementation ends with it. */
int host_error(const struct host *h);

/* Convert the addresses of a call to the pointers that they are on a host. */
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
