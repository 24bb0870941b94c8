#include "cli/setup.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "cli/chat_template.h"
#include "cli/exit.h"
#include "cli/options/options.h"
#include "cli/place.h"
#include "cli/terminal/bar.h"
#include "cli/report/use.h"
#include "engine/lab/lab.h"
#include "engine/plan/devices.h"
#include "generate/generator.h"

/* Says once that fewer or more experts make other answers than the model's own. */
static void tell_experts(const struct options *o, const struct moeflux_model_info *m)
{
    char share[64] = "", text[192];
    if (m->expert_share < 1)
        snprintf(share, sizeof share, ", as few as carry %g of their weights", (double)m->expert_share);
    snprintf(text, sizeof text, "%s%u of %u experts for each token%s; the model's own number is %u",
             share[0] ? "up to " : "", m->top_k, m->n_experts, share, m->own_top_k);
    exit_tell(o->log_level, EXIT_WARN, text);
}

/* Says once that answers depend on what is in memory. */
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

static void keep_contexts(struct moeflux_options *engine, uint32_t n_sequences)
{
    uint64_t all = (uint64_t)n_sequences * (engine->context ? engine->context : GENERATOR_DEFAULT_CONTEXT);
    if (n_sequences > 1)
        engine->context = all < UINT32_MAX ? (uint32_t)all : UINT32_MAX;
}

int setup_n_devices(const struct options *o, uint32_t *n, struct moeflux_err *e)
{
    struct devices d;
    int rc = devices_parse(&d, o->device, e);
    *n = d.n;
    return rc;
}

static int does_not_fit(uint32_t i, const char *name, const char *why, struct moeflux_err *e)
{
    return err_set(e, ERR_NO_FIT, "--replicate: device %u (%.100s): %.300s", i + 1, name, why);
}

/* Checks before anything is read that the whole model fits a device. */
static int check_copy(const struct moeflux_options *engine, uint32_t i, struct moeflux_err *e)
{
    struct moeflux_plan p;
    struct moeflux_err why;
    char text[160];
    int rc = moeflux_make_plan(engine, &p, &why);
    if (rc == ERR_NO_FIT)
        return does_not_fit(i, engine->device, why.text, e);
    if (rc)
        return err_set(e, rc, "%s", why.text);
    if (p.n_slots >= p.n_experts)
        return 0;
    snprintf(text, sizeof text,
             "it has room for %" PRIu64 " of %" PRIu64
             " experts (without --replicate the devices share them)",
             p.n_slots, p.n_experts);
    return does_not_fit(i, p.device, text, e);
}

/* Opens a copy of the model on each device. */
static int open_copies(struct generator *s, const struct moeflux_options *engine, uint32_t n_sequences,
                       struct moeflux_err *e)
{
    struct moeflux_options one = *engine;
    struct devices d;
    int rc = devices_parse(&d, engine->device, e);
    if (rc)
        return rc;
    if (d.n == 1)
        return err_set(e, ERR_USAGE, "--replicate goes with several devices, --device names 1");
    if (engine->n_gpu_memory && engine->n_gpu_memory != d.n)
        return err_set(e, ERR_USAGE, "--gpu-memory has %u sizes, expected one, or %u: one for each device",
                       engine->n_gpu_memory, d.n);
    keep_contexts(&one, div_up(n_sequences, d.n));
    one.n_gpu_memory = engine->n_gpu_memory ? 1 : 0;
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; !rc && i < d.n; i++) {
            one.device = d.names[i];
            one.gpu_memory_each[0] = engine->gpu_memory_each[i];
            if (pass == 0)
                rc = check_copy(&one, i, e);
            else
                rc = i == 0 ? generator_open(s, &one, e) : generator_add_copy(s, &one, e);
            if (pass == 1 && !rc && !moeflux_model_get_info(generator_copy(s, i)).experts_resident)
                rc = does_not_fit(i, d.names[i], "what other copies leave is too little for all experts", e);
        }
    return rc;
}

/* Opens the model and writes a trace. */
static int open_traced(struct generator *s, const struct moeflux_options *engine, const char *trace,
                       struct moeflux_err *e)
{
    uint64_t start = clock_ns();
    struct moeflux_model *m;
    int rc = lab_open_traced(&m, engine, trace, e);
    if (rc)
        return rc;
    if ((rc = generator_of_model(s, m, e))) {
        moeflux_model_close(m);
        return rc;
    }
    generator_report(s, &engine->progress);
    s->load_ns = clock_ns() - start;
    return 0;
}

static void warn(void *ctx, const char *text)
{
    const struct options *o = ctx;
    exit_tell(o->log_level, EXIT_WARN, text);
}

int setup_open_for(struct generator *s, const struct options *o, struct bar *bar, uint32_t n_sequences,
                   struct moeflux_progress progress, struct moeflux_err *e)
{
    struct moeflux_options engine = {.progress = progress, .warning = {warn, (void *)(uintptr_t)o}};
    struct chat_template template;
    *s = (struct generator){0};
    options_engine(o, &engine);
    int rc = chat_template_read(&template, o, e);
    if (!rc && o->usage)
        rc = place_check("--usage", o->usage, e);
    if (!rc && o->replicate)
        rc = open_copies(s, &engine, n_sequences, e);
    else if (!rc) {
        keep_contexts(&engine, n_sequences);
        rc = o->trace ? open_traced(s, &engine, o->trace, e) : generator_open(s, &engine, e);
    }
    bar_end(bar);
    if (!rc)
        rc = chat_template_use(&template, s, e);
    chat_template_free(&template);
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
    return request_use_chat(&r, s, what, e);
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
    generator_get_stats(s, &stats);
    return use_report_tell(o, stats.n_slots + stats.n_host_slots, e);
}

int setup_save_usage(const struct generator *s, const struct options *o, int rc, struct moeflux_err *e)
{
    if (!s->model || (rc && rc != ERR_INTERRUPTED))
        return rc;
    int saved = o->usage ? moeflux_model_save_usage(s->model, o->usage, e) : 0;
    int traced = lab_save_trace(s->model, saved ? NULL : e);
    saved = saved ? saved : traced;
    if (!saved && !rc && o->trace && o->stats)
        saved = tell_replay(s, o, e);
    return saved ? saved : rc;
}
