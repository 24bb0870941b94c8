/* slots.h - memory for experts: device slots that kernels read, or host slots. */
#ifndef MOEFLUX_EXPERTS_SLOTS_H
#define MOEFLUX_EXPERTS_SLOTS_H

#include <stdint.h>

#include "exec/exec.h"

struct slots {
    struct exec *exec;
    enum exec_memory kind;
    /* bytes from slot to slot: the largest expert's size, rounded up to whole pages; 0: in place */
    uint64_t stride;
    uint32_t n, n_per_chunk;
    uint32_t n_chunks, n_allocated; /* chunks in use; chunks with memory */
    struct exec_buffer *chunks;
    /* NULL unless slots are in place: [n_chunks] bytes; [n_per_chunk] numbers of the experts that are
     * slots */
    uint64_t *strides;
    uint32_t *experts;
};

/* Returns the bytes of memory that a slot for an expert takes. */
uint64_t slots_stride(uint64_t expert_bytes);
/* Opens n slots in EXEC_DEVICE or EXEC_HOST memory. ERR_NO_FIT. */
int slots_open(struct slots *s, struct exec *x, enum exec_memory kind, uint32_t n, uint64_t expert_bytes,
               struct moeflux_err *e);
/* Opens n slots in EXEC_HOST memory. At least the first n_first have memory at once. slots_allocate gives it
 * to the others, in chunks of about chunk_bytes, and slots_adopt takes them into use. */
int slots_open_growing(struct slots *s, struct exec *x, uint32_t n, uint32_t n_first, uint64_t expert_bytes,
                       uint64_t chunk_bytes, struct moeflux_err *e);
/* Allocates memory for the next chunk. One thread may call it while another uses the chunks in use. */
int slots_allocate(struct slots *s, struct moeflux_err *e);
/* Takes the next allocated chunk into use. Returns how many slots that adds. */
uint32_t slots_adopt(struct slots *s);
/* Returns the number of slots in the chunks in use. */
uint32_t slots_usable(const struct slots *s);
/* Returns the number of chunks of all slots. */
uint32_t slots_all_chunks(const struct slots *s);
/* Opens slots that are mapped files. File i has contiguous experts of its expert_bytes from its start;
 * those with the numbers experts [n_each] become slots i * n_each and following. The mappings must stay
 * until slots_close. ERR_UNSUPPORTED: the device cannot use them. */
struct slots_file {
    uint8_t *host;
    uint64_t bytes, expert_bytes;
};
int slots_open_in_place(struct slots *s, struct exec *x, const struct slots_file *files, uint32_t n_files,
                        const uint32_t *experts, uint32_t n_each, struct moeflux_err *e);
void slots_close(struct slots *s);

/* Returns the slot's device address. */
uint64_t slots_address(const struct slots *s, uint32_t slot);
/* Returns the slot's bytes, page-aligned; NULL: the host cannot access them. */
uint8_t *slots_host(const struct slots *s, uint32_t slot);
/* Gives the memory of chunk i of n_chunks. */
void slots_region(const struct slots *s, uint32_t i, uint8_t **base, uint64_t *bytes);
/* Records the copy of a slot's bytes to another (exec_move). */
void slots_move(const struct slots *to, uint32_t to_slot, const struct slots *from, uint32_t from_slot);

#endif
