#include "vulkan/stream.h"

#include <sched.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "vulkan/device.h"
#include "vulkan/memory.h"
#include "vulkan/pipeline.h"

static int open_batch(struct stream *s, struct stream_batch *b, struct moeflux_err *e)
{
    VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                        .commandPool = s->pool,
                                        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                        .commandBufferCount = 1};
    VkResult r = s->gpu->vk.AllocateCommandBuffers(s->gpu->device, &info, &b->commands);
    if (r != VK_SUCCESS)
        return gpu_error(r, "vkAllocateCommandBuffers", e);
    if (s->gpu->ns_per_tick <= 0 || !s->pipelines)
        return 0;
    VkQueryPoolCreateInfo q = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                               .queryType = VK_QUERY_TYPE_TIMESTAMP,
                               .queryCount = STREAM_MAX_TIMES};
    r = s->gpu->vk.CreateQueryPool(s->gpu->device, &q, NULL, &b->times);
    return r == VK_SUCCESS ? 0 : gpu_error(r, "vkCreateQueryPool", e);
}

int stream_open(struct stream *s, const struct gpu *g, const struct pipeline_set *p, bool profile,
                struct moeflux_err *e)
{
    *s = (struct stream){.gpu = g, .pipelines = p, .profile = p && profile && g->ns_per_tick > 0};
    VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                    .queueFamilyIndex = p ? g->queue_family : g->transfer_family};
    VkResult r = s->gpu->vk.CreateCommandPool(g->device, &pool, NULL, &s->pool);
    if (r != VK_SUCCESS)
        return gpu_error(r, "vkCreateCommandPool", e);
    VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                      .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    VkSemaphoreCreateInfo sem = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    r = s->gpu->vk.CreateSemaphore(g->device, &sem, NULL, &s->timeline);
    int rc = r == VK_SUCCESS ? 0 : gpu_error(r, "vkCreateSemaphore", e);
    for (int i = 0; i < STREAM_RING && rc == 0; i++)
        rc = open_batch(s, &s->ring[i], e);
    if (rc < 0)
        stream_close(s);
    return rc;
}

void stream_close(struct stream *s)
{
    if (!s->gpu)
        return;
    pthread_mutex_lock(s->gpu->lock);
    s->gpu->vk.DeviceWaitIdle(s->gpu->device);
    pthread_mutex_unlock(s->gpu->lock);
    for (int i = 0; i < STREAM_RING; i++)
        if (s->ring[i].times)
            s->gpu->vk.DestroyQueryPool(s->gpu->device, s->ring[i].times, NULL);
    if (s->timeline)
        s->gpu->vk.DestroySemaphore(s->gpu->device, s->timeline, NULL);
    if (s->pool)
        s->gpu->vk.DestroyCommandPool(s->gpu->device, s->pool, NULL);
    *s = (struct stream){0};
}

/* Fills e as gpu_error does. Of several devices the lost one is named. */
static int fail(const struct stream *s, VkResult r, const char *call, struct moeflux_err *e)
{
    if (r != VK_ERROR_DEVICE_LOST)
        return gpu_error(r, call, e);
    return err_set(e, ERR_LOST, "%s: the device was lost (%s)", s->gpu->info.name, call);
}

/* How often a waiting host asks whether to go on. */
#define SLICE_NS ((uint64_t)50000000)

/* A sleeping thread wakes up tens of microseconds late, which is as long as a short batch takes. So it polls
 * this long first. */
#define LOOK_NS ((uint64_t)100000)

/* Polls for the ticket, except where the device computes on this machine's cores. */
static bool look_for(const struct stream *s, uint64_t ticket, uint64_t ns)
{
    uint64_t start = clock_ns(), most = s->gpu->is_cpu ? 0 : size_min(ns, LOOK_NS);
    bool is_done = stream_is_done(s, ticket);
    while (!is_done && clock_ns() - start < most) {
        sched_yield();
        is_done = stream_is_done(s, ticket);
    }
    return is_done;
}

int stream_wait_for(struct stream *s, uint64_t ticket, uint64_t ns, struct moeflux_err *e)
{
    VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                .semaphoreCount = 1,
                                .pSemaphores = &s->timeline,
                                .pValues = &ticket};
    uint64_t start = clock_ns();
    bool is_done = look_for(s, ticket, ns);
    VkResult r = is_done ? VK_SUCCESS : s->gpu->vk.WaitSemaphores(s->gpu->device, &info, ns);
    s->wait_ns += clock_ns() - start;
    if (r == VK_TIMEOUT)
        return 0;
    return r == VK_SUCCESS ? 1 : fail(s, r, "vkWaitSemaphores", e);
}

static int await(struct stream *s, uint64_t ticket, struct moeflux_err *e)
{
    int rc;
    do {
        rc = stream_wait_for(s, ticket, s->go_on ? SLICE_NS : UINT64_MAX, e);
        if (rc == 0 && s->go_on && !s->go_on(s->go_on_ctx))
            rc = err_set(e, ERR_INTERRUPTED, "interrupted");
    } while (rc == 0);
    return rc < 0 ? rc : 0;
}

/* Reports a finished batch's times, once. Time i is the span between stamps i and i + 1. */
static void collect_times(struct stream *s, struct stream_batch *b)
{
    uint64_t stamps[STREAM_MAX_TIMES];
    uint32_t n = b->n_times;
    b->n_times = 0;
    if (n < 2 || !s->on_time ||
        s->gpu->vk.GetQueryPoolResults(s->gpu->device, b->times, 0, n, sizeof stamps, stamps, sizeof *stamps,
                                       VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT) != VK_SUCCESS)
        return;
    for (uint32_t i = 0; i + 1 < n; i++) {
        uint64_t ticks = stamps[i + 1] > stamps[i] ? stamps[i + 1] - stamps[i] : 0;
        s->on_time(s->on_time_ctx, &b->timed[i], (uint64_t)((double)ticks * s->gpu->ns_per_tick));
    }
}

int stream_wait(struct stream *s, uint64_t ticket, struct moeflux_err *e)
{
    if (ticket == 0)
        return 0;
    int rc = await(s, ticket, e);
    if (rc < 0)
        return rc;
    for (int i = 0; i < STREAM_RING; i++)
        if (s->ring[i].ticket && s->ring[i].ticket <= ticket && &s->ring[i] != s->open)
            collect_times(s, &s->ring[i]);
    return 0;
}

bool stream_is_done(const struct stream *s, uint64_t ticket)
{
    uint64_t reached = 0;
    return s->gpu->vk.GetSemaphoreCounterValue(s->gpu->device, s->timeline, &reached) == VK_SUCCESS &&
           reached >= ticket;
}

static void stick(struct stream *s, VkResult r, const char *call)
{
    if (r != VK_SUCCESS && !s->err.code)
        gpu_error(r, call, &s->err);
}

/* Ends the time of `what` and starts the next one. */
static void stamp(struct stream *s, struct stream_timed what)
{
    struct stream_batch *b = s->open;
    if (!b->is_timed || b->n_times >= STREAM_MAX_TIMES)
        return;
    if (b->n_times > 0)
        b->timed[b->n_times - 1] = what;
    s->gpu->vk.CmdWriteTimestamp2(b->commands, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, b->times, b->n_times++);
}

void stream_begin(struct stream *s)
{
    struct stream_batch *b = &s->ring[s->last_ticket % STREAM_RING];
    s->err = (struct moeflux_err){0};
    s->open = b;
    s->deferred = NULL;
    s->after = NULL;
    if (b->ticket && stream_wait(s, b->ticket, &s->err) < 0)
        return;
    /* The times of a deferred batch that was dropped never arrive: reading them would wait for ever. */
    if (b->ticket)
        collect_times(s, b);
    b->ticket = 0;
    b->n_times = 0;
    b->n_dispatches = 0;
    b->is_timed = b->times && (s->profile || s->times_next);
    VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                     .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    VkResult r = s->gpu->vk.BeginCommandBuffer(b->commands, &info);
    stick(s, r, "vkBeginCommandBuffer");
    s->recording = r == VK_SUCCESS;
    if (!s->recording)
        return;
    if (b->is_timed)
        s->gpu->vk.ResetQueryPool(s->gpu->device, b->times, 0, STREAM_MAX_TIMES);
    stream_barrier(s); /* after the batch before, which may still run */
    stamp(s, (struct stream_timed){0});
}

void stream_dispatch(struct stream *s, const struct stream_work *w)
{
    if (s->err.code || !s->recording)
        return;
    VkCommandBuffer c = s->open->commands;
    const uint32_t *at = w->first, *n = w->groups;
    uint64_t n_groups = (uint64_t)n[0] * n[1] * n[2];
    s->gpu->vk.CmdBindPipeline(c, VK_PIPELINE_BIND_POINT_COMPUTE, s->pipelines->all[w->pipeline].handle);
    s->gpu->vk.CmdPushConstants(c, s->pipelines->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, w->args_bytes,
                                w->args);
    if (at[0] || at[1] || at[2])
        s->gpu->vk.CmdDispatchBase(c, at[0], at[1], at[2], n[0], n[1], n[2]);
    else
        s->gpu->vk.CmdDispatch(c, n[0], n[1], n[2]);
    s->open->n_dispatches++;
    stamp(s, (struct stream_timed){.label = w->label,
                                   .pipeline = (uint32_t)w->pipeline,
                                   .n_groups = (uint32_t)size_min(n_groups, UINT32_MAX)});
}

/* The stages of the stream's commands: a transfer queue has no compute stage. */
static VkPipelineStageFlags2 work_stages(const struct stream *s)
{
    VkPipelineStageFlags2 copies = VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT;
    return s->pipelines ? copies | VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT : copies;
}

static VkAccessFlags2 work_writes(const struct stream *s)
{
    VkAccessFlags2 copies = VK_ACCESS_2_TRANSFER_WRITE_BIT;
    return s->pipelines ? copies | VK_ACCESS_2_SHADER_STORAGE_WRITE_BIT : copies;
}

static VkAccessFlags2 work_reads(const struct stream *s)
{
    VkAccessFlags2 copies = VK_ACCESS_2_TRANSFER_READ_BIT;
    return s->pipelines ? copies | VK_ACCESS_2_SHADER_STORAGE_READ_BIT : copies;
}

static void record_barrier(struct stream *s, const VkMemoryBarrier2 *m)
{
    VkDependencyInfo d = {
        .sType = VK_STRUCTURE_TYPE_DEPENDENCY_INFO, .memoryBarrierCount = 1, .pMemoryBarriers = m};
    s->gpu->vk.CmdPipelineBarrier2(s->open->commands, &d);
}

static void barrier(struct stream *s, VkPipelineStageFlags2 to_stage, VkAccessFlags2 to_access)
{
    record_barrier(s, &(VkMemoryBarrier2){.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER_2,
                                          .srcStageMask = work_stages(s),
                                          .srcAccessMask = work_writes(s),
                                          .dstStageMask = to_stage,
                                          .dstAccessMask = to_access});
}

void stream_barrier(struct stream *s)
{
    if (s->err.code || !s->recording)
        return;
    barrier(s, work_stages(s), work_reads(s) | work_writes(s));
}

void stream_dispatch_barrier(struct stream *s)
{
    if (s->err.code || !s->recording)
        return;
    const VkAccessFlags2 write = VK_ACCESS_2_SHADER_STORAGE_WRITE_BIT;
    record_barrier(s, &(VkMemoryBarrier2){.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER_2,
                                          .srcStageMask = VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT,
                                          .srcAccessMask = write,
                                          .dstStageMask = VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT,
                                          .dstAccessMask = VK_ACCESS_2_SHADER_STORAGE_READ_BIT | write});
}

void stream_copy(struct stream *s, const struct gpu_buffer *dst, uint64_t dst_off,
                 const struct gpu_buffer *src, uint64_t src_off, uint64_t bytes)
{
    if (s->err.code || !s->recording || bytes == 0)
        return;
    VkBufferCopy region = {.srcOffset = src_off, .dstOffset = dst_off, .size = bytes};
    s->gpu->vk.CmdCopyBuffer(s->open->commands, src->buffer, dst->buffer, 1, &region);
    stamp(s, (struct stream_timed){0});
}

void stream_zero(struct stream *s, const struct gpu_buffer *dst, uint64_t off, uint64_t bytes)
{
    if (s->err.code || !s->recording || bytes == 0)
        return;
    s->gpu->vk.CmdFillBuffer(s->open->commands, dst->buffer, off, bytes, 0);
    stamp(s, (struct stream_timed){0});
}

void stream_after(struct stream *s, const struct stream *other, uint64_t ticket)
{
    s->after_ticket = s->after == other ? size_max(s->after_ticket, ticket) : ticket;
    s->after = ticket ? other : s->after;
}

/* Ends recording. Returns the batch, or NULL when an error sticks. */
static struct stream_batch *end_batch(struct stream *s)
{
    struct stream_batch *b = s->open;
    if (s->recording) {
        if (!s->err.code)
            barrier(s, VK_PIPELINE_STAGE_2_HOST_BIT, VK_ACCESS_2_HOST_READ_BIT);
        stick(s, s->gpu->vk.EndCommandBuffer(b->commands), "vkEndCommandBuffer");
    }
    s->recording = false;
    s->open = NULL;
    return s->err.code ? NULL : b;
}

static int queue_batch(struct stream *s, struct stream_batch *b, uint64_t *ticket, struct moeflux_err *e)
{
    VkCommandBufferSubmitInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO,
                                          .commandBuffer = b->commands};
    VkSemaphoreSubmitInfo signal = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO,
                                    .semaphore = s->timeline,
                                    .value = s->last_ticket + 1,
                                    .stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT};
    VkSemaphoreSubmitInfo before = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO,
                                    .semaphore = s->after ? s->after->timeline : VK_NULL_HANDLE,
                                    .value = s->after_ticket,
                                    .stageMask = work_stages(s)};
    VkSubmitInfo2 info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO_2,
                          .waitSemaphoreInfoCount = s->after ? 1 : 0,
                          .pWaitSemaphoreInfos = &before,
                          .commandBufferInfoCount = 1,
                          .pCommandBufferInfos = &commands,
                          .signalSemaphoreInfoCount = 1,
                          .pSignalSemaphoreInfos = &signal};
    VkQueue queue = s->pipelines ? s->gpu->queue : s->gpu->transfer_queue;
    pthread_mutex_lock(s->gpu->lock);
    VkResult r = s->gpu->vk.QueueSubmit2(queue, 1, &info, VK_NULL_HANDLE);
    pthread_mutex_unlock(s->gpu->lock);
    if (r != VK_SUCCESS)
        return fail(s, r, "vkQueueSubmit2", e);
    s->n_submits++;
    s->n_dispatches += b->n_dispatches;
    b->ticket = ++s->last_ticket;
    *ticket = b->ticket;
    return 0;
}

int stream_submit(struct stream *s, uint64_t *ticket, struct moeflux_err *e)
{
    struct stream_batch *b = end_batch(s);
    if (b)
        return queue_batch(s, b, ticket, e);
    if (e)
        *e = s->err;
    return (int)s->err.code;
}

void stream_defer(struct stream *s)
{
    s->deferred = end_batch(s);
}

bool stream_is_deferred(const struct stream *s)
{
    return s->deferred != NULL;
}

int stream_submit_deferred(struct stream *s, uint64_t *ticket, struct moeflux_err *e)
{
    struct stream_batch *b = s->deferred;
    s->deferred = NULL;
    return queue_batch(s, b, ticket, e);
}

void stream_abandon(struct stream *s)
{
    if (s->recording)
        s->gpu->vk.EndCommandBuffer(s->open->commands);
    if (s->open)
        s->open->n_times = 0;
    s->recording = false;
    s->open = NULL;
}
