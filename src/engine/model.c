/* An opened model: directory, device, weights, experts. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/plan.h"
#include "experts/ranking.h"
#include "model/family.h"
#include "model/rope.h"

static int open_arch(struct moeflux *m, struct err *e)
{
    loader_init(&m->loader, m->exec, &m->dir, &m->progress);
    const struct arch_request r = {.exec = m->exec,
                                   .loader = &m->loader,
                                   .config = &m->dir.config,
                                   .expert = &m->dir.expert,
                                   .max_chunk = m->max_chunk,
                                   .kv_type = m->kv_type};
    int rc = arch_open(&m->arch, &r, &m->view, e);
    assert(rc < 0 || m->view.states);
    return rc;
}

static int make_frequencies(struct moeflux *m, struct err *e)
{
    const struct config *c = &m->dir.config;
    m->inverse_frequencies = mem_new(size_max(c->rotary_dim / 2, 1), sizeof(float), e);
    if (!m->inverse_frequencies)
        return ERR_MEMORY;
    rope_frequencies(c, m->inverse_frequencies);
    m->rope_multiplier = rope_multiplier(c);
    return 0;
}

static int make_inputs(struct moeflux *m, struct err *e)
{
    const struct config *c = &m->dir.config;
    uint64_t n = m->max_chunk;
    int rc = make_frequencies(m, e);
    if (rc == 0)
        rc = exec_buffer_new(m->exec, &m->ids, EXEC_INPUT, n * sizeof(int32_t), e);
    if (rc == 0)
        rc = exec_buffer_new(m->exec, &m->rope, EXEC_INPUT, n * c->rotary_dim * sizeof(float), e);
    if (rc == 0)
        rc = exec_buffer_new(m->exec, &m->waves, EXEC_INPUT,
                             (uint64_t)MOEFLUX_WAVE_TABLES * c->n_experts * sizeof(uint64_t), e);
    if (rc == 0 && !m->view.idx.host)
        rc = exec_buffer_new(m->exec, &m->choice, EXEC_HOST, m->view.idx.bytes + m->view.guess.bytes, e);
    if (rc == 0 && !m->view.logits.host)
        rc = exec_buffer_new(m->exec, &m->logits, EXEC_HOST, m->view.logits.bytes, e);
    if (rc < 0)
        return rc;
    m->wanted = mem_new(c->n_experts, sizeof *m->wanted, e);
    m->is_wanted = mem_new(c->n_experts, sizeof *m->is_wanted, e);
    return m->wanted && m->is_wanted ? 0 : ERR_MEMORY;
}

static int open_experts(struct moeflux *m, const struct supply_options *s, struct err *e)
{
    int rc = supply_open(&m->supply, m->exec, &m->dir, s, e);
    if (rc < 0)
        return rc;
    m->resident = supply_holds_all(m->supply);
    return supply_load(m->supply, &m->progress, e);
}

/* Who stays in the cache, and what is read ahead. */
static int choose_policies(struct moeflux *m, const struct moeflux_options *o, struct supply_options *to,
                           struct err *e)
{
    const struct config *c = &m->dir.config;
    enum predictor_kind kind;
    int rc = predictor_find(o->prefetch ? o->prefetch : "auto", &kind, e);
    if (rc == 0)
        rc = ranking_find(o->cache_policy ? o->cache_policy : "auto", c->n_layers * c->top_k, &to->half_life,
                          e);
    return rc < 0 ? rc : predictor_open(&m->predictor, kind, c->n_layers, c->top_k, e);
}

/* What is decided before anything is allocated. */
static int choose(struct moeflux *m, const struct moeflux_options *o, struct supply_options *to,
                  struct err *e)
{
    struct exec_caps caps = exec_get_caps(m->exec);
    struct plan p;
    int rc = plan_make(&p, &m->dir, &caps, o, e);
    m->computes_at_once = caps.is_reference;
    m->max_chunk = p.max_chunk;
    m->kv_type = p.kv_type;
    m->n_checkpoints = p.budget.n_checkpoints;
    to->n_threads = p.n_readers;
    to->io = p.io;
    to->budget_bytes = p.budget.slot_bytes;
    to->host_slots_bytes = p.budget.host_bytes;
    to->host_bytes = p.budget.map_bytes;
    return rc;
}

int moeflux_open(struct moeflux **out, const struct moeflux_options *o, struct err *e)
{
    *out = NULL;
    struct moeflux *m = mem_new(1, sizeof *m, e);
    if (!m)
        return ERR_MEMORY;
    m->progress = o->progress;
    m->step_ns = UINT64_MAX;
    struct supply_options experts = {.usage = o->usage, .pin = o->pin};
    int rc = model_dir_open(&m->dir, o->dir, e);
    if (rc == 0)
        rc = choose_policies(m, o, &experts, e);
    if (rc == 0)
        rc = plan_open_device(&m->exec, o, e);
    if (rc == 0)
        rc = choose(m, o, &experts, e);
    if (rc == 0)
        rc = open_arch(m, e);
    if (rc == 0)
        rc = make_inputs(m, e);
    if (rc == 0)
        rc = open_experts(m, &experts, e);
    if (rc < 0) {
        moeflux_close(m);
        return rc;
    }
    moeflux_stats_reset(m);
    *out = m;
    return 0;
}

void moeflux_close(struct moeflux *m)
{
    if (!m || !model_is_idle(m))
        return; /* nothing can be given back while the device uses it */
    supply_close(m->supply);
    predictor_close(&m->predictor);
    arch_close(m->arch);
    if (m->exec) {
        loader_free(&m->loader);
        exec_buffer_free(m->exec, &m->ids);
        exec_buffer_free(m->exec, &m->rope);
        exec_buffer_free(m->exec, &m->waves);
        exec_buffer_free(m->exec, &m->choice);
        exec_buffer_free(m->exec, &m->logits);
        exec_buffer_free(m->exec, &m->hidden);
    }
    exec_close(m->exec);
    model_dir_close(&m->dir);
    free(m->inverse_frequencies);
    free(m->wanted);
    free(m->is_wanted);
    free(m);
}

struct moeflux_info moeflux_info(const struct moeflux *m)
{
    const struct config *c = &m->dir.config;
    return (struct moeflux_info){.architecture = m->dir.config.family->name,
                                 .device = exec_get_caps(m->exec).name,
                                 .tokenizer_path = m->dir.tokenizer_path,
                                 .n_layers = c->n_layers,
                                 .hidden = c->hidden,
                                 .vocab_size = c->vocab_size,
                                 .n_experts = c->n_experts,
                                 .top_k = c->top_k,
                                 .max_context = m->view.max_context,
                                 .eos = c->eos,
                                 .expert_io = supply_describe_reader(m->supply),
                                 .n_eos = c->n_eos,
                                 .experts_resident = m->resident,
                                 .half_products = exec_get_caps(m->exec).has_coop};
}

void moeflux_get_stats(const struct moeflux *m, struct moeflux_stats *out)
{
    struct exec_stats x;
    struct supply_stats s = supply_get_stats(m->supply);
    exec_get_stats(m->exec, &x);
    *out = (struct moeflux_stats){.n_prefill_tokens = m->n_prefill_tokens,
                                  .prefill_ns = m->prefill_ns,
                                  .n_decode_tokens = m->n_decode_tokens,
                                  .decode_ns = m->decode_ns,
                                  .n_submits = x.n_submits,
                                  .n_dispatches = x.n_dispatches,
                                  .read_bytes = s.reader.bytes,
                                  .read_ns = s.reader.busy_ns,
                                  .read_depth_ns = s.reader.flight_ns,
                                  .n_reads = s.reader.n_reads,
                                  .wait_read_ns = s.wait_ns,
                                  .wait_gpu_ns = x.wait_ns,
                                  .n_compiled = x.n_compiled,
                                  .compile_ns = x.compile_ns,
                                  .n_hits = s.n_hits,
                                  .n_host_hits = s.n_host_hits,
                                  .n_misses = s.n_misses,
                                  .n_predicted = m->predictor.n_predicted,
                                  .n_predicted_right = m->predictor.n_right,
                                  .n_predictable = m->predictor.n_predictable,
                                  .n_prefetched = s.n_prefetched,
                                  .n_prefetched_used = s.n_prefetched_used,
                                  .n_promoted = s.n_promoted,
                                  .n_demoted = s.n_demoted,
                                  .n_slots = s.n_slots,
                                  .n_host_slots = s.n_host_slots,
                                  .slot_bytes = s.slot_bytes,
                                  .weights_bytes = m->loader.device_bytes,
                                  .state_bytes = m->state_bytes,
                                  .device_used_bytes = exec_get_caps(m->exec).used_bytes};
    for (uint32_t i = 0; i < x.n_times && out->n_ops < MOEFLUX_MAX_OPS; i++) {
        if (x.times[i].n == 0)
            continue;
        out->ops[out->n_ops++] = (struct moeflux_op_time){x.times[i].name, x.times[i].n, x.times[i].ns};
        out->gpu_ns += x.times[i].ns;
    }
}

void moeflux_stats_reset(struct moeflux *m)
{
    m->n_prefill_tokens = m->prefill_ns = m->n_decode_tokens = m->decode_ns = 0;
    m->predictor.n_predicted = m->predictor.n_right = m->predictor.n_predictable = 0;
    supply_reset_stats(m->supply);
    exec_reset_stats(m->exec);
}

uint64_t moeflux_layer_wait_ns(const struct moeflux *m, uint32_t layer)
{
    return layer < m->dir.config.n_layers ? supply_layer_wait_ns(m->supply, layer) : 0;
}

int moeflux_save_usage(const struct moeflux *m, const char *path, struct err *e)
{
    return supply_save_usage(m->supply, path, e);
}
