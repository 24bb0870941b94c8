#include "experts/slots.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

/* Slots are whole pages, so that direct reads can fill them. */
enum { PAGE = 4096 };
/* Bytes of one allocation: far below what drivers refuse, large enough to keep the number of allocations
 * small. */
#define CHUNK_BYTES ((uint64_t)1 << 30)

uint64_t slots_stride(uint64_t expert_bytes)
{
    return size_round_up(expert_bytes, PAGE);
}

static uint32_t n_in_chunk(const struct slots *s, uint32_t chunk)
{
    return (uint32_t)size_min(s->n_per_chunk, s->n - (uint64_t)chunk * s->n_per_chunk);
}

uint32_t slots_all_chunks(const struct slots *s)
{
    return s->strides ? s->n_chunks : div_up(s->n, s->n_per_chunk);
}

uint32_t slots_usable(const struct slots *s)
{
    return (uint32_t)size_min((uint64_t)s->n_chunks * s->n_per_chunk, s->n);
}

int slots_allocate(struct slots *s, struct moeflux_err *e)
{
    uint32_t i = s->n_allocated;
    int rc = exec_buffer_allocate(s->exec, &s->chunks[i], s->kind, n_in_chunk(s, i) * s->stride, e);
    s->n_allocated += rc == 0;
    return rc;
}

uint32_t slots_adopt(struct slots *s)
{
    exec_buffer_count(s->exec, &s->chunks[s->n_chunks]);
    return n_in_chunk(s, s->n_chunks++);
}

static int open_slots(struct slots *s, uint32_t n_first, uint64_t chunk_bytes, struct moeflux_err *e)
{
    uint64_t most = exec_get_caps(s->exec).max_alloc_bytes;
    if (s->stride > most)
        return err_set(e, ERR_UNSUPPORTED,
                       "an expert of %llu bytes is larger than one allocation may be (%llu)",
                       (unsigned long long)s->stride, (unsigned long long)most);
    s->n_per_chunk = (uint32_t)size_max(size_min(chunk_bytes, most) / s->stride, 1);
    s->chunks = mem_new(slots_all_chunks(s), sizeof *s->chunks, e);
    int rc = s->chunks ? 0 : ERR_MEMORY;
    while (rc == 0 && slots_usable(s) < n_first) {
        rc = slots_allocate(s, e);
        if (rc == 0)
            slots_adopt(s);
    }
    if (rc < 0)
        slots_close(s);
    return rc;
}

int slots_open(struct slots *s, struct exec *x, enum exec_memory kind, uint32_t n, uint64_t expert_bytes,
               struct moeflux_err *e)
{
    *s = (struct slots){.exec = x, .kind = kind, .stride = slots_stride(expert_bytes), .n = n};
    return open_slots(s, n, CHUNK_BYTES, e);
}

int slots_open_growing(struct slots *s, struct exec *x, uint32_t n, uint32_t n_first, uint64_t expert_bytes,
                       uint64_t chunk_bytes, struct moeflux_err *e)
{
    *s = (struct slots){.exec = x, .kind = EXEC_HOST, .stride = slots_stride(expert_bytes), .n = n};
    return open_slots(s, n_first, chunk_bytes, e);
}

int slots_open_in_place(struct slots *s, struct exec *x, const struct slots_file *files, uint32_t n_files,
                        const uint32_t *experts, uint32_t n_each, struct moeflux_err *e)
{
    *s = (struct slots){.exec = x, .n = n_files * n_each, .n_per_chunk = n_each};
    s->chunks = mem_new(n_files, sizeof *s->chunks, e);
    s->strides = mem_new(n_files, sizeof *s->strides, e);
    s->experts = mem_new(n_each, sizeof *s->experts, e);
    int rc = s->chunks && s->strides && s->experts ? 0 : ERR_MEMORY;
    for (uint32_t i = 0; rc == 0 && i < n_each; i++)
        s->experts[i] = experts[i];
    for (uint32_t i = 0; rc == 0 && i < n_files; i++, s->n_chunks++) {
        s->strides[i] = files[i].expert_bytes;
        rc = exec_buffer_import(x, &s->chunks[i], EXEC_DEVICE, files[i].host, files[i].bytes, e);
    }
    s->n_allocated = s->n_chunks;
    if (rc < 0)
        slots_close(s);
    return rc;
}

void slots_close(struct slots *s)
{
    while (s->chunks && s->n_chunks < s->n_allocated)
        slots_adopt(s);
    for (uint32_t i = 0; s->chunks && i < s->n_chunks; i++)
        exec_buffer_free(s->exec, &s->chunks[i]);
    free(s->chunks);
    free(s->strides);
    free(s->experts);
    *s = (struct slots){0};
}

static const struct exec_buffer *chunk_of(const struct slots *s, uint32_t slot, uint64_t *off)
{
    uint32_t chunk = slot / s->n_per_chunk, i = slot % s->n_per_chunk;
    *off = s->strides ? s->experts[i] * s->strides[chunk] : i * s->stride;
    return &s->chunks[chunk];
}

uint64_t slots_address(const struct slots *s, uint32_t slot)
{
    uint64_t off;
    return chunk_of(s, slot, &off)->address + off;
}

uint8_t *slots_host(const struct slots *s, uint32_t slot)
{
    uint64_t off;
    const struct exec_buffer *b = chunk_of(s, slot, &off);
    return b->host ? b->host + off : NULL;
}

void slots_region(const struct slots *s, uint32_t i, uint8_t **base, uint64_t *bytes)
{
    *base = s->chunks[i].host;
    *bytes = s->chunks[i].bytes;
}

void slots_move(const struct slots *to, uint32_t to_slot, const struct slots *from, uint32_t from_slot)
{
    uint64_t to_off, from_off;
    const struct exec_buffer *dst = chunk_of(to, to_slot, &to_off);
    const struct exec_buffer *src = chunk_of(from, from_slot, &from_off);
    exec_move(to->exec, dst, to_off, src, from_off, to->stride);
}
