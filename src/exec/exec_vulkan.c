/* The Vulkan backend: opening, memory, recording. */
#include "exec/exec_vulkan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "exec/kernel.h"
#include "exec/shelf.h"

/* One in so many short watched batches is timed. A prime, since kinds of layers may repeat every second,
 * fourth or eighth. */
enum { TIMED_BATCHES = 7 };

/* --- opening --- */

static void on_time(void *ctx, const struct stream_timed *what, uint64_t ns)
{
    struct exec_vulkan *v = ctx;
    if (v->base.profile)
        exec_book_time(&v->base, what->label, ns);
    if (what->n_groups)
        pace_learn(&v->pace, what->pipeline, what->n_groups, ns);
}

static void vulkan_close(struct exec *x)
{
    struct exec_vulkan *v = vulkan_of(x);
    stream_close(&v->mover);
    stream_close(&v->stream);
    (void)pipeline_await(&v->pipelines, NULL);
    if (v->gpu.device)
        gpu_buffer_free(&v->staging, &v->gpu);
    pace_close(&v->pace);
    v->gpu.is_unified = v->gpu_is_unified;
    if (v->gpu.device && v->pipelines.layout && v->which && !v->gpu.is_shared) {
        exec_shelf_put(v->shelf, v->which, &v->gpu, &v->pipelines);
    } else {
        if (v->gpu.device)
            pipeline_set_close(&v->pipelines, &v->gpu);
        gpu_close(&v->gpu);
    }
    free(v->which);
    free(v);
}

/* Whether the device meets what kernels named X_coop assume. */
static bool has_coopmat(const struct gpu *g)
{
    return (g->matrices.nv || g->matrices.khr) && g->max_workgroup >= 256 && g->max_shared_bytes >= 32768;
}

static bool uses_khr(const struct exec *x)
{
    const struct matrices *has = &vulkan_of_const(x)->gpu.matrices;
    return has->khr && !(x->prefers_nv && has->nv);
}

/* Whether the kernel uses matrix units: X_coop, X_fragcoop, X_extcoop. */
static bool has_matrices(const char *kernel)
{
    return str_ends_with(kernel, "coop");
}

static struct exec_caps vulkan_caps(const struct exec *x)
{
    const struct gpu *g = &vulkan_of_const(x)->gpu;
    bool uses_matrices = has_coopmat(g) && !x->keeps_f32;
    return (struct exec_caps){.name = g->info.name,
                              .index = g->index,
                              .max_invariant = EXEC_MAX_INVARIANT,
                              .is_software = g->is_cpu,
                              .is_unified = g->is_unified,
                              .prompt_is_f16 = uses_matrices,
                              .kv_default_is_f16 = uses_matrices,
                              .has_coopmat = uses_matrices,
                              .uses_khr = uses_khr(x) && !x->keeps_f32,
                              .doubles_factors = g->is_amd,
                              .lane_registers = g->lane_registers,
                              .has_denorm = g->has_denorm && !x->forbids_denorm,
                              .n_processors = g->n_processors,
                              .subgroup_size = g->subgroup_size,
                              .max_workgroup = g->max_workgroup,
                              .max_shared_bytes = g->max_shared_bytes,
                              .max_alloc_bytes = g->max_alloc_bytes,
                              .total_bytes = g->info.memory_bytes,
                              .free_bytes = gpu_free_bytes(g),
                              .used_bytes = gpu_used_bytes(g)};
}

_Static_assert((int)EXEC_MAX_HEAPS == (int)VK_MAX_MEMORY_HEAPS, "a list has an entry for each heap");

static struct exec_details vulkan_details(const struct exec *x)
{
    const struct gpu *g = &vulkan_of_const(x)->gpu;
    struct gpu_heap heaps[VK_MAX_MEMORY_HEAPS];
    struct exec_details d = {.driver = g->info.driver,
                             .kind = g->info.kind,
                             .has_nv = g->matrices.nv,
                             .has_khr = g->matrices.khr,
                             .has_budget = g->has_budget,
                             .imports_host = g->import_align > 0,
                             .has_copy_queue = g->transfer_family != g->queue_family,
                             .has_timestamps = g->ns_per_tick > 0,
                             .sets_subgroup_size = g->sets_subgroup_size,
                             .cuts_dispatches = g->cuts_dispatches,
                             .n_heaps = gpu_list_heaps(g, heaps)};
    for (uint32_t i = 0; i < d.n_heaps; i++)
        d.heaps[i] = (struct exec_heap){heaps[i].bytes, heaps[i].budget, heaps[i].used, heaps[i].is_local,
                                        heaps[i].is_mapped};
    return d;
}

/* --- memory --- */

static const enum gpu_memory kinds[] = {
    [EXEC_DEVICE] = GPU_DEVICE, [EXEC_INPUT] = GPU_INPUT, [EXEC_HOST] = GPU_HOST};

static int vulkan_buffer_new(struct exec *x, struct exec_buffer *b, enum exec_memory kind,
                             struct moeflux_err *e)
{
    struct gpu_buffer made;
    int rc = gpu_buffer_new(&made, &vulkan_of(x)->gpu, kinds[kind], b->bytes, e);
    vulkan_put_buffer(b, &made);
    return rc;
}

static int vulkan_buffer_import(struct exec *x, struct exec_buffer *b, enum exec_memory kind, uint8_t *host,
                                struct moeflux_err *e)
{
    const struct gpu *g = &vulkan_of(x)->gpu;
    bool is_there = kind == EXEC_HOST || g->is_unified;
    if (!is_there || g->import_align == 0 || (uintptr_t)host % g->import_align)
        return err_set(e, ERR_UNSUPPORTED, "%s cannot import host memory", g->info.name);
    struct gpu_buffer made;
    int rc = gpu_buffer_import(&made, g, kinds[kind], host, size_round_up(b->bytes, g->import_align), e);
    vulkan_put_buffer(b, &made);
    return rc;
}

static void vulkan_buffer_free(struct exec *x, struct exec_buffer *b)
{
    struct gpu_buffer own = vulkan_buffer_of(b);
    gpu_buffer_free(&own, &vulkan_of(x)->gpu);
}

/* --- kernels --- */

int exec_kernel_later(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes,
                      const uint32_t *spec, uint32_t n_spec, struct moeflux_err *e)
{
    *k = (struct kernel){.args_bytes = args_bytes};
    const char *label = pipeline_find_name(name);
    if (!label)
        return err_set(e, ERR_DEVICE, "no kernel named %s is built in", name);
    k->label = exec_find_label(x, label);
    k->pipeline =
        pipeline_find(&vulkan_of(x)->pipelines, name, uses_khr(x) && has_matrices(name), spec, n_spec, e);
    return k->pipeline < 0 ? k->pipeline : pace_reserve(&vulkan_of(x)->pace, (uint32_t)k->pipeline + 1, e);
}

int exec_kernel(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes, const uint32_t *spec,
                uint32_t n_spec, struct moeflux_err *e)
{
    struct exec_vulkan *v = vulkan_of(x);
    int rc = exec_kernel_later(x, k, name, args_bytes, spec, n_spec, e);
    return rc < 0 ? rc : pipeline_make_soon(&v->pipelines, &v->gpu, k->pipeline, e);
}

static int vulkan_await_kernels(struct exec *x, struct moeflux_err *e)
{
    return pipeline_await(&vulkan_of(x)->pipelines, e);
}

/* Compiles a kernel that a dispatch needs now. */
static int make_now(struct exec_vulkan *v, const struct kernel *k)
{
    uint64_t start = clock_ns();
    int rc = pipeline_make(&v->pipelines, &v->gpu, k->pipeline, &v->base.fault);
    v->base.stats.n_compiled++;
    v->base.stats.compile_ns += clock_ns() - start;
    return rc;
}

/* A device silently computes only a part, or nothing, of a dispatch of too many workgroups. */
static bool takes_groups(struct exec_vulkan *v, const struct stream_work *w)
{
    const uint32_t *n = w->groups, *most = v->gpu.max_groups;
    if (n[0] <= most[0] && n[1] <= most[1] && n[2] <= most[2])
        return true;
    err_set(&v->base.fault, ERR_UNSUPPORTED, "kernel %s: %u x %u x %u workgroups, %s takes %u x %u x %u",
            v->pipelines.all[w->pipeline].name, n[0], n[1], n[2], v->gpu.info.name, most[0], most[1],
            most[2]);
    return false;
}

void exec_dispatch(struct exec *x, const struct kernel *k, const void *args, uint32_t gx, uint32_t gy,
                   uint32_t gz)
{
    struct exec_vulkan *v = vulkan_of(x);
    if (x->fault.code || (!v->pipelines.all[k->pipeline].handle && make_now(v, k) < 0))
        return;
    const struct stream_work w = {.pipeline = k->pipeline,
                                  .label = k->label,
                                  .args = args,
                                  .args_bytes = k->args_bytes,
                                  .groups = {gx, gy, gz}};
    if (!takes_groups(v, &w))
        return;
    if (x->is_watched) {
        vulkan_dispatch_watched(v, &w, v->gpu.cuts_dispatches && !k->is_one_piece);
        return;
    }
    vulkan_order_after(v, RECORDED_DISPATCH);
    stream_dispatch(&v->stream, &w);
}

/* --- recording --- */

void vulkan_order_after(struct exec_vulkan *v, enum vulkan_recorded next)
{
    if (v->last == RECORDED_DISPATCH && next == RECORDED_DISPATCH) {
        if (!v->is_concurrent)
            stream_dispatch_barrier(&v->stream);
    } else if (v->last == RECORDED_DISPATCH || (v->last == RECORDED_COPIES && next == RECORDED_DISPATCH)) {
        stream_barrier(&v->stream);
    }
    v->last = next;
    v->is_concurrent = false;
}

void vulkan_begin_batch(struct exec_vulkan *v, bool is_timed)
{
    v->last = RECORDED_NOTHING;
    v->stream.times_next = v->base.is_watched && (is_timed || v->n_batches++ % TIMED_BATCHES == 0);
    v->open_ns = 0;
    stream_begin(&v->stream);
}

static void vulkan_begin(struct exec *x)
{
    vulkan_begin_batch(vulkan_of(x), false);
}

static void vulkan_run(struct exec *x, const struct op *what, const void *op, const void *call)
{
    what->vulkan(op, call, x);
}

static void vulkan_concurrent(struct exec *x)
{
    vulkan_of(x)->is_concurrent = true;
}

static void vulkan_copy(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off,
                        const struct exec_buffer *src, uint64_t src_off, uint64_t bytes)
{
    struct exec_vulkan *v = vulkan_of(x);
    const struct gpu_buffer to = vulkan_buffer_of(dst), from = vulkan_buffer_of(src);
    vulkan_order_after(v, RECORDED_COPIES);
    stream_copy(&v->stream, &to, dst_off, &from, src_off, bytes);
}

static void vulkan_zero(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes)
{
    struct exec_vulkan *v = vulkan_of(x);
    const struct gpu_buffer to = vulkan_buffer_of(b);
    vulkan_order_after(v, RECORDED_COPIES);
    stream_zero(&v->stream, &to, off, bytes);
}

static int vulkan_wait(struct exec *x, uint64_t ticket, struct moeflux_err *e)
{
    return stream_wait(&vulkan_of(x)->stream, ticket, e);
}

static int vulkan_wait_idle(struct exec *x, uint64_t ns, struct moeflux_err *e)
{
    struct exec_vulkan *v = vulkan_of(x);
    int rc = stream_wait_for(&v->stream, v->stream.last_ticket, ns, e);
    if (rc == 1 && !v->gpu.is_unified)
        rc = stream_wait_for(&v->mover, v->mover.last_ticket, ns, e);
    return rc;
}

static void vulkan_abandon(struct exec *x)
{
    stream_abandon(&vulkan_of(x)->stream);
}

static void vulkan_defer(struct exec *x)
{
    stream_defer(&vulkan_of(x)->stream);
}

static bool vulkan_is_deferred(const struct exec *x)
{
    return stream_is_deferred(&vulkan_of_const(x)->stream);
}

static int vulkan_submit_deferred(struct exec *x, uint64_t *ticket, struct moeflux_err *e)
{
    return stream_submit_deferred(&vulkan_of(x)->stream, ticket, e);
}

/* --- moves --- */

static void vulkan_move(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off,
                        const struct exec_buffer *src, uint64_t src_off, uint64_t bytes)
{
    struct exec_vulkan *v = vulkan_of(x);
    if (!v->is_moving)
        stream_begin(&v->mover);
    v->is_moving = true;
    const struct gpu_buffer to = vulkan_buffer_of(dst), from = vulkan_buffer_of(src);
    stream_copy(&v->mover, &to, dst_off, &from, src_off, bytes);
}

static void vulkan_move_order(struct exec *x)
{
    struct exec_vulkan *v = vulkan_of(x);
    if (v->is_moving)
        stream_barrier(&v->mover);
}

static int vulkan_move_submit(struct exec *x, uint64_t *ticket, struct moeflux_err *e)
{
    struct exec_vulkan *v = vulkan_of(x);
    if (!v->is_moving)
        return 0;
    v->is_moving = false;
    return stream_submit(&v->mover, ticket, e);
}

static bool vulkan_move_is_done(const struct exec *x, uint64_t ticket)
{
    return stream_is_done(&vulkan_of_const(x)->mover, ticket);
}

static int vulkan_move_wait(struct exec *x, uint64_t ticket, struct moeflux_err *e)
{
    return stream_wait(&vulkan_of(x)->mover, ticket, e);
}

static void vulkan_after_moves(struct exec *x, uint64_t ticket)
{
    struct exec_vulkan *v = vulkan_of(x);
    stream_after(&v->stream, &v->mover, ticket);
}

/* --- statistics --- */

static void vulkan_add_stats(const struct exec *x, struct exec_stats *out)
{
    const struct stream *s = &vulkan_of_const(x)->stream;
    out->n_submits = s->n_submits;
    out->n_dispatches = s->n_dispatches;
    out->wait_ns = s->wait_ns;
}

static void vulkan_reset_stats(struct exec *x)
{
    struct stream *s = &vulkan_of(x)->stream;
    s->n_submits = s->n_dispatches = s->wait_ns = 0;
}

static const struct backend vulkan_backend = {.close = vulkan_close,
                                              .caps = vulkan_caps,
                                              .details = vulkan_details,
                                              .buffer_new = vulkan_buffer_new,
                                              .buffer_import = vulkan_buffer_import,
                                              .buffer_free = vulkan_buffer_free,
                                              .stage = vulkan_stage,
                                              .stage_end = vulkan_stage_end,
                                              .read = vulkan_read,
                                              .watch = vulkan_watch,
                                              .set_pace = vulkan_set_pace,
                                              .wait_idle = vulkan_wait_idle,
                                              .await_kernels = vulkan_await_kernels,
                                              .begin = vulkan_begin,
                                              .run = vulkan_run,
                                              .concurrent = vulkan_concurrent,
                                              .copy = vulkan_copy,
                                              .zero = vulkan_zero,
                                              .split = vulkan_split,
                                              .submit = vulkan_submit,
                                              .wait = vulkan_wait,
                                              .abandon = vulkan_abandon,
                                              .add_stats = vulkan_add_stats,
                                              .reset_stats = vulkan_reset_stats,
                                              .defer = vulkan_defer,
                                              .is_deferred = vulkan_is_deferred,
                                              .submit_deferred = vulkan_submit_deferred,
                                              .move = vulkan_move,
                                              .move_order = vulkan_move_order,
                                              .move_submit = vulkan_move_submit,
                                              .move_is_done = vulkan_move_is_done,
                                              .move_wait = vulkan_move_wait,
                                              .after_moves = vulkan_after_moves};

/* Returns 1 when no device was named and there is no GPU. */
static int find_device(struct exec_vulkan *v, const struct exec_options *o, struct moeflux_err *e)
{
    if (o->shares_with && o->shares_with->backend == &vulkan_backend) {
        v->base.shares_memory = true;
        v->gpu = gpu_share(&vulkan_of_const(o->shares_with)->gpu);
        return 0;
    }
    if (!o->device)
        return gpu_open_preferred(&v->gpu, e);
    if (!o->shelf)
        return gpu_open(&v->gpu, o->device, e);
    v->shelf = o->shelf;
    v->which = mem_text(o->device, e);
    if (!v->which)
        return ERR_MEMORY;
    return exec_shelf_take(o->shelf, o->device, &v->gpu, &v->pipelines) ? 0 : gpu_open(&v->gpu, o->device, e);
}

static int open_device(struct exec_vulkan *v, const struct exec_options *o, struct moeflux_err *e)
{
    int rc = find_device(v, o, e);
    v->gpu_is_unified = v->gpu.is_unified;
    v->gpu.is_unified &= !o->staged;
    if (rc == 0 && !v->pipelines.layout)
        rc = pipeline_set_open(&v->pipelines, &v->gpu, e);
    if (rc == 0)
        rc = stream_open(&v->stream, &v->gpu, &v->pipelines, v->base.profile, e);
    if (rc == 0 && !v->gpu.is_unified)
        rc = stream_open(&v->mover, &v->gpu, NULL, false, e);
    if (rc != 0)
        return rc;
    v->stream.on_time = on_time;
    v->stream.on_time_ctx = v;
    exec_find_label(&v->base, "copy");
    return 0;
}

int exec_vulkan_open(struct exec **out, const struct exec_options *o, struct moeflux_err *e)
{
    struct exec_vulkan *v = mem_new(1, sizeof *v, e);
    if (!v)
        return ERR_MEMORY;
    v->base.backend = &vulkan_backend;
    v->base.profile = o->profile;
    pace_init(&v->pace, PACING_SUBMISSION_NS);
    int rc = open_device(v, o, e);
    if (rc != 0) {
        vulkan_close(&v->base);
        return rc;
    }
    *out = &v->base;
    return 0;
}
