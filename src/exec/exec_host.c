/* The backends that compute on this machine's cores: operations run at once, buffers are host memory. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/mem.h"
#include "cpu/nodes.h"
#include "cpu/team.h"
#include "cpu/isa.h"
#include "cpu/product.h"
#include "exec/backend.h"
#include "exec/host.h"

enum { BUFFER_ALIGN = 4096, SCRATCH_ALIGN = 64, HUGE_PAGE = 2 << 20, MAX_NAME = 96 };

/* Scratch memory of one operation. What does not fit into the block is allocated separately; the next
 * operation gets a block that is large enough for all of it. */
struct host_memory {
    uint8_t *block;
    uint64_t bytes, used; /* size of the block, its used part */
    uint64_t wanted;      /* bytes that this operation has asked for */
    void *extra[16];
    uint32_t n_extra;
    bool failed;
};

struct exec_host {
    struct exec base;
    char name[MAX_NAME];
    bool is_native;
    struct host_memory memory;
    struct host host;
};

static struct exec_host *host_of(struct exec *x)
{
    return (struct exec_host *)x;
}

/* --- scratch memory --- */

void *host_scratch(struct host *h, uint64_t n, uint64_t size)
{
    struct host_memory *m = h->memory;
    uint64_t bytes = 0;
    void *p = NULL;
    m->failed |= !size_mul(n, size, &bytes) || bytes > PTRDIFF_MAX - BUFFER_ALIGN;
    if (m->failed)
        return NULL;
    bytes = size_round_up(size_max(bytes, 1), SCRATCH_ALIGN);
    m->wanted += bytes;
    if (bytes <= m->bytes - m->used) {
        p = m->block + m->used;
        m->used += bytes;
    } else if (m->n_extra < sizeof m->extra / sizeof *m->extra) {
        p = m->extra[m->n_extra] = aligned_alloc(SCRATCH_ALIGN, bytes);
        m->n_extra += p != NULL;
    }
    m->failed |= !p;
    return p;
}

int host_error(const struct host *h)
{
    return h->memory->failed ? ERR_MEMORY : 0;
}

static void end_scratch(struct host_memory *m)
{
    for (uint32_t i = 0; i < m->n_extra; i++)
        free(m->extra[i]);
    if (m->n_extra > 0) {
        free(m->block);
        m->block = aligned_alloc(SCRATCH_ALIGN, m->wanted);
        m->bytes = m->block ? m->wanted : 0;
    }
    m->n_extra = 0;
    m->used = m->wanted = 0;
    m->failed = false;
}

/* --- the backend --- */

static void host_close(struct exec *x)
{
    team_free(host_of(x)->host.team);
    free(host_of(x)->memory.block);
    free(x);
}

static uint64_t machine_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes : UINT64_MAX;
}

static bool takes_fixed(const struct exec_host *h)
{
    return h->host.isa && h->host.isa->gemm_fixed && !h->base.keeps_f32;
}

static bool takes_int16(const struct exec_host *h)
{
    return h->host.isa && h->host.isa->gemm_int16 && !h->base.keeps_f32;
}

static const struct node_shares *shares_of(const struct exec_host *h)
{
    const struct node_shares *s = h->host.team ? team_shares(h->host.team) : NULL;
    return s && s->n > 1 ? s : NULL;
}

static struct exec_caps host_caps(const struct exec *x)
{
    const struct exec_host *h = (const struct exec_host *)x;
    return (struct exec_caps){.name = h->name,
                              .is_host = true,
                              .runs_at_once = true,
                              .is_native = h->is_native,
                              .is_software = true,
                              .is_unified = true,
                              .has_fixed = takes_fixed(h),
                              .has_int16 = takes_int16(h),
                              .max_invariant = CPU_MAX_BATCHED,
                              .subgroup_size = 8,
                              .max_workgroup = 1024,
                              .max_shared_bytes = 32768,
                              .max_alloc_bytes = PTRDIFF_MAX,
                              .total_bytes = machine_bytes(),
                              .shares = shares_of(h),
                              .free_bytes = UINT64_MAX};
}

static int host_buffer_new(struct exec *x, struct exec_buffer *b, enum exec_memory kind,
                           struct moeflux_err *e)
{
    uint64_t align = b->bytes >= HUGE_PAGE ? HUGE_PAGE : BUFFER_ALIGN;
    uint64_t bytes = b->bytes < PTRDIFF_MAX - HUGE_PAGE ? size_round_up(b->bytes + 1, align) : 0;
    (void)x;
    (void)kind;
    b->host = bytes ? aligned_alloc(align, bytes) : NULL;
    b->address = (uint64_t)(uintptr_t)b->host;
    /* Huge pages, where the system gives them, cause fewer TLB misses. */
    if (b->host && align == HUGE_PAGE)
        madvise(b->host, bytes, MADV_HUGEPAGE);
    return b->host ? 0
                   : err_set(e, ERR_NO_FIT, "out of memory: %llu bytes were asked for",
                             (unsigned long long)b->bytes);
}

static int host_buffer_import(struct exec *x, struct exec_buffer *b, enum exec_memory kind, uint8_t *host,
                              struct moeflux_err *e)
{
    (void)x;
    (void)kind;
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

/* All buffers are mapped, so nothing is ever staged. */
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

/* The watch is called after every operation, so there is nothing to pace. */
static void host_set_pace(struct exec *x, uint64_t ns)
{
    (void)x;
    (void)ns;
}

static int host_wait_idle(struct exec *x, uint64_t ns, struct moeflux_err *e)
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
    op_host_fn *run = h->is_native ? what->cpu : what->reference;
    assert(run);
    h->host.takes_fixed = takes_fixed(h);
    h->host.takes_int16 = takes_int16(h);
    h->host.is_batch_invariant = x->is_batch_invariant;
    int rc = run(op, call, &h->host);
    end_scratch(&h->memory);
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

static void host_each(struct exec *x, uint32_t n, void (*fn)(void *ctx, uint32_t i, uint32_t thread),
                      void *ctx)
{
    if (host_of(x)->host.team)
        team_for(host_of(x)->host.team, n, fn, ctx);
    else
        for (uint32_t i = 0; i < n; i++)
            fn(ctx, i, 0);
}

/* The signature is the backend table's. NOLINTNEXTLINE(readability-non-const-parameter) */
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

static void host_wake(struct exec *x)
{
    if (host_of(x)->host.team)
        team_wake(host_of(x)->host.team);
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
                                            .wait_idle = host_wait_idle,
                                            .begin = nothing,
                                            .run = host_run,
                                            .concurrent = nothing,
                                            .copy = host_copy,
                                            .zero = host_zero,
                                            .each = host_each,
                                            .split = nothing,
                                            .submit = host_submit,
                                            .wait = host_wait,
                                            .abandon = nothing,
                                            .wake = host_wake,
                                            .add_stats = host_add_stats,
                                            .reset_stats = nothing};

static struct exec_host *host_new(const struct exec_options *o, struct moeflux_err *e)
{
    struct exec_host *h = mem_new(1, sizeof *h, e);
    if (!h)
        return NULL;
    h->base.backend = &host_backend;
    h->base.profile = o->profile;
    h->base.shares_memory = o->shares_with && o->shares_with->backend == &host_backend;
    h->host.memory = &h->memory;
    return h;
}

int exec_reference_open(struct exec **out, const struct exec_options *o, struct moeflux_err *e)
{
    struct exec_host *h = host_new(o, e);
    if (!h)
        return ERR_MEMORY;
    snprintf(h->name, sizeof h->name, "reference (CPU, double accumulators)");
    *out = &h->base;
    return 0;
}

static struct team *open_team(uint32_t n_threads, const char *root, struct moeflux_err *e)
{
    struct nodes nodes;
    if (nodes_read(&nodes, root ? root : "", e) < 0)
        return NULL;
    struct team *t = team_new_on(n_threads, &nodes, e);
    nodes_free(&nodes);
    return t;
}

/* Returns the threads of the other exec of the cpu, or new ones. */
static struct team *find_team(const struct exec_options *o, struct moeflux_err *e)
{
    const struct exec_host *other = (const struct exec_host *)o->shares_with;
    if (other && other->base.backend == &host_backend && other->is_native)
        return team_share(other->host.team);
    return open_team(o->n_threads ? o->n_threads : cores_useful(""), o->system_root, e);
}

static void name_cpu(struct exec_host *h)
{
    const struct node_shares *s = shares_of(h);
    uint32_t n_threads = team_n_threads(h->host.team);
    int at = snprintf(h->name, sizeof h->name, "CPU (%s, %u thread%s", h->host.isa->name, n_threads,
                      n_threads > 1 ? "s" : "");
    at += s ? snprintf(h->name + at, sizeof h->name - (size_t)at, " on %u NUMA nodes", s->n) : 0;
    snprintf(h->name + at, sizeof h->name - (size_t)at, ")");
}

int exec_cpu_open(struct exec **out, const struct exec_options *o, struct moeflux_err *e)
{
    struct moeflux_err own = {0};
    const struct cpu_isa *isa = cpu_isa_find(o->isa, e ? e : &own);
    if (!isa)
        return e ? (int)e->code : (int)own.code;
    struct exec_host *h = host_new(o, e);
    if (!h)
        return ERR_MEMORY;
    h->is_native = true;
    h->host.isa = isa;
    h->host.team = find_team(o, e);
    if (!h->host.team) {
        host_close(&h->base);
        return ERR_MEMORY;
    }
    name_cpu(h);
    *out = &h->base;
    return 0;
}
