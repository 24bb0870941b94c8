#include "api/choice.h"

#include "generate/generator.h"
#include "moeflux.h"

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

int choice_score(struct choice *a, struct generator *g, struct moeflux_err *e)
{
    struct scorer s = {a, g};
    struct moeflux_outputs outputs = {.each_logits = score_token, .ctx = &s};
    struct sampler_options sampling = request_sampling(&a->request.options, a->seed);
    a->scores.n_top = request_answer(&a->request.options).n_logprobs;
    int rc = generator_new_sampler(g, &sampling, NULL, 0, e);
    return rc ? rc : generator_eval(g, a->request.tokens.ids, a->request.tokens.n, &outputs, e);
}

void choice_free(struct choice *a)
{
    request_free(&a->request);
    logprobs_free(&a->scores);
    *a = (struct choice){0};
}
