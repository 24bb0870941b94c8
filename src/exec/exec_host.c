/* A backend that computes on this CPU: every operation runs at once, buffers are host memory. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "exec/backend.h"
#include "exec/host.h"

enum { BUFFER_ALIGN = 4096, SCRATCH_ALIGN = 64 };

/* Scratch memory of one operation. What does not fit the block gets memory of its own, and the next operation a block
 * that is large enough for all of it. */
struct host {
    uint8_t *block;
    uint64_t bytes, used; /* of the block */
    uint64_t wanted;      /* by this operation, in all */
    void *extra[16];
    uint32_t n_extra;
    bool failed;
};

struct exec_host {
    struct exec base;
    const char *name;
    op_host_fn *(*run)(const struct op *what);
    struct host host;
};

static struct exec_host *host_of(struct exec *x)
{
    return (struct exec_host *)x;
}

/* --- scratch memory --- */

void *host_scratch(struct host *h, uint64_t n, uint64_t size)
{
    uint64_t bytes = 0;
    void *p = NULL;
    h->failed |= !size_mul(n, size, &bytes) || bytes > PTRDIFF_MAX - BUFFER_ALIGN;
    if (h->failed)
        return NULL;
    bytes = size_round_up(size_max(bytes, 1), SCRATCH_ALIGN);
    h->wanted += bytes;
    if (bytes <= h->bytes - h->used) {
        p = h->block + h->used;
        h->used += bytes;
    } else if (h->n_extra < sizeof h->extra / sizeof *h->extra) {
        p = h->extra[h->n_extra] = aligned_alloc(SCRATCH_ALIGN, bytes);
        h->n_extra += p != NULL;
    }
    h->failed |= !p;
    return p ? memset(p, 0, bytes) : NULL;
}

int host_error(const struct host *h)
{
    return h->failed ? ERR_MEMORY : 0;
}

static void end_scratch(struct host *h)
{
    for (uint32_t i = 0; i < h->n_extra; i++)
        free(h->extra[i]);
    if (h->n_extra > 0) {
        free(h->block);
        h->block = aligned_alloc(SCRATCH_ALIGN, h->wanted);
        h->bytes = h->block ? h->wanted : 0;
    }
    h->n_extra = 0;
    h->used = h->wanted = 0;
    h->failed = false;
}

/* --- the backend --- */

static void host_close(struct exec *x)
{
    free(host_of(x)->host.block);
    free(x);
}

static struct exec_caps host_caps(const struct exec *x)
{
    return (struct exec_caps){.name = ((const struct exec_host *)x)->name,
                              .is_host = true,
                              .is_software = true,
                              .is_unified = true,
                              .subgroup_size = 8,
                              .max_workgroup = 1024,
                              .max_shared_bytes = 32768,
                              .max_alloc_bytes = PTRDIFF_MAX,
                              .total_bytes = UINT64_MAX,
                              .free_bytes = UINT64_MAX};
}

static int host_buffer_new(struct exec *x, struct exec_buffer *b, enum exec_memory kind,
                           struct moeflux_err *e)
{
    (void)x;
    (void)kind;
    b->host = b->bytes < PTRDIFF_MAX - BUFFER_ALIGN
                  ? aligned_alloc(BUFFER_ALIGN, size_round_up(b->bytes + 1, BUFFER_ALIGN))
                  : NULL;
    b->address = (uint64_t)(uintptr_t)b->host;
    return b->host ? 0
                   : err_set(e, ERR_NO_FIT, "out of memory: %llu bytes were asked for",
                             (unsigned long long)b->bytes);
}

static int host_buffer_import(struct exec *x, struct exec_buffer *b, uint8_t *host, struct moeflux_err *e)
{
    (void)x;
    (void)e;
    b->host = host;
    b->address = (uint64_t)(uintptr_t)host;
    return 0;
}

static void host_buffer_free(struct exec *x, struct exec_buffer *b)
{
    (void)x;
    free(b->is_borrowed ? NULL : b->host);
}

/* All buffers are mapped: nobody stages. */
static void *host_stage(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes,
                        struct moeflux_err *e)
{
    (void)x;
    (void)b;
    (void)off;
    (void)bytes;
    err_set(e, ERR_DEVICE, "a buffer without memory");
    return NULL;
}

static int host_stage_end(struct exec *x, struct moeflux_err *e)
{
    (void)x;
    (void)e;
    return 0;
}

static int host_read(struct exec *x, const struct exec_buffer *b, uint64_t off, void *dst, uint64_t bytes,
                     struct moeflux_err *e)
{
    (void)x;
    (void)e;
    memcpy(dst, b->host + off, bytes);
    return 0;
}

static void nothing(struct exec *x)
{
    (void)x;
}

/* Every operation is asked about by itself. */
static void host_set_pace(struct exec *x, uint64_t ns)
{
    (void)x;
    (void)ns;
}

static int host_settle(struct exec *x, uint64_t ns, struct moeflux_err *e)
{
    (void)x;
    (void)ns;
    (void)e;
    return 1;
}

static void host_run(struct exec *x, const struct op *what, const void *op, const void *call)
{
    struct exec_host *h = host_of(x);
    uint64_t start = x->profile ? clock_ns() : 0;
    int rc = h->run(what)(op, call, &h->host);
    end_scratch(&h->host);
    x->stats.n_dispatches++;
    if (x->profile)
        exec_book_time(x, exec_find_label(x, what->name), clock_ns() - start);
    if (rc < 0)
        err_set(&x->fault, (enum moeflux_err_code)rc, "%s: out of memory for scratch", what->name);
    exec_ask_watch(x);
}

static void host_copy(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off,
                      const struct exec_buffer *src, uint64_t src_off, uint64_t bytes)
{
    (void)x;
    memcpy(dst->host + dst_off, src->host + src_off, bytes);
}

static void host_zero(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes)
{
    (void)x;
    memset(b->host + off, 0, bytes);
}

static int host_submit(struct exec *x, uint64_t *ticket, struct moeflux_err *e)
{
    (void)ticket;
    (void)e;
    x->stats.n_submits++;
    return 0;
}

static int host_wait(struct exec *x, uint64_t ticket, struct moeflux_err *e)
{
    (void)x;
    (void)ticket;
    (void)e;
    return 0;
}

static void host_add_stats(const struct exec *x, struct exec_stats *out)
{
    (void)x;
    (void)out;
}

static const struct backend host_backend = {.close = host_close,
                                            .caps = host_caps,
                                            .buffer_new = host_buffer_new,
                                            .buffer_import = host_buffer_import,
                                            .buffer_free = host_buffer_free,
                                            .stage = host_stage,
                                            .stage_end = host_stage_end,
                                            .read = host_read,
                                            .watch = nothing,
                                            .set_pace = host_set_pace,
                                            .settle = host_settle,
                                            .begin = nothing,
                                            .run = host_run,
                                            .beside = nothing,
                                            .copy = host_copy,
                                            .zero = host_zero,
                                            .split = nothing,
                                            .submit = host_submit,
                                            .wait = host_wait,
                                            .abandon = nothing,
                                            .add_stats = host_add_stats,
                                            .reset_stats = nothing};

int exec_host_open(struct exec **out, const char *name, op_host_fn *(*run)(const struct op *what),
                   bool profile, struct moeflux_err *e)
{
    struct exec_host *h = mem_new(1, sizeof *h, e);
    if (!h)
        return ERR_MEMORY;
    h->base.backend = &host_backend;
    h->base.profile = profile;
    h->name = name;
    h->run = run;
    *out = &h->base;
    return 0;
}
