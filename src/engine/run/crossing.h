/* crossing.h - the way of hidden states from one stage's device to the next: host memory that both devices
 * import. One device copies into it, the other out of it; the host does not touch it.
 *
 * It has two halves that are used alternately: while one device reads a chunk, the other may write the
 * next. */
#ifndef MOEFLUX_ENGINE_RUN_CROSSING_H
#define MOEFLUX_ENGINE_RUN_CROSSING_H

#include <stddef.h>

#include "exec/exec.h"

struct crossing { /* zeroed: unused */
    uint8_t *pages;
    uint64_t half_bytes;
    struct exec *from, *to;
    struct exec_buffer out, in; /* the same pages, imported by `from` and by `to` */
    uint32_t next;              /* the half that is written next */
};

/* A part of a buffer. */
struct crossing_half {
    const struct exec_buffer *buffer;
    uint64_t off;
};

/* Opens a crossing; bytes: size of a half. It stays zeroed if a device cannot import host memory or memory is
 * short: then the host has to copy. */
void crossing_open(struct crossing *c, struct exec *from, struct exec *to, uint64_t bytes);
/* Closes it. Neither device may use it any more, and both must still be open. */
void crossing_close(struct crossing *c);

static inline bool crossing_is_there(const struct crossing *c)
{
    return c->pages != NULL;
}

/* Return a half, as seen by the first device and by the second. */
struct crossing_half crossing_out(const struct crossing *c, uint32_t half);
struct crossing_half crossing_in(const struct crossing *c, uint32_t half);

#endif
