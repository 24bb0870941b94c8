#include "cli/batch/answer.h"

#include "api/choice.h"
#include "api/dialect.h"
#include "base/clock.h"
#include "base/err.h"
#include "cli/batch/item.h"
#include "cli/report/stats.h"
#include "generate/answer.h"
#include "generate/batcher.h"
#include "generate/constrain.h"
#include "generate/generator.h"
#include "text/grammar/constraint.h"

/* Keeps the pieces of an answer to a line in OpenAI's form. */
struct keeper {
    struct reply *reply;
    struct choice *choice;
    uint32_t idx;
};

static int keep_piece(void *ctx, const struct answer_piece *p, struct moeflux_err *e)
{
    struct keeper *k = ctx;
    (void)e;
    k->choice->result.n_answered += p->id >= 0;
    k->reply->dialect->piece(k->reply, k->idx, p);
    return 0;
}

static int prefill(struct batch_answerer *w, const struct request *r, uint64_t seed, struct stats *st,
                   struct moeflux_err *e)
{
    st->start_ns = clock_ns();
    int rc = w->prefill(w->ctx, r, seed, &st->n_reused, e);
    st->prefill_ns = clock_ns() - st->start_ns;
    st->n_prompt = (uint32_t)r->tokens.n - st->n_reused;
    return rc;
}

/* Scores the prompt's tokens. All are evaluated, since reused tokens have no logits. */
static int score(struct batch_answerer *w, struct choice *choice, struct stats *st, struct moeflux_err *e)
{
    st->start_ns = clock_ns();
    int rc = moeflux_session_clear(w->generator->sequence, e);
    if (!rc)
        rc = choice_score(choice, w->generator, e);
    st->prefill_ns = clock_ns() - st->start_ns;
    st->n_prompt = (uint32_t)choice->request.tokens.n;
    return rc;
}

static int run_answer(struct batch_answerer *w, struct answer *a, const struct answer_options *o,
                      struct moeflux_err *e)
{
    return w->slot ? batcher_answer(w->slot, a, w->generator, o, e) : answer_run(a, w->generator, o, e);
}

/* Computes answer `idx` of those that the item wants. */
static int answer_ask(struct batch_answerer *w, struct batch_item *item, uint32_t idx, struct answer *a,
                      struct stats *st, struct moeflux_err *e)
{
    struct generator *g = w->generator;
    struct choice *choice;
    const struct request *r = batch_item_request(item, idx, &choice);
    const struct request_options *o = &r->options;
    struct keeper keeper = {item->openai.reply, choice, idx};
    struct answer_options ao = request_answer(o);
    if (choice)
        ao.sink = (struct answer_sink){keep_piece, &keeper};
    /* Without -s every line has a seed of its own, so that equal prompts get different answers. */
    uint64_t seed = choice ? choice->seed : o->seed < 0 ? w->base_seed + item->line - 1 : (uint64_t)o->seed;
    struct constrain_ahead ahead;
    request_constrain_ahead(o, w->grammars, &ahead);
    int rc = o->raw ? 0 : generator_use_chat(g, request_reasoning(o), "a request", e);
    if (!rc)
        rc = choice && choice->score ? score(w, choice, st, e) : prefill(w, r, seed, st, e);
    int made = constrain_await(&ahead, &ao.constraint, rc ? NULL : e);
    rc = rc ? rc : made;
    if (!rc)
        rc = run_answer(w, a, &ao, e);
    constraint_free(ao.constraint);
    if (choice) {
        choice->result.n_reused = st->n_reused;
        choice->result.stop = a->stop;
        choice->result.stop_text = a->stop_text;
    }
    w->counts.n_prompt += rc ? 0 : r->tokens.n;
    w->counts.n_computed += rc ? 0 : st->n_prompt;
    w->counts.prefill_ns += rc ? 0 : st->prefill_ns;
    return rc;
}

/* Removes what an earlier attempt has left. */
static int reset_item(struct batch_item *item, struct moeflux_err *e)
{
    struct choice *choice;
    for (uint32_t i = 0; i < batch_item_n_choices(item); i++) {
        batch_item_request(item, i, &choice);
        if (!choice)
            return 0;
        logprobs_free(&choice->scores);
        choice->result = (struct choice_result){0};
    }
    return reply_reset(item->openai.reply, e);
}

int batch_answer(struct batch_answerer *w, struct batch_item *item, char **line, struct moeflux_err *e)
{
    uint32_t n = batch_item_n_choices(item);
    struct answer a = {0};
    struct stats st = {0};
    int rc = reset_item(item, e);
    *line = NULL;
    for (uint32_t i = 0; !rc && i < n; i++) {
        answer_free(&a);
        st = (struct stats){0};
        rc = answer_ask(w, item, i, &a, &st, e);
    }
    if (!rc && !(*line = batch_item_answer(item, w->generator, &a, &st)))
        rc = err_set(e, ERR_MEMORY, "out of memory for a result");
    answer_free(&a);
    return rc;
}
