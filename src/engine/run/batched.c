/* Batched decode: one token of each of several sequences in one pass, and parts of others' prompts, so that
 * weights and experts are read once for all. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/run/batched.h"
#include "engine/run/forward.h"
#include "engine/sequence.h"

uint32_t moeflux_max_batched(const struct moeflux_model *m)
{
    return m->trace || m->prefer.margin > 0 ? 1 : m->max_batched;
}

bool moeflux_batched_is_exact(const struct moeflux_model *m)
{
    bool is = true;
    if (moeflux_max_batched(m) <= EXEC_MAX_INVARIANT)
        return true;
    for (uint32_t i = 0; i < m->n_stages; i++)
        is = is && m->stages[i].batched_plan_n == 0;
    return is;
}

static int refuse_number(const struct moeflux_model *m, uint32_t n, struct moeflux_err *e)
{
    return err_set(e, ERR_USAGE, "a batch of %u sequences, expected 1 to %u", n, moeflux_max_batched(m));
}

int batched_blame(uint32_t idx, const struct moeflux_err *why, struct moeflux_err *e)
{
    return err_set(e, why->code, "sequence %u: %s", idx, why->text);
}

/* The ids of one sequence of a call. */
struct share {
    const int32_t *ids;
    uint32_t n;
};

static struct share share_of(const struct forward_call *c, uint32_t i)
{
    uint32_t from = arch_batch_start(&c->batch, i);
    return (struct share){c->ids + from, arch_batch_end(&c->batch, i) - from};
}

static int check(const struct forward_call *c, struct moeflux_err *e)
{
    struct moeflux_session *const *list = c->list;
    const struct moeflux_model *m = list[0]->model;
    uint32_t n = arch_batch_sequences(&c->batch);
    if (c->n > m->max_chunk)
        return err_set(e, ERR_USAGE, "a batch of %u tokens, expected 1 to %u", c->n, m->max_chunk);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < i; k++)
            if (list[i] == list[k])
                return err_set(e, ERR_USAGE, "sequences %u and %u of the batch are the same", k, i);
        if (list[i]->model != m)
            return err_set(e, ERR_USAGE, "sequence %u is of another model than the first", i);
    }
    return 0;
}

/* Fills choices [n]: those without a sampler leave their logits to the host. Returns NULL if all do. */
static struct device_choice *choices_of(const struct batched_token *tokens, uint32_t n,
                                        struct device_choice *choices)
{
    const struct moeflux_model *m = tokens->session->model;
    bool has_one = false;
    for (uint32_t i = 0; i < n; i++) {
        const struct batched_token *t = &tokens[i];
        bool takes = t->sampler && token_takes(m, t->sampler);
        choices[i] = (struct device_choice){.sampler = takes ? t->sampler : NULL, .id = t->id};
        has_one |= takes;
    }
    return has_one ? choices : NULL;
}

static int prepare_one(struct moeflux_session *s, const struct share *y, struct moeflux_err *e)
{
    int rc = sequence_make_ready(s, e);
    return rc < 0 ? rc : sequence_reserve(s, s->pos + y->n, e);
}

/* A batch of one does not name its sequence. */
static int blame(uint32_t n, uint32_t idx, const struct moeflux_err *why, struct moeflux_err *e)
{
    return n > 1 ? batched_blame(idx, why, e) : err_set(e, why->code, "%s", why->text);
}

/* Checks all sequences before the first is prepared. */
static int prepare(const struct forward_call *c, struct moeflux_err *e)
{
    uint32_t n = arch_batch_sequences(&c->batch);
    struct moeflux_err why = {0};
    int rc = check(c, e);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < n; i++) {
        const struct share y = share_of(c, i);
        if (sequence_check(c->list[i], y.ids, y.n, &why) < 0)
            return blame(n, i, &why, e);
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct share y = share_of(c, i);
        if (prepare_one(c->list[i], &y, &why) < 0)
            return blame(n, i, &why, e);
    }
    return 0;
}

static int run(const struct forward_call *c, struct moeflux_err *e)
{
    struct moeflux_session *first = c->list[0];
    uint32_t n_done, n = c->batch.n_single, n_prompt = c->n - n;
    int rc = prepare(c, e);
    if (rc < 0)
        return rc;
    first->progress_at = n ? (struct progress_at){.total = 1, .what = "generating"}
                           : (struct progress_at){.total = n_prompt, .what = "reading the prompt"};
    if (n)
        model_stats_begin(first->model, WORK_DECODE);
    if (n_prompt)
        model_stats_begin(first->model, WORK_PREFILL);
    rc = forward_run(c, &n_done, e);
    if (n)
        model_stats_end(first->model, WORK_DECODE, rc < 0 ? 0 : n);
    if (n_prompt)
        model_stats_end(first->model, WORK_PREFILL, rc < 0 ? 0 : n_prompt);
    for (uint32_t i = 0; rc == 0 && i < arch_batch_sequences(&c->batch); i++)
        sequence_accept(c->list[i], share_of(c, i).ids, share_of(c, i).n);
    return rc;
}

static int eval_tokens(struct forward_call *c, struct batched_token *tokens, struct moeflux_err *e)
{
    struct device_choice choices[MOEFLUX_MAX_PARALLEL];
    uint32_t n = c->batch.n_single;
    c->choices = n ? choices_of(tokens, n, choices) : NULL;
    int rc = run(c, e);
    for (uint32_t i = 0; rc == 0 && c->choices && i < n; i++) {
        tokens[i].is_chosen = choices[i].is_made;
        memcpy(tokens[i].result, choices[i].result, sizeof choices->result);
    }
    return rc;
}

static int eval(struct batched_token *tokens, uint32_t n, const struct batched_prompt *prompts,
                uint32_t n_prompts, struct moeflux_err *e)
{
    struct moeflux_session *list[MOEFLUX_MAX_PARALLEL] = {0};
    float *logits[MOEFLUX_MAX_PARALLEL];
    uint32_t ends[MOEFLUX_MAX_PARALLEL], n_ids = n;
    const struct moeflux_outputs none = {0};
    for (uint32_t i = 0; i < n_prompts; i++)
        ends[i] = n_ids += prompts[i].n;
    /* Without prompts nothing is allocated. */
    int32_t few[MOEFLUX_MAX_PARALLEL], *more = n_prompts ? mem_new(n_ids, sizeof *more, e) : NULL;
    int32_t *ids = n_prompts ? more : few;
    if (!ids)
        return ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        list[i] = tokens[i].session;
        logits[i] = tokens[i].logits;
        ids[i] = tokens[i].id;
    }
    for (uint32_t i = 0; i < n_prompts; i++) {
        list[n + i] = prompts[i].session;
        memcpy(ids + ends[i] - prompts[i].n, prompts[i].ids, prompts[i].n * sizeof *ids);
    }
    struct forward_call c = {.list = list,
                             .ids = ids,
                             .n = n_ids,
                             .n_chunks = 1,
                             .is_batched = true,
                             .batch = {n, n_prompts, ends},
                             .outputs = &none,
                             .logits = logits};
    int rc = eval_tokens(&c, tokens, e);
    free(more);
    return rc;
}

int moeflux_eval_batched(struct moeflux_session *const *list, const int32_t *ids, uint32_t n,
                         float *const *logits, struct moeflux_err *e)
{
    int null = err_need(e, "list of sessions", list, "list of ids", ids, "list of logits", logits);
    if (null)
        return null;
    struct batched_token tokens[MOEFLUX_MAX_PARALLEL];
    if (n == 0)
        return err_set(e, ERR_USAGE, "no sequences to evaluate together");
    if (n > moeflux_max_batched(list[0]->model))
        return refuse_number(list[0]->model, n, e);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (struct batched_token){.session = list[i], .id = ids[i], .logits = logits[i]};
    return batched_eval(tokens, n, NULL, 0, NULL, NULL, e);
}

static struct moeflux_session *first_of(const struct batched_token *tokens, uint32_t n,
                                        const struct batched_prompt *prompts)
{
    if (n > 0)
        return tokens->session;
    assert(prompts);
    return prompts->session;
}

int batched_eval(struct batched_token *tokens, uint32_t n, const struct batched_prompt *prompts,
                 uint32_t n_prompts, void (*left)(void *ctx), void *ctx, struct moeflux_err *e)
{
    struct moeflux_session *first = first_of(tokens, n, prompts);
    /* Experts are predicted for a single token. */
    bool goes_alone = n == 1 && n_prompts == 0 && moeflux_batched_is_exact(first->model);
    if (n + n_prompts > moeflux_max_batched(first->model))
        return refuse_number(first->model, n + n_prompts, e);
    first->left = left;
    first->left_ctx = ctx;
    int rc = goes_alone ? moeflux_session_eval(first, &tokens->id, 1,
                                               &(struct moeflux_outputs){.logits = tokens->logits}, e)
                        : eval(tokens, n, prompts, n_prompts, e);
    if (first->left)
        first->left(first->left_ctx);
    first->left = NULL;
    return rc;
}

bool batched_takes_prompts(const struct moeflux_model *m)
{
    const struct stage *at = &m->stages[0];
    return moeflux_max_batched(m) > 1 && m->n_stages == 1 && at->batched_plan_n > 0 &&
           !stage_has_cpu_layers(at) && !m->keeps_hidden;
}

bool batched_takes_prompt(const struct batched_prompt *p)
{
    const struct moeflux_session *s = p->session;
    uint32_t end = s->pos + p->n, every = s->model->checkpoint_bytes ? s->checkpoint_every : 0;
    bool is_due =
        (s->checkpoint_at > s->pos && s->checkpoint_at <= end) || (every && s->pos / every != end / every);
    return !is_due;
}

int batched_choose(const struct batched_token *t, struct sampler *sampler, int32_t *next,
                   struct moeflux_err *e)
{
    return sequence_choose(t->session, sampler, t->id, t->is_chosen ? NULL : t->logits, t->result, next, e);
}

uint32_t batched_n_stages(const struct moeflux_model *m)
{
    return m->n_stages;
}

uint32_t batched_chunk(const struct moeflux_model *m)
{
    return m->max_chunk;
}
