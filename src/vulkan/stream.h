/* stream.h - records commands for the device, in order, one batch at a time.
 *
 * begin -> dispatch / copy / barrier ... -> submit (gives a ticket) -> wait(ticket). The first error sticks:
 * later calls do nothing and submit returns it. A ring of command buffers lets the host record a batch while
 * an earlier one runs; begin waits only for the batch that used the same command buffer. Nothing here
 * allocates after stream_open. */
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

/* A timed command. */
struct stream_timed {
    uint32_t label, pipeline;
    uint32_t n_groups; /* 0: copies, or several things */
};

struct stream_batch {
    VkCommandBuffer commands;
    VkQueryPool times; /* VK_NULL_HANDLE where the device has no timestamps */
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
    struct stream_batch *open;     /* being recorded */
    struct stream_batch *deferred; /* recorded, not queued */
    bool recording, profile;
    bool times_next; /* the next batch is timed, even without `profile` */
    /* the open batch starts when this stream reaches after_ticket; NULL: at once */
    const struct stream *after;
    uint64_t after_ticket;
    uint64_t n_submits, n_dispatches, wait_ns;
    struct moeflux_err err; /* the first error since begin */
    /* Called for every timed command of a finished batch. */
    void (*on_time)(void *ctx, const struct stream_timed *what, uint64_t ns);
    void *on_time_ctx;
    /* Called several times a second while the host waits; when it returns false, waiting ends with
     * ERR_INTERRUPTED. May be NULL. */
    bool (*go_on)(void *ctx);
    void *go_on_ctx;
};

/* Opens a stream. p: the pipelines of its dispatches; NULL: a stream of copies and zeroings only, which run
 * concurrently with other streams. */
int stream_open(struct stream *s, const struct gpu *g, const struct pipeline_set *p, bool profile,
                struct moeflux_err *e);
void stream_close(struct stream *s);

void stream_begin(struct stream *s);
struct stream_work {
    int pipeline;   /* index from pipeline_find; the pipeline exists */
    uint32_t label; /* profiling adds the time to this label */
    const void *args;
    uint32_t args_bytes;
    uint32_t first[3], groups[3]; /* the workgroups first .. first + groups - 1 along each axis */
};
void stream_dispatch(struct stream *s, const struct stream_work *w);
/* Makes everything recorded before finished and visible to everything after (kernels and copies). */
void stream_barrier(struct stream *s);
/* Does the same between dispatches only, which is faster. */
void stream_dispatch_barrier(struct stream *s);
void stream_copy(struct stream *s, const struct gpu_buffer *dst, uint64_t dst_off,
                 const struct gpu_buffer *src, uint64_t src_off, uint64_t bytes);
void stream_zero(struct stream *s, const struct gpu_buffer *dst, uint64_t off, uint64_t bytes);
/* Makes the batch being recorded start when `other` has reached `ticket`; it sees what that wrote. */
void stream_after(struct stream *s, const struct stream *other, uint64_t ticket);
/* Ends the batch with its writes visible to the host, and queues it. */
int stream_submit(struct stream *s, uint64_t *ticket, struct moeflux_err *e);
/* Ends the batch without queueing it: stream_submit_deferred does that later, unless stream_begin was called
 * in between, which drops the batch. So the host can record the next batch while the device works on this
 * one. */
void stream_defer(struct stream *s);
bool stream_is_deferred(const struct stream *s);
int stream_submit_deferred(struct stream *s, uint64_t *ticket, struct moeflux_err *e);
/* Drops what was recorded since begin. */
void stream_abandon(struct stream *s);
int stream_wait(struct stream *s, uint64_t ticket, struct moeflux_err *e);
/* Waits like stream_wait, but at most for `ns` and without calling go_on. Returns 1 when the ticket is
 * reached, else 0. */
int stream_wait_for(struct stream *s, uint64_t ticket, uint64_t ns, struct moeflux_err *e);
/* Whether stream_wait would return at once. */
bool stream_is_done(const struct stream *s, uint64_t ticket);

#endif
