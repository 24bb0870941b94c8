/* Staging on Vulkan: copies bytes to and from device memory that is not mapped. */
#include <string.h>

#include "base/mem.h"
#include "exec/exec_vulkan.h"

/* Queues the copy of what the last exec_stage handed out. */
static int copy_staged(struct exec_vulkan *v, struct moeflux_err *e)
{
    if (v->staged.bytes == 0)
        return 0;
    uint64_t from = (uint64_t)v->stage_part * EXEC_STAGE_BYTES;
    stream_begin(&v->stream);
    stream_copy(&v->stream, &v->staged.to, v->staged.off, &v->staging, from, v->staged.bytes);
    v->staged.bytes = 0;
    int rc = stream_submit(&v->stream, &v->stage_tickets[v->stage_part], e);
    v->stage_part ^= 1;
    return rc;
}

static int make_staging(struct exec_vulkan *v, struct moeflux_err *e)
{
    return v->staging.buffer
               ? 0
               : gpu_buffer_new(&v->staging, &v->gpu, GPU_HOST, 2 * (uint64_t)EXEC_STAGE_BYTES, e);
}

void *vulkan_stage(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes,
                   struct moeflux_err *e)
{
    struct exec_vulkan *v = vulkan_of(x);
    if (make_staging(v, e) < 0 || copy_staged(v, e) < 0 ||
        stream_wait(&v->stream, v->stage_tickets[v->stage_part], e) < 0)
        return NULL;
    v->staged.to = vulkan_buffer_of(b);
    v->staged.off = off;
    v->staged.bytes = bytes;
    return v->staging.host + (uint64_t)v->stage_part * EXEC_STAGE_BYTES;
}

int vulkan_stage_end(struct exec *x, struct moeflux_err *e)
{
    struct exec_vulkan *v = vulkan_of(x);
    int rc = copy_staged(v, e);
    return rc < 0 ? rc : stream_wait(&v->stream, size_max(v->stage_tickets[0], v->stage_tickets[1]), e);
}

/* Reads a piece of at most EXEC_STAGE_BYTES through the current part of the staging memory. */
static int read_piece(struct exec_vulkan *v, const struct exec_buffer *b, uint64_t off, void *dst,
                      uint64_t bytes, struct moeflux_err *e)
{
    const struct gpu_buffer from = vulkan_buffer_of(b);
    uint64_t at = (uint64_t)v->stage_part * EXEC_STAGE_BYTES, ticket = 0;
    stream_begin(&v->stream);
    stream_copy(&v->stream, &v->staging, at, &from, off, bytes);
    int rc = stream_submit(&v->stream, &ticket, e);
    if (rc == 0)
        rc = stream_wait(&v->stream, ticket, e);
    if (rc == 0)
        memcpy(dst, v->staging.host + at, bytes);
    return rc;
}

int vulkan_read(struct exec *x, const struct exec_buffer *b, uint64_t off, void *dst, uint64_t bytes,
                struct moeflux_err *e)
{
    struct exec_vulkan *v = vulkan_of(x);
    int rc = vulkan_stage_end(x, e);
    if (rc == 0)
        rc = stream_wait(&v->stream, v->stream.last_ticket, e);
    if (rc == 0 && b->host)
        memcpy(dst, b->host + off, bytes);
    if (rc < 0 || b->host)
        return rc;
    rc = make_staging(v, e);
    for (uint64_t done = 0; rc == 0 && done < bytes;) {
        uint64_t n = size_min(bytes - done, EXEC_STAGE_BYTES);
        rc = read_piece(v, b, off + done, (uint8_t *)dst + done, n, e);
        done += n;
    }
    return rc;
}
