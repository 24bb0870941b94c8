/* Decoding token by token. The device that computes the logits also samples the next token, so the logits
 * need not cross to the host.
 *
 * If all experts are resident on one device, the next token's evaluation begins before the host knows the
 * token: the sampled id stays on the device, where the embedding of the next token reads it. So the next
 * token is submitted while this one is computed, and the host follows one token later. If the host wants no
 * more tokens, or another one, the token in flight is wasted. Its row of the KV cache is overwritten. Its
 * recurrent state is in recurrent_next, which becomes the current one only when the token is accepted.
 *
 * If there are several devices, the last one samples, provided that a token passes it without the host. The
 * id has to go through the host to the first device's embedding, as hidden states go from device to device.
 * So the next token begins when the host has read the id, with the commands recorded ahead (ahead.h). */
#include "engine/run/step.h"

#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/run/forward.h"
#include "engine/run/work.h"
#include "engine/sequence.h"
#include "engine/state/rewind.h"

/* ---- memory ---- */

static const struct stage *last_stage(const struct moeflux_model *m)
{
    return &m->stages[m->n_stages - 1];
}

static int make_buffers(struct moeflux_model *m, struct moeflux_err *e)
{
    struct step_room *r = &m->step;
    uint64_t vocab = m->dir.config.vocab_size, rope = m->dir.config.rotary_dim * sizeof(float);
    const struct {
        struct exec_buffer *b;
        enum exec_memory kind;
        uint64_t bytes;
    } buffers[] = {
        {&r->ids, EXEC_INPUT, 2 * sizeof(int32_t)},
        {&r->rope, EXEC_INPUT, 2 * size_max(rope, 4)},
        {&r->recent, EXEC_INPUT, 2 * sizeof r->asked.recent},
        {&r->blocked, EXEC_INPUT, size_round_up(vocab, 64) / 8},
        {&r->chosen, EXEC_DEVICE, 2 * sizeof(int32_t)},
        {&r->results, EXEC_HOST, 4 * sizeof(uint32_t)},
        {&r->scratch, EXEC_DEVICE, sample_scratch((uint32_t)vocab)},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof buffers / sizeof *buffers; i++)
        rc = exec_buffer_new(last_stage(m)->exec, buffers[i].b, buffers[i].kind, buffers[i].bytes, e);
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
    return rc;
}

void step_close(struct moeflux_model *m)
{
    struct step_room *r = &m->step;
    struct exec_buffer *buffers[] = {&r->ids,    &r->rope,    &r->recent, &r->blocked,
                                     &r->chosen, &r->results, &r->scratch};
    for (size_t i = 0; m->n_stages > 0 && i < sizeof buffers / sizeof *buffers; i++)
        exec_buffer_free(last_stage(m)->exec, buffers[i]);
    free(r->blocked_copy);
}

/* ---- the token in flight ---- */

int step_wait_idle(struct moeflux_model *m, struct moeflux_err *e)
{
    bool is_in_flight = m->step.session != NULL;
    m->step.session = NULL;
    return is_in_flight ? exec_wait(m->stages[0].exec, m->step.ticket, e) : 0;
}

static void make_choice(struct choice *c, const struct sampler *sampler, uint32_t ahead, const int32_t *next)
{
    c->rule = sampler_next_rule(sampler, ahead);
    c->n_recent = c->rule.repeat_last ? sampler_recent(sampler, next, c->recent) : 0;
}

static bool is_same(const struct choice *a, const struct choice *b)
{
    const struct sampler_rule *p = &a->rule, *q = &b->rule;
    return p->repeat_last == q->repeat_last && p->penalty == q->penalty && p->scale == q->scale &&
           p->top_k == q->top_k && p->top_p == q->top_p && p->min_p == q->min_p && p->random == q->random &&
           a->n_recent == b->n_recent && memcmp(a->recent, b->recent, a->n_recent * sizeof *a->recent) == 0;
}

/* Whether the token in flight is this one, followed by the sampling that the sampler would do now. */
static bool has_begun(const struct moeflux_session *s, int32_t id, const struct sampler *sampler)
{
    const struct moeflux_model *m = s->model;
    const struct step_room *r = &m->step;
    return r->session == s && r->pos == s->pos && r->id == id && is_same(&r->asked, &r->wanted) &&
           memcmp(r->blocked_copy, sampler_blocked(sampler), r->blocked.bytes) == 0;
}

/* Whether the last device can sample, provided that the token passes it without the host. */
static bool device_chooses(const struct moeflux_model *m, const struct sampler *sampler)
{
    const struct sampler_rule rule = sampler_next_rule(sampler, 0);
    return !last_stage(m)->computes_at_once && m->step_ns <= QUICK_NS && sample_takes(&m->step.sample, &rule);
}

/* ---- choices ---- */

/* Writes a token's id for the device and returns its address. No token of this half may be in flight. */
static uint64_t give_id(struct step_room *r, int32_t id, uint64_t half, const struct sampler *sampler)
{
    memcpy(r->ids.host + half * sizeof id, &id, sizeof id);
    memcpy(r->blocked_copy, sampler_blocked(sampler), r->blocked.bytes);
    memcpy(r->blocked.host, r->blocked_copy, r->blocked.bytes);
    return r->ids.address + half * sizeof id;
}

/* Records the sampling after the token whose id is at `last`. */
static void record_choice(const struct moeflux_model *m, const struct choice *c, uint64_t last, uint64_t half)
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
                                     .id = r->chosen.address + half * sizeof(int32_t),
                                     .result = r->results.address + half * 2 * sizeof(uint32_t),
                                     .n_recent = c->n_recent});
}

static void read_result(const struct step_room *r, uint64_t half, uint32_t result[2])
{
    memcpy(result, r->results.host + half * (2 * sizeof *result), 2 * sizeof *result);
}

int step_submit_choice(struct moeflux_model *m, const struct device_choice *c, uint64_t *ticket,
                       struct moeflux_err *e)
{
    struct step_room *r = &m->step;
    uint64_t last = give_id(r, c->id, 0, c->sampler);
    make_choice(&r->wanted, c->sampler, 0, NULL);
    exec_begin(last_stage(m)->exec);
    record_choice(m, &r->wanted, last, 0);
    return exec_submit(last_stage(m)->exec, ticket, e);
}

void step_end_choice(const struct moeflux_model *m, struct device_choice *c)
{
    read_result(&m->step, 0, c->result);
    c->is_made = true;
}

/* ---- one token in flight ---- */

/* Submits the token at `pos`, whose id is at `id`, and the sampling of the next one. It reads the recurrent
 * state in `from` and writes its own to `to`. */
static int submit(struct moeflux_session *s, uint32_t pos, uint64_t id, const struct choice *c,
                  const struct exec_buffer *from, const struct exec_buffer *to, uint64_t *ticket,
                  struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    struct step_room *r = &m->step;
    uint64_t at = pos % 2, rope = at * (r->rope.bytes / 2);
    rope_cache_fill(m, (float *)(void *)(r->rope.host + rope), 1, pos);
    const struct arch_chunk chunk = {.n = 1,
                                     .ids = id,
                                     .rope = r->rope.address + rope,
                                     .of = {.pos = pos,
                                            .parity = s->parity ^ ((pos - s->pos) & 1),
                                            .kv_blocks = s->on[0].table.address,
                                            .recurrent = from->address,
                                            .recurrent_out = to->address}};
    int rc = work_record_token(s, &chunk, e);
    record_choice(m, c, id, at);
    if (rc == 0)
        return exec_submit(m->stages[0].exec, ticket, e);
    exec_abandon(m->stages[0].exec);
    return rc;
}

/* Begins the current token. */
static int begin(struct moeflux_session *s, int32_t id, const struct sampler *sampler, uint64_t *ticket,
                 struct moeflux_err *e)
{
    struct step_room *r = &s->model->step;
    uint64_t at = give_id(r, id, s->pos % 2, sampler);
    return submit(s, s->pos, at, &r->wanted, &s->on[0].recurrent, &s->on[0].recurrent_next, ticket, e);
}

/* Begins the token after the current one, whose id the device samples; there is room for it. If that fails,
 * it is begun when it is the current one. */
static void begin_next(struct moeflux_session *s, int32_t id, const struct sampler *sampler)
{
    struct step_room *r = &s->model->step;
    uint32_t pos = s->pos + 1;
    make_choice(&r->asked, sampler, 1, &id);
    if (submit(s, pos, r->chosen.address + s->pos % 2 * sizeof id, &r->asked, &s->on[0].recurrent_next,
               &s->on[0].recurrent, &r->ticket, NULL) < 0)
        return;
    r->session = s;
    r->pos = pos;
}

static int step_on_device(struct moeflux_session *s, int32_t id, struct sampler *sampler, bool more,
                          uint32_t result[2], struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    struct step_room *r = &m->step;
    uint64_t ticket = r->ticket;
    bool begun = has_begun(s, id, sampler);
    int rc = begun ? 0 : stage_wait_idle(m, m->stages, e);
    if (rc == 0 && !begun)
        rc = begin(s, id, sampler, &ticket, e);
    if (rc < 0)
        return rc;
    r->session = NULL;
    if (more)
        begin_next(s, id, sampler);
    rc = exec_wait(m->stages[0].exec, ticket, e);
    if (rc < 0) {
        step_wait_idle(m, NULL);
        return rc;
    }
    read_result(r, s->pos % 2, result);
    r->id = (int32_t)result[0];
    sequence_accept(s, id);
    sampler_accept(sampler, id);
    return 0;
}

/* Takes the only stage's turn, runs the step and gives the turn back. */
static int take_step(struct moeflux_session *s, int32_t id, struct sampler *sampler, bool more,
                     uint32_t result[2], struct moeflux_err *e)
{
    bool goes_on = more && s->pos + 1 < s->max_context && sequence_reserve(s, s->pos + 2, NULL) == 0;
    int rc = sequence_make_ready(s, e);
    if (rc < 0)
        return rc;
    stage_take(s->model->stages);
    /* A wasted token would delay threads that wait for the stage. */
    goes_on = goes_on && !turns_are_wanted(&s->model->stages[0].turn);
    make_choice(&s->model->step.wanted, sampler, 0, NULL);
    rc = step_on_device(s, id, sampler, goes_on, result, e);
    stage_give(s->model->stages);
    if (rc < 0)
        rewind_after_failure(s);
    return rc;
}

/* ---- the step ---- */

static int refuse(const struct moeflux_session *s, const struct moeflux_err *why, struct moeflux_err *e)
{
    return err_set(e, why->code, "position %u: %.400s", s->pos - 1, why->text);
}

/* Takes the id that a device has sampled. */
static int take_choice(const struct moeflux_session *s, struct sampler *sampler, const uint32_t result[2],
                       int32_t *next, struct moeflux_err *e)
{
    struct moeflux_err why;
    if (result[1] != SAMPLE_OK) {
        sampler_refuse(result[1], result[0], s->model->step.sample.n, &why);
        return refuse(s, &why, e);
    }
    sampler_skip(sampler);
    *next = (int32_t)result[0];
    return 0;
}

/* Evaluates the token and waits; the host samples if no device can. */
static int step_and_wait(struct moeflux_session *s, int32_t id, struct sampler *sampler, int32_t *next,
                         struct moeflux_err *e)
{
    struct moeflux_err why;
    struct device_choice c = {.sampler = sampler, .id = id};
    if (!s->logits && !(s->logits = mem_new(s->model->dir.config.vocab_size, sizeof *s->logits, e)))
        return ERR_MEMORY;
    s->choice = device_chooses(s->model, sampler) ? &c : NULL;
    int rc = moeflux_session_eval(s, &id, 1, &(struct moeflux_outputs){.logits = s->logits}, e);
    s->choice = NULL;
    if (rc < 0)
        return rc;
    sampler_accept(sampler, id);
    if (c.is_made)
        return take_choice(s, sampler, c.result, next, e);
    *next = sampler_pick(sampler, s->logits, &why);
    return *next < 0 ? refuse(s, &why, e) : 0;
}

int step_run(struct moeflux_session *s, int32_t id, struct sampler *sampler, bool more, int32_t *next,
             struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    uint32_t result[2] = {0}, vocab = m->dir.config.vocab_size, n_ids = sampler_next_rule(sampler, 0).n_ids;
    if (n_ids != vocab)
        return err_set(e, ERR_USAGE, "a sampler of %u ids, the model has %u", n_ids, vocab);
    if (!m->resident || m->n_stages > 1 || !device_chooses(m, sampler))
        return step_and_wait(s, id, sampler, next, e);
    uint64_t start = clock_ns();
    int rc = sequence_check(s, &id, 1, e);
    if (rc == 0)
        rc = forward_check_files(m, e);
    if (rc == 0)
        rc = sequence_reserve(s, s->pos + 1, e);
    if (rc < 0)
        return rc;
    model_stats_begin(m, WORK_DECODE);
    rc = take_step(s, id, sampler, more, result, e);
    model_stats_end(m, WORK_DECODE, rc == 0);
    if (rc < 0)
        return rc;
    m->step_ns = clock_ns() - start;
    return take_choice(s, sampler, result, next, e);
}
