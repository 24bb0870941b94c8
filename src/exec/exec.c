/* The functions of exec.h: they choose the backend, keep the batch's first error and call the watch. */
#include "exec/exec.h"

#include <string.h>

#include "base/mem.h"
#include "exec/backend.h"
#include "exec/kernel.h"

int exec_open(struct exec **out, const struct exec_options *o, struct moeflux_err *e)
{
    *out = NULL;
    struct exec_options named = *o;
    if (o->device && strcmp(o->device, "auto") == 0)
        named.device = NULL;
    if (named.device && strcmp(named.device, "reference") == 0)
        return exec_reference_open(out, &named, e);
    if (named.device && strcmp(named.device, "cpu") == 0)
        return exec_cpu_open(out, &named, e);
    int rc = exec_vulkan_open(out, &named, e);
    return rc > 0 ? exec_cpu_open(out, &named, e) : rc;
}

void exec_close(struct exec *x)
{
    if (!x)
        return;
    exec_buffer_free(x, &x->code_books);
    exec_buffer_free(x, &x->records.room);
    x->backend->close(x);
}

bool exec_shares_memory(const struct exec *x)
{
    return x->shares_memory;
}

struct exec_caps exec_get_caps(const struct exec *x)
{
    return x->backend->caps(x);
}

uint32_t exec_workgroup(const struct exec_caps *caps, uint64_t wanted)
{
    uint32_t most = caps->max_workgroup - caps->max_workgroup % caps->subgroup_size;
    return (uint32_t)size_min(size_round_up(wanted, caps->subgroup_size), most);
}

struct exec_details exec_get_details(const struct exec *x)
{
    return x->backend->details ? x->backend->details(x) : (struct exec_details){0};
}

void exec_set_batch_invariant(struct exec *x, bool on)
{
    x->is_batch_invariant = on;
}

void exec_keep_f32(struct exec *x)
{
    x->keeps_f32 = true;
}

void exec_prefer_nv(struct exec *x)
{
    x->prefers_nv = true;
}

void exec_forbid_denorm(struct exec *x)
{
    x->forbids_denorm = true;
}

/* --- memory --- */

int exec_buffer_allocate(struct exec *x, struct exec_buffer *b, enum exec_memory kind, uint64_t bytes,
                         struct moeflux_err *e)
{
    *b = (struct exec_buffer){.bytes = bytes};
    return x->backend->buffer_new(x, b, kind, e);
}

void exec_buffer_count(struct exec *x, const struct exec_buffer *b)
{
    x->stats.held_bytes += b->bytes;
}

int exec_buffer_new(struct exec *x, struct exec_buffer *b, enum exec_memory kind, uint64_t bytes,
                    struct moeflux_err *e)
{
    int rc = exec_buffer_allocate(x, b, kind, bytes, e);
    if (rc == 0)
        exec_buffer_count(x, b);
    return rc;
}

int exec_buffer_import(struct exec *x, struct exec_buffer *b, enum exec_memory kind, uint8_t *host,
                       uint64_t bytes, struct moeflux_err *e)
{
    *b = (struct exec_buffer){.bytes = bytes, .is_borrowed = true};
    return x->backend->buffer_import(x, b, kind, host, e);
}

void exec_buffer_free(struct exec *x, struct exec_buffer *b)
{
    if (x && b->address && !b->is_borrowed)
        x->stats.held_bytes -= b->bytes;
    if (x)
        x->backend->buffer_free(x, b);
    *b = (struct exec_buffer){0};
}

void *exec_stage(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes,
                 struct moeflux_err *e)
{
    return b->host ? b->host + off : x->backend->stage(x, b, off, bytes, e);
}

int exec_stage_end(struct exec *x, struct moeflux_err *e)
{
    return x->backend->stage_end(x, e);
}

int exec_write(struct exec *x, const struct exec_buffer *b, uint64_t off, const void *src, uint64_t bytes,
               struct moeflux_err *e)
{
    struct moeflux_err own = {0};
    e = e ? e : &own;
    for (uint64_t done = 0; done < bytes;) {
        uint64_t n = size_min(bytes - done, EXEC_STAGE_BYTES);
        void *to = exec_stage(x, b, off + done, n, e);
        if (!to)
            return (int)e->code;
        memcpy(to, (const uint8_t *)src + done, n);
        done += n;
    }
    return exec_stage_end(x, e);
}

int exec_read(struct exec *x, const struct exec_buffer *b, uint64_t off, void *dst, uint64_t bytes,
              struct moeflux_err *e)
{
    return x->backend->read(x, b, off, dst, bytes, e);
}

/* --- the watch --- */

void exec_watch(struct exec *x, const struct exec_watch *w)
{
    x->is_watched = w != NULL;
    x->watch = w ? *w : (struct exec_watch){0};
    x->backend->watch(x);
}

bool exec_goes_on(const struct exec *x)
{
    return !x->watch.go_on || x->watch.go_on(x->watch.ctx);
}

void exec_ask_watch(struct exec *x)
{
    if (!x->fault.code && !exec_goes_on(x))
        err_set(&x->fault, ERR_INTERRUPTED, "interrupted");
}

void exec_set_pace(struct exec *x, uint64_t ns)
{
    x->backend->set_pace(x, ns);
}

int exec_wait_idle(struct exec *x, uint64_t ns, struct moeflux_err *e)
{
    return x->backend->wait_idle(x, ns, e);
}

/* --- batches --- */

void exec_begin(struct exec *x)
{
    x->fault = (struct moeflux_err){0};
    exec_begin_records(x);
    x->backend->begin(x);
}

void exec_op(struct exec *x, const struct op *what, const void *op, const void *call)
{
    if (!x->fault.code)
        x->backend->run(x, what, op, call);
}

void exec_concurrent(struct exec *x)
{
    x->backend->concurrent(x);
}

void exec_copy(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off, const struct exec_buffer *src,
               uint64_t src_off, uint64_t bytes)
{
    if (!x->fault.code)
        x->backend->copy(x, dst, dst_off, src, src_off, bytes);
}

void exec_zero(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes)
{
    if (!x->fault.code)
        x->backend->zero(x, b, off, bytes);
}

bool exec_has_scratch(struct exec *x, const char *what, uint64_t bytes, uint64_t room)
{
    if (bytes > room && !x->fault.code)
        err_set(&x->fault, ERR_NO_FIT, "%s: %llu bytes of scratch memory, needs %llu", what,
                (unsigned long long)room, (unsigned long long)bytes);
    return bytes <= room;
}

void exec_for(struct exec *x, uint32_t n, void (*fn)(void *ctx, uint32_t i, uint32_t thread), void *ctx)
{
    if (x->backend->each) {
        x->backend->each(x, n, fn, ctx);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        fn(ctx, i, 0);
}

void exec_split(struct exec *x)
{
    if (x->is_watched && !x->fault.code)
        x->backend->split(x);
}

int exec_await_kernels(struct exec *x, struct moeflux_err *e)
{
    return x->backend->await_kernels ? x->backend->await_kernels(x, e) : 0;
}

int exec_submit(struct exec *x, uint64_t *ticket, struct moeflux_err *e)
{
    *ticket = 0;
    if (x->is_watched)
        exec_ask_watch(x);
    if (!x->fault.code)
        return x->backend->submit(x, ticket, e);
    if (e)
        *e = x->fault;
    exec_abandon(x);
    return (int)x->fault.code;
}

int exec_wait(struct exec *x, uint64_t ticket, struct moeflux_err *e)
{
    return x->backend->wait(x, ticket, e);
}

int exec_finish(struct exec *x, struct moeflux_err *e)
{
    uint64_t ticket;
    int rc = exec_submit(x, &ticket, e);
    return rc < 0 ? rc : exec_wait(x, ticket, e);
}

void exec_abandon(struct exec *x)
{
    x->backend->abandon(x);
}

void exec_defer(struct exec *x)
{
    if (x->backend->defer)
        x->backend->defer(x);
}

bool exec_is_deferred(const struct exec *x)
{
    return x->backend->is_deferred && x->backend->is_deferred(x);
}

int exec_submit_deferred(struct exec *x, uint64_t *ticket, struct moeflux_err *e)
{
    return x->backend->submit_deferred(x, ticket, e);
}

void exec_wake(struct exec *x)
{
    if (x->backend->wake)
        x->backend->wake(x);
}

/* --- moves --- */

void exec_move(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off, const struct exec_buffer *src,
               uint64_t src_off, uint64_t bytes)
{
    x->backend->move(x, dst, dst_off, src, src_off, bytes);
}

void exec_move_order(struct exec *x)
{
    if (x->backend->move_order)
        x->backend->move_order(x);
}

int exec_move_submit(struct exec *x, uint64_t *ticket, struct moeflux_err *e)
{
    *ticket = 0;
    return x->backend->move_submit ? x->backend->move_submit(x, ticket, e) : 0;
}

bool exec_move_is_done(const struct exec *x, uint64_t ticket)
{
    return ticket == 0 || x->backend->move_is_done(x, ticket);
}

int exec_move_wait(struct exec *x, uint64_t ticket, struct moeflux_err *e)
{
    return ticket ? x->backend->move_wait(x, ticket, e) : 0;
}

void exec_after_moves(struct exec *x, uint64_t ticket)
{
    if (ticket)
        x->backend->after_moves(x, ticket);
}

/* --- statistics --- */

uint32_t exec_find_label(struct exec *x, const char *name)
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

void exec_book_time(struct exec *x, uint32_t label, uint64_t ns)
{
    x->stats.times[label].n++;
    x->stats.times[label].ns += ns;
}

void exec_get_stats(const struct exec *x, struct exec_stats *out)
{
    *out = x->stats;
    x->backend->add_stats(x, out);
}

void exec_reset_stats(struct exec *x)
{
    struct exec_stats *s = &x->stats;
    s->n_submits = s->n_dispatches = s->wait_ns = 0;
    s->n_compiled = s->compile_ns = 0;
    for (uint32_t i = 0; i < s->n_times; i++)
        s->times[i].n = s->times[i].ns = 0;
    x->backend->reset_stats(x);
}
