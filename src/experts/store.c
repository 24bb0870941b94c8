#include "experts/store.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "experts/store_state.h"
#include "exec/exec.h"
#include "model/model_dir_read.h"

/* Bytes of host slots for reads if host memory is not used as a cache: enough to keep the readers busy. */
#define LANDING_BYTES ((uint64_t)256 << 20)
/* Host memory is allocated in at most HOST_CHUNKS chunks of at least HOST_CHUNK_BYTES; drivers allow some
 * thousand allocations. */
enum { HOST_CHUNKS = 1024 };
#define HOST_CHUNK_BYTES ((uint64_t)256 << 20)

uint64_t expert_store_floor_bytes(const struct model_dir *m)
{
    return m->config.top_k * slots_stride(m->max_expert_bytes);
}

uint64_t expert_store_full_bytes(const struct model_dir *m, const struct expert_set *set)
{
    return store_n_experts(m, set) * slots_stride(m->max_expert_bytes);
}

/* --- opening --- */

static uint32_t n_host_slots(const struct model_dir *m, const struct expert_set *set, uint64_t bytes)
{
    uint64_t stride = slots_stride(m->max_expert_bytes);
    uint64_t n = bytes ? bytes / stride : size_min(LANDING_BYTES / stride, MAX_IN_FLIGHT);
    return (uint32_t)size_min(size_max(n, m->config.top_k), store_n_experts(m, set));
}

uint64_t expert_store_landing_bytes(const struct model_dir *m, const struct expert_set *set)
{
    return n_host_slots(m, set, 0) * slots_stride(m->max_expert_bytes);
}

/* Bytes; kernels load 16 at once. */
enum { KERNEL_ALIGN = 16 };

/* Returns whether the layer has a file of its own with its contiguous experts, as convert writes it. */
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
                          const struct expert_set *set, enum reader_mode io, uint64_t budget_bytes)
{
    bool may = (io == READER_AUTO || io == READER_MMAP) && caps->is_unified &&
               budget_bytes >= expert_store_full_bytes(m, set);
    for (uint32_t i = set->layers.first; may && i < set->layers.end; i++)
        may = is_plain_file(m, i) && m->experts[i].bytes % KERNEL_ALIGN == 0;
    return may;
}

/* Makes the mapped files the device slots. */
static int open_slots_in_place(struct expert_store *s, struct moeflux_err *e)
{
    const struct model_dir *m = s->model;
    struct slots_file *files = mem_new(s->n_layers, sizeof *files, e);
    uint32_t *experts = mem_new(s->n_experts, sizeof *experts, e), n = 0, n_each = 0;
    for (uint32_t i = 0; experts && i < s->n_experts; i++)
        if (expert_part_has(&s->set.part, s->n_experts, i))
            experts[n_each++] = i;
    for (uint32_t i = s->set.layers.first; files && i < s->set.layers.end; i++) {
        struct extent x[EXPERT_MAX_EXTENTS];
        if (model_dir_expert(m, i, 0, x) == 0)
            continue;
        files[n].host = reader_mapping(s->reader, x[0].file, &files[n].bytes);
        files[n].expert_bytes = m->experts[i].bytes;
        n++;
    }
    int rc = files && experts
                 ? slots_open_in_place(&s->tiers.device.slots, s->exec, files, n, experts, n_each, e)
                 : ERR_MEMORY;
    free(experts);
    free(files);
    return rc;
}

/* Makes the mapped files the slots if device memory is host memory and every expert fits: then the page cache
 * holds them once for all programs. Returns whether it did. If the device cannot import mapped files,
 * expert_store_describe_reader says so. If the reader cannot be opened, the next attempt to open it reports
 * why. */
static bool try_in_place(struct expert_store *s, const struct expert_store_options *o)
{
    struct moeflux_err why = {0};
    const struct exec_caps caps = exec_get_caps(s->exec);
    if (!expert_store_may_map(&caps, s->model, &s->set, o->io, o->budget_bytes))
        return false;
    const struct reader_options r = {.mode = o->io,
                                     .n_threads = o->n_threads,
                                     .warning = o->warning,
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

/* Opens the host slots. Those that reads need have memory at once, the others get it when experts need
 * them. */
static int open_host_slots(struct expert_store *s, const struct expert_store_options *o,
                           struct moeflux_err *e)
{
    struct slots *slots = &s->tiers.host.slots;
    uint32_t n = n_host_slots(s->model, &s->set, o->host_slots_bytes),
             n_first = (uint32_t)size_min(
                 n, size_max(n_host_slots(s->model, &s->set, 0), 3 * (uint64_t)s->model->config.top_k));
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
        t->holds_all = t->keeps && t->host.slots.n == store_n_experts(s->model, &s->set);
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
    t->part = s->set.part;
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
                                     .warning = o->warning,
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
    /* Prefetches must leave the slots that chosen experts need. */
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
    if (o->budget_bytes < size_min(expert_store_floor_bytes(m), expert_store_full_bytes(m, &o->set)))
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
    s->set = o->set;
    s->fills = o->fills;
    s->fill_at = (uint64_t)o->set.layers.first * m->config.n_experts;
    s->n_layers = m->config.n_layers;
    s->n_experts = m->config.n_experts;
    s->usage = o->usage;
    s->pin = o->pin;
    s->max_pinned = o->n_pinned;
    int rc = allocate(
        s,
        (uint32_t)size_min(o->budget_bytes / slots_stride(m->max_expert_bytes), store_n_experts(m, &s->set)),
        o, e);
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
    tiers_await_copies(t); /* promotions may still be in flight */
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

bool expert_store_provides(const struct expert_store *s, uint32_t layer, uint32_t expert)
{
    return store_has(s->model, &s->set, layer, expert);
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
    return s->tiers.device.slots.n == store_n_experts(s->model, &s->set);
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

/* Starts wants until all are started or no slot is free, and begins their reads. */
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

/* Copies all wants that have arrived to the device. Returns the first error, after handling all of them. */
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

void expert_store_add_present(struct expert_store *s, uint32_t layer, bool *present)
{
    tiers_finish_arrived(&s->tiers);
    for (uint32_t i = 0; i < s->n_experts; i++)
        present[i] |= tiers_hold(&s->tiers, (struct expert_key){layer, i});
}

uint64_t expert_store_address(const struct expert_store *s, uint32_t layer, uint32_t expert)
{
    return tiers_address(&s->tiers, (struct expert_key){layer, expert});
}

int expert_store_check(const struct expert_store *s, struct moeflux_err *e)
{
    bool reads = s->in_place || !expert_store_holds_all(s);
    return reads ? reader_check_files(s->reader, e) : 0;
}

/* Returns a mask: bit i says whether the i-th wanted expert, of the first 64, has landed. */
static uint64_t landed_of(const struct expert_store *s)
{
    uint64_t landed = 0;
    for (uint32_t i = 0; i < s->n_brought; i++)
        if (s->wants[i].place < 64)
            landed |= (uint64_t)s->wants[i].landed << s->wants[i].place;
    return landed;
}

/* Waits, after a failure, for the wants in flight, which must land before anything else happens. */
static void give_up(struct expert_store *s)
{
    s->n_wants = s->n_brought;
    expert_store_await(s, NULL);
}

/* Lists the wants. Experts that are in a slot come first, so that they are pinned before another one evicts
 * them. */
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

/* Makes the batch being recorded run after the copies that fill the slots of landed wants. Some copies began
 * before their experts were wanted. */
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

/* Reads all experts in their order into a host that has room for all, while there is nothing else to read.
 * Experts that were evicted before the host's memory had grown are read in the next round. */
static void fill_ahead(struct expert_store *s)
{
    const struct expert_layers *layers = &s->set.layers;
    uint64_t first = (uint64_t)layers->first * s->n_experts, end = (uint64_t)layers->end * s->n_experts;
    for (; s->fills && tiers_can_fill_ahead(&s->tiers);
         s->fill_at = s->fill_at + 1 < end ? s->fill_at + 1 : first) {
        const struct expert_key key = {(uint32_t)(s->fill_at / s->n_experts),
                                       (uint32_t)(s->fill_at % s->n_experts)};
        if (expert_store_provides(s, key.layer, key.expert))
            tiers_fill_ahead(&s->tiers, key);
    }
}

int expert_store_want(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n,
                      enum expert_use use, uint64_t *present, struct moeflux_err *e)
{
    tiers_finish_arrived(&s->tiers);
    set_wants(s, layer, experts, n, use);
    count_uses(s, layer, experts, n);
    int rc = pin_some(s, e);
    tiers_cancel_prefetches(&s->tiers, layer, NULL, 0);
    in_flight_begin(&s->tiers.in_flight);
    if (rc == 0 && s->tiers.in_flight.exec) /* what the page cache held has been copied */
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

/* Waits until one more want has landed. fails: an earlier one failed, so no new one is started. */
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

/* Runs while the device computes. After a single token: promotes experts that were used on the host and are
 * worth a device slot. Else: empties slots for the next wants. */
static void promote_or_demote(struct expert_store *s)
{
    bool is_token = s->n_brought > 0 && s->wants[0].use == USE_TOKEN;
    if (!is_token)
        tiers_make_room(&s->tiers, s->model->config.top_k);
    for (uint32_t i = 0; is_token && i < s->n_brought; i++)
        if (s->wants[i].slot == CACHE_NO_SLOT)
            tiers_promote_if_better(&s->tiers, s->wants[i].key);
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
        promote_or_demote(s);
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
    /* Leaves at least as many slots for experts that are wanted at the same time. */
    uint32_t most = (uint32_t)size_min(s->tiers.landing->slots.n / 4, MAX_IN_FLIGHT / 2);
    tiers_cancel_prefetches(&s->tiers, layer, experts, n);
    tiers_prefetch(&s->tiers, layer, experts, n,
                   many ? (uint32_t)size_max(most, s->max_prefetching) : s->max_prefetching);
}

int expert_store_promote(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n,
                         struct moeflux_err *e)
{
    const struct tiers *t = &s->tiers;
    uint32_t n_free = t->device.slots.n - s->n_pinned - s->n_held;
    if (t->landing == &t->device)
        return 0;
    /* Leaves half of the slots for experts that are wanted next and are not on the host. */
    return tiers_promote_for_chunk(&s->tiers, layer, experts, n, n_free / 2, e);
}

/* --- without wanting --- */

bool expert_store_is_complete(struct expert_store *s)
{
    return tiers_are_complete(&s->tiers);
}

void expert_store_record_use(struct expert_store *s, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    count_uses(s, layer, experts, n);
    for (uint32_t i = 0; i < n; i++) {
        const struct expert_key key = {layer, experts[i]};
        bool is_on_device = cache_has(s->tiers.device.cache, key);
        s->stats.n_hits += is_on_device;
        s->stats.n_host_hits += !is_on_device;
        if (!is_on_device)
            tiers_promote_if_better(&s->tiers, key);
    }
}

int expert_store_submit_promotions(struct expert_store *s, struct moeflux_err *e)
{
    int rc = tiers_submit_moves(&s->tiers, e);
    tiers_finish_arrived(&s->tiers);
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
    const struct expert_layers *layers = &s->set.layers;
    uint64_t first = (uint64_t)layers->first * s->n_experts, end = (uint64_t)layers->end * s->n_experts;
    for (uint64_t i = first; i < end; i++)
        counts[i] += (uint32_t)size_min(s->counts[i], UINT32_MAX - counts[i]);
}
