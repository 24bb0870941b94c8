/* slots.h - memory for experts: device slots that kernels read, or the host slots of the tier below. */
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
    uint32_t n_chunks, n_allocated; /* those that are in use, that have memory */
    struct exec_buffer *chunks;
    uint64_t *strides; /* [n_chunks], in place */
};

/* Bytes of memory that a slot for an expert takes. */
uint64_t slots_stride(uint64_t expert_bytes);
/* n slots in EXEC_DEVICE or EXEC_HOST memory. ERR_NO_FIT. */
int slots_open(struct slots *s, struct exec *x, enum exec_memory kind, uint32_t n, uint64_t expert_bytes,
               struct moeflux_err *e);
/* n slots in EXEC_HOST memory, of which at least the first n_first have theirs now. The others get it by
 * slots_allocate, in chunks of some chunk_bytes, and can be used after slots_adopt. */
int slots_open_growing(struct slots *s, struct exec *x, uint32_t n, uint32_t n_first, uint64_t expert_bytes,
                       uint64_t chunk_bytes, struct moeflux_err *e);
/* Memory for the next chunk; any one thread, beside the use of the others. */
int slots_allocate(struct slots *s, struct moeflux_err *e);
/* The chunk that was allocated next can be used. Returns how many slots that adds. */
uint32_t slots_adopt(struct slots *s);
/* Slots of the chunks in use. */
uint32_t slots_usable(const struct slots *s);
/* Chunks that all slots take. */
uint32_t slots_all_chunks(const struct slots *s);
/* Slots that are mapped files: file i, n_each experts of its expert_bytes one after the other from its start,
 * becomes the slots i * n_each on. The mappings are kept until slots_close. ERR_UNSUPPORTED: the device
 * cannot take them. */
struct slots_file {
    uint8_t *host;
    uint64_t bytes, expert_bytes;
};
int slots_open_in_place(struct slots *s, struct exec *x, const struct slots_file *files, uint32_t n_files,
                        uint32_t n_each, struct moeflux_err *e);
void slots_close(struct slots *s);

uint64_t slots_address(const struct slots *s, uint32_t slot);
/* The slot's bytes, page-aligned; NULL when the host cannot see them. */
uint8_t *slots_host(const struct slots *s, uint32_t slot);
/* The memory of all slots: region i of n_chunks. */
void slots_region(const struct slots *s, uint32_t i, uint8_t **base, uint64_t *bytes);
/* Records the copy of a slot's bytes to another (exec_move). */
void slots_move(const struct slots *to, uint32_t to_slot, const struct slots *from, uint32_t from_slot);

#endif
