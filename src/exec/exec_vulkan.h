/* exec_vulkan.h - what the files of the Vulkan backend share: recording, staging, pacing. Private to
 * src/exec. */
#ifndef MOEFLUX_EXEC_EXEC_VULKAN_H
#define MOEFLUX_EXEC_EXEC_VULKAN_H

#include <string.h>

#include "exec/backend.h"
#include "exec/pace.h"
#include "vulkan/device.h"
#include "vulkan/memory.h"
#include "vulkan/pipeline.h"
#include "vulkan/stream.h"

enum vulkan_recorded { RECORDED_NOTHING, RECORDED_COPIES, RECORDED_DISPATCH };

struct exec_vulkan {
    struct exec base;
    bool is_moving;            /* a batch of moves is being recorded */
    bool is_concurrent;        /* the next operation need not wait for the one before */
    enum vulkan_recorded last; /* what this batch recorded last */
    struct gpu gpu;
    struct pipeline_set pipelines;
    /* gpu and pipelines go there at close, under the name `which`; NULL: closed */
    struct exec_shelf *shelf;
    char *which;
    bool gpu_is_unified; /* the device's own property; gpu.is_unified is false for a staged exec */
    struct stream stream;
    struct stream mover; /* copies concurrent with `stream` */

    /* The staging memory has two parts: one is filled while the other is copied. */
    struct gpu_buffer staging;
    uint64_t stage_tickets[2];
    uint32_t stage_part;
    struct {                  /* handed out by exec_stage, not copied yet */
        struct gpu_buffer to; /* unused while bytes is 0 */
        uint64_t off, bytes;
    } staged;

    /* The rest is used while watched. */
    struct pace pace;
    uint32_t n_batches;
    uint64_t open_ns;     /* estimated duration of the open batch */
    uint64_t long_ticket; /* ticket of the last long batch */
};

static inline struct exec_vulkan *vulkan_of(struct exec *x)
{
    return (struct exec_vulkan *)x;
}
static inline const struct exec_vulkan *vulkan_of_const(const struct exec *x)
{
    return (const struct exec_vulkan *)x;
}

_Static_assert(sizeof(struct gpu_buffer) <= EXEC_BUFFER_PRIVATE_BYTES,
               "exec_buffer.backend has a gpu_buffer");

/* Read and write the gpu_buffer in exec_buffer.backend. It is copied, since bytes have no alignment. */
static inline struct gpu_buffer vulkan_buffer_of(const struct exec_buffer *b)
{
    struct gpu_buffer g;
    memcpy(&g, b->backend, sizeof g);
    return g;
}
static inline void vulkan_put_buffer(struct exec_buffer *b, const struct gpu_buffer *g)
{
    memcpy(b->backend, g, sizeof *g);
    b->address = g->address;
    b->host = g->host;
}

/* Recording. */
void vulkan_begin_batch(struct exec_vulkan *v, bool is_timed);
/* Records a barrier if `next` has to wait for what was recorded. Consecutive copies need none. */
void vulkan_order_after(struct exec_vulkan *v, enum vulkan_recorded next);

/* Staging: exec_stage, exec_stage_end and exec_read of buffers that are not mapped. */
void *vulkan_stage(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes,
                   struct moeflux_err *e);
int vulkan_stage_end(struct exec *x, struct moeflux_err *e);
int vulkan_read(struct exec *x, const struct exec_buffer *b, uint64_t off, void *dst, uint64_t bytes,
                struct moeflux_err *e);

/* Pacing: how watched batches are cut into short submissions. */
/* A submission should take at most this; half a second is the limit. */
enum { PACING_SUBMISSION_NS = 200000000 };
void vulkan_watch(struct exec *x);
void vulkan_set_pace(struct exec *x, uint64_t ns);
/* Records the dispatch; may_cut: in pieces, if its time requires it. */
void vulkan_dispatch_watched(struct exec_vulkan *v, const struct stream_work *all, bool may_cut);
void vulkan_split(struct exec *x);
/* Queues the open batch. While watched, at most two long batches are queued. */
int vulkan_submit(struct exec *x, uint64_t *ticket, struct moeflux_err *e);

#endif
