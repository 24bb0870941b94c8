#include "cli/setup.h"

#include <stdio.h>

#include "base/err.h"
#include "cli/exit.h"
#include "cli/options.h"
#include "cli/place.h"
#include "cli/terminal/bar.h"
#include "cli/use_report.h"
#include "generate/generator.h"

/* Answers are other ones than the model's own: said once. */
static void tell_experts(const struct options *o, const struct moeflux_model_info *m)
{
    char share[64] = "", text[192];
    if (m->expert_share < 1)
        snprintf(share, sizeof share, ", as few as carry %g of their weights", (double)m->expert_share);
    snprintf(text, sizeof text, "%s%u of %u experts for each token%s; the model's own number is %u",
             share[0] ? "up to " : "", m->top_k, m->n_experts, share, m->own_top_k);
    exit_tell(o->log_level, EXIT_WARN, text);
}

/* Answers depend on what is in memory: said once. */
static void tell_margin(const struct options *o, const struct moeflux_model_info *m)
{
    char text[160];
    if (m->experts_resident)
        snprintf(text, sizeof text, "--prefer-resident changes nothing: all experts are in memory");
    else
        snprintf(text, sizeof text,
                 "experts in memory stand in for others that score less than %g more; the text depends on "
                 "the cache",
                 (double)m->prefer_resident);
    exit_tell(o->log_level, EXIT_WARN, text);
}

int setup_open(struct generator *s, const struct options *o, struct bar *bar, struct moeflux_err *e)
{
    return setup_open_for(s, o, bar, 1, bar_progress(bar), e);
}

int setup_open_for(struct generator *s, const struct options *o, struct bar *bar, uint32_t n_sequences,
                   struct moeflux_progress progress, struct moeflux_err *e)
{
    struct moeflux_options engine = {.progress = progress};
    *s = (struct generator){0};
    options_engine(o, &engine);
    if (n_sequences > 1) {
        uint64_t all = (uint64_t)n_sequences * (engine.context ? engine.context : GENERATOR_DEFAULT_CONTEXT);
        engine.context = all < UINT32_MAX ? (uint32_t)all : UINT32_MAX;
    }
    int rc = o->usage ? place_check("--usage", o->usage, e) : 0;
    if (!rc)
        rc = generator_open(s, &engine, e);
    bar_end(bar);
    if (!rc && (o->active_experts || o->expert_share < 1))
        tell_experts(o, &s->info);
    if (!rc && o->prefer_resident > 0)
        tell_margin(o, &s->info);
    return rc;
}

int setup_chat(struct generator *s, const struct options *o, const char *what, struct moeflux_err *e)
{
    if (!s->tokenizer)
        return err_set(e, ERR_USAGE, "%s has no tokenizer.json, which %s needs (use --tokens-in)", o->model,
                       what);
    struct request_options r = options_request(o);
    return generator_use_chat(s, request_thinking(&r), what, e);
}

int setup_start(struct generator *s, const struct options *o, uint32_t max_context, struct moeflux_err *e)
{
    uint64_t seed = (uint64_t)o->seed;
    struct moeflux_err why;
    int rc = o->seed < 0 ? generator_draw_seed(&seed, &why) : 0;
    if (rc)
        return err_set(e, rc, "%s (give one with -s)", why.text);
    struct sampler_options sampling = options_sampling(o, seed);
    return generator_start(s, max_context, &sampling, e);
}

static int tell_replay(const struct generator *s, const struct options *o, struct moeflux_err *e)
{
    struct moeflux_stats stats;
    moeflux_model_get_stats(s->model, &stats);
    return use_report_tell(o, stats.n_slots + stats.n_host_slots, e);
}

int setup_save_usage(const struct generator *s, const struct options *o, int rc, struct moeflux_err *e)
{
    if (!s->model || (rc && rc != ERR_INTERRUPTED))
        return rc;
    int saved = o->usage ? moeflux_model_save_usage(s->model, o->usage, e) : 0;
    int traced = moeflux_model_save_trace(s->model, saved ? NULL : e);
    saved = saved ? saved : traced;
    if (!saved && !rc && o->trace && o->stats)
        saved = tell_replay(s, o, e);
    return saved ? saved : rc;
}
