#include "engine/run/verify.h"

#include <string.h>

#include "base/mem.h"
#include "engine/run/batched.h"
#include "engine/run/forward.h"
#include "engine/sequence.h"

uint32_t verify_most(const struct moeflux_model *m)
{
    uint64_t most = size_min(VERIFY_ROWS, m->max_chunk);
    if (m->trace || m->prefer.margin > 0)
        return 0;
    for (uint32_t i = 0; i < m->n_stages; i++) {
        const struct stage *at = &m->stages[i];
        most = at->batched_plan_n ? 0 : size_min(most, exec_get_caps(at->exec).max_invariant);
        if (stage_has_cpu_layers(at))
            most = size_min(most, at->max_cpu_chunk);
    }
    return (uint32_t)most;
}

/* Whether a stage may make a buffer that the plan does not have. */
static bool has_room(const struct stage *at, uint64_t bytes)
{
    struct exec_stats now;
    uint64_t states = at->state_bytes - at->drafted_bytes;
    uint64_t growth = at->plan_state_bytes > states ? at->plan_state_bytes - states : 0;
    if (at->most_bytes == 0)
        return true;
    exec_get_stats(at->exec, &now);
    return now.held_bytes + growth + bytes <= at->most_bytes;
}

/* Makes the state after the next token of a chain, unless there is one. Returns whether there is one now. */
static bool make_state(struct exec_buffer *b, uint64_t bytes, struct stage *at)
{
    if (b->address)
        return true;
    if (!has_room(at, bytes) || exec_buffer_new(at->exec, b, EXEC_DEVICE, bytes, NULL) < 0)
        return false;
    at->state_bytes += b->bytes;
    at->drafted_bytes += b->bytes;
    return true;
}

uint32_t verify_reserve(struct moeflux_session *s, uint32_t n)
{
    struct moeflux_model *m = s->model;
    for (uint32_t i = 0; i < m->n_stages; i++) {
        struct stage *at = &m->stages[i];
        struct exec_buffer *states = s->on[i].drafted;
        uint32_t n_made = at->view.sizes.recurrent ? 0 : n;
        stage_take(at);
        while (n_made < n && make_state(&states[n_made], s->on[i].recurrent.bytes, at))
            n_made++;
        stage_give(at);
        n = n_made;
    }
    return n;
}

void verify_free_on(struct exec_buffer states[VERIFY_ROWS], struct stage *at)
{
    for (uint32_t i = 0; i < VERIFY_ROWS; i++) {
        uint64_t bytes = states[i].address ? states[i].bytes : 0;
        at->state_bytes -= bytes;
        at->drafted_bytes -= bytes;
        exec_buffer_free(at->exec, &states[i]);
    }
}

static int make_logits(struct moeflux_session *s, struct moeflux_err *e)
{
    struct verified *v = &s->verified;
    if (!v->logits)
        v->logits = mem_new((uint64_t)VERIFY_ROWS * s->model->dir.config.vocab_size, sizeof *v->logits, e);
    return v->logits ? 0 : ERR_MEMORY;
}

/* Fills choices [n]. Returns them, or NULL if the host is to get the logits: also with a repeat penalty,
 * whose window differs from token to token. */
static struct device_choice *choices_of(const struct moeflux_session *s, const struct sampler *sampler,
                                        uint32_t n, struct device_choice *choices)
{
    const struct moeflux_model *m = s->model;
    if (!sampler || n > m->max_batched || m->step_ns > QUICK_NS || !token_takes(m, sampler) ||
        sampler_next_rule(sampler, 0).repeat_last)
        return NULL;
    for (uint32_t i = 0; i < n; i++)
        choices[i] = (struct device_choice){.sampler = sampler, .id = s->verified.ids[i], .ahead = i};
    return choices;
}

/* Evaluates the ids of s->verified. */
static int run(struct moeflux_session *s, uint32_t n, const struct sampler *sampler, struct moeflux_err *e)
{
    struct device_choice choices[VERIFY_ROWS] = {0};
    const struct moeflux_outputs none = {0};
    struct verified *v = &s->verified;
    struct moeflux_session *list[VERIFY_ROWS];
    float *logits[VERIFY_ROWS];
    uint32_t n_done;
    for (uint32_t i = 0; i < n; i++) {
        list[i] = s;
        logits[i] = v->logits + (uint64_t)i * s->model->dir.config.vocab_size;
    }
    const struct forward_call c = {.list = list,
                                   .ids = v->ids,
                                   .n = n,
                                   .n_chunks = 1,
                                   .is_batched = true,
                                   .is_chain = true,
                                   .outputs = &none,
                                   .logits = logits,
                                   .choices = choices_of(s, sampler, n, choices)};
    s->progress_at = (struct progress_at){.total = 1, .what = "generating"};
    model_stats_begin(s->model, WORK_DECODE);
    int rc = forward_run(&c, &n_done, e);
    /* The first token counts; verify_take counts the others. */
    model_stats_end(s->model, WORK_DECODE, rc < 0 ? 0 : 1);
    v->is_chosen = choices[0].is_made;
    for (uint32_t i = 0; i < n; i++)
        memcpy(v->results[i], choices[i].result, sizeof v->results[i]);
    return rc;
}

/* Allocates the KV cache for a chain of *n tokens, or for fewer if there is no memory for all. */
static int reserve_rows(struct moeflux_session *s, uint32_t *n, struct moeflux_err *e)
{
    int rc = *n ? sequence_reserve(s, s->pos + *n, e) : 0;
    if (rc != ERR_NO_FIT)
        return rc;
    while (*n > 0 && !sequence_has_room(s, s->pos + *n))
        --*n;
    return *n ? sequence_reserve(s, s->pos + *n, e) : 0;
}

int verify_run(struct moeflux_session *s, const int32_t *ids, uint32_t n, const struct sampler *sampler,
               struct moeflux_err *e)
{
    struct verified *v = &s->verified;
    int rc = sequence_make_ready(s, e);
    if (rc == 0)
        rc = sequence_check(s, ids, 1, e);
    if (rc < 0)
        return rc;
    n = (uint32_t)size_min(n, s->max_context - s->pos);
    rc = sequence_check(s, ids, n, e);
    n = rc == 0 ? verify_reserve(s, n) : 0;
    if (rc == 0 && n > 0)
        rc = make_logits(s, e);
    if (rc == 0)
        rc = reserve_rows(s, &n, e);
    if (rc < 0 || n == 0)
        return rc;
    for (uint32_t i = 0; i < n; i++)
        v->ids[i] = ids[i];
    rc = run(s, n, sampler, e);
    if (rc < 0)
        return rc;
    v->n = n;
    v->at = 0;
    v->pos = s->pos;
    v->mark = s->mark;
    return (int)n;
}

bool verify_has(const struct moeflux_session *s, int32_t id)
{
    const struct verified *v = &s->verified;
    return v->at < v->n && v->mark == s->mark && v->pos == s->pos && v->ids[v->at] == id;
}

const float *verify_take(struct moeflux_session *s, const uint32_t **result)
{
    struct verified *v = &s->verified;
    struct moeflux_model *m = s->model;
    const float *logits = v->logits + (uint64_t)v->at * m->dir.config.vocab_size;
    for (uint32_t i = 0; i < m->n_stages; i++) {
        struct exec_buffer *after = &s->on[i].drafted[v->at];
        const struct exec_buffer before = s->on[i].recurrent;
        if (m->stages[i].view.sizes.recurrent == 0)
            continue;
        s->on[i].recurrent = *after;
        *after = before;
    }
    if (v->at > 0) {
        model_stats_begin(m, WORK_DECODE);
        model_stats_end(m, WORK_DECODE, 1);
    }
    *result = v->results[v->at];
    if (s->drafter.rows)
        drafter_take_chained(s, v->at);
    s->history[s->pos++] = v->ids[v->at++];
    s->parity ^= 1;
    v->pos = s->pos;
    return v->is_chosen ? NULL : logits;
}

bool verify_is_late(struct moeflux_session *s)
{
    struct moeflux_model *m = s->model;
    struct stage *at = &m->stages[0];
    if (m->n_stages > 1 || !m->resident || at->computes_at_once)
        return false;
    stage_take(at);
    const struct recorded *next = &at->ahead.next;
    bool is = next->n > 0 && next->is_in_flight && next->marks[0] == s->mark && next->each[0].pos == s->pos;
    stage_give(at);
    return is;
}

bool verify_pays(struct moeflux_model *m)
{
    bool pays = verify_most(m) > 1;
    for (uint32_t i = 0; pays && i < m->n_stages; i++) {
        struct stage *at = &m->stages[i];
        stage_take(at);
        for (int k = 0; k < EXPERT_SIDES; k++)
            if (k != SIDE_PROMPT && at->sides[k].store)
                pays = pays && (expert_store_holds_all(at->sides[k].store) ||
                                expert_store_is_complete(at->sides[k].store));
        stage_give(at);
    }
    return pays;
}
