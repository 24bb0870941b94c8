#include "generate/choice.h"

#include "base/clock.h"
#include "generate/batcher.h"
#include "generate/constrain.h"
#include "generate/generator.h"
#include "moeflux.h"
#include "text/grammar/constraint.h"

/* ---- scores ---- */

struct scorer {
    struct choice *choice;
    const struct generator *generator;
};

/* Scores the next token: the logits after one token give the probability of the next. */
static int score_token(void *ctx, uint32_t pos, const float *row, struct moeflux_err *e)
{
    struct scorer *s = ctx;
    const struct token_list *ids = &s->choice->request.tokens;
    if (pos + 1 >= ids->n)
        return 0;
    return logprobs_add(&s->choice->scores, row, s->generator->info.vocab_size, s->generator->allowed,
                        ids->ids[pos + 1], e);
}

/* Evaluates the prompt of a choice with `score` and fills `scores`. */
static int score(struct choice *c, struct generator *g, const struct moeflux_sampler_options *sampling,
                 struct moeflux_err *e)
{
    struct scorer s = {c, g};
    struct moeflux_outputs outputs = {.each_logits = score_token, .ctx = &s};
    c->scores.n_top = request_answer(&c->request.options).n_logprobs;
    int rc = generator_new_sampler(g, sampling, NULL, 0, e);
    return rc ? rc : generator_eval(g, c->request.tokens.ids, c->request.tokens.n, &outputs, e);
}

/* ---- the answer ---- */

static int prefill(struct choice *c, const struct choice_call *call, struct moeflux_err *e)
{
    const struct moeflux_sampler_options sampling = request_sampling(&c->request.options, c->seed);
    struct choice_result *r = &c->result;
    r->start_ns = clock_ns();
    int rc = c->score ? score(c, call->generator, &sampling, e)
                      : call->prefill(call->ctx, c, &sampling, &r->n_reused, e);
    r->prefill_ns = clock_ns() - r->start_ns;
    return rc;
}

int choice_answer(struct choice *c, const struct choice_call *call, struct answer *a, struct moeflux_err *e)
{
    struct generator *g = call->generator;
    const struct request_options *o = &c->request.options;
    struct answer_options ao = request_answer(o);
    struct constrain_ahead ahead;
    ao.sink = call->sink;
    request_constrain_ahead(o, call->grammars, &ahead);
    int rc = o->raw ? 0 : generator_use_chat(g, request_reasoning(o), "a request", e);
    if (!rc)
        rc = prefill(c, call, e);
    int made = constrain_await(&ahead, &ao.constraint, rc ? NULL : e);
    rc = rc ? rc : made;
    if (!rc)
        rc = call->slot ? batcher_answer(call->slot, a, g, &ao, e) : answer_run(a, g, &ao, e);
    constraint_free(ao.constraint);
    c->result.n_answered = (uint32_t)a->tokens.n;
    c->result.drafts = a->drafts;
    c->result.stop = a->stop;
    c->result.stop_text = a->stop_text;
    return rc;
}

bool choice_has_prompt_of(const struct choice *c, const struct choice *other)
{
    const struct token_list *a = &c->request.tokens, *b = &other->request.tokens;
    return a->n == b->n && prefix_common(a->ids, a->n, b->ids, b->n) == a->n;
}

void choice_reset(struct choice *c)
{
    logprobs_free(&c->scores);
    c->result = (struct choice_result){0};
}

void choice_free(struct choice *c)
{
    request_free(&c->request);
    logprobs_free(&c->scores);
    *c = (struct choice){0};
}
