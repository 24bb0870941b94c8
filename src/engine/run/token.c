#include "engine/run/token.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/run/layers.h"

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
    struct token_room *r = &m->token;
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
    struct token_room *r = &m->token;
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

int token_open(struct moeflux_model *m, struct moeflux_err *e)
{
    struct token_room *r = &m->token;
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

void token_close(struct moeflux_model *m)
{
    struct token_room *r = &m->token;
    struct exec_buffer *buffers[] = {&r->recent,       &r->blocked,     &r->chosen,       &r->results,
                                     &r->scratch,      &r->each.recent, &r->each.blocked, &r->each.chosen,
                                     &r->each.results, &r->each.scratch};
    for (size_t i = 0; m->n_stages > 0 && i < sizeof buffers / sizeof *buffers; i++)
        exec_buffer_free(last_stage(m)->exec, buffers[i]);
    free(r->blocked_copy);
    free(r->each.blocked_copy);
}

bool token_takes(const struct moeflux_model *m, const struct sampler *sampler)
{
    const struct sampler_rule rule = sampler_next_rule(sampler, 0);
    return !last_stage(m)->computes_at_once && sample_takes(&m->token.sample, &rule);
}

/* ---- sampling of a token ---- */

static void make_rule(struct token_rule *c, const struct sampler *sampler, uint32_t ahead,
                      const int32_t *next)
{
    c->rule = sampler_next_rule(sampler, ahead);
    c->n_recent = c->rule.repeat_last ? sampler_recent(sampler, next, c->recent) : 0;
}

static bool is_same(const struct token_rule *a, const struct token_rule *b)
{
    const struct sampler_rule *p = &a->rule, *q = &b->rule;
    return p->repeat_last == q->repeat_last && p->penalty == q->penalty && p->scale == q->scale &&
           p->top_k == q->top_k && p->top_p == q->top_p && p->min_p == q->min_p && p->random == q->random &&
           a->n_recent == b->n_recent && memcmp(a->recent, b->recent, a->n_recent * sizeof *a->recent) == 0;
}

/* Whether the sampling that was recorded for the token in flight is the one that is to be done. */
static bool is_next(const struct moeflux_model *m, const struct device_choice *c)
{
    const struct token_room *r = &m->token;
    return is_same(&r->next, &r->now) &&
           memcmp(r->blocked_copy, sampler_blocked(c->sampler), r->blocked.bytes) == 0;
}

/* Returns the address of the id that is sampled in a half. */
static uint64_t id_of(const struct moeflux_model *m, uint32_t half)
{
    return m->token.chosen.address + half * sizeof(int32_t);
}

/* Records the sampling after the token whose id is at `last`. */
static void record(const struct moeflux_model *m, const struct token_rule *c, uint64_t last, uint32_t half)
{
    const struct token_room *r = &m->token;
    uint64_t recent = half * (r->recent.bytes / 2);
    memcpy(r->recent.host + recent, c->recent, c->n_recent * sizeof *c->recent);
    sample_run(&r->sample, last_stage(m)->exec,
               &(struct sample_call){.rule = &c->rule,
                                     .logits = last_stage(m)->view.logits.address,
                                     .blocked = r->blocked.address,
                                     .recent = r->recent.address + recent,
                                     .last = last,
                                     .scratch = r->scratch.address,
                                     .id = id_of(m, half),
                                     .result = r->results.address + (uint64_t)half * 2 * sizeof(uint32_t),
                                     .n_recent = c->n_recent});
}

/* Records the sampling from view.logits. No token may be in flight. */
static void record_choice(struct moeflux_model *m, const struct device_choice *c, uint32_t half)
{
    struct token_room *r = &m->token;
    struct stage *at = &m->stages[m->n_stages - 1];
    memcpy(r->blocked_copy, sampler_blocked(c->sampler), r->blocked.bytes);
    memcpy(r->blocked.host, r->blocked_copy, r->blocked.bytes);
    memcpy(at->ids.host, &c->id, sizeof c->id);
    record(m, &r->now, at->ids.address, half);
}

/* Records the sampling after the token that is sampled in half 1 - `half`. */
static void record_choice_after(struct moeflux_model *m, const struct device_choice *c, uint32_t half)
{
    make_rule(&m->token.next, c->sampler, 1, &c->id);
    record(m, &m->token.next, id_of(m, 1 - half), half);
}

/* Reads the result of a half, whose batch is finished, into c. */
static void end_choice(const struct moeflux_model *m, struct device_choice *c, uint32_t half)
{
    memcpy(c->result, m->token.results.host + half * sizeof c->result, sizeof c->result);
    c->is_made = true;
}

/* ---- sampling of several sequences ---- */

/* Writes what the sampling of sequence i reads, and returns the call. */
static struct sample_call call_of(const struct moeflux_model *m, const struct device_choice *c, uint32_t i,
                                  struct sampler_rule *rule)
{
    const struct token_room *r = &m->token;
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

/* Records the sampling of n sequences from view.logits, except of those without a sampler. */
static void record_each(struct moeflux_model *m, const struct device_choice *c, uint32_t n)
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
            sample_run_concurrent(&m->token.sample, last_stage(m)->exec, calls, n_calls);
    }
}

/* Reads their results into c. */
static void end_each(const struct moeflux_model *m, struct device_choice *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!c[i].sampler)
            continue;
        memcpy(c[i].result, m->token.each.results.host + i * sizeof c->result, sizeof c->result);
        c[i].is_made = true;
    }
}

/* Records the copies of the logits that the host samples from although the device samples others. */
static void copy_rows(const struct work *w, const struct pass *p)
{
    const struct stage *at = p->at;
    uint64_t row = (uint64_t)w->m->dir.config.vocab_size * sizeof(float);
    for (uint32_t i = 0; !at->view.logits.host && i < pass_n_rows(p); i++)
        if (!w->choice[i].sampler)
            exec_copy(at->exec, &at->logits, p->half * at->view.logits.bytes + i * row, &at->view.logits,
                      i * row, row);
}

/* ---- what is recorded ahead ---- */

/* Whether the next token is sampled on this stage, if the token passes it without the host. */
static bool chooses(const struct work *w, const struct stage *at)
{
    return w->choice && at == last_stage(w->m);
}

static bool is_same_group(const struct recorded *a, const struct work *w)
{
    bool is = a->n == w->n && a->is_batched == w->is_batched;
    for (uint32_t i = 0; is && i < a->n; i++)
        is = a->marks[i] == w->list[i]->mark;
    return is;
}

/* Returns whether the work is what was recorded ahead. */
static enum pass_ahead state_ahead(const struct work *w, const struct stage *at)
{
    const struct recorded *a = &at->ahead.next;
    bool is = !w->is_chain && !w->batch.n_prompts && is_same_group(a, w) && a->chooses == chooses(w, at);
    for (uint32_t i = 0; is && i < a->n; i++) {
        const struct arch_sequence have = a->each[i], want = pass_sequence(w, i, at);
        is = have.pos == want.pos && have.parity == want.parity && have.kv_blocks == want.kv_blocks &&
             have.ring_blocks == want.ring_blocks && have.recurrent == want.recurrent &&
             have.recurrent_out == want.recurrent_out;
    }
    if (is && a->is_in_flight)
        is = w->runs_on && a->id == w->ids[0] && is_next(w->m, w->choice);
    else
        is = is && exec_is_deferred(at->exec);
    return !is ? PASS_NOT_AHEAD : a->is_in_flight ? PASS_IN_FLIGHT : PASS_DEFERRED;
}

/* Whether each sequence has room for a token after the current one. */
static bool may_go_on(const struct work *w)
{
    bool may = true;
    for (uint32_t i = 0; i < w->n; i++)
        may = may && w->list[i]->pos + 1 < w->list[i]->max_context;
    return may;
}

/* Returns the index of the work's group, or of the least recently seen one. */
static uint32_t find(const struct ahead *a, const struct work *w)
{
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < AHEAD_GROUPS; i++) {
        if (is_same_group(&a->groups[i].next, w))
            return i;
        if (a->groups[i].last_use < a->groups[oldest].last_use)
            oldest = i;
    }
    return oldest;
}

/* Returns the work's next tokens. The states that they refer to may be gone when they are recorded; then the
 * recording is never used. */
static struct recorded next_of(const struct work *w, const struct stage *at)
{
    struct work after = *w;
    struct recorded r = {
        .n = may_go_on(w) ? w->n : 0, .is_batched = w->is_batched, .chooses = chooses(w, at)};
    after.ahead = after.flips = 1;
    for (uint32_t i = 0; i < r.n; i++) {
        r.each[i] = pass_sequence(&after, i, at);
        r.marks[i] = w->list[i]->mark;
    }
    return r;
}

/* Notes that the work has come to the stage, after which group, and what its next tokens are. Returns true,
 * with *next, if something should be recorded now: in a batch of its own, followed by note_ahead. The
 * batch is submitted if at->ahead.wanted.is_in_flight, else deferred. each: room for what *next refers to. */
static bool choose_ahead(const struct work *w, const struct pass *here,
                         struct arch_sequence each[MOEFLUX_MAX_PARALLEL], struct pass *next)
{
    struct stage *at = here->at;
    struct ahead *a = &at->ahead;
    uint32_t own = find(a, w);
    if (!is_same_group(&a->groups[own].next, w))
        a->groups[own].next_group = own;
    a->groups[own].next = next_of(w, at);
    a->groups[own].last_use = ++a->clock;
    a->groups[a->last].next_group = own;
    a->last = own;
    a->wanted = a->groups[w->runs_on ? own : a->groups[own].next_group].next;
    a->wanted.half = 1 - here->half;
    a->wanted.is_in_flight = w->runs_on;
    /* A wasted token would delay threads that wait for the stage. */
    if (w->runs_on && (!w->choice->more || turns_are_wanted(&at->turn)))
        return false;
    /* What a drafter is fed with differs from token to token. */
    if (a->wanted.n == 0 || at->computes_at_once || w->m->dir.config.drafts)
        return false;
    bool is_batched = a->wanted.is_batched;
    memcpy(each, a->wanted.each, a->wanted.n * sizeof *each);
    *next = *here;
    next->progress = NULL;
    next->ahead = PASS_NOT_AHEAD;
    next->awaits_rows = next->is_in_pieces = false;
    next->half = a->wanted.half;
    next->chooses = a->wanted.chooses;
    next->chunk.n = a->wanted.n;
    next->chunk.ids = at->ids.address;
    next->chunk.of = each[0];
    next->chunk.each = is_batched ? each : NULL;
    next->chunk.batch = (struct arch_batch){.n_single = a->wanted.n};
    next->chunk.plan_n = is_batched ? pass_plan_n(at, a->wanted.n) : 0;
    float *rope = rope_cache_of_tokens(&at->rope, next->half, &next->chunk.rope);
    if (a->wanted.is_in_flight) {
        rope_cache_fill(w->m, rope, 1, each[0].pos);
        next->chunk.ids = id_of(w->m, here->half);
    }
    return true;
}

/* Notes whether the recording succeeded; if not, nothing is recorded. */
static void note_ahead(struct stage *at, bool done)
{
    at->ahead.next = at->ahead.wanted;
    at->ahead.next.n = done ? at->ahead.wanted.n : 0;
}

/* ---- a token ---- */

bool token_is_in_flight(const struct work *w, struct stage *at)
{
    if (chooses(w, at) && !w->is_batched)
        make_rule(&w->m->token.now, w->choice->sampler, 0, NULL);
    return state_ahead(w, at) == PASS_IN_FLIGHT;
}

void token_find(const struct work *w, struct pass *p)
{
    p->chooses = chooses(w, p->at);
    p->ahead = state_ahead(w, p->at);
    if (p->ahead != PASS_NOT_AHEAD)
        p->half = p->at->ahead.next.half;
}

/* Submits the tokens, unless they are in flight. *ticket: of the batch that ends with their logits, or with
 * the choice. If they were deferred, sampling is a submission of its own: it depends on the sampler's
 * state, which a deferred recording cannot know. */
static int submit_tokens(const struct work *w, const struct pass *p, uint64_t *ticket, struct moeflux_err *e)
{
    struct exec *x = p->at->exec;
    bool is_deferred = p->ahead == PASS_DEFERRED;
    *ticket = p->at->ahead.next.ticket;
    note_ahead(p->at, false);
    if (p->ahead == PASS_IN_FLIGHT)
        return 0;
    int rc = is_deferred ? exec_submit_deferred(x, ticket, e) : layers_run_tokens(p, e);
    if (rc < 0 || (is_deferred && !p->chooses))
        return rc;
    if (is_deferred)
        exec_begin(x);
    if (p->chooses && w->is_batched)
        copy_rows(w, p);
    if (p->chooses && w->is_batched)
        record_each(p->m, w->choice, pass_n_rows(p));
    else if (p->chooses)
        record_choice(p->m, w->choice, p->half);
    return exec_submit(x, ticket, e);
}

/* Records the next tokens while the device computes. If a token that would be in flight cannot be, it is
 * begun when it is the current one. */
static int record_next(const struct work *w, const struct pass *next, struct moeflux_err *e)
{
    struct exec *x = next->at->exec;
    struct recorded *wanted = &next->at->ahead.wanted;
    int rc = layers_run_tokens(next, wanted->is_in_flight ? NULL : e);
    if (wanted->is_in_flight) {
        record_choice_after(w->m, w->choice, next->half);
        if (rc == 0)
            rc = exec_submit(x, &wanted->ticket, NULL);
        if (rc < 0)
            exec_abandon(x);
    } else {
        exec_defer(x);
    }
    note_ahead(next->at, rc == 0);
    return wanted->is_in_flight ? 0 : rc;
}

/* Begins to read the n-gram rows of the token that was sampled after the work's. */
static void guess_rows(const struct work *w, struct stage *at, int32_t next)
{
    const struct moeflux_session *s = w->list[0];
    const int32_t ids[] = {w->ids[0], next};
    const struct ngram_text text = {s->history, ids, s->pos};
    if (!at->ngrams.tables)
        return;
    ngram_rows_clear(&at->ngrams);
    if (w->choice->result[1] == SAMPLE_OK && ngram_rows_add(&at->ngrams, &text, s->pos + 1, 1, NULL) == 0)
        ngram_rows_start(&at->ngrams);
}

/* Decodes tokens. next: what to record ahead, or NULL. */
static int decode(const struct work *w, const struct pass *p, const struct pass *next, struct moeflux_err *e)
{
    uint64_t ticket;
    int rc = submit_tokens(w, p, &ticket, e);
    if (rc < 0)
        return rc;
    if (next)
        rc = record_next(w, next, e);
    int waited = exec_wait(p->at->exec, ticket, rc < 0 ? NULL : e);
    rc = rc < 0 ? rc : waited;
    if (rc < 0)
        stage_drop_ahead(p->at, NULL);
    else if (p->chooses && w->is_batched)
        end_each(p->m, w->choice, pass_n_rows(p));
    else if (p->chooses)
        end_choice(p->m, w->choice, p->half);
    if (rc == 0 && p->chooses && !w->is_batched) {
        p->at->ahead.next.id = (int32_t)w->choice->result[0];
        guess_rows(w, p->at, p->at->ahead.next.id);
    }
    return rc;
}

int token_decode(const struct work *w, const struct pass *p, struct moeflux_err *e)
{
    struct arch_sequence each[MOEFLUX_MAX_PARALLEL];
    struct pass next;
    assert(!p->chooses || w->choice);
    /* How many tokens of a chain will count is not known, nor when those come whose prompts end. */
    bool goes_on = !w->is_chain && !w->batch.n_prompts && choose_ahead(w, p, each, &next);
    return decode(w, p, goes_on ? &next : NULL, e);
}
