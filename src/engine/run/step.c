#include "engine/run/step.h"

#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "model/rope.h"
#include "engine/run/forward.h"
#include "engine/sequence.h"

/* ---- memory ---- */

static const struct stage *last_stage(const struct moeflux_model *m)
{
    return &m->stages[m->n_stages - 1];
}

/* Returns the scratch memory of one sequence of several. */
static uint64_t each_scratch(const struct moeflux_model *m)
{
    return size_round_up(sample_scratch(m->dir.config.vocab_size), 16);
}

static uint64_t blocked_bytes(const struct moeflux_model *m)
{
    return size_round_up(m->dir.config.vocab_size, 64) / 8;
}

static int make_buffers(struct moeflux_model *m, struct moeflux_err *e)
{
    struct step_room *r = &m->step;
    uint64_t vocab = m->dir.config.vocab_size;
    const struct {
        struct exec_buffer *b;
        enum exec_memory kind;
        uint64_t bytes;
    } buffers[] = {
        {&r->recent, EXEC_INPUT, 2 * sizeof r->now.recent},
        {&r->blocked, EXEC_INPUT, blocked_bytes(m)},
        {&r->chosen, EXEC_DEVICE, 2 * sizeof(int32_t)},
        {&r->results, EXEC_HOST, 4 * sizeof(uint32_t)},
        {&r->scratch, EXEC_DEVICE, sample_scratch((uint32_t)vocab)},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof buffers / sizeof *buffers; i++)
        rc = exec_buffer_new(last_stage(m)->exec, buffers[i].b, buffers[i].kind, buffers[i].bytes, e);
    return model_fault(m, last_stage(m), rc, e);
}

static int make_each(struct moeflux_model *m, struct moeflux_err *e)
{
    struct step_room *r = &m->step;
    uint64_t n = m->max_batched, n_scratch = size_min(n, SAMPLE_CONCURRENT);
    const struct {
        struct exec_buffer *b;
        enum exec_memory kind;
        uint64_t bytes;
    } buffers[] = {
        {&r->each.recent, EXEC_INPUT, n * sizeof r->now.recent},
        {&r->each.blocked, EXEC_INPUT, n * blocked_bytes(m)},
        {&r->each.chosen, EXEC_DEVICE, n * sizeof(int32_t)},
        {&r->each.results, EXEC_HOST, n * 2 * sizeof(uint32_t)},
        {&r->each.scratch, EXEC_DEVICE, n_scratch * each_scratch(m)},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof buffers / sizeof *buffers; i++)
        rc = exec_buffer_new(last_stage(m)->exec, buffers[i].b, buffers[i].kind, buffers[i].bytes, e);
    r->each.blocked_copy = mem_new(n, blocked_bytes(m), e);
    if (rc == 0 && !r->each.blocked_copy)
        return ERR_MEMORY;
    if (rc == 0)
        memset(r->each.blocked.host, 0, r->each.blocked.bytes);
    return model_fault(m, last_stage(m), rc, e);
}

int step_open(struct moeflux_model *m, struct moeflux_err *e)
{
    struct step_room *r = &m->step;
    uint32_t vocab = m->dir.config.vocab_size;
    /* The sampler reads a host backend's logits directly. */
    if (last_stage(m)->computes_at_once)
        return 0;
    r->blocked_copy = mem_new(div_up(vocab, 64), sizeof *r->blocked_copy, e);
    int rc = r->blocked_copy ? sample_open(&r->sample, last_stage(m)->exec, vocab, e) : ERR_MEMORY;
    if (rc == 0)
        rc = make_buffers(m, e);
    if (rc == 0)
        memset(r->blocked.host, 0, r->blocked.bytes);
    return rc < 0 ? rc : make_each(m, e);
}

void step_close(struct moeflux_model *m)
{
    struct step_room *r = &m->step;
    struct exec_buffer *buffers[] = {&r->recent,       &r->blocked,     &r->chosen,       &r->results,
                                     &r->scratch,      &r->each.recent, &r->each.blocked, &r->each.chosen,
                                     &r->each.results, &r->each.scratch};
    for (size_t i = 0; m->n_stages > 0 && i < sizeof buffers / sizeof *buffers; i++)
        exec_buffer_free(last_stage(m)->exec, buffers[i]);
    free(r->blocked_copy);
    free(r->each.blocked_copy);
}

bool step_takes(const struct moeflux_model *m, const struct sampler *sampler)
{
    const struct sampler_rule rule = sampler_next_rule(sampler, 0);
    return !last_stage(m)->computes_at_once && sample_takes(&m->step.sample, &rule);
}

/* ---- the rules ---- */

static void make_rule(struct step_rule *c, const struct sampler *sampler, uint32_t ahead, const int32_t *next)
{
    c->rule = sampler_next_rule(sampler, ahead);
    c->n_recent = c->rule.repeat_last ? sampler_recent(sampler, next, c->recent) : 0;
}

static bool is_same(const struct step_rule *a, const struct step_rule *b)
{
    const struct sampler_rule *p = &a->rule, *q = &b->rule;
    return p->repeat_last == q->repeat_last && p->penalty == q->penalty && p->scale == q->scale &&
           p->top_k == q->top_k && p->top_p == q->top_p && p->min_p == q->min_p && p->random == q->random &&
           a->n_recent == b->n_recent && memcmp(a->recent, b->recent, a->n_recent * sizeof *a->recent) == 0;
}

void step_begin(struct moeflux_model *m, const struct device_choice *c)
{
    make_rule(&m->step.now, c->sampler, 0, NULL);
}

bool step_is_next(const struct moeflux_model *m, const struct device_choice *c)
{
    const struct step_room *r = &m->step;
    return is_same(&r->next, &r->now) &&
           memcmp(r->blocked_copy, sampler_blocked(c->sampler), r->blocked.bytes) == 0;
}

/* ---- the device ---- */

/* Records the sampling after the token whose id is at `last`. */
static void record(const struct moeflux_model *m, const struct step_rule *c, uint64_t last, uint32_t half)
{
    const struct step_room *r = &m->step;
    uint64_t recent = half * (r->recent.bytes / 2);
    memcpy(r->recent.host + recent, c->recent, c->n_recent * sizeof *c->recent);
    sample_run(&r->sample, last_stage(m)->exec,
               &(struct sample_call){.rule = &c->rule,
                                     .logits = last_stage(m)->view.logits.address,
                                     .blocked = r->blocked.address,
                                     .recent = r->recent.address + recent,
                                     .last = last,
                                     .scratch = r->scratch.address,
                                     .id = step_id(m, half),
                                     .result = r->results.address + (uint64_t)half * 2 * sizeof(uint32_t),
                                     .n_recent = c->n_recent});
}

void step_record(struct moeflux_model *m, const struct device_choice *c, uint32_t half)
{
    struct step_room *r = &m->step;
    struct stage *at = &m->stages[m->n_stages - 1];
    memcpy(r->blocked_copy, sampler_blocked(c->sampler), r->blocked.bytes);
    memcpy(r->blocked.host, r->blocked_copy, r->blocked.bytes);
    memcpy(at->ids.host, &c->id, sizeof c->id);
    record(m, &r->now, at->ids.address, half);
}

void step_record_next(struct moeflux_model *m, const struct device_choice *c, uint32_t half)
{
    make_rule(&m->step.next, c->sampler, 1, &c->id);
    record(m, &m->step.next, step_id(m, 1 - half), half);
}

uint64_t step_id(const struct moeflux_model *m, uint32_t half)
{
    return m->step.chosen.address + half * sizeof(int32_t);
}

void step_end(const struct moeflux_model *m, struct device_choice *c, uint32_t half)
{
    memcpy(c->result, m->step.results.host + half * sizeof c->result, sizeof c->result);
    c->is_made = true;
}

/* ---- several sequences ---- */

/* Writes what the sampling of sequence i reads, and returns the call. */
static struct sample_call call_of(const struct moeflux_model *m, const struct device_choice *c, uint32_t i,
                                  struct sampler_rule *rule)
{
    const struct step_room *r = &m->step;
    uint64_t bytes = blocked_bytes(m), row = (uint64_t)m->dir.config.vocab_size * sizeof(float);
    uint8_t *copy = r->each.blocked_copy + i * bytes;
    int32_t *recent = (int32_t *)(void *)r->each.recent.host + (uint64_t)i * SAMPLE_MAX_RECENT;
    if (memcmp(copy, sampler_blocked(c->sampler), bytes) != 0) {
        memcpy(copy, sampler_blocked(c->sampler), bytes);
        memcpy(r->each.blocked.host + i * bytes, copy, bytes);
    }
    *rule = sampler_next_rule(c->sampler, c->ahead);
    return (struct sample_call){.rule = rule,
                                .logits = last_stage(m)->view.logits.address + i * row,
                                .blocked = r->each.blocked.address + i * bytes,
                                .recent = r->each.recent.address + i * sizeof r->now.recent,
                                .last = last_stage(m)->ids.address + i * sizeof(int32_t),
                                .scratch = r->each.scratch.address + i % SAMPLE_CONCURRENT * each_scratch(m),
                                .id = r->each.chosen.address + i * sizeof(int32_t),
                                .result = r->each.results.address + (uint64_t)i * 2 * sizeof(uint32_t),
                                .n_recent = rule->repeat_last ? sampler_recent(c->sampler, NULL, recent) : 0};
}

void step_record_each(struct moeflux_model *m, const struct device_choice *c, uint32_t n)
{
    for (uint32_t first = 0; first < n; first += SAMPLE_CONCURRENT) {
        struct sampler_rule rules[SAMPLE_CONCURRENT];
        struct sample_call calls[SAMPLE_CONCURRENT];
        uint32_t end = first + (uint32_t)size_min(n - first, SAMPLE_CONCURRENT), n_calls = 0;
        for (uint32_t i = first; i < end; i++)
            if (c[i].sampler) {
                calls[n_calls] = call_of(m, &c[i], i, &rules[n_calls]);
                n_calls++;
            }
        if (n_calls > 0)
            sample_run_concurrent(&m->step.sample, last_stage(m)->exec, calls, n_calls);
    }
}

void step_end_each(const struct moeflux_model *m, struct device_choice *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!c[i].sampler)
            continue;
        memcpy(c[i].result, m->step.each.results.host + i * sizeof c->result, sizeof c->result);
        c[i].is_made = true;
    }
}

/* ---- the step ---- */

int step_refuse(const struct moeflux_session *s, const struct moeflux_err *why, struct moeflux_err *e)
{
    return err_set(e, why->code, "position %u: %.400s", s->pos - 1, why->text);
}

int step_take(const struct moeflux_session *s, struct sampler *sampler, const uint32_t result[2],
              int32_t *next, struct moeflux_err *e)
{
    struct moeflux_err why;
    if (result[1] != SAMPLE_OK) {
        if (!sampler_check_mask(sampler, &why))
            sampler_refuse(result[1], result[0], s->model->step.sample.n, &why);
        return step_refuse(s, &why, e);
    }
    sampler_skip(sampler);
    *next = (int32_t)result[0];
    return 0;
}

/* Whether the next token may be begun before the host knows it, and there is room for it. */
static bool may_go_on(struct moeflux_session *s)
{
    return s->model->resident && s->model->n_stages == 1 && s->pos + 1 < s->max_context &&
           sequence_reserve(s, s->pos + 2, NULL) == 0;
}

int step_run(struct moeflux_session *s, int32_t id, struct sampler *sampler, bool more, int32_t *next,
             struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    struct moeflux_err why;
    uint32_t vocab = m->dir.config.vocab_size, n_ids = sampler_next_rule(sampler, 0).n_ids;
    if (n_ids != vocab)
        return err_set(e, ERR_USAGE, "a sampler of %u ids, the model has %u", n_ids, vocab);
    if (!s->logits && !(s->logits = mem_new(vocab, sizeof *s->logits, e)))
        return ERR_MEMORY;
    struct device_choice c = {.sampler = sampler, .id = id};
    bool on_device = m->step_ns <= QUICK_NS && step_takes(m, sampler);
    c.more = on_device && more && may_go_on(s);
    s->choice = on_device ? &c : NULL;
    int rc = moeflux_session_eval(s, &id, 1, &(struct moeflux_outputs){.logits = s->logits}, e);
    s->choice = NULL;
    if (rc < 0)
        return rc;
    sampler_accept(sampler, id);
    if (c.is_made)
        return step_take(s, sampler, c.result, next, e);
    *next = sampler_pick(sampler, s->logits, &why);
    return *next < 0 ? step_refuse(s, &why, e) : 0;
}
