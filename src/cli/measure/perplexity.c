#include "cli/measure/perplexity.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>

#include "base/err.h"
#include "cli/measure/compare.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/measure/scoring.h"
#include "cli/setup.h"
#include "cli/signals.h"
#include "cli/report/stats.h"
#include "cli/terminal/bar.h"
#include "moeflux.h"

struct perplexity {
    const struct options *options;
    struct output *out;
    struct bar bar;
    struct loaded loaded;
    struct moeflux_tokenizer *tokenizer;
    struct prompt text;
    struct token_list tokens;
    struct scoring scoring;
};

static int print(const struct perplexity *s, struct moeflux_err *e)
{
    const struct average *nll = &s->scoring.nll;
    double ppl = exp(nll->mean), error = ppl * average_error(nll);
    /* The mean of the scored tokens stands for all tokens: a window's first has no score. */
    double bits = nll->mean / log(2) * (double)s->tokens.n / (double)s->text.text.len;
    double rate = stats_rate(s->tokens.n, s->scoring.ns);
    if (!s->options->json) {
        output_addf(s->out, "perplexity %.4f +- %.4f, %.4f bits per byte\n", ppl, error, bits);
        output_addf(s->out, "%" PRIu64 " tokens scored in %" PRIu64 " windows of %" PRIu32 ", %.1f tok/s\n",
                    nll->n, s->scoring.n_windows, s->loaded.max_context, rate);
        return output_flush(s->out, e);
    }
    json_t *object = json_object();
    json_object_set_new(object, "perplexity", stats_number(ppl));
    json_object_set_new(object, "standard_error", stats_number(error));
    json_object_set_new(object, "bits_per_byte", stats_number(bits));
    json_object_set_new(object, "tokens_scored", json_integer((json_int_t)nll->n));
    json_object_set_new(object, "windows", json_integer((json_int_t)s->scoring.n_windows));
    json_object_set_new(object, "context", json_integer(s->loaded.max_context));
    json_object_set_new(object, "tok_s", stats_number(rate));
    if (s->options->json_full)
        json_object_set_new(object, "stats", stats_engine_json(&s->loaded));
    return output_json(s->out, object, e);
}

int perplexity_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    struct perplexity s = {.options = o, .out = out};
    if (o->compare.n)
        return compare_run(o, t, out, e);
    if (signals_catch_interrupt(e))
        return ERR_IO;
    bar_init(&s.bar, t);
    int rc = setup_open(&s.loaded, o, &s.bar, e);
    if (!rc)
        rc = scoring_read(&s.text, o, e);
    s.scoring = (struct scoring){.loaded = &s.loaded,
                                 .progress = bar_progress(&s.bar),
                                 .tokens = &s.tokens,
                                 .by_token = o->prefer_resident > 0};
    if (!rc)
        rc = scoring_open_tokenizer(&s.tokenizer, s.loaded.info.tokenizer_path, s.loaded.info.dir,
                                    &s.scoring.progress, e);
    if (!rc)
        rc = scoring_encode(&s.text, s.tokenizer, o, &s.tokens, e);
    if (!rc)
        rc = setup_start(&s.loaded, o, (uint32_t)o->ctx_size, e);
    if (!rc)
        rc = scoring_run(&s.scoring, e);
    bar_end(&s.bar);
    if (!rc)
        rc = print(&s, e);
    if (!rc && o->stats)
        stats_print(&s.loaded, NULL);
    rc = setup_save_usage(&s.loaded, o, rc, e);
    token_list_free(&s.tokens);
    prompt_free(&s.text);
    moeflux_tokenizer_close(s.tokenizer);
    setup_close(&s.loaded);
    return rc;
}
