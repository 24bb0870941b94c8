/* Watched batches on Vulkan: work is cut into short submissions, and the watch is called between them. */
#include "base/clock.h"
#include "base/mem.h"
#include "exec/exec_vulkan.h"

/* A submission that takes at least this long waits for the one before it. */
#define LONG_NS ((uint64_t)25000000)
/* exec_split submits only if at least this much work is recorded. */
#define SPLIT_NS ((uint64_t)2000000)

void vulkan_set_pace(struct exec *x, uint64_t ns)
{
    vulkan_of(x)->pace.most_ns = ns;
}

void vulkan_watch(struct exec *x)
{
    struct exec_vulkan *v = vulkan_of(x);
    v->stream.go_on = x->watch.go_on;
    v->stream.go_on_ctx = x->watch.ctx;
    if (x->is_watched && v->gpu.ns_per_tick <= 0)
        pace_forget(&v->pace);
    if (!x->is_watched)
        v->stream.times_next = false;
}

int vulkan_submit(struct exec *x, uint64_t *ticket, struct moeflux_err *e)
{
    struct exec_vulkan *v = vulkan_of(x);
    bool is_long = x->is_watched && v->open_ns >= size_min(LONG_NS, v->pace.most_ns / 2);
    int rc = stream_submit(&v->stream, ticket, e);
    if (rc < 0 || !is_long)
        return rc;
    uint64_t before = v->long_ticket;
    v->long_ticket = *ticket;
    return stream_wait(&v->stream, before, e);
}

/* Submits the open batch and goes on in another one. Long batches are always timed: a time stamp after each
 * dispatch takes about 1 us on an H200, which does not matter there. */
static void submit_and_go_on(struct exec_vulkan *v, bool is_timed)
{
    uint64_t ticket;
    bool is_long = v->open_ns >= LONG_NS;
    if (vulkan_submit(&v->base, &ticket, &v->base.fault) == 0)
        vulkan_begin_batch(v, is_timed || is_long);
    exec_ask_watch(&v->base);
}

/* Runs a piece of an unknown kernel in a submission of its own and waits for its time, measured by the
 * device, else by the host. */
static void try_out(struct exec_vulkan *v, const struct stream_work *w)
{
    struct moeflux_err *fault = &v->base.fault;
    if (v->last != RECORDED_NOTHING || !v->stream.open || !v->stream.open->is_timed)
        submit_and_go_on(v, true);
    if (fault->code)
        return;
    uint64_t ticket, start = clock_ns();
    vulkan_order_after(v, RECORDED_DISPATCH);
    stream_dispatch(&v->stream, w);
    int rc = stream_submit(&v->stream, &ticket, fault);
    if (rc == 0)
        rc = stream_wait(&v->stream, ticket, fault);
    if (rc == 0 && v->gpu.ns_per_tick <= 0)
        pace_learn(&v->pace, (uint32_t)w->pipeline, (uint64_t)w->groups[0] * w->groups[1] * w->groups[2],
                   clock_ns() - start);
    if (rc == 0)
        vulkan_begin_batch(v, true);
    exec_ask_watch(&v->base);
}

static void dispatch_piece(struct exec_vulkan *v, const struct stream_work *w, uint64_t ns)
{
    if (v->open_ns > 0 && v->open_ns + ns > v->pace.most_ns)
        submit_and_go_on(v, true);
    if (v->base.fault.code)
        return;
    vulkan_order_after(v, RECORDED_DISPATCH);
    stream_dispatch(&v->stream, w);
    v->open_ns += ns;
}

/* The pieces lie along the longest axis. A stop between them drops the rest. */
void vulkan_dispatch_watched(struct exec_vulkan *v, const struct stream_work *all, bool may_cut)
{
    uint32_t axis = all->groups[1] > all->groups[0], kernel = (uint32_t)all->pipeline;
    axis = all->groups[2] > all->groups[axis] ? 2 : axis;
    uint32_t n = all->groups[axis];
    uint64_t step = (uint64_t)all->groups[0] * all->groups[1] * all->groups[2] / size_max(n, 1);
    struct stream_work w = *all;
    for (uint32_t at = 0; at < n && !v->base.fault.code; at += w.groups[axis]) {
        w.first[axis] = at;
        w.groups[axis] = may_cut ? pace_piece(&v->pace, kernel, n - at, step) : n;
        if (pace_knows(&v->pace, kernel))
            dispatch_piece(v, &w, pace_estimate(&v->pace, kernel, w.groups[axis] * step));
        else
            try_out(v, &w);
    }
}

void vulkan_split(struct exec *x)
{
    struct exec_vulkan *v = vulkan_of(x);
    if (v->open_ns >= SPLIT_NS)
        submit_and_go_on(v, false);
}
