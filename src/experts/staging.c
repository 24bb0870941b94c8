#include "experts/staging.h"

#include <stdlib.h>

#include "base/mem.h"

/* Direct reads need it; bytes. */
enum { ALIGN = 4096 };

/* A buffer that no part uses begins with this. */
struct staging_buffer {
    struct staging_buffer *next;
};

void staging_init(struct staging *s)
{
    *s = (struct staging){0};
    pthread_mutex_init(&s->lock, NULL);
}

void staging_free(struct staging *s)
{
    while (s->spare) {
        struct staging_buffer *b = s->spare;
        s->spare = b->next;
        free(b);
    }
    pthread_mutex_destroy(&s->lock);
}

uint8_t *staging_take(struct staging *s)
{
    pthread_mutex_lock(&s->lock);
    struct staging_buffer *b = s->spare;
    if (b)
        s->spare = b->next;
    pthread_mutex_unlock(&s->lock);
    return b ? (uint8_t *)b : aligned_alloc(ALIGN, size_round_up(size_max(s->bytes, sizeof *b), ALIGN));
}

void staging_give(struct staging *s, uint8_t *buffer)
{
    struct staging_buffer *b = (struct staging_buffer *)(void *)buffer;
    pthread_mutex_lock(&s->lock);
    b->next = s->spare;
    s->spare = b;
    pthread_mutex_unlock(&s->lock);
}
