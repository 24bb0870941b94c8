/* stream.h - commands for the device, in order, one batch at a time.
 *
 * begin -> dispatch / copy / barrier ... -> submit (gives a ticket) -> wait(ticket). The first error sticks:
 * later calls do nothing and submit returns it. A ring of command buffers lets the host record a batch while
 * an earlier one runs; begin waits only for the batch that used its place in the ring. Nothing here allocates
 * after stream_open. */
#ifndef MOEFLUX_VULKAN_STREAM_H
#define MOEFLUX_VULKAN_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "vulkan/loader.h"

struct gpu;
struct gpu_buffer;
struct pipeline;
struct pipeline_set;

enum { STREAM_RING = 4, STREAM_MAX_TIMES = 4096 };

/* What a time was taken of. */
struct stream_timed {
    uint16_t label, pipeline;
    uint32_t n_groups; /* 0: copies, or several things */
};

struct stream_batch {
    VkCommandBuffer commands;
    VkQueryPool times; /* none where the device has no timestamps */
    uint64_t ticket;   /* timeline value at its end; 0: not submitted */
    uint32_t n_dispatches;
    uint32_t n_times;
    bool is_timed;
    struct stream_timed timed[STREAM_MAX_TIMES];
};

struct stream {
    const struct gpu *gpu;
    const struct pipeline_set *pipelines; /* NULL: a stream of copies, on the transfer queue */
    VkCommandPool pool;
    VkSemaphore timeline;
    struct stream_batch ring[STREAM_RING];
    uint64_t last_ticket;
    struct stream_batch *open;   /* being recorded */
    struct stream_batch *parked; /* recorded, not queued */
    bool recording, profile;
    bool times_next;            /* the next batch is timed, even if not all are (profile) */
    const struct stream *after; /* the open batch starts when this one's ticket is reached; NULL: at once */
    uint64_t after_ticket;
    uint64_t n_submits, n_dispatches, wait_ns;
    struct moeflux_err err; /* the first error since begin */
    /* Called for every timed command of a finished batch. */
    void (*on_time)(void *ctx, const struct stream_timed *what, uint64_t ns);
    void *on_time_ctx;
    /* Asked several times a second while the host waits; false: waiting ends with ERR_INTERRUPTED. NULL:
     * never asked. */
    bool (*go_on)(void *ctx);
    void *go_on_ctx;
};

/* p: what the stream's dispatches name; NULL: copies and zeroings only, beside the work of other streams. */
int stream_open(struct stream *s, const struct gpu *g, const struct pipeline_set *p, bool profile,
                struct moeflux_err *e);
void stream_close(struct stream *s);

void stream_begin(struct stream *s);
struct stream_work {
    int pipeline;   /* index from pipeline_find; it was made */
    uint32_t label; /* what profiling books the time under */
    const void *args;
    uint32_t args_bytes;
    uint32_t first[3], groups[3]; /* the workgroups first .. first + groups - 1 along each axis */
};
void stream_dispatch(struct stream *s, const struct stream_work *w);
/* Everything recorded before is finished and visible to everything after (kernels and copies). */
void stream_barrier(struct stream *s);
/* The same from dispatches to dispatches alone, which is quicker. */
void stream_dispatch_barrier(struct stream *s);
void stream_copy(struct stream *s, const struct gpu_buffer *dst, uint64_t dst_off,
                 const struct gpu_buffer *src, uint64_t src_off, uint64_t bytes);
void stream_zero(struct stream *s, const struct gpu_buffer *dst, uint64_t off, uint64_t bytes);
/* The batch being recorded starts on the device when `other` has reached `ticket`, and sees what it wrote. */
void stream_after(struct stream *s, const struct stream *other, uint64_t ticket);
/* Ends the batch with its writes visible to the host, and queues it. */
int stream_submit(struct stream *s, uint64_t *ticket, struct moeflux_err *e);
/* Ends the batch without queueing it: stream_submit_deferred does that later, unless stream_begin was called
 * in between, which gives the parked batch up. So the host can record the next batch while the device works
 * on this one. */
void stream_defer(struct stream *s);
bool stream_is_deferred(const struct stream *s);
int stream_submit_deferred(struct stream *s, uint64_t *ticket, struct moeflux_err *e);
/* Gives up what was recorded since begin. */
void stream_abandon(struct stream *s);
int stream_wait(struct stream *s, uint64_t ticket, struct moeflux_err *e);
/* As stream_wait, at most for `ns`, without asking go_on. Returns 1 when the ticket is reached, 0 when it is
 * not. */
int stream_wait_for(struct stream *s, uint64_t ticket, uint64_t ns, struct moeflux_err *e);
/* Whether stream_wait would return at once. */
bool stream_is_done(const struct stream *s, uint64_t ticket);

#endif
