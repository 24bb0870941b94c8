/* An opened model: directory, device, weights, experts. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/load_plan.h"
#include "engine/test_hooks.h"
#include "experts/ranking.h"
#include "experts/usage.h"
#include "model/family.h"
#include "model/rope.h"

static int open_arch(struct moeflux_model *m, uint32_t n_readers, struct moeflux_err *e)
{
    int rc = loader_init(&m->loader, m->exec, &m->dir, &m->progress, n_readers, e);
    const struct arch_request r = {.exec = m->exec,
                                   .loader = &m->loader,
                                   .config = &m->dir.config,
                                   .experts = m->dir.experts,
                                   .max_chunk = m->max_chunk,
                                   .kv_type = m->kv_type,
                                   .has_host_experts = m->n_cpu_layers > 0};
    if (rc == 0 && m->maps_weights)
        rc = loader_use_in_place(&m->loader, e);
    if (rc == 0)
        rc = arch_open(&m->arch, &r, &m->view, e);
    assert(rc < 0 || m->view.states);
    return rc;
}

static int make_frequencies(struct moeflux_model *m, struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    m->inverse_frequencies = mem_new(size_max(c->rotary_dim / 2, 1), sizeof(float), e);
    if (!m->inverse_frequencies)
        return ERR_MEMORY;
    rope_frequencies(c, m->inverse_frequencies);
    m->rope_multiplier = rope_multiplier(c);
    return 0;
}

static int make_inputs(struct moeflux_model *m, struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    uint64_t n = m->max_chunk;
    int rc = make_frequencies(m, e);
    if (rc == 0)
        rc = exec_buffer_new(m->exec, &m->ids, EXEC_INPUT, n * sizeof(int32_t), e);
    if (rc == 0)
        rc = exec_buffer_new(m->exec, &m->rope, EXEC_INPUT, n * c->rotary_dim * sizeof(float), e);
    if (rc == 0 && !m->view.idx.host)
        rc = exec_buffer_new(m->exec, &m->choice, EXEC_HOST, m->view.idx.bytes + m->view.predicted.bytes, e);
    if (rc == 0 && !m->view.logits.host)
        rc = exec_buffer_new(m->exec, &m->logits, EXEC_HOST, m->view.logits.bytes, e);
    uint64_t seen = (uint64_t)c->n_layers * c->top_k * sizeof(uint32_t);
    if (rc == 0 && !m->view.idx.host)
        rc = exec_buffer_new(m->exec, &m->seen, EXEC_HOST, seen, e);
    if (rc < 0)
        return rc;
    m->is_seen = mem_new(c->n_layers, sizeof *m->is_seen, e);
    m->wanted = mem_new(c->n_experts, sizeof *m->wanted, e);
    m->is_wanted = mem_new(c->n_experts, sizeof *m->is_wanted, e);
    return m->wanted && m->is_wanted && m->is_seen ? 0 : ERR_MEMORY;
}

/* The CPU that computes experts beside the device, and what crosses between the two. */
static int open_host(struct moeflux_model *m, const struct moeflux_options *o, struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    uint64_t hidden = (uint64_t)m->max_cpu_chunk * c->hidden * sizeof(float);
    struct expert_side *s = &m->sides[SIDE_HOST];
    bool sees_weights = m->n_cpu_layers > 0 || o->trace || m->prefer.margin > 0;
    int rc = 0;
    if (sees_weights && !m->view.weights.host)
        rc = exec_buffer_new(m->exec, &m->host.weights, EXEC_HOST, m->view.weights.bytes, e);
    if (rc < 0 || m->n_cpu_layers == 0)
        return rc;
    rc = load_plan_open_cpu(&s->exec, o, e);
    if (rc == 0)
        rc = host_experts_open(&m->host.experts, s->exec, &m->dir, m->n_cpu_layers, m->max_cpu_chunk, e);
    if (rc == 0)
        rc = exec_buffer_new(m->exec, &m->host.x, EXEC_HOST, hidden, e);
    if (rc == 0)
        rc = exec_buffer_new(m->exec, &m->host.sum, EXEC_HOST, hidden, e);
    return rc;
}

static uint64_t mean_expert_bytes(const struct model_dir *d)
{
    uint64_t layers = 0;
    for (uint32_t i = 0; i < d->config.n_layers; i++)
        layers += config_has_experts(&d->config, i);
    return layers ? d->expert_bytes / (layers * d->config.n_experts) : 0;
}

static int open_trace(struct moeflux_model *m, const char *path, struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    const struct trace_shape shape = {.n_layers = c->n_layers,
                                      .n_experts = c->n_experts,
                                      .top_k = c->top_k,
                                      .expert_bytes = mean_expert_bytes(&m->dir)};
    return path ? trace_writer_open(&m->trace, path, &shape, e) : 0;
}

/* budget of 0: the side has no layers with experts. */
static int open_side(struct moeflux_model *m, struct expert_side *s, const struct expert_store_options *o,
                     enum moeflux_prefetch prefetch, struct moeflux_err *e)
{
    uint64_t tables = (uint64_t)MOEFLUX_WAVE_TABLES * m->dir.config.n_experts * sizeof(uint64_t);
    int rc = s->exec ? exec_buffer_new(s->exec, &s->waves, EXEC_INPUT, tables, e) : 0;
    if (rc == 0 && s->exec)
        memset(s->waves.host, 0, s->waves.bytes);
    if (rc < 0 || o->budget_bytes == 0)
        return rc;
    s->computes_at_once = exec_get_caps(s->exec).is_host;
    rc = expert_store_open(&s->store, s->exec, &m->dir, o, e);
    s->reads_ahead = rc == 0 && (prefetch != MOEFLUX_PREFETCH_AUTO || !expert_store_copies_cached(s->store));
    return rc < 0 ? rc : expert_store_load(s->store, &m->progress, e);
}

static bool holds_all(const struct moeflux_model *m)
{
    const struct expert_store *device = m->sides[SIDE_DEVICE].store, *cpu = m->sides[SIDE_HOST].store;
    return (!device || expert_store_holds_all(device)) && (!cpu || expert_store_holds_all(cpu));
}

static int open_experts(struct moeflux_model *m, const struct expert_store_options *options,
                        enum moeflux_prefetch prefetch, struct moeflux_err *e)
{
    m->sides[SIDE_DEVICE].exec = m->exec;
    m->sides[SIDE_PROMPT].exec = options[SIDE_PROMPT].budget_bytes ? m->exec : NULL;
    int rc = 0;
    for (int i = 0; rc == 0 && i < EXPERT_SIDES; i++)
        rc = open_side(m, &m->sides[i], &options[i], prefetch, e);
    m->resident = rc == 0 && m->n_cpu_layers == 0 && !m->trace && holds_all(m);
    return rc;
}

static void close_side(struct expert_side *s)
{
    expert_store_close(s->store);
    if (s->exec)
        exec_buffer_free(s->exec, &s->waves);
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

/* Which experts stay in the cache, and which are prefetched. */
static int choose_policies(struct moeflux_model *m, const struct moeflux_options *o,
                           struct expert_store_options to[EXPERT_SIDES], struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    bool is_lru = o->cache_policy == MOEFLUX_CACHE_POLICY_LRU;
    for (int i = 0; i < EXPERT_SIDES; i++)
        to[i].learns = o->cache_policy == MOEFLUX_CACHE_POLICY_CONTEXT;
    to[SIDE_DEVICE].fills = o->prefetch != MOEFLUX_PREFETCH_NONE;
    for (int i = 0; i < EXPERT_SIDES; i++)
        to[i].half_life = is_lru ? 0 : ranking_half_life(c->n_layers * c->top_k);
    return predictor_open(&m->predictor, predictor_of(o->prefetch), c->n_layers, c->top_k,
                          MOEFLUX_MOST_TOGETHER, e);
}

/* What is decided before anything is allocated. */
static int choose(struct moeflux_model *m, const struct moeflux_options *o,
                  struct expert_store_options to[EXPERT_SIDES], struct moeflux_err *e)
{
    struct exec_caps caps = exec_get_caps(m->exec);
    struct load_plan p;
    int rc = load_plan_make(&p, &m->dir, &caps, o, e);
    m->computes_at_once = caps.is_host;
    m->max_chunk = p.max_chunk;
    m->kv_type = p.kv_type;
    m->n_checkpoints = p.budget.n_checkpoints;
    m->n_cpu_layers = p.n_cpu_layers;
    m->max_cpu_chunk = p.max_cpu_chunk;
    m->maps_weights = p.maps_weights;
    for (int i = 0; i < EXPERT_SIDES; i++) {
        to[i].n_threads = p.n_readers;
        to[i].io = p.io;
        to[i].host_bytes = p.budget.map_bytes;
    }
    to[SIDE_DEVICE].n_pinned = p.n_pinned[0];
    to[SIDE_HOST].n_pinned = p.n_pinned[1];
    to[SIDE_DEVICE].layers = (struct expert_layers){p.n_cpu_layers, m->dir.config.n_layers};
    to[SIDE_DEVICE].budget_bytes = p.budget.slot_bytes;
    to[SIDE_DEVICE].host_slots_bytes = p.budget.host_bytes;
    to[SIDE_HOST].layers = (struct expert_layers){0, p.n_cpu_layers};
    to[SIDE_HOST].budget_bytes = p.budget.cpu_slot_bytes;
    to[SIDE_PROMPT].layers = to[SIDE_HOST].layers;
    to[SIDE_PROMPT].budget_bytes = p.prompt_slot_bytes;
    to[SIDE_PROMPT].host_bytes += p.budget.cpu_slot_bytes; /* they are the same files */
    return rc;
}

int moeflux_model_open(struct moeflux_model **out, const struct moeflux_options *o, struct moeflux_err *e)
{
    return test_hooks_open(out, o, NULL, e);
}

int test_hooks_open(struct moeflux_model **out, const struct moeflux_options *o, const struct test_hooks *h,
                    struct moeflux_err *e)
{
    *out = NULL;
    struct moeflux_model *m = mem_new(1, sizeof *m, e);
    if (!m)
        return ERR_MEMORY;
    m->progress = o->progress;
    m->step_ns = UINT64_MAX;
    struct expert_store_options experts[EXPERT_SIDES] = {
        [SIDE_DEVICE] = {.usage = o->usage, .pin = o->pin}, [SIDE_HOST] = {.usage = o->usage, .pin = o->pin}};
    for (int i = 0; h && i < EXPERT_SIDES; i++)
        experts[i].host_chunk_bytes = h->host_chunk_bytes;
    int rc = load_plan_check(o, e);
    if (rc == 0)
        rc = load_plan_open_model(&m->dir, o, e);
    if (rc == 0)
        rc = choose_policies(m, o, experts, e);
    if (rc == 0)
        rc = open_trace(m, o->trace, e);
    if (rc == 0)
        rc = load_plan_open_device(&m->exec, o, h, e);
    if (rc == 0)
        rc = choose(m, o, experts, e);
    if (rc == 0)
        rc = open_arch(m, experts[SIDE_DEVICE].n_threads, e);
    if (rc == 0)
        rc = make_inputs(m, e);
    if (rc == 0)
        rc = prefer_open(m, o->prefer_resident, e);
    if (rc == 0)
        rc = step_open(m, e);
    if (rc == 0)
        rc = open_host(m, o, e);
    if (rc == 0)
        rc = open_experts(m, experts, o->prefetch, e);
    if (rc < 0) {
        moeflux_model_close(m);
        return rc;
    }
    moeflux_model_reset_stats(m);
    *out = m;
    return 0;
}

void moeflux_model_close(struct moeflux_model *m)
{
    if (!m || !model_is_idle(m))
        return; /* the device still uses the memory */
    for (int i = 0; i < EXPERT_SIDES; i++)
        close_side(&m->sides[i]);
    predictor_close(&m->predictor);
    trace_writer_close(m->trace);
    prefer_close(m);
    arch_close(m->arch);
    if (m->exec) {
        loader_free(&m->loader);
        step_close(m);
        exec_buffer_free(m->exec, &m->ids);
        exec_buffer_free(m->exec, &m->rope);
        exec_buffer_free(m->exec, &m->host.x);
        exec_buffer_free(m->exec, &m->host.weights);
        exec_buffer_free(m->exec, &m->host.sum);
        exec_buffer_free(m->exec, &m->choice);
        exec_buffer_free(m->exec, &m->logits);
        exec_buffer_free(m->exec, &m->seen);
        exec_buffer_free(m->exec, &m->hidden);
        exec_buffer_free(m->exec, &m->kept);
    }
    if (m->host.experts.exec)
        host_experts_close(&m->host.experts);
    exec_close(m->sides[SIDE_HOST].exec);
    exec_close(m->exec);
    model_dir_close(&m->dir);
    free(m->inverse_frequencies);
    free(m->wanted);
    free(m->is_wanted);
    free(m->is_seen);
    free(m);
}

struct moeflux_model_info moeflux_model_get_info(const struct moeflux_model *m)
{
    const struct config *c = &m->dir.config;
    const struct expert_store *store = m->sides[m->sides[SIDE_DEVICE].store ? SIDE_DEVICE : SIDE_HOST].store;
    const struct exec_caps caps = exec_get_caps(m->exec);
    return (struct moeflux_model_info){.architecture = m->dir.config.family->name,
                                       .device = caps.name,
                                       .backend = !caps.is_host    ? "vulkan"
                                                  : caps.is_native ? "cpu"
                                                                   : "reference",
                                       .tokenizer_path = m->dir.tokenizer_path,
                                       .chat_template = m->dir.config.family->chat,
                                       .n_layers = c->n_layers,
                                       .hidden = c->hidden,
                                       .vocab_size = c->vocab_size,
                                       .n_experts = c->n_experts,
                                       .top_k = c->top_k,
                                       .own_top_k = c->own_top_k,
                                       .expert_share = config_expert_share(c),
                                       .prefer_resident = m->prefer.margin,
                                       .max_context = m->view.max_context,
                                       .eos = c->eos,
                                       .expert_io = expert_store_describe_reader(store),
                                       .n_eos = c->n_eos,
                                       .experts_resident = holds_all(m),
                                       .n_cpu_layers = m->n_cpu_layers,
                                       .f16_products = caps.has_coopmat};
}

static void add_store_stats(struct moeflux_stats *to, const struct expert_store *store)
{
    struct expert_store_stats s = expert_store_get_stats(store);
    to->read_bytes += s.reader.bytes;
    to->read_ns += s.reader.busy_ns;
    to->read_depth_ns += s.reader.in_flight_ns;
    to->n_reads += s.reader.n_reads;
    to->wait_read_ns += s.wait_ns;
    to->n_hits += s.n_hits;
    to->n_host_hits += s.n_host_hits;
    to->n_misses += s.n_misses;
    to->n_prefetched += s.n_prefetched;
    to->n_prefetched_used += s.n_prefetched_used;
    to->n_promoted += s.n_promoted;
    to->n_demoted += s.n_demoted;
    to->slot_bytes = s.slot_bytes;
}

/* Slots that experts stay in. */
static void add_slots(struct moeflux_stats *to, const struct expert_store *store)
{
    struct expert_store_stats s = expert_store_get_stats(store);
    to->n_slots += s.n_slots;
    to->n_host_slots += s.n_host_slots;
    to->n_pinned += s.n_pinned;
}

void moeflux_model_get_stats(const struct moeflux_model *m, struct moeflux_stats *out)
{
    struct exec_stats x;
    const struct expert_store *cpu = m->sides[SIDE_HOST].store;
    exec_get_stats(m->exec, &x);
    *out = (struct moeflux_stats){.n_prefill_tokens = m->n_prefill_tokens,
                                  .prefill_ns = m->prefill_ns,
                                  .n_decode_tokens = m->n_decode_tokens,
                                  .decode_ns = m->decode_ns,
                                  .n_submits = x.n_submits,
                                  .n_dispatches = x.n_dispatches,
                                  .wait_gpu_ns = x.wait_ns,
                                  .n_compiled = x.n_compiled,
                                  .compile_ns = x.compile_ns,
                                  .n_cpu_experts = m->host.n_computed,
                                  .cpu_experts_ns = m->host.ns,
                                  .n_cpu_slots = cpu ? expert_store_get_stats(cpu).n_slots : 0,
                                  .n_choices = m->n_choices,
                                  .n_chosen = m->n_chosen,
                                  .n_preferred = m->prefer.n_preferred,
                                  .n_predicted = m->predictor.n_predicted,
                                  .n_predicted_right = m->predictor.n_right,
                                  .n_predictable = m->predictor.n_predictable,
                                  .weights_bytes = m->loader.device_bytes,
                                  .weights_mapped_bytes = m->loader.mapped_bytes,
                                  .state_bytes = m->state_bytes,
                                  .device_used_bytes = exec_get_caps(m->exec).used_bytes};
    for (int i = 0; i < EXPERT_SIDES; i++)
        if (m->sides[i].store) {
            add_store_stats(out, m->sides[i].store);
            if (i != SIDE_PROMPT)
                add_slots(out, m->sides[i].store);
        }
    for (uint32_t i = 0; i < x.n_times && out->n_ops < MOEFLUX_MAX_OPS; i++) {
        if (x.times[i].n == 0)
            continue;
        out->ops[out->n_ops++] = (struct moeflux_op_time){x.times[i].name, x.times[i].n, x.times[i].ns};
        out->gpu_ns += x.times[i].ns;
    }
}

void moeflux_model_reset_stats(struct moeflux_model *m)
{
    m->n_prefill_tokens = m->prefill_ns = m->n_decode_tokens = m->decode_ns = 0;
    m->predictor.n_predicted = m->predictor.n_right = m->predictor.n_predictable = 0;
    m->host.n_computed = m->host.ns = m->n_choices = m->n_chosen = m->prefer.n_preferred = 0;
    for (int i = 0; i < EXPERT_SIDES; i++)
        if (m->sides[i].store)
            expert_store_reset_stats(m->sides[i].store);
    exec_reset_stats(m->exec);
}

uint64_t moeflux_model_layer_wait_ns(const struct moeflux_model *m, uint32_t layer)
{
    uint64_t ns = 0;
    for (int i = 0; layer < m->dir.config.n_layers && i < EXPERT_SIDES; i++)
        ns += m->sides[i].store ? expert_store_layer_wait_ns(m->sides[i].store, layer) : 0;
    return ns;
}

void moeflux_model_get_usage(const struct moeflux_model *m, uint32_t *counts)
{
    memset(counts, 0, (uint64_t)m->dir.config.n_layers * m->dir.config.n_experts * sizeof *counts);
    for (int i = 0; i < EXPERT_SIDES; i++)
        if (m->sides[i].store)
            expert_store_add_counts(m->sides[i].store, counts);
}

int moeflux_model_save_usage(const struct moeflux_model *m, const char *path, struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    uint32_t *counts = mem_new((uint64_t)c->n_layers * c->n_experts, sizeof *counts, e);
    if (!counts)
        return ERR_MEMORY;
    moeflux_model_get_usage(m, counts);
    int rc = usage_write(path, c->n_layers, c->n_experts, counts, e);
    free(counts);
    return rc;
}

int moeflux_model_save_trace(struct moeflux_model *m, struct moeflux_err *e)
{
    return m->trace ? trace_writer_commit(m->trace, e) : 0;
}
