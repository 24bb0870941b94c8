/* An opened model: directory, device, weights, experts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/budget.h"
#include "engine/engine.h"
#include "engine/host_memory.h"
#include "experts/ranking.h"

/* Tokens of a chunk unless the caller says otherwise: a software device takes long for each, and Ctrl-C waits for the
 * chunk. */
enum { CHUNK_CPU = 32, CHUNK_GPU = 128, MAX_READERS = 8 };
/* lavapipe silently ends a shader's loops after 65,535 turns; the delta net takes about 60 for each token. */
enum { CHUNK_CPU_MAX = 512, CHUNK_GPU_MAX = 4096 };

static int open_arch(struct moeflux *m, struct err *e)
{
    m->arch = arch_find(&m->dir.config, e);
    if (!m->arch)
        return ERR_UNSUPPORTED;
    loader_init(&m->loader, m->exec, &m->dir, &m->progress);
    const struct arch_request r = {.exec = m->exec,
                                   .loader = &m->loader,
                                   .config = &m->dir.config,
                                   .expert = &m->dir.expert,
                                   .max_chunk = m->max_chunk};
    return m->arch->open(&m->self, &r, &m->view, e);
}

/* RoPE's frequencies, rounded to float32 as the models were trained and run. */
static int make_frequencies(struct moeflux *m, struct err *e)
{
    const struct config *c = &m->dir.config;
    m->inverse_frequencies = mem_new(size_max(c->rotary_dim / 2, 1), sizeof(float), e);
    for (uint32_t i = 0; m->inverse_frequencies && i < c->rotary_dim / 2; i++)
        m->inverse_frequencies[i] = (float)(1 / pow(c->rope.theta, 2.0 * i / c->rotary_dim));
    return m->inverse_frequencies ? 0 : ERR_MEMORY;
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

static uint32_t n_readers(uint32_t wish)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return wish ? wish : (uint32_t)size_min(MAX_READERS, cores > 0 ? 2 * (uint64_t)cores : 1);
}

static int open_experts(struct moeflux *m, const struct supply_options *s, struct err *e)
{
    int rc = supply_open(&m->supply, m->exec, &m->dir, s, e);
    if (rc < 0)
        return rc;
    m->resident = supply_holds_all(m->supply);
    return supply_load(m->supply, &m->progress, e);
}

/* States of a short conversation and the activations of a chunk, before anything is allocated. */
static uint64_t scratch_estimate(const struct moeflux *m)
{
    struct moeflux_needs n;
    moeflux_needs_of(&m->dir, &n);
    const struct config *c = &m->dir.config;
    uint64_t widest = size_max(config_conv_dim(c) + (uint64_t)c->n_v_heads * (c->v_head_dim + 2),
                               2 * (uint64_t)(c->n_heads + c->n_kv_heads) * c->head_dim);
    uint64_t row = 4 * (widest + 3 * (uint64_t)c->hidden + c->n_experts + 2 * (uint64_t)c->shared_inner) +
                   4 * (uint64_t)c->top_k * c->moe_inner;
    return n.fixed_state_bytes + 1024 * n.kv_bytes_per_pos + m->max_chunk * row +
           4 * (uint64_t)ARCH_HEAD_ROWS * c->vocab_size;
}

static int choose_chunk(struct moeflux *m, uint32_t wish, struct err *e)
{
    struct exec_caps caps = exec_get_caps(m->exec);
    uint32_t most = caps.is_cpu ? CHUNK_CPU_MAX : CHUNK_GPU_MAX;
    if (wish > most)
        return err_set(e, ERR_USAGE, "--chunk %u, expected at most %u on %s", wish, most, caps.name);
    m->computes_at_once = caps.is_reference;
    m->max_chunk = wish ? wish : caps.is_cpu ? CHUNK_CPU : CHUNK_GPU;
    return 0;
}

/* Who stays in the cache, and what is read ahead. */
static int choose_policies(struct moeflux *m, const struct moeflux_options *o, struct supply_options *to,
                           struct err *e)
{
    const struct config *c = &m->dir.config;
    enum predictor_kind kind;
    int rc = predictor_find(o->prefetch ? o->prefetch : "auto", &kind, e);
    if (rc == 0)
        rc = ranking_find(o->cache_policy ? o->cache_policy : "auto", c->n_layers * c->top_k, &to->half_life, e);
    return rc < 0 ? rc : predictor_open(&m->predictor, kind, c->n_layers, c->top_k, e);
}

static int choose_budget(const struct moeflux *m, const struct moeflux_options *o, struct supply_options *to,
                         struct err *e)
{
    struct exec_caps caps = exec_get_caps(m->exec);
    struct budget b;
    const struct budget_wish w = {o->memory_bytes, o->gpu_memory_bytes, scratch_estimate(m),
                                  host_memory_free("")};
    int rc = budget_for_experts(&m->dir, &caps, &w, &b, e);
    to->budget_bytes = b.slot_bytes;
    to->host_slots_bytes = b.host_bytes;
    to->host_bytes = b.map_bytes;
    return rc;
}

int moeflux_open(struct moeflux **out, const struct moeflux_options *o, struct err *e)
{
    *out = NULL;
    struct moeflux *m = mem_new(1, sizeof *m, e);
    if (!m)
        return ERR_MEMORY;
    m->progress = o->progress;
    struct supply_options experts = {
        .n_threads = n_readers(o->n_threads), .usage = o->usage, .pin = o->pin};
    int rc = reader_mode_find(o->expert_io ? o->expert_io : "auto", &experts.io, e);
    if (rc == 0)
        rc = model_dir_open(&m->dir, o->dir, e);
    if (rc == 0)
        rc = choose_policies(m, o, &experts, e);
    if (rc == 0)
        rc = exec_open(&m->exec, o->device, o->profile, o->staged, e);
    if (rc == 0)
        rc = choose_chunk(m, o->chunk, e);
    if (rc == 0)
        rc = choose_budget(m, o, &experts, e);
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
    if (!m)
        return;
    supply_close(m->supply);
    predictor_close(&m->predictor);
    if (m->self)
        m->arch->close(m->self);
    if (m->exec) {
        loader_free(&m->loader);
        exec_buffer_free(m->exec, &m->ids);
        exec_buffer_free(m->exec, &m->rope);
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
    return (struct moeflux_info){.architecture = m->arch->name,
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
                                 .experts_resident = m->resident};
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
                                  .state_bytes = m->state_bytes};
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
