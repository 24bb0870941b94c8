#include "experts/store_fill.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "exec/exec.h"
#include "experts/store_state.h"
#include "experts/usage.h"

static int stopped(struct moeflux_err *e)
{
    return err_set(e, ERR_INTERRUPTED, "interrupted while reading the experts");
}

/* A run of reads. USE_TOKENS: into device slots; USE_TOKEN: into slots of a host that keeps them. */
struct load {
    enum expert_use use;
    bool stay; /* the experts are never released */
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

/* Returns the bytes of the experts in their files. */
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

/* Loads any number of keys, max_wants at a time, and releases them. */
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

/* Loads keys into empty host slots, if there are enough. Waits for the slots' memory. */
static int load_on_host(struct expert_store *s, const struct expert_key *keys, uint32_t n, struct load *l,
                        struct moeflux_err *e)
{
    int rc = 0;
    l->use = USE_TOKEN;
    for (uint32_t here = 0; rc == 0 && n > 0; keys += here, n -= here) {
        here = tiers_make_host_room(&s->tiers, (uint32_t)size_min(n, MAX_IN_FLIGHT));
        if (here == 0)
            return report(l, bytes_of(s, keys, n), e); /* the rest stays on disk */
        rc = load_list(s, keys, here, l, e);
    }
    return rc;
}

static int load_all(struct expert_store *s, const struct moeflux_progress *p, struct moeflux_err *e)
{
    struct expert_key *keys = mem_new(store_n_experts(s->model, &s->set), sizeof *keys, e);
    uint32_t n = 0;
    if (!keys)
        return ERR_MEMORY;
    for (uint32_t layer = s->set.layers.first; layer < s->set.layers.end; layer++)
        for (uint32_t i = 0; i < s->n_experts; i++)
            if (expert_store_provides(s, layer, i))
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

/* Adds a file's counts of the set to `counts`, as usage_read does. A file of another model may name
 * experts of a layer that has none here. */
static int read_counts(const struct model_dir *m, const struct expert_set *set, const char *path,
                       uint32_t *counts, struct moeflux_err *e)
{
    const struct config *c = &m->config;
    int rc = usage_read(path, c->n_layers, c->n_experts, counts, e);
    for (uint64_t i = 0; rc > 0 && i < (uint64_t)c->n_layers * c->n_experts; i++) {
        uint32_t layer = (uint32_t)(i / c->n_experts);
        if (counts[i] && !config_has_experts(c, layer))
            return err_set(e, ERR_FORMAT, "%s: a count for layer %u, which has no experts", path, layer);
        if (!store_has(m, set, layer, (uint32_t)(i % c->n_experts)))
            counts[i] = 0;
    }
    return rc;
}

/* Returns the counts of the pin file, [n_layers][n_experts], or NULL with `e` filled. */
static uint32_t *read_pin_file(const struct model_dir *m, const struct expert_set *set, const char *pin,
                               struct moeflux_err *e)
{
    const struct config *c = &m->config;
    uint32_t *counts = mem_new((uint64_t)c->n_layers * c->n_experts, sizeof *counts, e);
    int rc = counts ? read_counts(m, set, pin, counts, e) : ERR_MEMORY;
    if (rc == 0)
        err_set(e, ERR_IO, "`pin`: there is no file %s", pin);
    if (rc > 0)
        return counts;
    free(counts);
    return NULL;
}

int store_fill_count_pinned(const struct model_dir *m, const struct expert_set *set, const char *pin,
                            uint64_t budget_bytes, uint32_t *n_pinned, struct moeflux_err *e)
{
    uint64_t n_slots = budget_bytes / slots_stride(m->max_expert_bytes), room = 2 * (uint64_t)m->config.top_k;
    uint64_t n_counts = (uint64_t)m->config.n_layers * m->config.n_experts, named = 0;
    struct moeflux_err why = {0};
    *n_pinned = 0;
    uint32_t *counts = read_pin_file(m, set, pin, &why);
    if (!counts)
        return err_set(e, why.code, "%s", why.text);
    for (uint64_t i = 0; i < n_counts; i++)
        named += counts[i] > 0;
    free(counts);
    if (n_slots >= store_n_experts(m, set) || named == 0)
        return 0;
    if (n_slots <= room)
        return err_set(
            e, ERR_NO_FIT,
            "`pin`: the cache has room for %llu experts, expected more than %llu (twice those of a token)",
            (unsigned long long)n_slots, (unsigned long long)room);
    *n_pinned = (uint32_t)size_min(named, size_min(n_slots / 2, n_slots - room));
    return 0;
}

static int load_pinned(struct expert_store *s, const struct moeflux_progress *p, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    uint32_t *counts = read_pin_file(s->model, &s->set, s->pin, &why);
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

int store_fill_load(struct expert_store *s, const struct moeflux_progress *p, struct moeflux_err *e)
{
    int rc = s->usage ? read_counts(s->model, &s->set, s->usage, s->counts, e) : 0;
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
