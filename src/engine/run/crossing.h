/* crossing.h - host memory that two devices see: what one copies into it the other copies out of it, and the
 * host does not touch it.
 *
 * Two halves, by turns: while one device reads what it was handed, the other may write what comes behind it.
 * */
#ifndef MOEFLUX_ENGINE_RUN_CROSSING_H
#define MOEFLUX_ENGINE_RUN_CROSSING_H

#include "exec/exec.h"

struct crossing { /* zeroed: there is none */
    uint8_t *pages;
    uint64_t half_bytes;
    struct exec *from, *to;
    struct exec_buffer out, in; /* the same pages, as each of the two devices sees them */
    uint32_t next; /* the half that is written next: the first device's work, one behind the other */
};

/* A part of a buffer. */
struct crossing_half {
    const struct exec_buffer *buffer;
    uint64_t off;
};

/* bytes: of a half. Where a device cannot import host memory, or there is none, there is no crossing: then
 * the host has to copy. */
void crossing_open(struct crossing *c, struct exec *from, struct exec *to, uint64_t bytes);
/* Neither device uses it any more, and both are still open. */
void crossing_close(struct crossing *c);

static inline bool crossing_is_there(const struct crossing *c)
{
    return c->pages != NULL;
}

/* A half as the first device sees it, and as the second one does. */
struct crossing_half crossing_out(const struct crossing *c, uint32_t half);
struct crossing_half crossing_in(const struct crossing *c, uint32_t half);

#endif
