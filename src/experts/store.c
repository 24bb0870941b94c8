#include "experts/store.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "experts/reader.h"
#include "experts/tiers.h"
#include "experts/usage.h"
#include "model/model_dir.h"
#include "exec/exec.h"

/* Reads in flight at once. */
enum { MAX_IN_FLIGHT = 64 };
/* Host slots that reads land in, where host memory is no cache: enough to keep the readers busy. */
#define LANDING_BYTES ((uint64_t)256 << 20)
/* The host's memory grows in so many chunks, or in more of this size: drivers allow some thousands of
 * allocations. */
enum { HOST_CHUNKS = 1024 };
#define HOST_CHUNK_BYTES ((uint64_t)256 << 20)

struct expert_store {
    struct exec *exec;
    const struct model_dir *model;
    struct expert_layers layers; /* the store's own; others have empty rows in its tables */
    uint32_t n_layers, n_experts;
    struct tiers tiers;
    struct reader *reader;
    struct want *wants; /* [n_wants], those before n_brought have their slots */
    uint32_t n_wants, n_brought, n_landed, max_wants;
    struct held *held; /* [n_held] */
    uint32_t n_held;
    bool fills;                    /* as asked for */
    uint64_t fill_at;              /* the next expert for fill_ahead: layer * n_experts + number */
    uint32_t max_pinned, n_pinned; /* device slots of --pin: as planned, as loaded so far */
    uint32_t *counts;              /* [n_layers][n_experts]: how often chosen, earlier runs included */
    uint64_t *layer_wait_ns;
    uint32_t max_prefetching; /* prefetches in flight at once */
    bool in_place;            /* device slots are the mapped files */
    const char *usage, *pin;  /* borrowed until expert_store_load */
    struct expert_store_stats stats;
};

static uint64_t n_all(const struct model_dir *m, struct expert_layers layers)
{
    uint64_t n = 0;
    for (uint32_t i = layers.first; i < layers.end; i++)
        n += config_has_experts(&m->config, i) ? m->config.n_experts : 0;
    return n;
}

uint64_t expert_store_floor_bytes(const struct model_dir *m)
{
    return m->config.top_k * slots_stride(m->max_expert_bytes);
}

uint64_t expert_store_full_bytes(const struct model_dir *m, struct expert_layers layers)
{
    return n_all(m, layers) * slots_stride(m->max_expert_bytes);
}

/* --- opening --- */

static uint32_t n_host_slots(const struct model_dir *m, struct expert_layers layers, uint64_t bytes)
{
    uint64_t stride = slots_stride(m->max_expert_bytes);
    uint64_t n = bytes ? bytes / stride : size_min(LANDING_BYTES / stride, MAX_IN_FLIGHT);
    return (uint32_t)size_min(size_max(n, m->config.top_k), n_all(m, layers));
}

uint64_t expert_store_landing_bytes(const struct model_dir *m, struct expert_layers layers)
{
    return n_host_slots(m, layers, 0) * slots_stride(m->max_expert_bytes);
}

/* Kernels load 16 bytes at once. */
enum { KERNEL_ALIGN = 16 };

/* Whether the layer has a file of its own with its experts one after the other, as convert writes them. */
static bool is_plain_file(const struct model_dir *m, uint32_t layer)
{
    struct extent x[EXPERT_MAX_EXTENTS];
    if (m->parts.spread.n_parts > 1)
        return false;
    for (uint32_t i = 0; config_has_experts(&m->config, layer) && i < m->config.n_experts; i++)
        if (model_dir_expert(m, layer, i, x) != 1 || x[0].off != i * m->experts[layer].bytes)
            return false;
    return true;
}

bool expert_store_may_map(const struct exec_caps *caps, const struct model_dir *m,
                          struct expert_layers layers, enum reader_mode io, uint64_t budget_bytes)
{
    bool may = (io == READER_AUTO || io == READER_MMAP) && caps->is_unified &&
               budget_bytes >= expert_store_full_bytes(m, layers);
    for (uint32_t i = layers.first; may && i < layers.end; i++)
        may = is_plain_file(m, i) && m->experts[i].bytes % KERNEL_ALIGN == 0;
    return may;
}

/* The mapped files as slots. */
static int open_slots_in_place(struct expert_store *s, struct moeflux_err *e)
{
    const struct model_dir *m = s->model;
    struct slots_file *files = mem_new(s->n_layers, sizeof *files, e);
    uint32_t n = 0;
    for (uint32_t i = s->layers.first; files && i < s->layers.end; i++) {
        struct extent x[EXPERT_MAX_EXTENTS];
        if (model_dir_expert(m, i, 0, x) == 0)
            continue;
        files[n].host = reader_mapping(s->reader, x[0].file, &files[n].bytes);
        files[n].expert_bytes = m->experts[i].bytes;
        n++;
    }
    int rc =
        files ? slots_open_in_place(&s->tiers.device.slots, s->exec, files, n, s->n_experts, e) : ERR_MEMORY;
    free(files);
    return rc;
}

/* Where device memory is host memory and every expert fits, the mapped files serve as slots: the page cache
 * holds them once for all programs. False: not possible here. If the device cannot import mapped files,
 * expert_store_describe_reader says so; if the reader cannot be opened, opening it again for slots tells why.
 * */
static bool try_in_place(struct expert_store *s, const struct expert_store_options *o)
{
    struct moeflux_err why = {0};
    const struct exec_caps caps = exec_get_caps(s->exec);
    if (!expert_store_may_map(&caps, s->model, s->layers, o->io, o->budget_bytes))
        return false;
    const struct reader_options r = {.mode = o->io,
                                     .n_threads = o->n_threads,
                                     .host_bytes = o->host_bytes + o->budget_bytes,
                                     .in_place = true,
                                     .shares = caps.shares};
    if (reader_open(&s->reader, s->model, &r, &why) < 0)
        return false;
    if (reader_get_mode(s->reader) != READER_MMAP) {
        reader_close(s->reader);
        s->reader = NULL;
        return false;
    }
    s->in_place = open_slots_in_place(s, &why) == 0;
    reader_note_use(s->reader, s->in_place ? NULL : why.text);
    return s->in_place;
}

/* As many slots as reads land in have their memory at once, the others get it as experts come. */
static int open_host_slots(struct expert_store *s, const struct expert_store_options *o,
                           struct moeflux_err *e)
{
    struct slots *slots = &s->tiers.host.slots;
    uint32_t n = n_host_slots(s->model, s->layers, o->host_slots_bytes),
             n_first = (uint32_t)size_min(
                 n, size_max(n_host_slots(s->model, s->layers, 0), 3 * (uint64_t)s->model->config.top_k));
    uint64_t chunk = size_max(HOST_CHUNK_BYTES, o->host_slots_bytes / HOST_CHUNKS);
    int rc = slots_open_growing(slots, s->exec, n, n_first, s->model->max_expert_bytes,
                                o->host_chunk_bytes ? o->host_chunk_bytes : chunk, e);
    if (rc == 0 && slots_usable(slots) < n) {
        s->tiers.growing = growing_new(slots, e);
        rc = s->tiers.growing ? 0 : ERR_MEMORY;
    }
    return rc;
}

static int open_slots(struct expert_store *s, uint32_t n_slots, const struct expert_store_options *o,
                      struct moeflux_err *e)
{
    struct tiers *t = &s->tiers;
    uint64_t bytes = s->model->max_expert_bytes;
    t->landing = &t->device;
    if (try_in_place(s, o))
        return 0;
    int rc = slots_open(&t->device.slots, s->exec, EXEC_DEVICE, n_slots, bytes, e);
    if (rc == 0 && !slots_host(&t->device.slots, 0)) {
        t->landing = &t->host;
        t->keeps = o->host_slots_bytes > 0;
        rc = open_host_slots(s, o, e);
        t->holds_all = t->keeps && t->host.slots.n == n_all(s->model, s->layers);
    }
    return rc;
}

static int open_cache(struct tier *t, struct expert_store *s, struct moeflux_err *e)
{
    uint32_t n = t->slots.n;
    t->cache = n ? cache_new_growing(n, slots_usable(&t->slots), s->n_layers, &s->tiers.ranking, e) : NULL;
    return t->cache || t->slots.n == 0 ? 0 : ERR_MEMORY;
}

static int open_tiers(struct expert_store *s, uint32_t n_slots, const struct expert_store_options *o,
                      struct moeflux_err *e)
{
    struct tiers *t = &s->tiers;
    uint64_t table_bytes = 8 * (uint64_t)s->n_layers * s->n_experts;
    t->exec = s->exec;
    t->n_layers = s->n_layers;
    t->n_experts = s->n_experts;
    int rc = ranking_open(&t->ranking, s->n_layers, s->n_experts, o->half_life, e);
    if (rc == 0)
        rc = open_slots(s, n_slots, o, e);
    if (rc == 0 && o->learns && !expert_store_holds_all(s))
        rc = ranking_learn(&t->ranking, s->n_layers, s->model->config.top_k, e);
    if (rc == 0)
        rc = open_cache(&t->device, s, e);
    if (rc == 0)
        rc = open_cache(&t->host, s, e);
    if (rc == 0)
        rc = exec_buffer_new(s->exec, &t->table, EXEC_INPUT, table_bytes, e);
    if (rc == 0)
        memset(t->table.host, 0, table_bytes);
    return rc;
}

static int open_reader(struct expert_store *s, const struct expert_store_options *o, struct moeflux_err *e)
{
    struct tiers *t = &s->tiers;
    const struct slots *landing = &t->landing->slots;
    struct reader_region *regions = mem_new(landing->n_chunks, sizeof *regions, e);
    if (!regions)
        return ERR_MEMORY;
    for (uint32_t i = 0; i < landing->n_chunks; i++)
        slots_region(landing, i, &regions[i].base, &regions[i].bytes);
    const struct reader_options r = {.mode = o->io,
                                     .n_threads = o->n_threads,
                                     .host_bytes = o->host_bytes,
                                     .regions = regions,
                                     .n_regions = landing->n_chunks};
    int rc = s->reader ? 0 : reader_open(&s->reader, s->model, &r, e);
    free(regions);
    if (rc == 0)
        rc = in_flight_open(&t->in_flight, exec_get_caps(s->exec).is_native ? s->exec : NULL, s->reader,
                            t->landing->cache, MAX_IN_FLIGHT, t->landing->slots.n, e);
    return rc;
}

static int allocate(struct expert_store *s, uint32_t n_slots, const struct expert_store_options *o,
                    struct moeflux_err *e)
{
    int rc = open_tiers(s, n_slots, o, e);
    if (rc == 0)
        rc = open_reader(s, o, e);
    if (rc < 0)
        return rc;
    uint32_t n_landing = s->tiers.landing->slots.n, top_k = s->model->config.top_k;
    s->max_wants = (uint32_t)size_max(s->n_experts, MAX_IN_FLIGHT);
    s->tiers.is_prefetched = mem_new(n_landing, sizeof *s->tiers.is_prefetched, e);
    s->tiers.passes = mem_new(n_slots, sizeof *s->tiers.passes, e);
    s->tiers.arrives = mem_new(n_slots, sizeof *s->tiers.arrives, e);
    s->wants = mem_new(s->max_wants, sizeof *s->wants, e);
    s->held = mem_new((uint64_t)n_slots + s->max_wants, sizeof *s->held, e);
    s->counts = mem_new((uint64_t)s->n_layers * s->n_experts, sizeof *s->counts, e);
    s->layer_wait_ns = mem_new(s->n_layers, sizeof *s->layer_wait_ns, e);
    /* Prefetches must not take the slots that the chosen experts need. */
    uint32_t n_free = n_landing - (s->tiers.landing == &s->tiers.device ? o->n_pinned : 0);
    s->max_prefetching = n_free >= 2 * top_k ? (uint32_t)size_min(top_k, (n_free - top_k) / 2) : 0;
    s->max_prefetching = (uint32_t)size_min(s->max_prefetching, MAX_IN_FLIGHT / 4);
    bool has_all = s->tiers.is_prefetched && s->tiers.passes && s->tiers.arrives && s->wants && s->held &&
                   s->counts && s->layer_wait_ns;
    return has_all ? 0 : ERR_MEMORY;
}

int expert_store_open(struct expert_store **out, struct exec *x, const struct model_dir *m,
                      const struct expert_store_options *o, struct moeflux_err *e)
{
    *out = NULL;
    if (o->budget_bytes < expert_store_floor_bytes(m))
        return err_set(
            e, ERR_NO_FIT,
            "the experts' cache would have %.1f MiB, one token of one layer needs %.1f MiB (%u experts)",
            (double)o->budget_bytes / 1048576.0, (double)expert_store_floor_bytes(m) / 1048576.0,
            m->config.top_k);
    struct expert_store *s = mem_new(1, sizeof *s, e);
    if (!s)
        return ERR_MEMORY;
    s->exec = x;
    s->model = m;
    s->layers = o->layers;
    s->fills = o->fills;
    s->fill_at = (uint64_t)o->layers.first * m->config.n_experts;
    s->n_layers = m->config.n_layers;
    s->n_experts = m->config.n_experts;
    s->usage = o->usage;
    s->pin = o->pin;
    s->max_pinned = o->n_pinned;
    int rc = allocate(
        s, (uint32_t)size_min(o->budget_bytes / slots_stride(m->max_expert_bytes), n_all(m, s->layers)), o,
        e);
    if (rc < 0) {
        expert_store_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void expert_store_close(struct expert_store *s)
{
    if (!s)
        return;
    struct tiers *t = &s->tiers;
    tiers_await_copies(t); /* nobody may have waited for what moved up */
    if (s->in_place)       /* the slots lie in mappings, which reader_close unmaps */
        slots_close(&t->device.slots);
    reader_close(s->reader);
    in_flight_close(&t->in_flight);
    growing_free(t->growing);
    cache_free(t->device.cache);
    cache_free(t->host.cache);
    slots_close(&t->device.slots);
    slots_close(&t->host.slots);
    exec_buffer_free(s->exec, &t->table);
    ranking_close(&t->ranking);
    free(t->is_prefetched);
    free(t->passes);
    free(t->arrives);
    free(s->wants);
    free(s->held);
    free(s->counts);
    free(s->layer_wait_ns);
    free(s);
}

uint64_t expert_store_table(const struct expert_store *s, uint32_t layer)
{
    return s->tiers.table.address + 8 * (uint64_t)layer * s->n_experts;
}

uint32_t expert_store_n_free_slots(const struct expert_store *s)
{
    return s->tiers.device.slots.n - s->n_pinned;
}

bool expert_store_holds_all(const struct expert_store *s)
{
    return s->tiers.device.slots.n == n_all(s->model, s->layers);
}

bool expert_store_copies_cached(const struct expert_store *s)
{
    return exec_get_caps(s->exec).is_native && reader_expects_cached(s->reader);
}

const char *expert_store_describe_reader(const struct expert_store *s)
{
    return reader_describe(s->reader);
}

/* --- wanting and awaiting --- */

static void count_found(struct expert_store *s, enum want_state found)
{
    s->stats.n_hits += found == WANT_DEVICE;
    s->stats.n_host_hits += found == WANT_HOST;
    s->stats.n_misses += found == WANT_READ;
}

static int pin_some(struct expert_store *s, struct moeflux_err *e)
{
    while (s->n_brought < s->n_wants) {
        struct want *w = &s->wants[s->n_brought];
        int found = tiers_bring(&s->tiers, w, e);
        if (found == WANT_LATER || found < 0)
            return found < 0 ? found : 0;
        s->n_brought++;
        count_found(s, (enum want_state)found);
        if (w->landed) {
            s->n_landed++;
            s->held[s->n_held++] = tiers_held(w);
        }
    }
    return 0;
}

/* Starts wants until all are started or no slot is free. */
static int bring_some(struct expert_store *s, struct moeflux_err *e)
{
    int rc = pin_some(s, e);
    in_flight_begin(&s->tiers.in_flight);
    return rc;
}

static int land(struct expert_store *s, struct want *w, struct moeflux_err *e)
{
    int rc = tiers_land(&s->tiers, w, e);
    s->n_landed++;
    if (rc == 0)
        s->held[s->n_held++] = tiers_held(w);
    return rc;
}

/* Copies to the device what has arrived. The first error is returned; the other reads are still waited for.
 * */
static int land_arrived(struct expert_store *s, struct moeflux_err *e)
{
    int first = 0;
    for (uint32_t i = 0; i < s->n_brought; i++) {
        struct want *w = &s->wants[i];
        int rc = !w->landed && tiers_has_arrived(&s->tiers, w) ? land(s, w, first < 0 ? NULL : e) : 0;
        first = first < 0 ? first : rc;
    }
    int moved = tiers_submit_moves(&s->tiers, first < 0 ? NULL : e);
    return first < 0 ? first : moved;
}

/* Waits for the first want that is still in flight, else for a slot. */
static int wait_for_one(struct expert_store *s, struct moeflux_err *e)
{
    uint64_t start = clock_ns();
    int rc = 0;
    uint32_t i = 0;
    while (i < s->n_brought && s->wants[i].landed)
        i++;
    if (i < s->n_brought)
        rc = land(s, &s->wants[i], e);
    else if ((rc = tiers_make_progress(&s->tiers, e)) == 0)
        rc = err_set(e, ERR_NO_FIT, "layer %u expert %u: all expert slots are in use", s->wants[i].key.layer,
                     s->wants[i].key.expert);
    uint64_t ns = clock_ns() - start;
    s->stats.wait_ns += ns;
    s->layer_wait_ns[s->wants[0].key.layer] += ns;
    return rc < 0 ? rc : 0;
}

bool expert_store_has(const struct expert_store *s, uint32_t layer, uint32_t expert)
{
    return tiers_have(&s->tiers, (struct expert_key){layer, expert});
}

void expert_store_list_present(struct expert_store *s, uint32_t layer, bool *present)
{
    tiers_settle(&s->tiers);
    for (uint32_t i = 0; i < s->n_experts; i++)
        present[i] = tiers_hold(&s->tiers, (struct expert_key){layer, i});
}

uint64_t expert_store_address(const struct expert_store *s, uint32_t layer, uint32_t expert)
{
    return tiers_address(&s->tiers, (struct expert_key){layer, expert});
}

int expert_store_check(const struct expert_store *s, struct moeflux_err *e)
{
    return s->in_place ? reader_check_mappings(s->reader, e) : 0;
}

/* Bit i: the i-th expert that was wanted is there, for the first 64. */
static uint64_t landed_of(const struct expert_store *s)
{
    uint64_t landed = 0;
    for (uint32_t i = 0; i < s->n_brought; i++)
        if (s->wants[i].place < 64)
            landed |= (uint64_t)s->wants[i].landed << s->wants[i].place;
    return landed;
}

/* After a failure: what is in flight must land before anything else. */
static void give_up(struct expert_store *s)
{
    s->n_wants = s->n_brought;
    expert_store_await(s, NULL);
}

/* Those that are in a slot come first: they are pinned before another one could take it. */
static void set_wants(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n,
                      enum expert_use use)
{
    s->n_wants = s->n_brought = s->n_landed = 0;
    for (int there = 1; there >= 0; there--)
        for (uint32_t i = 0; i < n; i++) {
            const struct expert_key key = {layer, experts[i]};
            if (tiers_have(&s->tiers, key) == there)
                s->wants[s->n_wants++] = (struct want){.key = key, .use = use, .place = i};
        }
}

/* The batch being recorded runs after the copies that fill the slots of what has landed, some of which began
 * before they were wanted. */
static void wait_for_copies(struct expert_store *s)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < s->n_brought; i++)
        if (s->wants[i].landed && s->wants[i].slot != CACHE_NO_SLOT)
            last = size_max(last, s->tiers.arrives[s->wants[i].slot]);
    exec_after_moves(s->exec, last);
}

static void count_uses(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *count = &s->counts[(uint64_t)layer * s->n_experts + experts[i]];
        *count += *count < UINT32_MAX;
    }
    tiers_use(&s->tiers, layer, experts, n);
}

/* Where the host has room for all experts it gets all, in their order, while there is nothing else to read.
 * Those that left again before its memory had grown are met the next time round. */
static void fill_ahead(struct expert_store *s)
{
    uint64_t first = (uint64_t)s->layers.first * s->n_experts, end = (uint64_t)s->layers.end * s->n_experts;
    for (; s->fills && tiers_can_fill_ahead(&s->tiers);
         s->fill_at = s->fill_at + 1 < end ? s->fill_at + 1 : first) {
        const struct expert_key key = {(uint32_t)(s->fill_at / s->n_experts),
                                       (uint32_t)(s->fill_at % s->n_experts)};
        if (config_has_experts(&s->model->config, key.layer))
            tiers_fill_ahead(&s->tiers, key);
    }
}

int expert_store_want(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n,
                      enum expert_use use, uint64_t *present, struct moeflux_err *e)
{
    tiers_settle(&s->tiers);
    set_wants(s, layer, experts, n, use);
    count_uses(s, layer, experts, n);
    int rc = pin_some(s, e);
    tiers_cancel_prefetches(&s->tiers, layer, NULL, 0);
    in_flight_begin(&s->tiers.in_flight);
    if (rc == 0 && s->tiers.in_flight.exec) /* what the page cache held is there now */
        rc = land_arrived(s, e);
    int moved = tiers_submit_moves(&s->tiers, rc < 0 ? NULL : e);
    rc = rc < 0 ? rc : moved;
    wait_for_copies(s);
    if (rc == 0)
        fill_ahead(s);
    if (present)
        *present = landed_of(s);
    if (rc < 0)
        give_up(s);
    return rc;
}

/* Waits until one more want has landed. fails: an earlier one failed, so that nothing new is started. */
static int land_some(struct expert_store *s, bool fails, struct moeflux_err *e)
{
    uint32_t before = s->n_landed;
    int rc = land_arrived(s, e);
    if (rc == 0 && !fails)
        rc = bring_some(s, e);
    if ((rc == 0 || fails) && s->n_landed == before)
        rc = wait_for_one(s, e);
    return rc;
}

int expert_store_await_some(struct expert_store *s, uint64_t *present, struct moeflux_err *e)
{
    int rc = s->n_landed < s->n_wants ? land_some(s, false, e) : 0;
    if (rc < 0) {
        give_up(s);
        return rc;
    }
    *present = landed_of(s);
    return 0;
}

/* While the device computes: what was used on the host and is worth a device slot gets one, or slots are
 * emptied for the next wants. */
static void move_up_or_out(struct expert_store *s)
{
    bool is_token = s->n_brought > 0 && s->wants[0].use == USE_TOKEN;
    if (!is_token)
        tiers_make_room(&s->tiers, s->model->config.top_k);
    for (uint32_t i = 0; is_token && i < s->n_brought; i++)
        if (s->wants[i].slot == CACHE_NO_SLOT)
            tiers_lift(&s->tiers, s->wants[i].key);
}

int expert_store_await(struct expert_store *s, struct moeflux_err *e)
{
    int first = 0;
    while (s->n_landed < (first < 0 ? s->n_brought : s->n_wants)) {
        int rc = land_some(s, first < 0, first < 0 ? NULL : e);
        first = first < 0 ? first : rc;
    }
    int moved = tiers_submit_moves(&s->tiers, first < 0 ? NULL : e);
    wait_for_copies(s);
    if (first == 0 && moved == 0 && !expert_store_holds_all(s))
        move_up_or_out(s);
    if (first == 0 && moved == 0)
        moved = tiers_submit_moves(&s->tiers, e);
    return first < 0 ? first : moved;
}

void expert_store_release(struct expert_store *s)
{
    while (s->n_held > 0)
        tiers_release(&s->tiers, &s->held[--s->n_held]);
}

void expert_store_prefetch(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n,
                           bool many)
{
    /* At least as many slots stay for what is wanted at the same time. */
    uint32_t most = (uint32_t)size_min(s->tiers.landing->slots.n / 4, MAX_IN_FLIGHT / 2);
    tiers_cancel_prefetches(&s->tiers, layer, experts, n);
    tiers_prefetch(&s->tiers, layer, experts, n,
                   many ? (uint32_t)size_max(most, s->max_prefetching) : s->max_prefetching);
}

int expert_store_raise(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n,
                       struct moeflux_err *e)
{
    const struct tiers *t = &s->tiers;
    uint32_t n_free = t->device.slots.n - s->n_pinned - s->n_held;
    if (t->landing == &t->device)
        return 0;
    /* Half of the slots stay for what is wanted next and is not on the host. */
    return tiers_raise(&s->tiers, layer, experts, n, n_free / 2, e);
}

/* --- without wanting --- */

bool expert_store_is_complete(struct expert_store *s)
{
    return tiers_are_complete(&s->tiers);
}

void expert_store_note(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    count_uses(s, layer, experts, n);
    for (uint32_t i = 0; i < n; i++) {
        const struct expert_key key = {layer, experts[i]};
        bool is_on_device = cache_has(s->tiers.device.cache, key);
        s->stats.n_hits += is_on_device;
        s->stats.n_host_hits += !is_on_device;
        if (!is_on_device)
            tiers_lift(&s->tiers, key);
    }
}

int expert_store_move_up(struct expert_store *s, struct moeflux_err *e)
{
    int rc = tiers_submit_moves(&s->tiers, e);
    tiers_settle(&s->tiers);
    return rc;
}

/* --- filling the cache at the start --- */

static int stopped(struct moeflux_err *e)
{
    return err_set(e, ERR_INTERRUPTED, "interrupted while reading the experts");
}

/* Experts on their way from the disk: with USE_TOKENS to device slots, with USE_TOKEN to those of a host that
 * keeps them. */
struct load {
    enum expert_use use;
    bool stay; /* they are never released */
    const struct moeflux_progress *progress;
    uint64_t done_bytes, all_bytes;
};

/* Loads n keys into slots, where they are held until expert_store_release. */
static int load_keys(struct expert_store *s, const struct expert_key *keys, uint32_t n, enum expert_use use,
                     struct moeflux_err *e)
{
    s->n_wants = n;
    s->n_brought = s->n_landed = 0;
    for (uint32_t i = 0; i < n; i++)
        s->wants[i] = (struct want){.key = keys[i], .use = use};
    exec_begin(s->exec);
    int rc = expert_store_await(s, e);
    if (rc < 0)
        exec_abandon(s->exec);
    return rc < 0 ? rc : exec_finish(s->exec, e);
}

/* Of the experts in their files. */
static uint64_t bytes_of(const struct expert_store *s, const struct expert_key *keys, uint32_t n)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += s->model->experts[keys[i].layer].bytes;
    return bytes;
}

static int report(struct load *l, uint64_t bytes, struct moeflux_err *e)
{
    l->done_bytes += bytes;
    bool goes_on = progress_report(l->progress, "reading experts", "B", l->done_bytes, l->all_bytes);
    return goes_on ? 0 : stopped(e);
}

/* As load_keys, for any number of keys. */
static int load_list(struct expert_store *s, const struct expert_key *keys, uint32_t n, struct load *l,
                     struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t done = 0, here; rc == 0 && done < n; done += here) {
        here = (uint32_t)size_min(n - done, s->max_wants);
        rc = load_keys(s, keys + done, here, l->use, e);
        if (rc == 0 && l->stay) {
            s->n_pinned += s->n_held;
            s->n_held = 0;
        }
        expert_store_release(s);
        if (rc == 0)
            rc = report(l, bytes_of(s, keys + done, here), e);
    }
    return rc;
}

/* Loads as many of the keys as there are empty host slots, whose memory is waited for. */
static int load_on_host(struct expert_store *s, const struct expert_key *keys, uint32_t n, struct load *l,
                        struct moeflux_err *e)
{
    int rc = 0;
    l->use = USE_TOKEN;
    for (uint32_t here = 0; rc == 0 && n > 0; keys += here, n -= here) {
        here = tiers_make_host_room(&s->tiers, (uint32_t)size_min(n, MAX_IN_FLIGHT));
        if (here == 0)
            return report(l, bytes_of(s, keys, n), e); /* they stay where they are */
        rc = load_list(s, keys, here, l, e);
    }
    return rc;
}

static int load_all(struct expert_store *s, const struct moeflux_progress *p, struct moeflux_err *e)
{
    struct expert_key *keys = mem_new(n_all(s->model, s->layers), sizeof *keys, e);
    uint32_t n = 0;
    if (!keys)
        return ERR_MEMORY;
    for (uint32_t layer = s->layers.first; layer < s->layers.end; layer++)
        for (uint32_t i = 0; config_has_experts(&s->model->config, layer) && i < s->n_experts; i++)
            keys[n++] = (struct expert_key){layer, i};
    struct load l = {.use = USE_TOKENS, .progress = p, .all_bytes = bytes_of(s, keys, n)};
    int rc = load_list(s, keys, n, &l, e);
    free(keys);
    if (rc < 0 || s->tiers.host.slots.n == 0)
        return rc;
    growing_free(s->tiers.growing); /* no more reads will follow */
    s->tiers.growing = NULL;
    slots_close(&s->tiers.host.slots);
    return rc;
}

/* Loads the most used experts of a file: `most` of them into device slots, the next into host slots. */
static int load_named(struct expert_store *s, const uint32_t *counts, uint32_t most, bool stay,
                      const struct moeflux_progress *p, struct moeflux_err *e)
{
    uint32_t n_host = s->tiers.host.slots.n;
    uint32_t room = most + (stay || !s->tiers.keeps ? 0 : n_host);
    struct expert_key *keys = mem_new(size_max(room, 1), sizeof *keys, e);
    int n = keys ? usage_order(s->n_layers, s->n_experts, counts, keys, room, e) : ERR_MEMORY;
    int rc = n;
    if (n > 0) {
        uint32_t n_up = (uint32_t)size_min((uint64_t)n, most);
        struct load l = {
            .use = USE_TOKENS, .stay = stay, .progress = p, .all_bytes = bytes_of(s, keys, (uint32_t)n)};
        rc = load_list(s, keys, n_up, &l, e);
        if (rc == 0)
            rc = load_on_host(s, keys + n_up, (uint32_t)n - n_up, &l, e);
    }
    free(keys);
    return rc;
}

/* Adds a file's counts of the layers to those at hand, as usage_read does. A file of another model may name
 * experts of a layer that has none here. */
static int read_counts(const struct model_dir *m, struct expert_layers layers, const char *path,
                       uint32_t *counts, struct moeflux_err *e)
{
    const struct config *c = &m->config;
    int rc = usage_read(path, c->n_layers, c->n_experts, counts, e);
    for (uint64_t i = 0; rc > 0 && i < (uint64_t)c->n_layers * c->n_experts; i++) {
        uint32_t layer = (uint32_t)(i / c->n_experts);
        if (counts[i] && !config_has_experts(c, layer))
            return err_set(e, ERR_FORMAT, "%s: a count for layer %u, which has no experts", path, layer);
        if (layer < layers.first || layer >= layers.end)
            counts[i] = 0;
    }
    return rc;
}

/* The counts of the pin file, [n_layers][n_experts], or NULL with `e` filled. */
static uint32_t *read_pin_file(const struct model_dir *m, struct expert_layers layers, const char *pin,
                               struct moeflux_err *e)
{
    const struct config *c = &m->config;
    uint32_t *counts = mem_new((uint64_t)c->n_layers * c->n_experts, sizeof *counts, e);
    int rc = counts ? read_counts(m, layers, pin, counts, e) : ERR_MEMORY;
    if (rc == 0)
        err_set(e, ERR_IO, "--pin: there is no file %s", pin);
    if (rc > 0)
        return counts;
    free(counts);
    return NULL;
}

int expert_store_count_pinned(const struct model_dir *m, struct expert_layers layers, const char *pin,
                              uint64_t budget_bytes, uint32_t *n_pinned, struct moeflux_err *e)
{
    uint64_t n_slots = budget_bytes / slots_stride(m->max_expert_bytes), room = 2 * (uint64_t)m->config.top_k;
    uint64_t n_counts = (uint64_t)m->config.n_layers * m->config.n_experts, named = 0;
    struct moeflux_err why = {0};
    *n_pinned = 0;
    uint32_t *counts = read_pin_file(m, layers, pin, &why);
    if (!counts)
        return err_set(e, why.code, "%s", why.text);
    for (uint64_t i = 0; i < n_counts; i++)
        named += counts[i] > 0;
    free(counts);
    if (n_slots >= n_all(m, layers) || named == 0)
        return 0;
    if (n_slots <= room)
        return err_set(
            e, ERR_NO_FIT,
            "--pin: the cache has room for %llu experts, expected more than %llu (twice those of a token)",
            (unsigned long long)n_slots, (unsigned long long)room);
    *n_pinned = (uint32_t)size_min(named, size_min(n_slots / 2, n_slots - room));
    return 0;
}

static int load_pinned(struct expert_store *s, const struct moeflux_progress *p, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    uint32_t *counts = read_pin_file(s->model, s->layers, s->pin, &why);
    int rc = counts ? load_named(s, counts, s->max_pinned, true, p, e) : err_set(e, why.code, "%s", why.text);
    free(counts);
    return rc;
}

static void seed_ranking(struct expert_store *s)
{
    for (uint32_t layer = 0; layer < s->n_layers; layer++)
        for (uint32_t i = 0; i < s->n_experts; i++)
            ranking_seed(&s->tiers.ranking, (struct expert_key){layer, i},
                         s->counts[(uint64_t)layer * s->n_experts + i]);
}

int expert_store_load(struct expert_store *s, const struct moeflux_progress *p, struct moeflux_err *e)
{
    int rc = s->usage ? read_counts(s->model, s->layers, s->usage, s->counts, e) : 0;
    if (rc < 0)
        return rc;
    seed_ranking(s);
    if (expert_store_holds_all(s))
        return load_all(s, p, e);
    bool has_usage = rc > 0;
    rc = s->max_pinned ? load_pinned(s, p, e) : 0;
    if (rc == 0 && has_usage)
        rc = load_named(s, s->counts, cache_n_empty(s->tiers.device.cache), false, p, e);
    return rc;
}

/* --- numbers --- */

struct expert_store_stats expert_store_get_stats(const struct expert_store *s)
{
    struct expert_store_stats t = s->stats;
    t.reader = reader_get_stats(s->reader);
    t.n_prefetched = s->tiers.n_prefetched;
    t.n_prefetched_used = s->tiers.n_prefetched_used;
    t.n_promoted = s->tiers.n_promoted;
    t.n_demoted = s->tiers.n_demoted;
    t.n_slots = s->tiers.device.slots.n;
    t.n_host_slots = s->tiers.host.slots.n ? slots_usable(&s->tiers.host.slots) : 0;
    t.n_pinned = s->n_pinned;
    t.slot_bytes = s->in_place ? s->model->max_expert_bytes : s->tiers.device.slots.stride;
    return t;
}

uint64_t expert_store_layer_wait_ns(const struct expert_store *s, uint32_t layer)
{
    return s->layer_wait_ns[layer];
}

void expert_store_reset_stats(struct expert_store *s)
{
    struct tiers *t = &s->tiers;
    s->stats = (struct expert_store_stats){0};
    t->n_prefetched = t->n_prefetched_used = t->n_promoted = t->n_demoted = 0;
    memset(s->layer_wait_ns, 0, s->n_layers * sizeof *s->layer_wait_ns);
    reader_reset_stats(s->reader);
}

void expert_store_add_counts(const struct expert_store *s, uint32_t *counts)
{
    uint64_t first = (uint64_t)s->layers.first * s->n_experts, end = (uint64_t)s->layers.end * s->n_experts;
    for (uint64_t i = first; i < end; i++)
        counts[i] += (uint32_t)size_min(s->counts[i], UINT32_MAX - counts[i]);
}
