#include "engine/run/stage.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/model.h"
#include "engine/plan/load_plan.h"
#include "engine/state/blocks.h"
#include "engine/test_hooks.h"
#include "experts/ranking.h"
#include "experts/store_fill.h"

bool stage_has_cpu_layers(const struct stage *at)
{
    return at->cpu_layers.end > at->cpu_layers.first;
}

static int open_arch(struct stage *at, struct moeflux_model *m, const struct load_plan *p, uint64_t before,
                     struct moeflux_err *e)
{
    int rc = loader_init(&at->loader, at->exec, &m->dir, &m->progress, p->n_readers, e);
    if (m->drafts_for && exec_shares_memory(at->exec))
        at->loader.model = &m->drafts_for->stages[0].loader;
    at->loader.loaded_bytes = before;
    at->loader.end_bytes = before + p->weights_bytes;
    const struct arch_request r = {.exec = at->exec,
                                   .loader = &at->loader,
                                   .config = &m->dir.config,
                                   .layers = {at->layers.first, at->layers.end},
                                   .experts = m->dir.experts,
                                   .max_chunk = m->max_chunk,
                                   .max_batched = m->max_batched,
                                   .kv_type = m->kv_type,
                                   .has_host_experts = stage_has_cpu_layers(at),
                                   .has_parts = at->n_cpu_each > 0};
    if (rc == 0 && at->maps_weights)
        rc = loader_use_in_place(&at->loader, e);
    if (rc == 0)
        rc = arch_open(&at->arch, &r, &at->view, e);
    assert(rc < 0 || at->view.stores);
    return rc;
}

/* Makes the inputs, and host copies of what the host needs and is not mapped. */
static int make_buffers(struct stage *at, const struct moeflux_model *m, const struct load_plan *p,
                        const struct moeflux_options *o, struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    const struct arch_view *v = &at->view;
    uint64_t n = m->max_chunk;
    const struct ngram_rows_options rows = {&m->dir, at->layers,          m->max_chunk,
                                            p->io,   p->budget.map_bytes, load_plan_reread_bytes(p, &m->dir)};
    bool sees_weights = stage_has_cpu_layers(at) || m->trace || o->prefer_resident > 0;
    int rc = exec_buffer_new(at->exec, &at->ids, EXEC_INPUT, n * sizeof(int32_t), e);
    if (rc == 0)
        rc = rope_cache_open(&at->rope, at->exec, m, e);
    if (rc == 0)
        rc = ngram_rows_open(&at->ngrams, at->exec, &rows, e);
    if (rc == 0 && !v->idx.host)
        rc = exec_buffer_new(at->exec, &at->choice, EXEC_HOST, v->idx.bytes + v->predicted.bytes, e);
    if (rc == 0 && !v->idx.host)
        rc = exec_buffer_new(at->exec, &at->seen, EXEC_HOST,
                             (uint64_t)c->n_layers * c->top_k * sizeof(uint32_t), e);
    if (rc == 0 && v->logits.bytes && !v->logits.host)
        rc = exec_buffer_new(at->exec, &at->logits, EXEC_HOST, 2 * v->logits.bytes, e);
    if (rc == 0 && sees_weights && !v->weights.host)
        rc = exec_buffer_new(at->exec, &at->weights, EXEC_HOST, v->weights.bytes, e);
    if (rc == 0 && m->n_stages > 1 && !v->x.host)
        rc = exec_buffer_new(at->exec, &at->x, EXEC_HOST,
                             n * (config_width(c) + config_lagged(c)) * sizeof(float), e);
    if (rc == 0 && m->keeps_hidden && !v->x.host)
        rc = exec_buffer_new(at->exec, &at->last, EXEC_HOST, n * config_width(c) * sizeof(float), e);
    if (rc == 0 && c->drafts)
        rc = exec_buffer_new(at->exec, &at->fed, EXEC_HOST, n * config_width(c) * sizeof(float), e);
    return rc;
}

void stage_open_crossing(struct stage *at)
{
    if (at->x.host && at[1].x.host)
        crossing_open(&at->crossing, at->exec, at[1].exec, at->x.bytes);
}

static enum predictor_kind predictor_of(enum moeflux_prefetch requested)
{
    static const enum predictor_kind kinds[] = {[MOEFLUX_PREFETCH_AUTO] = PREDICT_ROUTER,
                                                [MOEFLUX_PREFETCH_NONE] = PREDICT_NONE,
                                                [MOEFLUX_PREFETCH_PREVIOUS] = PREDICT_PREVIOUS,
                                                [MOEFLUX_PREFETCH_ROUTER] = PREDICT_ROUTER,
                                                [MOEFLUX_PREFETCH_BOTH] = PREDICT_BOTH};
    return kinds[requested];
}

int stage_open(struct stage *at, struct moeflux_model *m, const struct load_plan *p,
               const struct moeflux_options *o, uint64_t before, struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    at->wanted = mem_new(c->n_experts, sizeof *at->wanted, e);
    at->is_wanted = mem_new(c->n_experts, sizeof *at->is_wanted, e);
    at->is_seen = mem_new(c->n_layers, sizeof *at->is_seen, e);
    if (!at->wanted || !at->is_wanted || !at->is_seen)
        return ERR_MEMORY;
    int rc = predictor_open(&at->predictor, predictor_of(o->prefetch), c->n_layers, c->top_k,
                            EXEC_MAX_INVARIANT, e);
    if (rc == 0)
        rc = open_arch(at, m, p, before, e);
    return rc < 0 ? rc : make_buffers(at, m, p, o, e);
}

/* A budget of 0 means that the side has no experts. */
static int open_side(struct moeflux_model *m, struct expert_side *s, const struct expert_store_options *o,
                     enum moeflux_prefetch prefetch, struct moeflux_err *e)
{
    uint64_t tables = (uint64_t)MOEFLUX_ROUND_TABLES * m->dir.config.n_experts * sizeof(uint64_t);
    int rc = s->exec ? exec_buffer_new(s->exec, &s->round_tables, EXEC_INPUT, tables, e) : 0;
    if (rc == 0 && s->exec)
        memset(s->round_tables.host, 0, s->round_tables.bytes);
    if (rc < 0 || o->budget_bytes == 0)
        return rc;
    s->computes_at_once = exec_get_caps(s->exec).runs_at_once;
    rc = expert_store_open(&s->store, s->exec, &m->dir, o, e);
    s->reads_ahead = rc == 0 && (prefetch != MOEFLUX_PREFETCH_AUTO || !expert_store_copies_cached(s->store));
    return rc < 0 ? rc : store_fill_load(s->store, &m->progress, e);
}

/* Sets which experts each side has, in which memory, and which are pinned. */
static void set_options(struct expert_store_options to[EXPERT_SIDES], const struct moeflux_model *m,
                        const struct load_plan *p, const struct moeflux_options *o)
{
    const struct config *c = &m->dir.config;
    bool is_lru = o->cache_policy == MOEFLUX_CACHE_POLICY_LRU;
    for (int i = 0; i < EXPERT_SIDES; i++) {
        to[i].learns = o->cache_policy == MOEFLUX_CACHE_POLICY_CONTEXT;
        to[i].half_life = is_lru ? 0 : ranking_half_life(c->n_layers * c->top_k);
        to[i].n_threads = p->n_readers;
        to[i].io = p->io;
        to[i].warning = o->warning;
        to[i].host_bytes = p->budget.map_bytes;
    }
    to[SIDE_DEVICE].fills = o->prefetch != MOEFLUX_PREFETCH_NONE;
    to[SIDE_DEVICE].usage = to[SIDE_HOST].usage = o->usage;
    to[SIDE_DEVICE].pin = to[SIDE_HOST].pin = o->pin;
    to[SIDE_DEVICE].n_pinned = p->n_pinned[0];
    to[SIDE_HOST].n_pinned = p->n_pinned[1];
    to[SIDE_DEVICE].set = load_plan_device_experts(p);
    to[SIDE_DEVICE].budget_bytes = p->budget.slot_bytes;
    to[SIDE_DEVICE].host_slots_bytes = p->budget.host_bytes;
    to[SIDE_HOST].set = load_plan_cpu_experts(p);
    to[SIDE_HOST].budget_bytes = p->budget.cpu_slot_bytes;
    to[SIDE_PROMPT].set = to[SIDE_HOST].set;
    to[SIDE_PROMPT].budget_bytes = p->prompt_slot_bytes;
    to[SIDE_PROMPT].host_bytes += p->budget.cpu_slot_bytes; /* they are the same files */
}

/* Opens the CPU that computes experts next to the device, and the buffers between the two. */
static int open_host(struct stage *at, const struct moeflux_model *m, const struct moeflux_options *o,
                     const struct exec *threads_of, struct moeflux_err *e)
{
    uint64_t hidden = (uint64_t)at->max_cpu_chunk * config_expert_hidden(&m->dir.config) * sizeof(float);
    const struct arch_span layers = {at->cpu_layers.first, at->cpu_layers.end};
    struct expert_side *s = &at->sides[SIDE_HOST];
    int rc = load_plan_open_cpu(&s->exec, o, threads_of, e);
    if (rc == 0)
        rc = host_experts_open(&at->host.experts, s->exec, &m->dir, layers, at->max_cpu_chunk, e);
    if (rc == 0)
        rc = exec_buffer_new(at->exec, &at->host.x, EXEC_HOST, hidden, e);
    if (rc == 0)
        rc = exec_buffer_new(at->exec, &at->host.sum, EXEC_HOST, hidden, e);
    return rc;
}

bool stage_holds_all(const struct stage *at)
{
    const struct expert_store *device = at->sides[SIDE_DEVICE].store, *cpu = at->sides[SIDE_HOST].store;
    return (!device || expert_store_holds_all(device)) && (!cpu || expert_store_holds_all(cpu));
}

int stage_open_experts(struct stage *at, struct moeflux_model *m, const struct load_plan *p,
                       const struct moeflux_options *o, const struct test_hooks *h,
                       const struct exec *threads_of, struct moeflux_err *e)
{
    struct expert_store_options options[EXPERT_SIDES] = {0};
    set_options(options, m, p, o);
    for (int i = 0; h && i < EXPERT_SIDES; i++)
        options[i].host_chunk_bytes = h->host_chunk_bytes;
    at->sides[SIDE_DEVICE].exec = at->exec;
    at->sides[SIDE_PROMPT].exec = options[SIDE_PROMPT].budget_bytes ? at->exec : NULL;
    int rc = stage_has_cpu_layers(at) ? open_host(at, m, o, threads_of, e) : 0;
    for (int i = 0; rc == 0 && i < EXPERT_SIDES; i++)
        rc = open_side(m, &at->sides[i], &options[i], o->prefetch, e);
    return rc;
}

static void close_side(struct expert_side *s)
{
    expert_store_close(s->store);
    if (s->exec)
        exec_buffer_free(s->exec, &s->round_tables);
}

void stage_close(struct stage *at)
{
    struct exec_buffer *buffers[] = {
        &at->ids,           &at->kept, &at->choice, &at->weights,  &at->logits, &at->hidden, &at->x,
        &at->router_logits, &at->seen, &at->host.x, &at->host.sum, &at->last,   &at->fed};
    blocks_trim(at);
    for (int i = 0; i < EXPERT_SIDES; i++)
        close_side(&at->sides[i]);
    if (at->host.experts.exec)
        host_experts_close(&at->host.experts);
    exec_close(at->sides[SIDE_HOST].exec);
    predictor_close(&at->predictor);
    arch_close(at->arch);
    if (at->exec)
        loader_free(&at->loader);
    crossing_close(&at->crossing);
    rope_cache_close(&at->rope, at->exec);
    ngram_rows_close(&at->ngrams, at->exec);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        exec_buffer_free(at->exec, buffers[i]);
    free(at->wanted);
    free(at->is_wanted);
    free(at->is_seen);
}

void stage_release(const struct stage *at)
{
    for (int i = 0; i < EXPERT_SIDES; i++)
        if (at->sides[i].store)
            expert_store_release(at->sides[i].store);
}

/* ---- the turn ---- */

static bool ask_callback(void *ctx)
{
    const struct moeflux_model *m = ctx;
    return progress_report(&m->progress, "reading the prompt", "tok", 0, 0);
}

int stage_drop_ahead(struct stage *at, struct moeflux_err *e)
{
    struct recorded *a = &at->ahead.next;
    bool is = a->n > 0 && a->is_in_flight;
    a->n = is ? 0 : a->n;
    return is ? exec_wait(at->exec, a->ticket, e) : 0;
}

int stage_wait_idle(struct moeflux_model *m, struct stage *at, const struct exec_watch *w,
                    struct moeflux_err *e)
{
    enum { SLICE_NS = 50000000 };
    const struct exec_watch own = {ask_callback, m};
    w = w ? w : &own;
    int rc = stage_drop_ahead(at, e);
    while (rc == 0 && at->is_stopped) {
        int done = model_fault(m, at, exec_wait_idle(at->exec, SLICE_NS, e), e);
        at->is_stopped = done == 0;
        rc = done < 0 ? done : 0;
        if (done == 0 && !w->go_on(w->ctx))
            rc = err_set(e, ERR_INTERRUPTED, "interrupted while the device was busy");
    }
    return rc;
}

int stage_enter(struct moeflux_model *m, struct stage *at, struct moeflux_err *e)
{
    stage_take(at);
    int rc = stage_wait_idle(m, at, NULL, e);
    if (rc < 0)
        stage_give(at);
    return rc;
}

int stage_enter_all(struct moeflux_model *m, struct moeflux_err *e)
{
    for (uint32_t i = 0; i < m->n_stages; i++) {
        int rc = stage_enter(m, &m->stages[i], e);
        for (uint32_t k = 0; rc < 0 && k < i; k++)
            stage_give(&m->stages[k]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void stage_give_all(struct moeflux_model *m)
{
    for (uint32_t i = 0; i < m->n_stages; i++)
        stage_give(&m->stages[i]);
}

bool stage_is_idle(struct stage *at)
{
    enum { PATIENCE_NS = 250000000 };
    stage_drop_ahead(at, NULL);
    if (at->is_stopped && at->exec && exec_wait_idle(at->exec, PATIENCE_NS, NULL) != 0)
        at->is_stopped = false;
    return !at->is_stopped;
}
