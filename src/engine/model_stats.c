/* The statistics of an opened model. */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/model.h"

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

/* Adds the slots that experts stay in. */
static void add_slots(struct moeflux_stats *to, const struct expert_store *store)
{
    struct expert_store_stats s = expert_store_get_stats(store);
    to->n_slots += s.n_slots;
    to->n_host_slots += s.n_host_slots;
    to->n_pinned += s.n_pinned;
}

static void add_ops(struct moeflux_stats *to, const struct exec_time *t)
{
    uint32_t i = 0;
    while (i < to->n_ops && strcmp(to->ops[i].name, t->name) != 0)
        i++;
    if (i == MOEFLUX_MAX_OPS || t->n == 0)
        return;
    if (i == to->n_ops)
        to->ops[to->n_ops++] = (struct moeflux_op_time){.name = t->name};
    to->ops[i].n += t->n;
    to->ops[i].ns += t->ns;
    to->gpu_ns += t->ns;
}

static void add_exec(struct moeflux_stats *to, const struct exec *exec)
{
    struct exec_stats x;
    exec_get_stats(exec, &x);
    to->n_submits += x.n_submits;
    to->n_dispatches += x.n_dispatches;
    to->wait_gpu_ns += x.wait_ns;
    to->n_compiled += x.n_compiled;
    to->compile_ns += x.compile_ns;
    for (uint32_t i = 0; i < x.n_times; i++)
        add_ops(to, &x.times[i]);
}

static struct moeflux_device_stats describe(const struct stage *at)
{
    const struct exec_caps caps = exec_get_caps(at->exec);
    struct moeflux_device_stats d = {.device = caps.name,
                                     .first_layer = at->layers.first,
                                     .end_layer = at->layers.end,
                                     .weights_bytes = at->loader.device_bytes,
                                     .state_bytes = at->state_bytes,
                                     .busy_ns = at->busy_ns};
    for (int i = 0; i < EXPERT_SIDES; i++) {
        const struct expert_store *store = at->sides[i].store;
        if (!store)
            continue;
        const struct expert_store_stats s = expert_store_get_stats(store);
        d.n_hits += s.n_hits;
        d.n_host_hits += s.n_host_hits;
        d.n_misses += s.n_misses;
        d.wait_read_ns += s.wait_ns;
        d.n_slots += i == SIDE_PROMPT ? 0 : s.n_slots;
        d.n_host_slots += i == SIDE_PROMPT ? 0 : s.n_host_slots;
    }
    return d;
}

static void add_stage(struct moeflux_stats *to, const struct stage *at)
{
    add_exec(to, at->exec);
    to->n_choices += at->n_choices;
    to->n_chosen += at->n_chosen;
    to->n_predicted += at->predictor.n_predicted;
    to->n_predicted_right += at->predictor.n_right;
    to->n_predictable += at->predictor.n_predictable;
    to->n_cpu_experts += at->host.n_computed;
    to->cpu_experts_ns += at->host.ns;
    to->n_rows += at->ngrams.n_read;
    to->wait_rows_ns += at->ngrams.wait_ns;
    to->wait_read_ns += at->ngrams.wait_ns;
    if (at->sides[SIDE_HOST].store)
        to->n_cpu_slots += expert_store_get_stats(at->sides[SIDE_HOST].store).n_slots;
    to->weights_bytes += at->loader.device_bytes;
    to->weights_mapped_bytes += at->loader.mapped_bytes;
    to->state_bytes += at->state_bytes;
    to->device_used_bytes += at->is_again ? 0 : exec_get_caps(at->exec).used_bytes;
    for (int i = 0; i < EXPERT_SIDES; i++)
        if (at->sides[i].store) {
            add_store_stats(to, at->sides[i].store);
            if (i != SIDE_PROMPT)
                add_slots(to, at->sides[i].store);
        }
}

/* ---- tokens and time ---- */

static void begin(struct work_count *c)
{
    if (c->n_in_flight++ > 0)
        return;
    c->since = clock_ns();
    c->n_since = c->n_tokens;
}

void model_stats_begin(struct moeflux_model *m, enum work_kind kind)
{
    pthread_mutex_lock(&m->lock);
    begin(&m->counts[kind]);
    begin(&m->counts[WORK_ANY]);
    pthread_mutex_unlock(&m->lock);
}

/* Adds the time since the last call, unless nothing was finished in it. */
static void add_time(struct work_count *c)
{
    uint64_t now = clock_ns();
    c->ns += c->n_tokens > c->n_since ? now - c->since : 0;
    c->since = now;
    c->n_since = c->n_tokens;
}

static void end(struct work_count *c, uint32_t n_tokens)
{
    c->n_tokens += n_tokens;
    if (--c->n_in_flight == 0)
        add_time(c);
}

void model_stats_end(struct moeflux_model *m, enum work_kind kind, uint32_t n_tokens)
{
    pthread_mutex_lock(&m->lock);
    end(&m->counts[kind], n_tokens);
    end(&m->counts[WORK_ANY], n_tokens);
    pthread_mutex_unlock(&m->lock);
}

static void copy_counts(struct moeflux_model *m, struct work_count to[WORK_KINDS])
{
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < WORK_KINDS; i++) {
        if (m->counts[i].n_in_flight)
            add_time(&m->counts[i]);
        to[i] = m->counts[i];
    }
    pthread_mutex_unlock(&m->lock);
}

static void reset_counts(struct moeflux_model *m)
{
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < WORK_KINDS; i++)
        m->counts[i] = (struct work_count){.since = clock_ns(), .n_in_flight = m->counts[i].n_in_flight};
    pthread_mutex_unlock(&m->lock);
}

static uint64_t drafter_bytes(const struct moeflux_model *m)
{
    struct moeflux_stats own;
    if (!m->drafter)
        return 0;
    moeflux_model_get_stats(m->drafter, &own);
    return own.weights_bytes + own.state_bytes + (own.n_slots + own.n_host_slots) * own.slot_bytes;
}

/* ---- the public functions ---- */

void moeflux_model_get_stats(const struct moeflux_model *m, struct moeflux_stats *out)
{
    struct work_count counts[WORK_KINDS];
    copy_counts((struct moeflux_model *)m, counts);
    *out = (struct moeflux_stats){.n_prefill_tokens = counts[WORK_PREFILL].n_tokens,
                                  .prefill_ns = counts[WORK_PREFILL].ns,
                                  .n_decode_tokens = counts[WORK_DECODE].n_tokens,
                                  .decode_ns = counts[WORK_DECODE].ns,
                                  .work_ns = counts[WORK_ANY].ns,
                                  .n_preferred = m->prefer.n_preferred,
                                  .drafter_bytes = drafter_bytes(m),
                                  .n_devices = m->n_stages};
    for (uint32_t i = 0; i < m->n_stages; i++) {
        struct stage *at = &((struct moeflux_model *)m)->stages[i];
        stage_take(at);
        add_stage(out, at);
        out->devices[i] = describe(at);
        stage_give(at);
    }
}

void moeflux_stats_add(struct moeflux_stats *to, const struct moeflux_stats *more)
{
    const struct {
        uint64_t *to, by;
    } sums[] = {
        {&to->n_prefill_tokens, more->n_prefill_tokens},
        {&to->n_decode_tokens, more->n_decode_tokens},
        {&to->n_submits, more->n_submits},
        {&to->n_dispatches, more->n_dispatches},
        {&to->read_bytes, more->read_bytes},
        {&to->n_reads, more->n_reads},
        {&to->wait_gpu_ns, more->wait_gpu_ns},
        {&to->n_compiled, more->n_compiled},
        {&to->compile_ns, more->compile_ns},
        {&to->n_hits, more->n_hits},
        {&to->n_misses, more->n_misses},
        {&to->n_choices, more->n_choices},
        {&to->n_chosen, more->n_chosen},
        {&to->n_slots, more->n_slots},
        {&to->weights_bytes, more->weights_bytes},
        {&to->weights_mapped_bytes, more->weights_mapped_bytes},
        {&to->state_bytes, more->state_bytes},
        {&to->device_used_bytes, more->device_used_bytes},
    };
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        *sums[i].to += sums[i].by;
    /* Copies compute at the same time. */
    to->prefill_ns = size_max(to->prefill_ns, more->prefill_ns);
    to->decode_ns = size_max(to->decode_ns, more->decode_ns);
    to->work_ns = size_max(to->work_ns, more->work_ns);
    for (uint32_t i = 0; i < more->n_devices && to->n_devices < MOEFLUX_MAX_DEVICES; i++)
        to->devices[to->n_devices++] = more->devices[i];
}

void moeflux_model_reset_stats(struct moeflux_model *m)
{
    reset_counts(m);
    m->prefer.n_preferred = 0;
    for (uint32_t k = 0; k < m->n_stages; k++) {
        struct stage *at = &m->stages[k];
        at->n_choices = at->n_chosen = at->busy_ns = at->host.n_computed = at->host.ns = 0;
        at->ngrams.n_read = at->ngrams.wait_ns = 0;
        at->predictor.n_predicted = at->predictor.n_right = at->predictor.n_predictable = 0;
        for (int i = 0; i < EXPERT_SIDES; i++)
            if (at->sides[i].store)
                expert_store_reset_stats(at->sides[i].store);
        exec_reset_stats(at->exec);
    }
}
