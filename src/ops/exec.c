#include "ops/exec.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "ops/pace.h"
#include "vulkan/device.h"
#include "vulkan/pipeline.h"
#include "vulkan/stream.h"

struct exec {
    bool is_reference, poses_as_gpu, forbids_half, profile;
    bool is_moving;                           /* a batch of moves is being recorded */
    bool is_watched;                          /* exec_watch */
    bool beside;                              /* the next operation needs no order after an operation */
    enum { NOTHING, COPIES, OPERATION } last; /* recorded in this batch */
    struct gpu gpu;
    struct pipeline_set pipelines;
    struct stream stream;
    struct stream mover; /* copies beside it */
    /* Two halves of staging: one is filled while the other is copied. */
    struct gpu_buffer staging;
    uint64_t stage_tickets[2];
    uint32_t stage_half;
    uint32_t n_batches;       /* that were watched */
    struct {                  /* handed out by exec_stage, not copied yet */
        struct gpu_buffer to; /* none: bytes = 0 */
        uint64_t off, bytes;
    } staged;
    struct exec_stats stats;

    /* While watched: */
    struct exec_watch watch;
    struct moeflux_err
        fault; /* the first error of a submission that exec_run made, or the stop; since exec_begin */
    struct pace pace;
    uint64_t open_ns;     /* of the open batch, estimated */
    uint64_t long_ticket; /* of the last batch that takes long */
};

/* A submission should take at most this; half a second is what must not be exceeded. */
#define SUBMISSION_NS ((uint64_t)200000000)
/* One that takes as long as this waits for the one before it. */
#define LONG_NS ((uint64_t)25000000)
/* Less work than this is not handed over early. */
#define SPLIT_NS ((uint64_t)2000000)
/* Of short batches every so many are timed. */
enum { TIMED_BATCHES = 8 };

/* Orders what comes next after what was recorded; copies in a row need no order among themselves. */
static void order_after(struct exec *x, int next)
{
    bool free = x->beside && next == OPERATION && x->last == OPERATION;
    if (!free && (x->last == OPERATION || (x->last == COPIES && next == OPERATION)))
        stream_barrier(&x->stream);
    x->last = next == OPERATION ? OPERATION : COPIES;
    x->beside = false;
}

static void book_time(struct exec *x, uint32_t label, uint64_t ns)
{
    x->stats.times[label].n++;
    x->stats.times[label].ns += ns;
}

static void on_time(void *ctx, const struct stream_timed *what, uint64_t ns)
{
    struct exec *x = ctx;
    if (x->profile)
        book_time(x, what->label, ns);
    if (what->n_groups)
        pace_learn(&x->pace, what->pipeline, what->n_groups, ns);
}

static uint32_t label_of(struct exec *x, const char *name)
{
    struct exec_stats *s = &x->stats;
    for (uint32_t i = 0; i < s->n_times; i++)
        if (strcmp(s->times[i].name, name) == 0)
            return i;
    if (s->n_times == EXEC_MAX_LABELS)
        return EXEC_MAX_LABELS - 1;
    s->times[s->n_times].name = name;
    return s->n_times++;
}

static int open_vulkan(struct exec *x, const char *device, bool staged, struct moeflux_err *e)
{
    int rc = gpu_open(&x->gpu, device, e);
    x->gpu.is_unified &= !staged;
    if (rc == 0)
        rc = pipeline_set_open(&x->pipelines, &x->gpu, e);
    if (rc == 0)
        rc = stream_open(&x->stream, &x->gpu, &x->pipelines, x->profile, e);
    if (rc == 0 && !x->gpu.is_unified)
        rc = stream_open(&x->mover, &x->gpu, NULL, false, e);
    if (rc < 0)
        return rc;
    x->stream.on_time = on_time;
    x->stream.on_time_ctx = x;
    label_of(x, "copy");
    return 0;
}

int exec_open(struct exec **out, const char *device, bool profile, bool staged, struct moeflux_err *e)
{
    *out = NULL;
    struct exec *x = mem_new(1, sizeof *x, e);
    if (!x)
        return ERR_MEMORY;
    x->profile = profile;
    pace_init(&x->pace, SUBMISSION_NS);
    x->is_reference = device && strcmp(device, "reference") == 0;
    int rc = x->is_reference ? 0 : open_vulkan(x, device, staged, e);
    if (rc < 0) {
        exec_close(x);
        return rc;
    }
    *out = x;
    return 0;
}

void exec_close(struct exec *x)
{
    if (!x)
        return;
    stream_close(&x->mover);
    stream_close(&x->stream);
    if (x->gpu.device) {
        gpu_buffer_free(&x->staging, &x->gpu);
        pipeline_set_close(&x->pipelines, &x->gpu);
    }
    gpu_close(&x->gpu);
    free(x);
}

/* What the mapping of kernels named X_coop takes for given. */
static bool has_coop(const struct gpu *g)
{
    return g->has_coop && g->subgroup_size == 32 && g->max_workgroup >= 256 && g->max_shared_bytes >= 32768;
}

struct exec_caps exec_get_caps(const struct exec *x)
{
    if (x->is_reference)
        return (struct exec_caps){.name = "reference (CPU, double accumulators)",
                                  .is_reference = true,
                                  .is_cpu = true,
                                  .is_unified = true,
                                  .subgroup_size = 8,
                                  .max_workgroup = 1024,
                                  .max_shared_bytes = 32768,
                                  .max_alloc_bytes = PTRDIFF_MAX,
                                  .total_bytes = UINT64_MAX,
                                  .free_bytes = UINT64_MAX};
    const struct gpu *g = &x->gpu;
    return (struct exec_caps){.name = g->info.name,
                              .is_cpu = g->is_cpu && !x->poses_as_gpu,
                              .is_unified = g->is_unified,
                              .has_wide = g->is_cpu && !x->poses_as_gpu && g->has_int64,
                              .has_coop = has_coop(g) && !x->forbids_half,
                              .subgroup_size = g->subgroup_size,
                              .max_workgroup = g->max_workgroup,
                              .max_shared_bytes = g->max_shared_bytes,
                              .max_alloc_bytes = g->max_alloc_bytes,
                              .total_bytes = g->info.memory_bytes,
                              .free_bytes = gpu_free_bytes(g),
                              .used_bytes = gpu_used_bytes(g)};
}

void exec_pose_as_gpu(struct exec *x)
{
    x->poses_as_gpu = true;
}

void exec_forbid_half(struct exec *x)
{
    x->forbids_half = true;
}

int exec_buffer_new(struct exec *x, struct exec_buffer *b, enum exec_memory kind, uint64_t bytes,
                    struct moeflux_err *e)
{
    static const enum gpu_memory kinds[] = {
        [EXEC_DEVICE] = GPU_DEVICE, [EXEC_INPUT] = GPU_INPUT, [EXEC_HOST] = GPU_HOST};
    *b = (struct exec_buffer){.bytes = bytes};
    int rc = 0;
    if (!x->is_reference) {
        rc = gpu_buffer_new(&b->gpu, &x->gpu, kinds[kind], bytes, e);
        b->address = b->gpu.address;
        b->host = b->gpu.host;
    } else if ((b->host = aligned_alloc(4096, size_round_up(bytes + 1, 4096)))) {
        b->address = (uint64_t)(uintptr_t)b->host;
    } else {
        rc = err_set(e, ERR_NO_FIT, "out of memory: %llu bytes were asked for", (unsigned long long)bytes);
    }
    if (rc == 0)
        x->stats.held_bytes += bytes;
    return rc;
}

int exec_buffer_import(struct exec *x, struct exec_buffer *b, uint8_t *host, uint64_t bytes,
                       struct moeflux_err *e)
{
    *b = (struct exec_buffer){.bytes = bytes, .is_borrowed = true};
    if (!x->is_reference) {
        const struct gpu *g = &x->gpu;
        if (!g->is_unified || g->import_align == 0 || (uintptr_t)host % g->import_align)
            return err_set(e, ERR_UNSUPPORTED, "%s cannot import host memory", g->info.name);
        int rc = gpu_buffer_import(&b->gpu, g, host, size_round_up(bytes, g->import_align), e);
        b->address = b->gpu.address;
        b->host = b->gpu.host;
        return rc;
    }
    b->host = host;
    b->address = (uint64_t)(uintptr_t)host;
    return 0;
}

void exec_buffer_free(struct exec *x, struct exec_buffer *b)
{
    if (x && b->address && !b->is_borrowed)
        x->stats.held_bytes -= b->bytes;
    if (x && x->is_reference)
        free(b->is_borrowed ? NULL : b->host);
    else if (x)
        gpu_buffer_free(&b->gpu, &x->gpu);
    *b = (struct exec_buffer){0};
}

/* Queues the copy of what the last exec_stage handed out. */
static int hand_over(struct exec *x, struct moeflux_err *e)
{
    if (x->staged.bytes == 0)
        return 0;
    uint64_t from = (uint64_t)x->stage_half * EXEC_STAGE_BYTES;
    stream_begin(&x->stream);
    stream_copy(&x->stream, &x->staged.to, x->staged.off, &x->staging, from, x->staged.bytes);
    x->staged.bytes = 0;
    int rc = stream_submit(&x->stream, &x->stage_tickets[x->stage_half], e);
    x->stage_half ^= 1;
    return rc;
}

static int make_staging(struct exec *x, struct moeflux_err *e)
{
    return x->staging.buffer
               ? 0
               : gpu_buffer_new(&x->staging, &x->gpu, GPU_HOST, 2 * (uint64_t)EXEC_STAGE_BYTES, e);
}

void *exec_stage(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes,
                 struct moeflux_err *e)
{
    if (b->host)
        return b->host + off;
    if (make_staging(x, e) < 0)
        return NULL;
    if (hand_over(x, e) < 0 || stream_wait(&x->stream, x->stage_tickets[x->stage_half], e) < 0)
        return NULL;
    x->staged.to = b->gpu;
    x->staged.off = off;
    x->staged.bytes = bytes;
    return x->staging.host + (uint64_t)x->stage_half * EXEC_STAGE_BYTES;
}

int exec_stage_end(struct exec *x, struct moeflux_err *e)
{
    if (x->is_reference)
        return 0;
    int rc = hand_over(x, e);
    return rc < 0 ? rc : stream_wait(&x->stream, size_max(x->stage_tickets[0], x->stage_tickets[1]), e);
}

int exec_write(struct exec *x, const struct exec_buffer *b, uint64_t off, const void *src, uint64_t bytes,
               struct moeflux_err *e)
{
    for (uint64_t done = 0; done < bytes;) {
        uint64_t n = size_min(bytes - done, EXEC_STAGE_BYTES);
        void *to = exec_stage(x, b, off + done, n, e);
        if (!to)
            return ERR_DEVICE;
        memcpy(to, (const uint8_t *)src + done, n);
        done += n;
    }
    return exec_stage_end(x, e);
}

/* One piece, at most EXEC_STAGE_BYTES, through the half of staging that is next. */
static int read_piece(struct exec *x, const struct exec_buffer *b, uint64_t off, void *dst, uint64_t bytes,
                      struct moeflux_err *e)
{
    uint64_t at = (uint64_t)x->stage_half * EXEC_STAGE_BYTES, ticket = 0;
    stream_begin(&x->stream);
    stream_copy(&x->stream, &x->staging, at, &b->gpu, off, bytes);
    int rc = stream_submit(&x->stream, &ticket, e);
    if (rc == 0)
        rc = stream_wait(&x->stream, ticket, e);
    if (rc == 0)
        memcpy(dst, x->staging.host + at, bytes);
    return rc;
}

int exec_read(struct exec *x, const struct exec_buffer *b, uint64_t off, void *dst, uint64_t bytes,
              struct moeflux_err *e)
{
    int rc = exec_stage_end(x, e);
    if (rc == 0 && !x->is_reference)
        rc = stream_wait(&x->stream, x->stream.last_ticket, e);
    if (rc == 0 && b->host)
        memcpy(dst, b->host + off, bytes);
    if (rc < 0 || b->host)
        return rc;
    rc = make_staging(x, e);
    for (uint64_t done = 0; rc == 0 && done < bytes;) {
        uint64_t n = size_min(bytes - done, EXEC_STAGE_BYTES);
        rc = read_piece(x, b, off + done, (uint8_t *)dst + done, n, e);
        done += n;
    }
    return rc;
}

int exec_kernel_later(struct exec *x, struct kernel *k, const char *name, void (*ref)(const void *args),
                      uint32_t args_bytes, const uint32_t *spec, uint32_t n_spec, struct moeflux_err *e)
{
    *k = (struct kernel){.ref = ref, .args_bytes = args_bytes};
    const char *label = pipeline_find_name(name);
    if (!label)
        return err_set(e, ERR_DEVICE, "no kernel named %s is built in", name);
    k->label = label_of(x, label);
    if (x->is_reference)
        return 0;
    k->pipeline = pipeline_find(&x->pipelines, name, spec, n_spec, e);
    return k->pipeline < 0 ? k->pipeline : 0;
}

int exec_kernel(struct exec *x, struct kernel *k, const char *name, void (*ref)(const void *args),
                uint32_t args_bytes, const uint32_t *spec, uint32_t n_spec, struct moeflux_err *e)
{
    int rc = exec_kernel_later(x, k, name, ref, args_bytes, spec, n_spec, e);
    return rc < 0 || x->is_reference ? rc : pipeline_make(&x->pipelines, &x->gpu, k->pipeline, e);
}

/* --- watched batches: see exec_watch --- */

void exec_watch(struct exec *x, const struct exec_watch *w)
{
    x->is_watched = w != NULL;
    x->watch = w ? *w : (struct exec_watch){0};
    x->stream.go_on = x->watch.go_on;
    x->stream.go_on_ctx = x->watch.ctx;
    if (w && !x->is_reference && x->gpu.ns_per_tick <= 0)
        pace_forget(&x->pace);
    if (!w)
        x->stream.times_next = false;
}

void exec_set_pace(struct exec *x, uint64_t ns)
{
    x->pace.most_ns = ns;
}

/* Ends the batch when the watch says so. */
static void ask(struct exec *x)
{
    if (!x->fault.code && x->watch.go_on && !x->watch.go_on(x->watch.ctx))
        err_set(&x->fault, ERR_INTERRUPTED, "interrupted");
}

static void begin(struct exec *x, bool is_timed)
{
    x->last = NOTHING;
    x->stream.times_next = x->is_watched && (is_timed || x->n_batches++ % TIMED_BATCHES == 0);
    x->open_ns = 0;
    stream_begin(&x->stream);
}

/* Queues the open batch. While watched, the device is never given more than two long ones. */
static int queue(struct exec *x, uint64_t *ticket, struct moeflux_err *e)
{
    bool is_long = x->is_watched && x->open_ns >= size_min(LONG_NS, x->pace.most_ns / 2);
    int rc = stream_submit(&x->stream, ticket, e);
    if (rc < 0 || !is_long)
        return rc;
    uint64_t before = x->long_ticket;
    x->long_ticket = *ticket;
    return stream_wait(&x->stream, before, e);
}

/* Queues the open batch and goes on in another one. What takes long is timed every time. */
static void hand_on(struct exec *x, bool is_timed)
{
    uint64_t ticket;
    bool is_long = x->open_ns >= SPLIT_NS;
    if (queue(x, &ticket, &x->fault) == 0)
        begin(x, is_timed || is_long);
    ask(x);
}

/* Runs a piece of an unknown kernel by itself and waits for its time: the device's own, else the host's. */
static void try_out(struct exec *x, const struct stream_work *w)
{
    if (x->last != NOTHING || !x->stream.open || !x->stream.open->is_timed)
        hand_on(x, true);
    if (x->fault.code)
        return;
    uint64_t ticket, start = clock_ns();
    order_after(x, OPERATION);
    stream_dispatch(&x->stream, w);
    int rc = stream_submit(&x->stream, &ticket, &x->fault);
    if (rc == 0)
        rc = stream_wait(&x->stream, ticket, &x->fault);
    if (rc == 0 && x->gpu.ns_per_tick <= 0)
        pace_learn(&x->pace, (uint32_t)w->pipeline, (uint64_t)w->groups[0] * w->groups[1] * w->groups[2],
                   clock_ns() - start);
    if (rc == 0)
        begin(x, true);
    ask(x);
}

static void run_piece(struct exec *x, const struct stream_work *w, uint64_t ns)
{
    if (x->open_ns > 0 && x->open_ns + ns > x->pace.most_ns)
        hand_on(x, true);
    if (x->fault.code)
        return;
    order_after(x, OPERATION);
    stream_dispatch(&x->stream, w);
    x->open_ns += ns;
}

/* Runs the dispatch in as many pieces, along its longest axis, as its time asks for and the device allows. */
static void run_watched(struct exec *x, const struct stream_work *all)
{
    uint32_t axis = all->groups[1] > all->groups[0], kernel = (uint32_t)all->pipeline;
    axis = all->groups[2] > all->groups[axis] ? 2 : axis;
    uint32_t n = all->groups[axis];
    uint64_t step = (uint64_t)all->groups[0] * all->groups[1] * all->groups[2] / size_max(n, 1);
    struct stream_work w = *all;
    for (uint32_t at = 0; at < n && !x->fault.code; at += w.groups[axis]) {
        w.first[axis] = at;
        w.groups[axis] = x->gpu.cuts_dispatches ? pace_piece(&x->pace, kernel, n - at, step) : n;
        if (pace_knows(&x->pace, kernel))
            run_piece(x, &w, pace_estimate(&x->pace, kernel, w.groups[axis] * step));
        else
            try_out(x, &w);
    }
}

void exec_split(struct exec *x)
{
    if (x->is_watched && !x->is_reference && !x->fault.code && x->open_ns >= SPLIT_NS)
        hand_on(x, false);
}

int exec_settle(struct exec *x, uint64_t ns, struct moeflux_err *e)
{
    if (x->is_reference)
        return 1;
    int rc = stream_wait_for(&x->stream, x->stream.last_ticket, ns, e);
    if (rc == 1 && !x->gpu.is_unified)
        rc = stream_wait_for(&x->mover, x->mover.last_ticket, ns, e);
    return rc;
}

/* --- recording --- */

void exec_begin(struct exec *x)
{
    x->fault = (struct moeflux_err){0};
    x->last = NOTHING;
    if (!x->is_reference)
        begin(x, false);
}

/* A kernel of exec_kernel_later, which somebody waits for now. */
static int make_now(struct exec *x, const struct kernel *k)
{
    uint64_t start = clock_ns();
    int rc = pipeline_make(&x->pipelines, &x->gpu, k->pipeline, &x->fault);
    x->stats.n_compiled++;
    x->stats.compile_ns += clock_ns() - start;
    return rc;
}

void exec_run(struct exec *x, const struct kernel *k, const void *args, uint32_t gx, uint32_t gy, uint32_t gz)
{
    if (x->fault.code)
        return;
    if (!x->is_reference) {
        if (!x->pipelines.all[k->pipeline].handle && make_now(x, k) < 0)
            return;
        const struct stream_work w = {.pipeline = k->pipeline,
                                      .label = k->label,
                                      .args = args,
                                      .args_bytes = k->args_bytes,
                                      .groups = {gx, gy, gz}};
        if (x->is_watched) {
            run_watched(x, &w);
            return;
        }
        order_after(x, OPERATION);
        stream_dispatch(&x->stream, &w);
        return;
    }
    uint64_t start = x->profile ? clock_ns() : 0;
    k->ref(args);
    x->stats.n_dispatches++;
    if (x->profile)
        book_time(x, k->label, clock_ns() - start);
    ask(x);
}

void exec_beside(struct exec *x)
{
    x->beside = true;
}

void exec_copy(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off, const struct exec_buffer *src,
               uint64_t src_off, uint64_t bytes)
{
    if (x->fault.code)
        return;
    if (x->is_reference) {
        memcpy(dst->host + dst_off, src->host + src_off, bytes);
        return;
    }
    order_after(x, COPIES);
    stream_copy(&x->stream, &dst->gpu, dst_off, &src->gpu, src_off, bytes);
}

void exec_zero(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes)
{
    if (x->fault.code)
        return;
    if (x->is_reference) {
        memset(b->host + off, 0, bytes);
        return;
    }
    order_after(x, COPIES);
    stream_zero(&x->stream, &b->gpu, off, bytes);
}

int exec_submit(struct exec *x, uint64_t *ticket, struct moeflux_err *e)
{
    *ticket = 0;
    if (x->is_watched)
        ask(x);
    if (x->fault.code) {
        if (e)
            *e = x->fault;
        exec_abandon(x);
        return (int)x->fault.code;
    }
    if (!x->is_reference)
        return queue(x, ticket, e);
    x->stats.n_submits++;
    return 0;
}

void exec_park(struct exec *x)
{
    if (!x->is_reference)
        stream_park(&x->stream);
}

bool exec_is_parked(const struct exec *x)
{
    return !x->is_reference && stream_is_parked(&x->stream);
}

int exec_submit_parked(struct exec *x, uint64_t *ticket, struct moeflux_err *e)
{
    return stream_submit_parked(&x->stream, ticket, e);
}

int exec_wait(struct exec *x, uint64_t ticket, struct moeflux_err *e)
{
    return x->is_reference ? 0 : stream_wait(&x->stream, ticket, e);
}

int exec_finish(struct exec *x, struct moeflux_err *e)
{
    uint64_t ticket;
    int rc = exec_submit(x, &ticket, e);
    return rc < 0 ? rc : exec_wait(x, ticket, e);
}

void exec_abandon(struct exec *x)
{
    if (!x->is_reference)
        stream_abandon(&x->stream);
}

void exec_move(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off, const struct exec_buffer *src,
               uint64_t src_off, uint64_t bytes)
{
    if (!x->is_moving)
        stream_begin(&x->mover);
    x->is_moving = true;
    stream_copy(&x->mover, &dst->gpu, dst_off, &src->gpu, src_off, bytes);
}

void exec_move_order(struct exec *x)
{
    if (x->is_moving)
        stream_barrier(&x->mover);
}

int exec_move_submit(struct exec *x, uint64_t *ticket, struct moeflux_err *e)
{
    *ticket = 0;
    if (!x->is_moving)
        return 0;
    x->is_moving = false;
    return stream_submit(&x->mover, ticket, e);
}

bool exec_move_is_done(const struct exec *x, uint64_t ticket)
{
    return ticket == 0 || stream_is_done(&x->mover, ticket);
}

int exec_move_wait(struct exec *x, uint64_t ticket, struct moeflux_err *e)
{
    return ticket ? stream_wait(&x->mover, ticket, e) : 0;
}

void exec_after_moves(struct exec *x, uint64_t ticket)
{
    if (ticket)
        stream_after(&x->stream, &x->mover, ticket);
}

void exec_get_stats(const struct exec *x, struct exec_stats *out)
{
    *out = x->stats;
    if (x->is_reference)
        return;
    out->n_submits = x->stream.n_submits;
    out->n_dispatches = x->stream.n_dispatches;
    out->wait_ns = x->stream.wait_ns;
}

void exec_reset_stats(struct exec *x)
{
    x->stats.n_submits = x->stats.n_dispatches = x->stats.wait_ns = 0;
    x->stats.n_compiled = x->stats.compile_ns = 0;
    x->stream.n_submits = x->stream.n_dispatches = x->stream.wait_ns = 0;
    for (uint32_t i = 0; i < x->stats.n_times; i++)
        x->stats.times[i].n = x->stats.times[i].ns = 0;
}
