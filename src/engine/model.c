#include "engine/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/plan/devices.h"
#include "engine/plan/load_plan.h"
#include "engine/plan/stage_plan.h"
#include "engine/run/chosen.h"
#include "engine/run/drafter.h"
#include "engine/sequence.h"
#include "engine/state/stores.h"
#include "engine/test_hooks.h"
#include "experts/usage.h"
#include "model/family.h"
#include "model/rope.h"

/* How a model is opened, besides its options. */
struct opening {
    const struct test_hooks *hooks;   /* NULL: none */
    const char *trace;                /* NULL: none */
    struct moeflux_model *drafts_for; /* opens only this model's drafter; NULL: a model */
};

static int make_frequencies(struct moeflux_model *m, struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    m->inverse_frequencies = mem_new(size_max(rope_floats(c, c->n_ropes) / 2, 1), sizeof(float), e);
    if (!m->inverse_frequencies)
        return ERR_MEMORY;
    for (uint32_t i = 0; i < c->n_ropes; i++) {
        rope_frequencies(&c->ropes[i], m->inverse_frequencies + rope_floats(c, i) / 2);
        m->rope_multipliers[i] = rope_multiplier(&c->ropes[i]);
    }
    return 0;
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

/* Returns stage.batched_plan_n. All batched evaluations take the same kernels, so that an answer does not
 * depend on how many others there are. The smallest number is one that tiles of registers take
 * (ops/linear/linear.h). */
static uint32_t batched_plan_n(const struct moeflux_model *m, const struct exec *x,
                               const struct test_hooks *h)
{
    enum { LEAST = 33 };
    bool has_matrices = exec_get_caps(x).prompt_is_f16 || (h && h->batches_as_prompts);
    return has_matrices && m->max_batched > EXEC_MAX_INVARIANT ? (uint32_t)size_max(m->max_batched, LEAST)
                                                               : 0;
}

/* Opens the devices and decides, before anything is read, what each of them gets. */
static int open_devices(struct moeflux_model *m, struct stage_plan *p, const struct moeflux_options *o,
                        const struct opening *how, struct moeflux_err *e)
{
    struct devices d;
    const struct exec *like = how->drafts_for ? how->drafts_for->stages[0].exec : NULL;
    int rc = devices_parse(&d, o->device, e);
    if (rc == 0)
        rc = devices_check_shares(o, d.n, m->dir.config.n_layers, e);
    if (rc == 0)
        rc = devices_open(&d, o, how->hooks, like, e);
    if (rc < 0)
        return rc;
    m->n_stages = d.n;
    for (uint32_t i = 0; i < d.n; i++) {
        size_t at = strlen(m->device_names);
        const struct exec_caps caps = exec_get_caps(d.execs[i]);
        m->stages[i].exec = d.execs[i];
        snprintf(m->device_names + at, sizeof m->device_names - at, "%s%s", i ? " + " : "", caps.name);
        for (uint32_t k = 0; k < i; k++) {
            const struct exec_caps other = exec_get_caps(d.execs[k]);
            m->stages[i].is_again |= devices_are_one(&caps, &other);
        }
        m->computes_at_once |= m->stages[i].computes_at_once = caps.runs_at_once;
    }
    rc = stage_plan_make(p, &m->dir, &d, o, e);
    if (rc < 0)
        return rc;
    m->max_chunk = p->of[0].max_chunk;
    m->max_batched = p->of[0].max_batched;
    m->kv_type = p->of[0].kv_type;
    m->n_checkpoints = p->n_checkpoints;
    m->n_cpu_layers = load_plan_n_cpu_layers(o, &m->dir.config);
    m->cpu_share = o->cpu_share;
    for (uint32_t i = 0; i < d.n; i++) {
        m->stages[i].layers = p->of[i].layers;
        m->stages[i].batched_plan_n = batched_plan_n(m, d.execs[i], how->hooks);
        m->stages[i].maps_weights = p->of[i].maps_weights;
        if (p->of[i].gpu_memory_bytes) {
            m->stages[i].most_bytes = p->of[i].gpu_memory_bytes - p->of[i].driver_bytes;
            m->stages[i].plan_state_bytes = p->of[i].state_bytes;
        }
        m->stages[i].cpu_layers = p->of[i].cpu_layers;
        m->stages[i].n_cpu_each = p->of[i].n_cpu_each;
        m->stages[i].max_cpu_chunk = p->of[i].max_cpu_chunk;
        m->stages[i].prompt_from = p->of[i].prompt_from;
    }
    return 0;
}

static int open_stages(struct moeflux_model *m, const struct stage_plan *p, const struct moeflux_options *o,
                       struct moeflux_err *e)
{
    uint64_t before = 0;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++) {
        struct stage *at = &m->stages[i];
        rc = model_fault(m, at, stage_open(at, m, &p->of[i], o, before, e), e);
        before = at->loader.end_bytes;
        at->checkpoint_off = m->checkpoint_bytes;
        m->recurrent_state_bytes += at->view.sizes.recurrent;
        m->checkpoint_bytes += rc == 0 ? stores_checkpoint_bytes(at) : 0;
    }
    for (uint32_t i = 0; rc == 0 && i + 1 < m->n_stages; i++)
        stage_open_crossing(&m->stages[i]);
    return rc;
}

/* Returns an exec of the cpu that is already open; NULL: none. */
static const struct exec *find_cpu(const struct moeflux_model *m)
{
    for (uint32_t i = 0; i < m->n_stages; i++) {
        const struct exec *x = m->stages[i].exec, *host = m->stages[i].sides[SIDE_HOST].exec;
        if (exec_get_caps(x).is_native)
            return x;
        if (host)
            return host;
    }
    return NULL;
}

static int open_experts(struct moeflux_model *m, const struct stage_plan *p, const struct moeflux_options *o,
                        const struct test_hooks *h, struct moeflux_err *e)
{
    int rc = 0;
    m->resident = m->n_cpu_layers == 0 && !m->trace;
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++) {
        struct stage *at = &m->stages[i];
        rc = model_fault(m, at, stage_open_experts(at, m, &p->of[i], o, h, find_cpu(m), e), e);
        m->resident = rc == 0 && m->resident && stage_holds_all(&m->stages[i]);
    }
    return rc;
}

static int make_locks(struct moeflux_model *m, struct moeflux_err *e)
{
    uint32_t n = 0;
    while (n < MOEFLUX_MAX_DEVICES && turns_init(&m->stages[n].turn, e) == 0) {
        for (int k = 0; k < 2; k++) /* a default mutex cannot fail */
            pthread_mutex_init(&m->stages[n].reading[k], NULL);
        n++;
    }
    bool has_lock = n == MOEFLUX_MAX_DEVICES && pthread_mutex_init(&m->lock, NULL) == 0;
    m->has_locks = has_lock && pthread_mutex_init(&m->keeping, NULL) == 0;
    if (m->has_locks)
        return 0;
    if (has_lock)
        pthread_mutex_destroy(&m->lock);
    while (n > 0)
        turns_free(&m->stages[--n].turn);
    return err_set(e, ERR_MEMORY, "out of memory for a lock");
}

static void free_locks(struct moeflux_model *m)
{
    if (!m->has_locks)
        return;
    pthread_mutex_destroy(&m->lock);
    pthread_mutex_destroy(&m->keeping);
    for (uint32_t i = 0; i < MOEFLUX_MAX_DEVICES; i++) {
        turns_free(&m->stages[i].turn);
        for (int k = 0; k < 2; k++)
            pthread_mutex_destroy(&m->stages[i].reading[k]);
    }
}

/* Waits for the kernels, which are compiled while weights and experts are read. */
static int await_kernels(struct moeflux_model *m, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++)
        rc = model_fault(m, &m->stages[i], exec_await_kernels(m->stages[i].exec, e), e);
    return rc;
}

int moeflux_model_open(struct moeflux_model **out, const struct moeflux_options *o, struct moeflux_err *e)
{
    return model_open(out, o, NULL, NULL, e);
}

int moeflux_model_open_dir(struct moeflux_model **out, const char *dir, const char *device,
                           struct moeflux_err *e)
{
    return moeflux_model_open(out, &(struct moeflux_options){.dir = dir, .device = device}, e);
}

int test_hooks_open(struct moeflux_model **out, const struct moeflux_options *o, const struct test_hooks *h,
                    struct moeflux_err *e)
{
    return model_open(out, o, h, NULL, e);
}

/* Opens the drafter that was asked for. If the options leave that to the model: one that can be used and for
 * which there is memory. */
static int open_drafter(struct moeflux_model *m, const struct moeflux_options *o, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    if (o->drafter)
        return drafter_open(m, o, e);
    if (!m->keeps_hidden)
        return 0;
    int rc = drafter_open(m, o, &why);
    if (rc < 0 && rc != ERR_NO_FIT && rc != ERR_UNSUPPORTED && rc != ERR_MEMORY)
        return err_set(e, why.code, "%s", why.text);
    if (rc < 0) {
        moeflux_model_close(m->drafter);
        m->drafter = NULL;
    }
    m->keeps_hidden = m->drafter_waits = rc == 0;
    return 0;
}

static int open_model(struct moeflux_model **out, const struct moeflux_options *o, const struct opening *how,
                      struct moeflux_err *e)
{
    struct stage_plan p;
    *out = NULL;
    int rc = load_plan_check(o, e);
    struct moeflux_model *m = rc ? NULL : mem_new(1, sizeof *m, e);
    if (!m)
        return rc ? rc : ERR_MEMORY;
    m->progress = o->progress;
    m->drafts_for = how->drafts_for;
    m->step_ns = UINT64_MAX;
    rc = make_locks(m, e);
    if (rc == 0)
        rc = load_plan_open_model(&m->dir, o, how->drafts_for != NULL, e);
    m->keeps_hidden = o->drafter || how->drafts_for;
    if (rc == 0)
        rc = open_trace(m, how->trace, e);
    if (rc == 0)
        rc = open_devices(m, &p, o, how, e);
    if (rc == 0 && o->drafter_auto && m->dir.has_drafter && m->n_stages == 1)
        m->keeps_hidden |= verify_most(m) > 1;
    if (rc == 0)
        rc = make_frequencies(m, e);
    if (rc == 0)
        rc = open_stages(m, &p, o, e);
    if (rc == 0)
        rc = prefer_open(m, o->prefer_resident, e);
    if (rc == 0)
        rc = chosen_open(m, e);
    if (rc == 0)
        rc = token_open(m, e);
    if (rc == 0)
        rc = open_experts(m, &p, o, how->hooks, e);
    if (rc == 0)
        rc = await_kernels(m, e);
    if (rc == 0 && !how->drafts_for)
        rc = open_drafter(m, o, e);
    if (rc < 0) {
        moeflux_model_close(m);
        return rc;
    }
    moeflux_model_reset_stats(m);
    *out = m;
    return 0;
}

int model_open(struct moeflux_model **out, const struct moeflux_options *o, const struct test_hooks *h,
               const char *trace, struct moeflux_err *e)
{
    return open_model(out, o, &(struct opening){.hooks = h, .trace = trace}, e);
}

int model_open_drafter(struct moeflux_model *m, const struct moeflux_options *o, struct moeflux_err *e)
{
    return open_model(&m->drafter, o, &(struct opening){.drafts_for = m}, e);
}

void moeflux_model_close(struct moeflux_model *m)
{
    if (!m || !model_is_idle(m) || (m->drafter && !model_is_idle(m->drafter)))
        return; /* a device still uses the memory; the drafter has some of the model's */
    if (m->to_free)
        sequence_free_closed(m);
    moeflux_model_close(m->drafter);
    trace_writer_close(m->trace);
    prefer_close(m);
    chosen_close(m);
    token_close(m);
    for (uint32_t i = 0; i < m->n_stages; i++)
        stage_close(&m->stages[i]);
    for (uint32_t i = 0; i < m->n_stages; i++)
        exec_close(m->stages[i].exec);
    model_dir_close(&m->dir);
    free(m->inverse_frequencies);
    free_locks(m);
    free(m);
}

static uint32_t stage_idx(const struct moeflux_model *m, uint32_t layer)
{
    uint32_t i = 0;
    while (i + 1 < m->n_stages && layer >= m->stages[i].layers.end)
        i++;
    return i;
}

struct stage *model_stage(struct moeflux_model *m, uint32_t layer)
{
    return &m->stages[stage_idx(m, layer)];
}

const struct arch_stores *model_stores(const struct moeflux_model *m, uint32_t layer)
{
    return &m->stages[stage_idx(m, layer)].view.stores[layer];
}

int model_fault(const struct moeflux_model *m, const struct stage *at, int rc, struct moeflux_err *e)
{
    if ((rc != ERR_DEVICE && rc != ERR_LOST && rc != ERR_NO_FIT) || m->n_stages == 1 || !e)
        return rc;
    const struct moeflux_err why = *e;
    return err_set(e, why.code, "device %u of %u (%.100s, layers %u to %u): %.300s",
                   (unsigned)(at - m->stages) + 1, m->n_stages, exec_get_caps(at->exec).name,
                   at->layers.first, at->layers.end - 1, why.text);
}

bool model_is_idle(struct moeflux_model *m)
{
    bool is = true;
    for (uint32_t i = 0; is && i < m->n_stages; i++) {
        stage_take(&m->stages[i]);
        is = stage_is_idle(&m->stages[i]);
        stage_give(&m->stages[i]);
    }
    return is;
}

/* Returns the first store; it speaks for all about how experts are read. */
static const struct expert_store *first_store(const struct moeflux_model *m)
{
    for (uint32_t i = 0; i < m->n_stages; i++)
        for (int k = SIDE_DEVICE; k <= SIDE_HOST; k++)
            if (m->stages[i].sides[k].store)
                return m->stages[i].sides[k].store;
    return NULL;
}

static bool holds_all(const struct moeflux_model *m)
{
    bool all = true;
    for (uint32_t i = 0; i < m->n_stages; i++)
        all = all && stage_holds_all(&m->stages[i]);
    return all;
}

static bool prompt_is_f16(const struct moeflux_model *m)
{
    bool has = false;
    for (uint32_t i = 0; i < m->n_stages; i++)
        has = has || exec_get_caps(m->stages[i].exec).prompt_is_f16;
    return has;
}

struct moeflux_model_info moeflux_model_get_info(const struct moeflux_model *m)
{
    const struct config *c = &m->dir.config;
    const struct exec_caps caps = exec_get_caps(m->stages[0].exec);
    return (struct moeflux_model_info){.dir = m->dir.path,
                                       .architecture = m->dir.config.family->name,
                                       .device = m->n_stages > 1 ? m->device_names : caps.name,
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
                                       .max_context = m->stages[0].view.max_context,
                                       .eos = c->eos,
                                       .expert_io = expert_store_describe_reader(first_store(m)),
                                       .n_eos = c->n_eos,
                                       .suppressed = c->suppressed,
                                       .n_suppressed = c->n_suppressed,
                                       .experts_resident = holds_all(m),
                                       .n_cpu_layers = m->n_cpu_layers,
                                       .cpu_share = m->cpu_share,
                                       .f16_products = prompt_is_f16(m)};
}

void moeflux_model_get_usage(const struct moeflux_model *m, uint32_t *counts)
{
    memset(counts, 0, (uint64_t)m->dir.config.n_layers * m->dir.config.n_experts * sizeof *counts);
    for (uint32_t k = 0; k < m->n_stages; k++)
        for (int i = 0; i < EXPERT_SIDES; i++)
            if (m->stages[k].sides[i].store)
                expert_store_add_counts(m->stages[k].sides[i].store, counts);
}

int moeflux_model_save_usage(const struct moeflux_model *m, const char *path, struct moeflux_err *e)
{
    int null = err_need(e, "model", m, "path", path);
    if (null)
        return null;
    const struct config *c = &m->dir.config;
    uint32_t *counts = mem_new((uint64_t)c->n_layers * c->n_experts, sizeof *counts, e);
    if (!counts)
        return ERR_MEMORY;
    moeflux_model_get_usage(m, counts);
    int rc = usage_write(path, c->n_layers, c->n_experts, counts, e);
    free(counts);
    return rc;
}
