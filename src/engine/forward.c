/* The forward pass of a chunk of tokens: embedding, layers, head.
 *
 * If every expert is resident and no trace is written, the router's choice stays on the device and decode is one submission.
 * Else the list of each layer that ends with the router is submitted, the host reads the choice and has the experts loaded,
 * and the list of the experts begins the next submission. If a chunk chose more experts than there are slots, they are
 * computed in waves.
 *
 * The routed experts of the first layers may be the CPU's (SIDE_HOST). Then the choice comes with the hidden states and
 * weights, the host computes the experts while the device computes the shared one, and the next submission adds their sum.
 * That one is recorded before the host computes, so that it is ready when the sum is. In a large chunk the device computes
 * them too, with copies (SIDE_PROMPT). The layer and the chunk's size say whose it is, so results do not depend on what is in
 * memory.
 *
 * They do with moeflux_options.prefer_resident: then the host changes the choice of a single token (prefer.h). */
#include <string.h>

#include "args.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/real.h"
#include "engine/engine.h"
#include "engine/load_plan.h"

/* Experts of a wave: enough to keep a device busy, few enough to be loaded soon. Wave tables: as many as may be in use. */
enum { WAVE_EXPERTS = 32, WAVE_TABLES = MOEFLUX_WAVE_TABLES };
/* Rows of the head at once, where those of a whole chunk are asked for. */
enum { LOGIT_ROWS = 4 };
_Static_assert((int)LOGIT_ROWS <= (int)ARCH_HEAD_ROWS && (int)MOEFLUX_MOST_TOGETHER <= (int)ARCH_HEAD_ROWS,
               "rows of logits");

struct pass {
    struct moeflux_session *s;
    struct moeflux_model *m;
    struct arch_chunk chunk;
    const struct moeflux_outputs *outputs;
    bool is_watched; /* it may take long: submissions are kept short, and the caller may stop it */
};

void forward_fill_rope(const struct moeflux_model *m, float *rope, uint32_t n, uint32_t pos)
{
    uint32_t n_angles = m->dir.config.rotary_dim / 2;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < n_angles; i++) {
            /* The angle is rounded to float32, as the reference computes it. */
            float angle = (float)(pos + t) * m->inverse_frequencies[i];
            *rope++ = (float)(real_cos((double)angle) * m->rope_multiplier);
            *rope++ = (float)(real_sin((double)angle) * m->rope_multiplier);
        }
}

static void fill_inputs(struct moeflux_model *m, const int32_t *ids, uint32_t n, uint32_t pos)
{
    memcpy(m->ids.host, ids, n * sizeof *ids);
    forward_fill_rope(m, (float *)(void *)m->rope.host, n, pos);
}

/* Copies the output of layer `layer` (0: the embedding) if hidden states are asked for. */
static void copy_hidden(const struct pass *p, uint32_t layer)
{
    struct moeflux_model *m = p->m;
    uint64_t row = (uint64_t)m->dir.config.hidden * sizeof(float);
    if (p->outputs->hidden)
        exec_copy(m->exec, &m->hidden, (uint64_t)layer * m->max_chunk * row, &m->view.x, 0, p->chunk.n * row);
}

static uint32_t *choice_of(const struct moeflux_model *m)
{
    return (uint32_t *)(void *)(m->view.idx.host ? m->view.idx.host : m->choice.host);
}

/* How many experts a token has: with a share of the weights, as few as stand before NO_EXPERT. */
static uint32_t n_chosen(const struct moeflux_model *m, const uint32_t *choice)
{
    uint32_t n = m->dir.config.top_k;
    while (n > 1 && choice[n - 1] == NO_EXPERT)
        n--;
    return n;
}

/* The predicted experts of the next layer; NULL if none were recorded. */
static const uint32_t *prediction_of(const struct moeflux_model *m)
{
    const uint8_t *copied = m->choice.host ? m->choice.host + m->view.idx.bytes : NULL;
    return (const uint32_t *)(const void *)(m->view.predicted.host ? m->view.predicted.host : copied);
}

/* The weights of the choice, where the host sees them. */
static float *weights_of(const struct moeflux_model *m)
{
    return (float *)(void *)(m->view.weights.host ? m->view.weights.host : m->host.weights.host);
}

static enum expert_side_kind kind_of(const struct pass *p, uint32_t layer)
{
    const struct moeflux_model *m = p->m;
    if (layer >= m->n_cpu_layers)
        return SIDE_DEVICE;
    bool goes = m->sides[SIDE_PROMPT].store && load_plan_takes_device(&m->dir.config, p->chunk.n);
    return goes ? SIDE_PROMPT : SIDE_HOST;
}

static bool is_on_cpu(const struct pass *p, uint32_t layer)
{
    return kind_of(p, layer) == SIDE_HOST;
}

static const struct expert_side *side_of(const struct pass *p, uint32_t layer)
{
    return &p->m->sides[kind_of(p, layer)];
}

static void release_all(struct moeflux_model *m)
{
    for (int i = 0; i < EXPERT_SIDES; i++)
        if (m->sides[i].store)
            expert_store_release(m->sides[i].store);
}

/* The next layer that has experts, or n_layers; UINT32_MAX stands before the first layer. */
static uint32_t next_moe(const struct moeflux_model *m, uint32_t layer)
{
    uint32_t next = layer + 1;
    while (next < m->dir.config.n_layers && !config_has_experts(&m->dir.config, next))
        next++;
    return next;
}

/* Whether there may be something to read for a layer with experts; n_layers is none. */
static bool reads_ahead(const struct pass *p, uint32_t layer)
{
    return p->m->predictor.kind != PREDICT_NONE && layer < p->m->dir.config.n_layers &&
           side_of(p, layer)->reads_ahead && !expert_store_holds_all(side_of(p, layer)->store);
}

/* Whether a layer's router is applied early: for single tokens. */
static bool predicts(const struct pass *p, uint32_t layer)
{
    return p->chunk.n == 1 && (p->m->predictor.kind & PREDICT_ROUTER) && reads_ahead(p, layer);
}

/* Whether experts in memory may stand in for others: of a chunk of many tokens nearly all experts are chosen anyway. */
static bool prefers(const struct pass *p, uint32_t layer)
{
    return p->chunk.n == 1 && p->m->prefer.margin > 0 && !expert_store_holds_all(side_of(p, layer)->store);
}

/* Collects the different experts of tokens from `from` on, as many tokens as the slots allow. Returns the tokens. */
static uint32_t gather_wave(const struct pass *p, const struct expert_side *side, uint32_t from,
                            uint32_t *n_wanted)
{
    struct moeflux_model *m = p->m;
    uint32_t top_k = m->dir.config.top_k, slots = expert_store_n_free_slots(side->store), t = from;
    *n_wanted = 0;
    for (; t < p->chunk.n; t++) {
        const uint32_t *choice = choice_of(m) + (uint64_t)t * top_k;
        uint32_t before = *n_wanted, n = n_chosen(m, choice);
        for (uint32_t k = 0; k < n; k++)
            if (!m->is_wanted[choice[k]]) {
                m->is_wanted[choice[k]] = 1;
                m->wanted[(*n_wanted)++] = choice[k];
            }
        if (*n_wanted <= slots)
            continue;
        while (*n_wanted > before)
            m->is_wanted[m->wanted[--*n_wanted]] = 0;
        break;
    }
    for (uint32_t i = 0; i < *n_wanted; i++)
        m->is_wanted[m->wanted[i]] = 0;
    return t - from;
}

static struct arch_experts experts_of(const struct expert_side *side, uint32_t layer, uint32_t from,
                                      uint32_t n)
{
    return (struct arch_experts){
        .layer = layer, .table = expert_store_table(side->store, layer), .from = from, .n = n};
}

static struct host_chunk host_chunk_of(const struct pass *p)
{
    struct moeflux_model *m = p->m;
    return (struct host_chunk){.x = (const float *)(const void *)m->host.x.host,
                               .weights = weights_of(m),
                               .idx = choice_of(m),
                               .sum = (float *)(void *)m->host.sum.host,
                               .n = p->chunk.n};
}

static void run_up(const struct pass *p, const struct arch_experts *x)
{
    const struct host_chunk here = host_chunk_of(p);
    if (is_on_cpu(p, x->layer))
        host_experts_up(&p->m->host.experts, &here, x);
    else
        arch_experts_up(p->m->arch, &p->chunk, x);
}

static void run_down(const struct pass *p, const struct arch_experts *x)
{
    const struct host_chunk here = host_chunk_of(p);
    if (is_on_cpu(p, x->layer))
        host_experts_down(&p->m->host.experts, &here, x);
    else
        arch_experts_down(p->m->arch, &p->chunk, x);
}

static void run_experts(const struct pass *p, const struct arch_experts *x)
{
    run_up(p, x);
    run_down(p, x);
}

/* Ends the batch and releases the experts that it used. */
static int finish_wave(const struct expert_side *side, struct moeflux_err *e)
{
    int rc = exec_finish(side->exec, e);
    expert_store_release(side->store);
    exec_begin(side->exec);
    return rc;
}

static int bring(const struct expert_side *side, uint32_t layer, const uint32_t *experts, uint32_t n,
                 bool passes, struct moeflux_err *e)
{
    int rc = expert_store_want(side->store, layer, experts, n, passes, NULL, e);
    return rc < 0 ? rc : expert_store_await(side->store, e);
}

/* The experts of a few tokens: as many tokens at once as the slots allow. */
static int token_waves(const struct pass *p, uint32_t layer, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    const struct expert_side *side = side_of(p, layer);
    int rc = 0;
    for (uint32_t from = 0; rc == 0 && from < p->chunk.n;) {
        uint32_t n_wanted, n = gather_wave(p, side, from, &n_wanted);
        const struct arch_experts x = experts_of(side, layer, from, n);
        if (from > 0) /* the wave before this one still uses its slots */
            rc = finish_wave(side, e);
        if (rc == 0)
            rc = bring(side, layer, m->wanted, n_wanted, false, e);
        if (rc == 0)
            run_experts(p, &x);
        from += n;
    }
    return rc;
}

/* The different experts of the chunk. Cached ones come first, so that they are used before they could be evicted. */
static uint32_t gather_all(const struct pass *p, uint32_t layer)
{
    struct moeflux_model *m = p->m;
    const struct expert_store *store = side_of(p, layer)->store;
    uint32_t n_pairs = p->chunk.n * m->dir.config.top_k, n = 0;
    for (uint32_t i = 0; i < n_pairs; i++)
        if (choice_of(m)[i] != NO_EXPERT)
            m->is_wanted[choice_of(m)[i]] = 1;
    for (int there = 1; there >= 0; there--)
        for (uint32_t x = 0; x < m->dir.config.n_experts; x++)
            if (m->is_wanted[x] && expert_store_has(store, layer, x) == there) {
                m->is_wanted[x] = 0;
                m->wanted[n++] = x;
            }
    return n;
}

/* A table that has the addresses of this wave's experts alone. */
static uint64_t wave_table(const struct pass *p, uint32_t wave, uint32_t layer, const uint32_t *experts,
                           uint32_t n)
{
    const struct moeflux_model *m = p->m;
    const struct expert_side *side = side_of(p, layer);
    uint64_t off = (uint64_t)(wave % WAVE_TABLES) * m->dir.config.n_experts * sizeof(uint64_t);
    uint64_t *table = (uint64_t *)(void *)(side->waves.host + off);
    memset(table, 0, m->dir.config.n_experts * sizeof *table);
    for (uint32_t i = 0; i < n; i++)
        table[experts[i]] = expert_store_address(side->store, layer, experts[i]);
    return side->waves.address + off;
}

/* A chunk of many tokens chooses nearly every expert. So those of the next layer are read while this layer's experts and the
 * next layer's mixer compute. */
static int read_ahead_of_chunk(const struct pass *p, uint32_t layer, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    uint32_t next = next_moe(m, layer), n_experts = m->dir.config.n_experts;
    uint64_t n_pairs = (uint64_t)p->chunk.n * m->dir.config.top_k;
    if (n_pairs < 4 * (uint64_t)n_experts || !reads_ahead(p, next))
        return 0;
    for (uint32_t i = 0; i < n_experts; i++)
        m->wanted[i] = i;
    expert_store_prefetch(side_of(p, next)->store, next, m->wanted, n_experts, true);
    return expert_store_raise(side_of(p, next)->store, next, m->wanted, n_experts, e);
}

/* The experts of many tokens: each is loaded once and multiplied with all its tokens. While one wave computes, the next one
 * is read. A wave waits for earlier ones only if slots run out. */
static int expert_waves(const struct pass *p, uint32_t layer, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    const struct expert_side *side = side_of(p, layer);
    uint32_t n_all = gather_all(p, layer), slots = expert_store_n_free_slots(side->store), n_held = 0,
             wave = 0;
    uint32_t most = (uint32_t)size_max(size_min(slots / 2, WAVE_EXPERTS), m->dir.config.top_k);
    struct arch_experts x = experts_of(side, layer, 0, p->chunk.n);
    int rc = 0;
    for (uint32_t from = 0, n; rc == 0 && from < n_all; from += n, wave++) {
        uint64_t ticket;
        n = (uint32_t)size_min(most, n_all - from);
        if (n_held + n > slots || (wave > 0 && wave % WAVE_TABLES == 0)) {
            rc = finish_wave(side, e);
            n_held = 0;
        }
        if (rc == 0)
            rc = bring(side, layer, m->wanted + from, n, true, e);
        if (rc < 0)
            return rc;
        n_held += n;
        x.table = wave_table(p, wave, layer, m->wanted + from, n);
        x.more_waves = from + n < n_all;
        run_experts(p, &x);
        if (x.more_waves) {
            rc = exec_submit(side->exec, &ticket, e);
            exec_begin(side->exec);
        }
    }
    if (rc == 0) /* the disk is idle until the next layer */
        rc = read_ahead_of_chunk(p, layer, e);
    return rc;
}

/* Prefetches the n likeliest of the predicted experts of a layer. */
static void read_ahead(const struct pass *p, uint32_t layer, uint32_t n)
{
    struct moeflux_model *m = p->m;
    if (!reads_ahead(p, layer))
        return;
    predictor_predict(&m->predictor, layer, predicts(p, layer) ? prediction_of(m) : NULL);
    expert_store_prefetch(side_of(p, layer)->store, layer, m->predictor.named,
                          (uint32_t)size_min(m->predictor.n_named, n), false);
}

/* The choice of `layer` is known: the disk has something to do while its experts compute. */
static void read_ahead_of_next(const struct pass *p, uint32_t layer)
{
    uint32_t next = next_moe(p->m, layer);
    bool comes_again = p->m->computes_at_once && predicts(p, next);
    read_ahead(p, next, comes_again ? div_up(p->m->dir.config.top_k, 2) : UINT32_MAX);
}

/* Where a prediction can be seen at once, a second one before the layer's mixer replaces the first, which was made before the
 * last layer's experts. With a random router 0.78 of the chosen experts are named instead of 0.67, the likeliest four by 0.9.
 * For the first layer there is only this one, for the embedding: 0.44, the likeliest two by 0.7. What is read in vain takes
 * the disk's time, so both name the likelier half, of the first layer a quarter. */
static void predict_again(const struct pass *p, uint32_t layer)
{
    struct moeflux_model *m = p->m;
    if (!m->computes_at_once || !config_has_experts(&m->dir.config, layer) || !predicts(p, layer))
        return;
    bool is_first = layer == next_moe(m, UINT32_MAX);
    arch_predict_experts(m->arch, layer);
    read_ahead(p, layer, div_up(m->dir.config.top_k, is_first ? 4 : 2));
}

/* The first half of those experts of a token that are there; in a batch of its own, so that it begins now. */
static int submit_up(const struct pass *p, const struct expert_side *side, struct arch_experts *x,
                     uint64_t which, struct moeflux_err *e)
{
    uint64_t ticket;
    x->skip = ~which;
    run_up(p, x);
    x->skip_shared = true; /* it is among them */
    int rc = exec_submit(side->exec, &ticket, e);
    exec_begin(side->exec);
    return rc;
}

/* Each expert begins as it comes, where an operation that was recorded is over: the cores have nothing else to do, and then
 * less is left to compute once the last one is there. *done: those that began. */
static int up_as_they_come(const struct pass *p, const struct expert_side *side, struct arch_experts *x,
                           uint64_t all, uint64_t *done, struct moeflux_err *e)
{
    uint64_t present = *done;
    int rc = 0;
    while (rc == 0 && present != all) {
        rc = expert_store_await_some(side->store, &present, e);
        if (rc == 0 && present != *done && present != all)
            rc = submit_up(p, side, x, present & ~*done, e);
        if (rc == 0 && present != all)
            *done = present;
    }
    return rc;
}

/* The experts of one token. Cached ones are computed while the others are read. Each expert writes its own part of the
 * activations; they are summed afterwards in the router's order. So the result does not depend on the order of arrival. */
static int token_experts(const struct pass *p, uint32_t layer, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    const struct expert_side *side = side_of(p, layer);
    uint32_t n = n_chosen(m, choice_of(m));
    struct arch_experts x = experts_of(side, layer, 0, 1);
    uint64_t all = n < 64 ? ((uint64_t)1 << n) - 1 : UINT64_MAX, done = 0;
    predictor_observe(&m->predictor, layer, choice_of(m));
    int rc = expert_store_want(side->store, layer, choice_of(m), n, false, &done, e);
    if (rc < 0)
        return rc;
    read_ahead_of_next(p, layer);
    done = n <= 64 && done != all ? done : 0;
    if (done)
        rc = submit_up(p, side, &x, done, e);
    if (rc == 0 && side->computes_at_once && n <= 64)
        rc = up_as_they_come(p, side, &x, all, &done, e);
    int arrived = expert_store_await(side->store, rc < 0 ? NULL : e);
    x.skip = done;
    if (rc == 0 && arrived == 0)
        run_experts(p, &x);
    return rc < 0 ? rc : arrived;
}

/* Whether the experts of the chunk come in waves of experts, not of tokens. */
static bool takes_waves(const struct pass *p, uint32_t layer)
{
    const struct moeflux_model *m = p->m;
    return is_on_cpu(p, layer) ? host_experts_takes_waves(&m->host.experts, p->chunk.n)
                               : arch_takes_waves(m->arch, p->chunk.n);
}

/* Experts of all tokens of the chunk together. */
static uint64_t n_all_chosen(const struct pass *p)
{
    const struct moeflux_model *m = p->m;
    uint64_t n = 0;
    for (uint32_t t = 0; t < p->chunk.n; t++)
        n += n_chosen(m, choice_of(m) + (uint64_t)t * m->dir.config.top_k);
    return n;
}

static void count_choices(const struct pass *p)
{
    p->m->n_choices += p->chunk.n;
    p->m->n_chosen += n_all_chosen(p);
}

/* Puts experts that are in memory in the place of others, where the scores are close. */
static void prefer_experts(const struct pass *p, uint32_t layer)
{
    struct moeflux_model *m = p->m;
    uint32_t *choice = choice_of(m);
    bool is_changed =
        prefer_choose(m, side_of(p, layer)->store, layer, n_chosen(m, choice), choice, weights_of(m));
    if (!is_changed || is_on_cpu(p, layer) || m->view.idx.host)
        return;
    exec_copy(m->exec, &m->view.idx, 0, &m->choice, 0, m->dir.config.top_k * sizeof *choice);
    exec_copy(m->exec, &m->view.weights, 0, &m->host.weights, 0, m->dir.config.top_k * sizeof(float));
}

/* The experts that the router chose, which the host knows now. */
static int chosen_experts(const struct pass *p, uint32_t layer, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    if (prefers(p, layer))
        prefer_experts(p, layer);
    count_choices(p);
    if (m->trace)
        trace_writer_add(m->trace, layer, p->chunk.of.pos, p->chunk.n, choice_of(m), weights_of(m));
    if (p->chunk.n == 1)
        return token_experts(p, layer, e);
    predictor_observe(&m->predictor, layer, choice_of(m) + (uint64_t)(p->chunk.n - 1) * m->dir.config.top_k);
    return takes_waves(p, layer) ? expert_waves(p, layer, e) : token_waves(p, layer, e);
}

/* Records the copies of what the host needs besides the choice: the weights, and for the CPU's experts the hidden states. The
 * shared expert changes those meanwhile, so they are copied even where they are mapped. */
static void copy_to_host(const struct pass *p, bool computes)
{
    struct moeflux_model *m = p->m;
    const struct config *c = &m->dir.config;
    if (computes)
        exec_copy(m->exec, &m->host.x, 0, &m->view.x, 0, (uint64_t)p->chunk.n * c->hidden * sizeof(float));
    if (m->host.weights.host)
        exec_copy(m->exec, &m->host.weights, 0, &m->view.weights, 0,
                  (uint64_t)p->chunk.n * c->top_k * sizeof(float));
}

/* Makes the choice and records what the host needs to see of a layer: the router's choice, a prediction, what the CPU computes with. */
static void show_choice(const struct pass *p, uint32_t layer)
{
    struct moeflux_model *m = p->m;
    uint64_t bytes = (uint64_t)m->dir.config.top_k * sizeof(uint32_t);
    uint32_t next = next_moe(m, layer);
    bool has_prediction = predicts(p, next);
    arch_choose_experts(m->arch, &p->chunk, layer);
    if (has_prediction)
        arch_predict_experts(m->arch, next);
    if (is_on_cpu(p, layer) || m->trace || prefers(p, layer))
        copy_to_host(p, is_on_cpu(p, layer));
    if (prefers(p, layer))
        prefer_show(m);
    if (m->view.idx.host)
        return;
    exec_copy(m->exec, &m->choice, 0, &m->view.idx, 0, p->chunk.n * bytes);
    if (has_prediction)
        exec_copy(m->exec, &m->choice, m->view.idx.bytes, &m->view.predicted, 0, bytes);
}

/* Records layers from `layer` on, up to one whose choice the host has to see. Returns that one, or n_layers. */
static uint32_t record_layers(const struct pass *p, uint32_t layer)
{
    struct moeflux_model *m = p->m;
    for (; layer < m->dir.config.n_layers; layer++) {
        const struct expert_side *side = side_of(p, layer);
        m->progress_at.layer = layer;
        predict_again(p, layer);
        arch_before_experts(m->arch, &p->chunk, layer);
        if (config_has_experts(&m->dir.config, layer)) {
            if (is_on_cpu(p, layer) || m->trace || !expert_store_holds_all(side->store)) {
                show_choice(p, layer);
                return layer;
            }
            struct arch_experts x = experts_of(side, layer, 0, p->chunk.n);
            x.chooses = true;
            run_experts(p, &x);
            if (m->computes_at_once)
                count_choices(p);
        }
        exec_split(m->exec);
        copy_hidden(p, layer + 1);
    }
    return layer;
}

/* The chosen experts on the device; *next: as record_layers. */
static int experts_on_device(const struct pass *p, uint32_t layer, uint32_t *next, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    int rc = exec_finish(m->exec, e);
    release_all(m);
    exec_begin(m->exec);
    if (rc == 0)
        rc = chosen_experts(p, layer, e);
    copy_hidden(p, layer + 1);
    *next = rc == 0 ? record_layers(p, layer + 1) : layer;
    return rc;
}

/* Submits the batch that ends with the choice, and behind it the shared expert. *choice: the ticket of the first. */
static int submit_choice(const struct pass *p, uint32_t layer, uint64_t *choice, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    uint64_t shared;
    int rc = exec_submit(m->exec, choice, e);
    exec_begin(m->exec);
    if (rc < 0 || !m->dir.config.shared_inner)
        return rc;
    arch_shared_expert(m->arch, &p->chunk, layer, m->sides[SIDE_DEVICE].waves.address);
    rc = exec_submit(m->exec, &shared, e);
    exec_begin(m->exec);
    return rc;
}

/* Records the sum of the CPU's experts and the layers behind; returns as record_layers. */
static uint32_t record_sum(const struct pass *p, uint32_t layer)
{
    arch_add_experts(p->m->arch, &p->chunk, p->m->host.sum.address);
    copy_hidden(p, layer + 1);
    return record_layers(p, layer + 1);
}

/* The chosen experts into host.sum. */
static int compute_on_cpu(const struct pass *p, uint32_t layer, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    const struct expert_side *side = side_of(p, layer);
    uint64_t start = clock_ns();
    memset(m->host.sum.host, 0, (uint64_t)p->chunk.n * m->dir.config.hidden * sizeof(float));
    exec_begin(side->exec);
    int rc = chosen_experts(p, layer, e);
    int done = exec_finish(side->exec, rc < 0 ? NULL : e);
    expert_store_release(side->store);
    rc = rc < 0 ? rc : done;
    m->host.n_computed += rc == 0 ? n_all_chosen(p) : 0;
    m->host.ns += clock_ns() - start;
    return rc;
}

/* The chosen experts on the CPU, while the device computes the shared one; *next: as record_layers. The batch that adds their
 * sum is recorded while the device is on its way to the choice. A watched one is submitted in pieces: it has to wait. */
static int experts_on_cpu(const struct pass *p, uint32_t layer, uint32_t *next, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    uint64_t choice;
    int rc = submit_choice(p, layer, &choice, e);
    if (rc < 0)
        return rc;
    exec_alert(m->sides[SIDE_HOST].exec);
    if (!p->is_watched)
        *next = record_sum(p, layer);
    rc = exec_wait(m->exec, choice, e);
    release_all(m);
    if (rc == 0)
        rc = compute_on_cpu(p, layer, e);
    if (rc == 0 && p->is_watched)
        *next = record_sum(p, layer);
    return rc;
}

static int run_layers(const struct pass *p, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    int rc = 0;
    for (uint32_t i = record_layers(p, 0); rc == 0 && i < m->dir.config.n_layers;)
        rc = is_on_cpu(p, i) ? experts_on_cpu(p, i, &i, e) : experts_on_device(p, i, &i, e);
    return rc;
}

/* Records the head for tokens from .. from + n - 1 and the copy of their logits to the host. */
static void record_head(const struct pass *p, uint32_t from, uint32_t n)
{
    struct moeflux_model *m = p->m;
    arch_head(m->arch, from, n);
    if (!m->view.logits.host)
        exec_copy(m->exec, &m->logits, 0, &m->view.logits, 0,
                  (uint64_t)n * m->dir.config.vocab_size * sizeof(float));
}

static const float *logits_of(const struct moeflux_model *m)
{
    return (const float *)(const void *)(m->view.logits.host ? m->view.logits.host : m->logits.host);
}

/* Finishes the batch with the logits of tokens from .. from + n - 1, which are then on the host. */
static int run_head(const struct pass *p, uint32_t from, uint32_t n, const float **rows,
                    struct moeflux_err *e)
{
    record_head(p, from, n);
    *rows = logits_of(p->m);
    return exec_finish(p->m->exec, e);
}

static int all_logits(const struct pass *p, struct moeflux_err *e)
{
    uint32_t vocab = p->m->dir.config.vocab_size;
    for (uint32_t from = 0; from < p->chunk.n; from += LOGIT_ROWS) {
        uint32_t n = (uint32_t)size_min(LOGIT_ROWS, p->chunk.n - from);
        const float *rows;
        if (from > 0)
            exec_begin(p->m->exec);
        int rc = run_head(p, from, n, &rows, e);
        for (uint32_t i = 0; rc == 0 && i < n; i++)
            rc = p->outputs->each_logits(p->outputs->ctx, p->chunk.of.pos + from + i,
                                         rows + (uint64_t)i * vocab, e);
        if (rc < 0)
            return rc;
        if (p->outputs->logits && from + n == p->chunk.n)
            memcpy(p->outputs->logits, rows + (uint64_t)(n - 1) * vocab, vocab * sizeof(float));
    }
    return 0;
}

static int last_logits(const struct pass *p, struct moeflux_err *e)
{
    const float *row;
    int rc = run_head(p, p->chunk.n - 1, 1, &row, e);
    if (rc == 0)
        memcpy(p->outputs->logits, row, p->m->dir.config.vocab_size * sizeof(float));
    return rc;
}

static int hand_out_hidden(const struct pass *p, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    uint64_t layer_floats = (uint64_t)m->max_chunk * m->dir.config.hidden;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && p->outputs->hidden && i <= m->dir.config.n_layers; i++)
        rc = p->outputs->hidden(p->outputs->ctx, i, p->chunk.of.pos, p->chunk.n,
                                (const float *)(const void *)m->hidden.host + i * layer_floats, e);
    return rc;
}

static int make_hidden_buffer(struct moeflux_model *m, struct moeflux_err *e)
{
    if (m->hidden.host)
        return 0;
    const struct config *c = &m->dir.config;
    return exec_buffer_new(m->exec, &m->hidden, EXEC_HOST,
                           ((uint64_t)c->n_layers + 1) * m->max_chunk * c->hidden * sizeof(float), e);
}

static struct pass pass_at(struct moeflux_session *s, uint32_t n, uint32_t pos, uint32_t parity,
                           const struct moeflux_outputs *outputs)
{
    struct moeflux_model *m = s->model;
    return (struct pass){.s = s,
                         .m = m,
                         .outputs = outputs,
                         .chunk = {.n = n,
                                   .ids = m->ids.address,
                                   .rope = m->rope.address,
                                   .of = {.pos = pos,
                                          .parity = parity,
                                          .kv_blocks = s->table.address,
                                          .recurrent = s->recurrent.address,
                                          .recurrent_out = s->recurrent.address}}};
}

/* A token of each of n sequences, `ahead` tokens behind those that they have. each: room for what the pass refers to. */
static struct pass pass_together(struct moeflux_session *const *list, uint32_t n, uint32_t ahead,
                                 const struct moeflux_outputs *none, struct arch_sequence *each)
{
    struct moeflux_model *m = list[0]->model;
    for (uint32_t i = 0; i < n; i++) {
        const struct moeflux_session *s = list[i];
        bool is_swapped = ahead % 2 != 0;
        each[i] =
            (struct arch_sequence){.pos = s->pos + ahead,
                                   .parity = s->parity ^ is_swapped,
                                   .kv_blocks = s->table.address,
                                   .recurrent = (is_swapped ? s->recurrent_next : s->recurrent).address,
                                   .recurrent_out = (is_swapped ? s->recurrent : s->recurrent_next).address};
    }
    return (struct pass){.m = m,
                         .outputs = none,
                         .chunk = {.n = n, .ids = m->ids.address, .rope = m->rope.address, .each = each}};
}

static int record_layers_of_token(const struct pass *p, struct moeflux_err *e)
{
    exec_begin(p->m->exec);
    arch_embed(p->m->arch, &p->chunk);
    return run_layers(p, e);
}

/* Tokens from their ids to their logits on the host, in one batch. */
static int record_tokens(const struct pass *p, struct moeflux_err *e)
{
    int rc = record_layers_of_token(p, e);
    record_head(p, 0, p->chunk.n);
    return rc;
}

int forward_record_token(struct moeflux_session *s, const struct arch_chunk *c, struct moeflux_err *e)
{
    struct moeflux_outputs none = {0};
    const struct pass p = {.s = s, .m = s->model, .outputs = &none, .chunk = *c};
    int rc = record_layers_of_token(&p, e);
    arch_head(s->model->arch, 0, 1);
    return rc;
}

static struct arch_sequence sequence_of(const struct pass *p, uint32_t i)
{
    return p->chunk.each ? p->chunk.each[i] : p->chunk.of;
}

static void park(const struct pass *p, struct moeflux_session *const *list)
{
    struct parked *to = &p->m->parked;
    exec_park(p->m->exec);
    to->n = p->chunk.n;
    for (uint32_t i = 0; i < to->n; i++) {
        to->each[i] = sequence_of(p, i);
        to->sessions[i] = list[i];
    }
}

/* Whether the pass is what was recorded ahead. */
static bool is_parked(const struct pass *p, struct moeflux_session *const *list)
{
    const struct parked *a = &p->m->parked;
    bool is = exec_is_parked(p->m->exec) && a->n == p->chunk.n;
    for (uint32_t i = 0; is && i < a->n; i++) {
        const struct arch_sequence have = a->each[i], want = sequence_of(p, i);
        is = a->sessions[i] == list[i] && have.pos == want.pos && have.parity == want.parity &&
             have.kv_blocks == want.kv_blocks && have.recurrent == want.recurrent &&
             have.recurrent_out == want.recurrent_out;
    }
    return is;
}

/* Whether each sequence has room for a token behind the next one. */
static bool may_go_on(struct moeflux_session *const *list, uint32_t n)
{
    bool may = true;
    for (uint32_t i = 0; i < n; i++)
        may = may && list[i]->pos + 1 < list[i]->max_context;
    return may;
}

/* Decode with every expert resident, a token of each of a list of sequences. The commands of a token do not depend on its id,
 * so those of the next tokens (`next`) are recorded while the device computes these. */
static int decode_resident(struct moeflux_session *const *list, const struct pass *p, const struct pass *next,
                           float *const *logits, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    uint64_t ticket = 0;
    bool ahead = is_parked(p, list);
    int rc = ahead ? 0 : record_tokens(p, e);
    if (rc == 0)
        rc = ahead ? exec_submit_parked(m->exec, &ticket, e) : exec_submit(m->exec, &ticket, e);
    if (rc < 0) {
        exec_abandon(m->exec);
        return rc;
    }
    if (may_go_on(list, p->chunk.n) && !m->computes_at_once) {
        rc = record_tokens(next, e);
        park(next, list);
    }
    int waited = exec_wait(m->exec, ticket, rc < 0 ? NULL : e);
    uint32_t vocab = m->dir.config.vocab_size;
    for (uint32_t i = 0; rc == 0 && waited == 0 && i < p->chunk.n; i++)
        memcpy(logits[i], logits_of(m) + (uint64_t)i * vocab, vocab * sizeof(float));
    return rc < 0 ? rc : waited;
}

static int decode_one_resident(struct moeflux_session *s, const struct moeflux_outputs *outputs,
                               struct moeflux_err *e)
{
    const struct pass p = pass_at(s, 1, s->pos, s->parity, outputs),
                      next = pass_at(s, 1, s->pos + 1, s->parity ^ 1, outputs);
    return decode_resident(&s, &p, &next, &outputs->logits, e);
}

static int decode_some_resident(struct moeflux_session *const *list, const struct pass *p,
                                float *const *logits, struct moeflux_err *e)
{
    struct arch_sequence each[MOEFLUX_MOST_TOGETHER];
    const struct pass next = pass_together(list, p->chunk.n, 1, p->outputs, each);
    return decode_resident(list, p, &next, logits, e);
}

/* Whether the progress callback lets the evaluation go on. A single token is not shown as progress. */
static bool go_on(void *ctx)
{
    struct moeflux_model *m = ctx;
    uint32_t n_layers = m->dir.config.n_layers, total = m->progress_at.total;
    uint64_t part = (uint64_t)m->progress_at.here * m->progress_at.layer / n_layers;
    bool yes = progress_report(&m->progress, m->progress_at.what, "tok",
                               total > 1 ? m->progress_at.before + part : 0, total > 1 ? total : 0);
    m->is_stopped |= !yes;
    return yes;
}

static int run_chunk(const struct pass *p, bool last, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    if (m->predicted_session != p->s || m->predicted_pos != p->chunk.of.pos)
        predictor_forget(&m->predictor);
    m->predicted_session = p->s;
    m->predicted_pos = p->chunk.of.pos + p->chunk.n;
    exec_begin(m->exec);
    arch_embed(m->arch, &p->chunk);
    copy_hidden(p, 0);
    int rc = run_layers(p, e);
    if (rc == 0 && p->outputs->each_logits)
        rc = all_logits(p, e);
    else if (rc == 0 && last && p->outputs->logits)
        rc = last_logits(p, e);
    else if (rc == 0)
        rc = exec_finish(m->exec, e);
    if (rc < 0)
        exec_abandon(m->exec);
    release_all(m);
    return rc;
}

/* What is used in mapped files: the dense weights, the experts of both sides. */
int forward_check_files(const struct moeflux_model *m, struct moeflux_err *e)
{
    int rc = loader_check(&m->loader, e);
    for (int i = 0; rc == 0 && i < EXPERT_SIDES; i++)
        rc = m->sides[i].store ? expert_store_check(m->sides[i].store, e) : 0;
    return rc;
}

static void watch(struct moeflux_model *m, const struct exec_watch *w)
{
    exec_watch(m->exec, w);
    if (m->n_cpu_layers)
        exec_watch(m->sides[SIDE_HOST].exec, w);
}

static int run_together(const struct pass *p, float *const *logits, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    uint32_t vocab = m->dir.config.vocab_size;
    const float *rows;
    m->predicted_session = NULL;
    predictor_forget(&m->predictor);
    exec_begin(m->exec);
    arch_embed(m->arch, &p->chunk);
    int rc = run_layers(p, e);
    if (rc == 0)
        rc = run_head(p, 0, p->chunk.n, &rows, e);
    for (uint32_t i = 0; rc == 0 && i < p->chunk.n; i++)
        memcpy(logits[i], rows + (uint64_t)i * vocab, vocab * sizeof(float));
    if (rc < 0)
        exec_abandon(m->exec);
    release_all(m);
    return rc;
}

static void fill_inputs_together(struct moeflux_session *const *list, const int32_t *ids, uint32_t n)
{
    const struct moeflux_model *m = list[0]->model;
    memcpy(m->ids.host, ids, n * sizeof *ids);
    for (uint32_t i = 0; i < n; i++)
        forward_fill_rope(m, (float *)(void *)m->rope.host + (size_t)i * m->dir.config.rotary_dim, 1,
                          list[i]->pos);
}

int forward_together(struct moeflux_session *const *list, const int32_t *ids, uint32_t n,
                     float *const *logits, struct moeflux_err *e)
{
    struct moeflux_model *m = list[0]->model;
    const struct moeflux_outputs none = {0};
    struct arch_sequence each[MOEFLUX_MOST_TOGETHER];
    struct pass p = pass_together(list, n, 0, &none, each);
    p.is_watched = m->step_ns > QUICK_NS;
    int rc = forward_check_files(m, e);
    if (rc < 0)
        return rc;
    uint64_t start = clock_ns();
    fill_inputs_together(list, ids, n);
    m->progress_at.layer = 0;
    m->progress_at.total = 1;
    if (p.is_watched)
        watch(m, &(struct exec_watch){go_on, m});
    rc = m->resident && !p.is_watched ? decode_some_resident(list, &p, logits, e)
                                      : run_together(&p, logits, e);
    watch(m, NULL);
    m->step_ns = clock_ns() - start;
    m->is_stopped &= rc == ERR_INTERRUPTED;
    return rc;
}

int forward_chunk(struct moeflux_session *s, const int32_t *ids, uint32_t n, uint32_t keep, bool last,
                  const struct moeflux_outputs *outputs, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    struct pass p = pass_at(s, n, s->pos, s->parity, outputs);
    p.is_watched = n > 1 || m->step_ns > QUICK_NS;
    /* What may be stopped leaves the recurrent state of s->pos as it is. The KV cache needs no copy: the next chunk writes the
     * same positions again. */
    if (p.is_watched)
        p.chunk.of.recurrent_out = s->recurrent_next.address;
    p.chunk.keep = keep;
    p.chunk.kept = m->kept.address;
    bool plain = m->resident && !p.is_watched && outputs->logits && !outputs->each_logits && !outputs->hidden;
    int rc = outputs->hidden ? make_hidden_buffer(m, e) : 0;
    if (rc == 0)
        rc = forward_check_files(m, e);
    if (rc < 0)
        return rc;
    uint64_t start = clock_ns();
    s->is_stopped = p.is_watched;
    fill_inputs(m, ids, n, s->pos);
    if (p.is_watched)
        watch(m, &(struct exec_watch){go_on, m});
    rc = plain ? decode_one_resident(s, outputs, e) : run_chunk(&p, last, e);
    watch(m, NULL);
    m->step_ns = clock_ns() - start;
    m->is_stopped &= rc == ERR_INTERRUPTED;
    s->is_stopped &= rc < 0;
    if (rc == 0 && p.is_watched)
        sequence_swap_states(s);
    if (rc == 0)
        rc = hand_out_hidden(&p, e);
    if (rc < 0)
        return rc;
    s->pos += n;
    s->parity ^= keep ? 0 : 1;
    return 0;
}
