#include "cli/measure/scoring.h"

#include <inttypes.h>
#include <math.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log_sum.h"
#include "base/mem.h"
#include "base/progress.h"
#include "cli/measure/check_finite.h"
#include "cli/options/options.h"
#include "cli/prompt.h"
#include "cli/setup.h"

/* Welford's algorithm: differences of large sums would lose the digits of a small variance. */
void average_add(struct average *a, double x)
{
    double before = x - a->mean;
    a->mean += before / (double)++a->n;
    a->squares += before * (x - a->mean);
}

double average_error(const struct average *a)
{
    double n = (double)a->n;
    return a->n > 1 ? sqrt(a->squares / (n - 1) / n) : NAN;
}

int scoring_read(struct prompt *p, const struct options *o, struct moeflux_err *e)
{
    struct options plain = *o;
    plain.prompt = plain.tokens_in = NULL;
    plain.file = o->perplexity;
    plain.raw = true;
    return prompt_read(p, &plain, e);
}

int scoring_open_tokenizer(struct moeflux_tokenizer **out, const char *path, const char *model,
                           const struct moeflux_progress *progress, struct moeflux_err *e)
{
    *out = NULL;
    if (!path)
        return err_set(e, ERR_USAGE, "%s has no tokenizer.json, which --perplexity needs", model);
    int rc = moeflux_tokenizer_open(out, path, e);
    if (!rc)
        moeflux_tokenizer_set_progress(*out, progress);
    return rc;
}

int scoring_encode(const struct prompt *p, const struct moeflux_tokenizer *t, const struct options *o,
                   struct token_list *ids, struct moeflux_err *e)
{
    int64_t n = moeflux_tokenizer_encode_all(t, str_text(&p->text), p->text.len, false, true, &ids->ids, e);
    if (n < 0)
        return (int)n;
    ids->n = ids->cap = (size_t)n;
    return n < 2 ? err_set(e, ERR_USAGE, "%s: %zu token, expected at least 2", o->perplexity, ids->n) : 0;
}

uint64_t scoring_count(size_t n, uint32_t context)
{
    size_t rest = n % context;
    return n / context * (context - 1) + (rest ? rest - 1 : 0);
}

static int score(struct scoring *s, uint32_t pos, const float *logits, struct moeflux_err *e)
{
    struct moeflux_err why;
    uint32_t n = s->loaded->info.vocab_size;
    if (pos + 1 >= s->n_window)
        return 0;
    if (check_finite_logits(logits, n, pos, &why))
        return err_set(e, ERR_DEVICE, "window %" PRIu64 ", %.400s", s->n_windows + 1, why.text);
    const struct scored_row row = {s->nll.n, logits, log_sum(logits, n)};
    average_add(&s->nll, row.log_sum - (double)logits[s->window[pos + 1]]);
    return s->row ? s->row(s->ctx, &row, e) : 0;
}

static int score_timed(void *ctx, uint32_t pos, const float *logits, struct moeflux_err *e)
{
    struct scoring *s = ctx;
    uint64_t start = clock_ns();
    int rc = score(s, pos, logits, e);
    s->ns -= clock_ns() - start;
    return rc;
}

static int evaluate(struct scoring *s, struct moeflux_err *e)
{
    const struct moeflux_outputs outputs = {.each_logits = score_timed, .ctx = s};
    struct moeflux_session *sequence = s->loaded->session;
    if (!s->by_token)
        return moeflux_session_eval(sequence, s->window, s->n_window, &outputs, e);
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < s->n_window; i++) {
        rc = moeflux_session_eval(sequence, s->window + i, 1, &outputs, e);
        if (rc == 0 && !progress_report(&s->progress, "reading the text", "tok", i + 1, s->n_window))
            rc = err_set(e, ERR_INTERRUPTED, "interrupted after %u of %u tokens", i + 1, s->n_window);
    }
    return rc;
}

int scoring_run(struct scoring *s, struct moeflux_err *e)
{
    const struct loaded *l = s->loaded;
    int rc = l->max_context > 1 ? 0 : err_set(e, ERR_USAGE, "-c 1: expected windows of at least 2 tokens");
    for (size_t from = 0; rc == 0 && from + 1 < s->tokens->n; from += s->n_window) {
        s->window = s->tokens->ids + from;
        s->n_window = (uint32_t)size_min(s->tokens->n - from, l->max_context);
        uint64_t start = clock_ns();
        rc = moeflux_session_clear(l->session, e);
        if (rc == 0)
            rc = evaluate(s, e);
        s->ns += clock_ns() - start;
        s->n_windows++;
    }
    return rc;
}
