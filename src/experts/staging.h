/* staging.h - memory for bytes that are rearranged on their way to a slot (model/extent_rule.h), or read in
 * whole blocks with other bytes around them. Buffers are kept for the next part; their number is the most
 * parts that were in flight at once. Locked inside. */
#ifndef MOEFLUX_EXPERTS_STAGING_H
#define MOEFLUX_EXPERTS_STAGING_H

#include <pthread.h>
#include <stdint.h>

struct staging {
    pthread_mutex_t lock;
    struct staging_slab *slabs;   /* what the buffers are parts of */
    struct staging_buffer *spare; /* buffers that no part uses */
    uint64_t bytes;               /* size of a buffer; set before the first is taken */
};

void staging_init(struct staging *s);
/* No buffer may be in use. */
void staging_free(struct staging *s);
/* Returns a buffer of s->bytes; NULL: out of memory. */
uint8_t *staging_take(struct staging *s);
void staging_give(struct staging *s, uint8_t *buffer);

#endif
