#include "experts/replay.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "experts/cache.h"

/* ---- the cache ---- */

/* So long that a use counts as much at the end as at the beginning. Of equal counts the older use is
 * evicted. */
#define WITHOUT_END 1e12
#define NEVER       UINT64_MAX
/* A worth above that of any number of uses. */
#define KNOWN 1e15

struct replay {
    const struct trace *trace;
    struct ranking ranking;
    struct cache *cache;
    uint32_t *held; /* [n_held] slots */
    uint32_t n_held;
    uint32_t *chosen; /* [n_experts]: the experts of a step */
    uint64_t *next;   /* [n_uses]: the step of the expert's next use; NULL: not used */
    /* replay_ahead: known steps after the current one; worths of experts that are in none of them */
    uint64_t n_known;
    struct ranking uses;
};

static struct expert_key key_of(const struct trace *t, const struct trace_step *s, uint32_t i)
{
    return (struct expert_key){s->layer, t->experts[s->first + i]};
}

static uint64_t place_of(const struct trace *t, struct expert_key key)
{
    return (uint64_t)key.layer * t->shape.n_experts + key.expert;
}

static double half_life_of(const struct trace *t, enum replay_policy policy)
{
    switch (policy) {
    case REPLAY_FREQUENCY:
    case REPLAY_CONTEXT:
        return ranking_half_life(t->shape.n_layers * t->shape.top_k);
    case REPLAY_LFU:
        return WITHOUT_END;
    default:
        return 0;
    }
}

/* Finds each use's next one by walking from the end to the beginning. */
static int look_ahead(struct replay *r, struct moeflux_err *e)
{
    const struct trace *t = r->trace;
    uint64_t n_keys = (uint64_t)t->shape.n_layers * t->shape.n_experts;
    uint64_t *next_use = mem_new(n_keys, sizeof *next_use, e);
    r->next = mem_new(size_max(t->n_uses, 1), sizeof *r->next, e);
    for (uint64_t i = 0; next_use && i < n_keys; i++)
        next_use[i] = NEVER;
    for (uint64_t s = t->n_steps; next_use && r->next && s-- > 0;)
        for (uint32_t i = 0; i < t->steps[s].n; i++) {
            uint64_t *at = &next_use[place_of(t, key_of(t, &t->steps[s], i))];
            r->next[t->steps[s].first + i] = *at;
            *at = s;
        }
    free(next_use);
    return next_use && r->next ? 0 : ERR_MEMORY;
}

static int open_replay(struct replay *r, const struct trace *t, enum replay_policy policy, uint32_t n_slots,
                       struct moeflux_err *e)
{
    *r = (struct replay){.trace = t};
    int rc = ranking_open(&r->ranking, t->shape.n_layers, t->shape.n_experts, half_life_of(t, policy), e);
    if (rc < 0)
        return rc;
    r->held = mem_new(n_slots, sizeof *r->held, e);
    r->cache = cache_new(n_slots, t->shape.n_layers, &r->ranking, e);
    r->chosen = mem_new(t->shape.n_experts, sizeof *r->chosen, e);
    if (!r->held || !r->cache || !r->chosen)
        return ERR_MEMORY;
    if (policy == REPLAY_CONTEXT)
        return ranking_learn(&r->ranking, t->shape.n_layers, t->shape.top_k, e);
    return policy == REPLAY_BEST ? look_ahead(r, e) : 0;
}

static void close_replay(struct replay *r)
{
    cache_free(r->cache);
    ranking_close(&r->ranking);
    ranking_close(&r->uses);
    free(r->held);
    free(r->chosen);
    free(r->next);
}

static void release(struct replay *r)
{
    while (r->n_held > 0)
        cache_unpin(r->cache, r->held[--r->n_held]);
}

/* Pins an expert and returns whether it was resident. If a step needs more slots than there are, the slots it
 * holds are released first, as the store computes such a step in several passes. */
static bool take(struct replay *r, struct expert_key key)
{
    struct expert_key gone;
    uint32_t slot;
    int state = cache_pin(r->cache, key, &slot, &gone, NULL);
    if (state < 0) {
        release(r);
        state = cache_pin(r->cache, key, &slot, &gone, NULL);
    }
    assert(state >= 0);
    if (state == CACHE_MISS)
        cache_publish(r->cache, slot);
    r->held[r->n_held++] = slot;
    return state == CACHE_HIT;
}

/* Sets the worths of a step's experts by their next uses. */
static void look_up(struct replay *r, const struct trace_step *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t next = r->next[s->first + i];
        r->ranking.worth[place_of(r->trace, key_of(r->trace, s, i))] = next == NEVER ? -1e18 : -(double)next;
    }
}

static void list_chosen(struct replay *r, const struct trace_step *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        r->chosen[i] = key_of(r->trace, s, i).expert;
}

/* Makes step `at` known. An expert that is in an earlier known step keeps its worth. */
static void foresee(struct replay *r, uint64_t at)
{
    const struct trace *t = r->trace;
    if (at >= t->n_steps)
        return;
    for (uint32_t i = 0; i < t->steps[at].n; i++) {
        double *worth = &r->ranking.worth[place_of(t, key_of(t, &t->steps[at], i))];
        if (*worth < KNOWN / 2)
            *worth = KNOWN - (double)at;
    }
    cache_rerank(r->cache, t->steps[at].layer);
}

static void use_known(struct replay *r, const struct trace_step *s)
{
    uint64_t at = (uint64_t)(s - r->trace->steps);
    list_chosen(r, s);
    ranking_use(&r->uses, s->layer, r->chosen, s->n);
    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t place = place_of(r->trace, key_of(r->trace, s, i)), next = r->next[s->first + i];
        bool is_known = next != NEVER && next - at <= r->n_known;
        r->ranking.worth[place] = is_known ? KNOWN - (double)next : r->uses.worth[place];
    }
    foresee(r, at + r->n_known);
    cache_rerank(r->cache, s->layer);
}

static void use(struct replay *r, const struct trace_step *s)
{
    if (r->n_known) {
        use_known(r, s);
        return;
    }
    if (r->next) {
        look_up(r, s);
        return;
    }
    list_chosen(r, s);
    ranking_use(&r->ranking, s->layer, r->chosen, s->n);
    if (r->ranking.context)
        cache_rerank(r->cache, s->layer);
}

static void count(struct replay_result *to, const struct trace_step *s, uint32_t n_hits)
{
    to->n_hits += n_hits;
    to->n_misses += s->n - n_hits;
    if (s->n_tokens > 1)
        return;
    to->n_single_hits += n_hits;
    to->n_single_misses += s->n - n_hits;
}

/* Runs one step. Pins resident experts before anything is evicted, as expert_store_want does. */
static uint32_t run_step(struct replay *r, const struct trace_step *s)
{
    uint32_t n_hits = 0;
    release(r);
    use(r, s);
    for (int there = 1; there >= 0; there--)
        for (uint32_t i = 0; i < s->n; i++)
            if (cache_has(r->cache, key_of(r->trace, s, i)) == there)
                n_hits += take(r, key_of(r->trace, s, i));
    return n_hits;
}

int replay_run(const struct trace *t, enum replay_policy policy, uint32_t n_slots, struct replay_result *out,
               struct replay_result *layers, struct moeflux_err *e)
{
    struct replay r;
    *out = (struct replay_result){0};
    for (uint32_t i = 0; layers && i < t->shape.n_layers; i++)
        layers[i] = (struct replay_result){0};
    int rc = open_replay(&r, t, policy, n_slots, e);
    for (uint64_t i = 0; rc == 0 && i < t->n_steps; i++) {
        const struct trace_step *s = &t->steps[i];
        uint32_t n_hits = run_step(&r, s);
        count(out, s, n_hits);
        if (layers)
            count(&layers[s->layer], s, n_hits);
    }
    close_replay(&r);
    return rc;
}

int replay_ahead(const struct trace *t, uint32_t n_tokens, uint32_t n_slots, struct replay_result *out,
                 struct moeflux_err *e)
{
    struct replay r;
    *out = (struct replay_result){0};
    int rc = open_replay(&r, t, REPLAY_BEST, n_slots, e);
    if (rc == 0)
        rc = ranking_open(&r.uses, t->shape.n_layers, t->shape.n_experts, half_life_of(t, REPLAY_FREQUENCY),
                          e);
    r.n_known = (uint64_t)n_tokens * t->n_used_layers;
    for (uint64_t i = 0; rc == 0 && i < r.n_known; i++)
        foresee(&r, i);
    for (uint64_t i = 0; rc == 0 && i < t->n_steps; i++)
        count(out, &t->steps[i], run_step(&r, &t->steps[i]));
    close_replay(&r);
    return rc;
}

/* ---- how experts are used ---- */

const uint32_t replay_shares[REPLAY_SHARES] = {50, 80, 95};

static int falling(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return *x < *y ? 1 : *x > *y ? -1 : 0;
}

/* counts: [n], in falling order. */
static void cover(const uint32_t *counts, uint32_t n, struct replay_layer *to)
{
    uint64_t sum = 0;
    uint32_t share = 0;
    for (uint32_t i = 0; i < n; i++) {
        to->n_uses += counts[i];
        to->n_used += counts[i] > 0;
    }
    for (uint32_t i = 0; i < n && share < REPLAY_SHARES; i++) {
        sum += counts[i];
        while (share < REPLAY_SHARES && sum * 100 >= to->n_uses * replay_shares[share])
            to->cover[share++] = to->n_uses ? i + 1 : 0;
    }
}

int replay_cover(uint32_t n_layers, uint32_t n_experts, const uint32_t *counts, struct replay_layer *layers,
                 struct moeflux_err *e)
{
    uint32_t *sorted = mem_new(n_experts, sizeof *sorted, e);
    if (!sorted)
        return ERR_MEMORY;
    for (uint32_t i = 0; i < n_layers; i++) {
        layers[i] = (struct replay_layer){0};
        memcpy(sorted, counts + (uint64_t)i * n_experts, n_experts * sizeof *sorted);
        qsort(sorted, n_experts, sizeof *sorted, falling);
        cover(sorted, n_experts, &layers[i]);
    }
    free(sorted);
    return 0;
}

/* Distances between uses, for one layer at a time. */
struct reuse {
    uint64_t *last;      /* [n_experts]: the layer's evaluation, counted from 1; 0: not used yet */
    uint64_t *distances; /* [n_uses of the layer with the most] */
    uint64_t n;
};

static int rising(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y ? 1 : 0;
}

static void reuse_of_layer(const struct trace *t, uint32_t layer, struct reuse *r, struct replay_layer *to)
{
    uint64_t now = 0;
    r->n = 0;
    memset(r->last, 0, t->shape.n_experts * sizeof *r->last);
    for (uint64_t i = 0; i < t->n_steps; i++) {
        const struct trace_step *s = &t->steps[i];
        if (s->layer != layer)
            continue;
        now++;
        for (uint32_t k = 0; k < s->n; k++) {
            uint64_t *last = &r->last[t->experts[s->first + k]];
            if (*last)
                r->distances[r->n++] = now - *last;
            *last = now;
        }
    }
    qsort(r->distances, r->n, sizeof *r->distances, rising);
    to->reuse_median = r->n ? r->distances[(r->n - 1) / 2] : 0;
    to->reuse_90 = r->n ? r->distances[(r->n - 1) * 9 / 10] : 0;
}

static void count_uses(const struct trace *t, uint32_t *counts)
{
    for (uint64_t i = 0; i < t->n_steps; i++)
        for (uint32_t k = 0; k < t->steps[i].n; k++)
            counts[place_of(t, key_of(t, &t->steps[i], k))]++;
}

int replay_layers(const struct trace *t, struct replay_layer *layers, struct moeflux_err *e)
{
    uint64_t n_keys = (uint64_t)t->shape.n_layers * t->shape.n_experts, most = 1;
    uint32_t *counts = mem_new(n_keys, sizeof *counts, e);
    if (!counts)
        return ERR_MEMORY;
    count_uses(t, counts);
    int rc = replay_cover(t->shape.n_layers, t->shape.n_experts, counts, layers, e);
    free(counts);
    for (uint32_t i = 0; rc == 0 && i < t->shape.n_layers; i++)
        most = size_max(most, layers[i].n_uses);
    struct reuse r = {0};
    if (rc == 0) {
        r.last = mem_new(t->shape.n_experts, sizeof *r.last, e);
        r.distances = mem_new(most, sizeof *r.distances, e);
        rc = r.last && r.distances ? 0 : ERR_MEMORY;
    }
    for (uint32_t i = 0; rc == 0 && i < t->shape.n_layers; i++)
        if (layers[i].n_uses)
            reuse_of_layer(t, i, &r, &layers[i]);
    free(r.last);
    free(r.distances);
    return rc;
}
