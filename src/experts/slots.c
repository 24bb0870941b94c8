#include "experts/slots.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

/* Whole pages, so that direct reads can land in a slot. */
enum { PAGE = 4096 };
/* One allocation of slots: far below what drivers refuse, large enough to keep their number small. */
#define CHUNK_BYTES ((uint64_t)1 << 30)

uint64_t slots_stride(uint64_t expert_bytes)
{
    return size_round_up(expert_bytes, PAGE);
}

int slots_open(struct slots *s, struct exec *x, enum exec_memory kind, uint32_t n, uint64_t expert_bytes,
               struct moeflux_err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    *s = (struct slots){.exec = x, .stride = slots_stride(expert_bytes), .n = n};
    uint64_t chunk_bytes = size_min(CHUNK_BYTES, caps.max_alloc_bytes);
    if (s->stride > chunk_bytes)
        return err_set(e, ERR_UNSUPPORTED,
                       "an expert of %llu bytes is larger than one allocation may be (%llu)",
                       (unsigned long long)s->stride, (unsigned long long)chunk_bytes);
    s->n_per_chunk = (uint32_t)(chunk_bytes / s->stride);
    s->chunks = mem_new(div_up(n, s->n_per_chunk), sizeof *s->chunks, e);
    int rc = s->chunks ? 0 : ERR_MEMORY;
    for (uint32_t left = n; rc == 0 && left > 0; s->n_chunks++) {
        uint32_t here = (uint32_t)size_min(left, s->n_per_chunk);
        rc = exec_buffer_new(x, &s->chunks[s->n_chunks], kind, here * s->stride, e);
        left -= here;
    }
    if (rc < 0)
        slots_close(s);
    return rc;
}

int slots_open_in_place(struct slots *s, struct exec *x, const struct slots_file *files, uint32_t n_files,
                        uint32_t n_each, struct moeflux_err *e)
{
    *s = (struct slots){.exec = x, .n = n_files * n_each, .n_per_chunk = n_each};
    s->chunks = mem_new(n_files, sizeof *s->chunks, e);
    s->strides = mem_new(n_files, sizeof *s->strides, e);
    int rc = s->chunks && s->strides ? 0 : ERR_MEMORY;
    for (uint32_t i = 0; rc == 0 && i < n_files; i++, s->n_chunks++) {
        s->strides[i] = files[i].expert_bytes;
        rc = exec_buffer_import(x, &s->chunks[i], files[i].host, files[i].bytes, e);
    }
    if (rc < 0)
        slots_close(s);
    return rc;
}

void slots_close(struct slots *s)
{
    for (uint32_t i = 0; s->chunks && i < s->n_chunks; i++)
        exec_buffer_free(s->exec, &s->chunks[i]);
    free(s->chunks);
    free(s->strides);
    *s = (struct slots){0};
}

static const struct exec_buffer *chunk_of(const struct slots *s, uint32_t slot, uint64_t *off)
{
    uint32_t chunk = slot / s->n_per_chunk;
    *off = slot % s->n_per_chunk * (s->strides ? s->strides[chunk] : s->stride);
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
