#include "cli/perplexity.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "cli/finite.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/setup.h"
#include "cli/signals.h"
#include "cli/stats.h"
#include "cli/terminal/bar.h"
#include "generate/generator.h"
#include "moeflux.h"

struct scoring {
    const struct options *options;
    struct output *out;
    struct bar bar;
    struct generator generator;
    struct prompt text;
    struct token_list tokens;
    const int32_t *window; /* ids of the window being evaluated */
    uint32_t n_window;
    uint64_t n, n_windows, ns;
    double sum, squares; /* of -ln p, over the n scored tokens */
};

/* -ln softmax(row)[id] */
static double surprise(const float *row, uint32_t n, int32_t id)
{
    double largest = (double)row[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        largest = fmax(largest, (double)row[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)row[i] - largest);
    return largest + log(fmax(sum, 1)) - (double)row[id]; /* the largest alone adds 1 */
}

static int score(void *ctx, uint32_t pos, const float *row, struct moeflux_err *e)
{
    struct scoring *s = ctx;
    if (pos + 1 >= s->n_window)
        return 0;
    struct moeflux_err why;
    if (finite_logits(row, s->generator.info.vocab_size, pos, &why))
        return err_set(e, ERR_DEVICE, "window %" PRIu64 ", %.400s", s->n_windows + 1, why.text);
    double x = surprise(row, s->generator.info.vocab_size, s->window[pos + 1]);
    s->sum += x;
    s->squares += x * x;
    s->n++;
    return 0;
}

static int score_windows(struct scoring *s, struct moeflux_err *e)
{
    uint64_t start = clock_ns();
    const struct moeflux_outputs outputs = {.each_logits = score, .ctx = s};
    int rc = 0;
    for (size_t from = 0; rc == 0 && from + 1 < s->tokens.n; from += s->n_window) {
        s->window = s->tokens.ids + from;
        s->n_window = (uint32_t)size_min(s->tokens.n - from, s->generator.max_context);
        rc = moeflux_session_clear(s->generator.sequence, e);
        if (rc == 0)
            rc = moeflux_session_eval(s->generator.sequence, s->window, s->n_window, &outputs, e);
        s->n_windows++;
    }
    s->ns = clock_ns() - start;
    return rc;
}

static int read_text(struct scoring *s, struct moeflux_err *e)
{
    struct options plain = *s->options;
    size_t n_replaced = 0;
    plain.prompt = plain.tokens_in = NULL;
    plain.file = s->options->perplexity;
    plain.raw = true;
    int rc = prompt_read(&s->text, &plain, e);
    if (rc)
        return rc;
    if (!s->generator.tokenizer)
        return err_set(e, ERR_USAGE, "%s has no tokenizer.json, which --perplexity needs", s->options->model);
    rc = generator_encode(&s->generator, str_text(&s->text.text), s->text.text.len, SPECIALS_AS_TEXT,
                          &s->tokens, &n_replaced, e);
    if (rc == 0 && s->tokens.n < 2)
        rc = err_set(e, ERR_USAGE, "%s: %zu token, expected at least 2", s->options->perplexity, s->tokens.n);
    return rc;
}

static int print(const struct scoring *s, struct moeflux_err *e)
{
    double n = (double)s->n, mean = s->sum / n, ppl = exp(mean);
    double variance = s->n > 1 ? fmax(s->squares / n - mean * mean, 0) / (n - 1) : NAN;
    /* Tokens stand for bytes: the scored ones for their share of the text. */
    double bytes = (double)s->text.text.len * n / (double)s->tokens.n, bits = s->sum / log(2) / bytes;
    double rate = stats_rate(s->tokens.n, s->ns);
    if (!s->options->json) {
        output_addf(s->out, "perplexity %.4f +- %.4f, %.4f bits per byte\n", ppl, ppl * sqrt(variance), bits);
        output_addf(s->out, "%" PRIu64 " tokens scored in %" PRIu64 " windows of %" PRIu32 ", %.1f tok/s\n",
                    s->n, s->n_windows, s->generator.max_context, rate);
        return output_flush(s->out, e);
    }
    json_t *object = json_object();
    json_object_set_new(object, "perplexity", stats_number(ppl));
    json_object_set_new(object, "standard_error", stats_number(ppl * sqrt(variance)));
    json_object_set_new(object, "bits_per_byte", stats_number(bits));
    json_object_set_new(object, "tokens_scored", json_integer((json_int_t)s->n));
    json_object_set_new(object, "windows", json_integer((json_int_t)s->n_windows));
    json_object_set_new(object, "context", json_integer(s->generator.max_context));
    json_object_set_new(object, "tok_s", stats_number(rate));
    json_object_set_new(object, "stats", stats_engine_json(&s->generator));
    return output_json(s->out, object, e);
}

int perplexity_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    struct scoring s = {.options = o, .out = out};
    if (signals_catch_interrupt(e))
        return ERR_IO;
    bar_init(&s.bar, t);
    int rc = setup_open(&s.generator, o, &s.bar, e);
    if (!rc)
        rc = read_text(&s, e);
    if (!rc)
        rc = setup_start(&s.generator, o, (uint32_t)o->ctx_size, e);
    if (!rc)
        rc = score_windows(&s, e);
    bar_end(&s.bar);
    if (!rc)
        rc = print(&s, e);
    if (!rc && o->stats)
        stats_print(&(struct stats){0}, NULL, &s.generator);
    rc = setup_save_usage(&s.generator, o, rc, e);
    token_list_free(&s.tokens);
    prompt_free(&s.text);
    generator_close(&s.generator);
    return rc;
}
