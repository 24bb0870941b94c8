#include "experts/slots.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

/* Whole pages, so that direct reads can land in a slot. */
enum { PAGE = 4096 };
/* One allocation of slots: far below what drivers refuse, large enough to keep their number small. */
#define CHUNK_BYTES ((uint64_t)1 << 30)

int slots_open(struct slots *s, struct exec *x, uint32_t n, uint64_t expert_bytes, uint32_t n_staging,
               struct err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    *s = (struct slots){.exec = x, .stride = size_round_up(expert_bytes, PAGE), .n = n};
    uint64_t chunk_bytes = size_min(CHUNK_BYTES, caps.max_alloc_bytes);
    if (s->stride > chunk_bytes)
        return err_set(e, ERR_UNSUPPORTED,
                       "an expert of %llu bytes is larger than one allocation may be (%llu)",
                       (unsigned long long)s->stride, (unsigned long long)chunk_bytes);
    s->n_per_chunk = (uint32_t)(chunk_bytes / s->stride);
    uint32_t n_chunks = div_up(n, s->n_per_chunk);
    s->chunks = mem_new(n_chunks, sizeof *s->chunks, e);
    int rc = s->chunks ? 0 : ERR_MEMORY;
    for (uint32_t left = n; rc == 0 && left > 0; s->n_chunks++) {
        uint32_t here = (uint32_t)size_min(left, s->n_per_chunk);
        rc = exec_buffer_new(x, &s->chunks[s->n_chunks], EXEC_DEVICE, here * s->stride, e);
        left -= here;
    }
    if (rc == 0 && n > 0 && !s->chunks[0].host) {
        s->n_staging = n_staging;
        rc = exec_buffer_new(x, &s->staging, EXEC_HOST, n_staging * s->stride, e);
    }
    if (rc < 0)
        slots_close(s);
    return rc;
}

void slots_close(struct slots *s)
{
    for (uint32_t i = 0; s->chunks && i < s->n_chunks; i++)
        exec_buffer_free(s->exec, &s->chunks[i]);
    if (s->exec)
        exec_buffer_free(s->exec, &s->staging);
    free(s->chunks);
    *s = (struct slots){0};
}

uint64_t slots_address(const struct slots *s, uint32_t slot)
{
    return s->chunks[slot / s->n_per_chunk].address + slot % s->n_per_chunk * s->stride;
}

uint8_t *slots_target(const struct slots *s, uint32_t slot, uint32_t place)
{
    if (s->n_staging)
        return s->staging.host + place * s->stride;
    return s->chunks[slot / s->n_per_chunk].host + slot % s->n_per_chunk * s->stride;
}

void slots_record_copy(const struct slots *s, uint32_t slot, uint32_t place)
{
    if (s->n_staging)
        exec_copy(s->exec, &s->chunks[slot / s->n_per_chunk], slot % s->n_per_chunk * s->stride, &s->staging,
                  place * s->stride, s->stride);
}
