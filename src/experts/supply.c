#include "experts/supply.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "experts/cache.h"
#include "experts/reader.h"
#include "experts/slots.h"
#include "model/model_dir.h"
#include "ops/exec.h"

/* Staging places where slots are not mapped: enough to keep the readers busy while the last ones are copied. */
enum { MIN_STAGING = 64, PAGE = 4096 };

struct supply {
    struct exec *exec;
    const struct model_dir *model;
    uint32_t n_layers, n_experts;
    struct slots slots;
    struct cache *cache;
    struct reader *reader;
    struct exec_buffer table; /* u64 [n_layers][n_experts], written by the host */
    uint32_t *pinned;         /* [n_pinned] slots in use by batches not released yet */
    uint32_t n_pinned;
    struct read_request *requests; /* [n_requests] */
    uint32_t *request_slots;
    uint32_t n_requests;
    struct supply_stats stats;
};

static uint64_t slot_bytes(const struct model_dir *m)
{
    return size_round_up(m->expert.bytes, PAGE);
}

static uint64_t n_all(const struct model_dir *m)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < m->config.n_layers; i++)
        n += config_has_experts(&m->config, i) ? m->config.n_experts : 0;
    return n;
}

uint64_t supply_floor_bytes(const struct model_dir *m)
{
    return m->config.top_k * slot_bytes(m);
}

uint64_t supply_full_bytes(const struct model_dir *m)
{
    return n_all(m) * slot_bytes(m);
}

static int open_reader(struct supply *s, const struct supply_options *o, struct err *e)
{
    const struct reader_options r = {.mode = o->io,
                                     .n_threads = o->n_threads,
                                     .host_bytes = o->host_bytes,
                                     .target = slots_target(&s->slots, 0, 0)};
    return reader_open(&s->reader, s->model, &r, e);
}

static int allocate(struct supply *s, uint32_t n_slots, const struct supply_options *o, struct err *e)
{
    const struct model_dir *m = s->model;
    uint64_t table_bytes = 8 * (uint64_t)s->n_layers * s->n_experts;
    int rc = slots_open(&s->slots, s->exec, n_slots, m->expert.bytes, MIN_STAGING, e);
    if (rc == 0)
        rc = exec_buffer_new(s->exec, &s->table, EXEC_INPUT, table_bytes, e);
    if (rc < 0)
        return rc;
    memset(s->table.host, 0, table_bytes);
    s->n_requests = (uint32_t)size_min(MIN_STAGING, n_slots);
    s->requests = mem_new(s->n_requests, sizeof *s->requests, e);
    s->request_slots = mem_new(s->n_requests, sizeof *s->request_slots, e);
    s->pinned = mem_new(n_slots, sizeof *s->pinned, e);
    s->cache = cache_new(n_slots, s->n_layers, s->n_experts, e);
    if (!s->requests || !s->request_slots || !s->pinned || !s->cache)
        return ERR_MEMORY;
    return open_reader(s, o, e);
}

int supply_open(struct supply **out, struct exec *x, const struct model_dir *m,
                const struct supply_options *o, struct err *e)
{
    *out = NULL;
    if (o->budget_bytes < supply_floor_bytes(m))
        return err_set(
            e, ERR_NO_FIT,
            "the experts' cache would have %.1f MiB, one token of one layer needs %.1f MiB (%u experts)",
            (double)o->budget_bytes / 1048576.0, (double)supply_floor_bytes(m) / 1048576.0, m->config.top_k);
    struct supply *s = mem_new(1, sizeof *s, e);
    if (!s)
        return ERR_MEMORY;
    s->exec = x;
    s->model = m;
    s->n_layers = m->config.n_layers;
    s->n_experts = m->config.n_experts;
    int rc = allocate(s, (uint32_t)size_min(o->budget_bytes / slot_bytes(m), n_all(m)), o, e);
    if (rc < 0) {
        supply_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void supply_close(struct supply *s)
{
    if (!s)
        return;
    reader_close(s->reader);
    cache_free(s->cache);
    slots_close(&s->slots);
    exec_buffer_free(s->exec, &s->table);
    free(s->pinned);
    free(s->requests);
    free(s->request_slots);
    free(s);
}

uint64_t supply_table(const struct supply *s, uint32_t layer)
{
    return s->table.address + 8 * (uint64_t)layer * s->n_experts;
}

uint32_t supply_n_slots(const struct supply *s)
{
    return s->slots.n;
}

bool supply_holds_all(const struct supply *s)
{
    return s->slots.n == n_all(s->model);
}

const char *supply_describe_reader(const struct supply *s)
{
    return reader_describe(s->reader);
}

static void set_entry(struct supply *s, struct cache_key key, uint64_t address)
{
    if (key.layer != UINT32_MAX)
        ((uint64_t *)(void *)s->table.host)[(uint64_t)key.layer * s->n_experts + key.expert] = address;
}

/* Waits for requests [0, n), publishes or abandons their slots and records their copies. The first error is told. */
static int collect(struct supply *s, uint32_t layer, uint32_t n, struct err *e)
{
    int first = 0;
    uint64_t start = clock_ns();
    for (uint32_t i = 0; i < n; i++) {
        int rc = reader_wait(s->reader, &s->requests[i], first < 0 ? NULL : e);
        uint32_t slot = s->request_slots[i];
        if (rc < 0) {
            cache_abandon(s->cache, slot);
            first = first < 0 ? first : rc;
            continue;
        }
        cache_publish(s->cache, slot);
        s->pinned[s->n_pinned++] = slot;
        slots_record_copy(&s->slots, slot, i);
        set_entry(s, (struct cache_key){layer, s->requests[i].expert}, slots_address(&s->slots, slot));
    }
    s->stats.wait_ns += n ? clock_ns() - start : 0;
    return first;
}

/* Pins experts from *next on until the requests are used up or all are pinned; starts the reads of missing ones. */
static int pin_some(struct supply *s, uint32_t layer, const uint32_t *experts, uint32_t n, uint32_t *next,
                    uint32_t *n_reads, struct err *e)
{
    for (; *next < n && *n_reads < s->n_requests; ++*next) {
        struct cache_key evicted;
        uint32_t slot;
        int state = cache_pin(s->cache, (struct cache_key){layer, experts[*next]}, &slot, &evicted, e);
        if (state < 0)
            return state;
        if (state == CACHE_HIT) {
            s->stats.n_hits++;
            s->pinned[s->n_pinned++] = slot;
            continue;
        }
        s->stats.n_misses++;
        set_entry(s, evicted, 0);
        struct read_request *q = &s->requests[*n_reads];
        q->layer = layer;
        q->expert = experts[*next];
        q->dst = slots_target(&s->slots, slot, *n_reads);
        s->request_slots[(*n_reads)++] = slot;
        reader_start(s->reader, q);
    }
    return 0;
}

/* Copies from staging must be over before its places are written again. */
static int flush_staging(struct supply *s, struct err *e)
{
    if (s->slots.n_staging == 0)
        return 0;
    int rc = exec_finish(s->exec, e);
    exec_begin(s->exec);
    return rc;
}

int supply_fetch(struct supply *s, uint32_t layer, const uint32_t *experts, uint32_t n, struct err *e)
{
    for (uint32_t next = 0; next < n;) {
        uint32_t n_reads = 0;
        int rc = pin_some(s, layer, experts, n, &next, &n_reads, e);
        int read = collect(s, layer, n_reads, rc < 0 ? NULL : e);
        rc = rc < 0 ? rc : read;
        if (rc == 0 && next < n)
            rc = flush_staging(s, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void supply_release(struct supply *s)
{
    while (s->n_pinned > 0)
        cache_unpin(s->cache, s->pinned[--s->n_pinned]);
}

int supply_load_all(struct supply *s, const struct progress *p, struct err *e)
{
    uint64_t done = 0, total = n_all(s->model) * s->model->expert.bytes;
    uint32_t batch[MIN_STAGING];
    for (uint32_t layer = 0; layer < s->n_layers; layer++) {
        if (!config_has_experts(&s->model->config, layer))
            continue;
        for (uint32_t first = 0; first < s->n_experts; first += s->n_requests) {
            uint32_t n = (uint32_t)size_min(s->n_requests, s->n_experts - first);
            for (uint32_t i = 0; i < n; i++)
                batch[i] = first + i;
            exec_begin(s->exec);
            int rc = supply_fetch(s, layer, batch, n, e);
            if (rc == 0)
                rc = exec_finish(s->exec, e);
            else
                exec_abandon(s->exec);
            supply_release(s);
            if (rc < 0)
                return rc;
            done += n * s->model->expert.bytes;
            if (!progress_report(p, "reading experts", "B", done, total))
                return err_set(e, ERR_INTERRUPTED, "interrupted while reading the experts");
        }
    }
    return 0;
}

struct supply_stats supply_get_stats(const struct supply *s)
{
    struct supply_stats t = s->stats;
    t.reader = reader_get_stats(s->reader);
    t.n_slots = s->slots.n;
    t.slot_bytes = s->slots.stride;
    return t;
}

void supply_reset_stats(struct supply *s)
{
    s->stats = (struct supply_stats){0};
    reader_reset_stats(s->reader);
}
