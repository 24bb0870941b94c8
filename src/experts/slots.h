/* slots.h - memory for experts: device slots that kernels read, and, where device memory is not mapped, host staging
 * through which they are filled. */
#ifndef MOEFLUX_EXPERTS_SLOTS_H
#define MOEFLUX_EXPERTS_SLOTS_H

#include <stdint.h>

#include "ops/exec.h"

struct slots {
    struct exec *exec;
    uint64_t stride; /* bytes from slot to slot: the expert's size, rounded up to whole pages */
    uint32_t n, n_per_chunk, n_chunks;
    struct exec_buffer *chunks;
    struct exec_buffer staging; /* [n_staging][stride]; unused when slots are mapped */
    uint32_t n_staging;         /* 0: slots are mapped */
};

/* n slots of `expert_bytes`; n_staging: staging places wanted where slots are not mapped. ERR_NO_FIT. */
int slots_open(struct slots *s, struct exec *x, uint32_t n, uint64_t expert_bytes, uint32_t n_staging,
               struct err *e);
void slots_close(struct slots *s);

uint64_t slots_address(const struct slots *s, uint32_t slot);
/* Where to write a slot's bytes: the slot itself, or staging place `place`. */
uint8_t *slots_target(const struct slots *s, uint32_t slot, uint32_t place);
/* Records the copy of staging place `place` to the slot; nothing where slots are mapped. */
void slots_record_copy(const struct slots *s, uint32_t slot, uint32_t place);

#endif
