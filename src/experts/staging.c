#include "experts/staging.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/mem.h"

/* Bytes. Direct reads need ALIGN. In huge pages a read is one or two pieces of physical memory, otherwise one
 * for each 4 KiB, which costs a virtual disk half of its bandwidth. */
enum { ALIGN = 4096, HUGE_PAGE = 2 << 20, LEAST_SLAB = 4 << 20 };

/* A buffer that no part uses begins with this. */
struct staging_buffer {
    struct staging_buffer *next;
};

/* Memory of several buffers. */
struct staging_slab {
    struct staging_slab *next;
    void *memory;
};

void staging_init(struct staging *s)
{
    *s = (struct staging){0};
    pthread_mutex_init(&s->lock, NULL);
}

void staging_free(struct staging *s)
{
    while (s->slabs) {
        struct staging_slab *slab = s->slabs;
        s->slabs = slab->next;
        free(slab->memory);
        free(slab);
    }
    pthread_mutex_destroy(&s->lock);
}

/* Adds a slab's buffers to the spare ones, if there is memory. With the lock held. */
static void add_slab(struct staging *s)
{
    uint64_t each = size_round_up(size_max(s->bytes, sizeof(struct staging_buffer)), ALIGN);
    uint64_t all = size_round_up(size_max(each, LEAST_SLAB), HUGE_PAGE);
    struct staging_slab *slab = malloc(sizeof *slab);
    uint8_t *memory = slab ? aligned_alloc(HUGE_PAGE, all) : NULL;
    if (!memory) {
        free(slab);
        return;
    }
    (void)madvise(memory, all, MADV_HUGEPAGE);
    *slab = (struct staging_slab){s->slabs, memory};
    s->slabs = slab;
    for (uint64_t at = all / each * each; at > 0; at -= each) {
        struct staging_buffer *b = (struct staging_buffer *)(void *)(memory + at - each);
        b->next = s->spare;
        s->spare = b;
    }
}

uint8_t *staging_take(struct staging *s)
{
    pthread_mutex_lock(&s->lock);
    if (!s->spare)
        add_slab(s);
    struct staging_buffer *b = s->spare;
    if (b)
        s->spare = b->next;
    pthread_mutex_unlock(&s->lock);
    return (uint8_t *)b;
}

void staging_give(struct staging *s, uint8_t *buffer)
{
    struct staging_buffer *b = (struct staging_buffer *)(void *)buffer;
    pthread_mutex_lock(&s->lock);
    b->next = s->spare;
    s->spare = b;
    pthread_mutex_unlock(&s->lock);
}
