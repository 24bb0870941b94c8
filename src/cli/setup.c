#include "cli/setup.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/seed.h"
#include "cli/chat_template.h"
#include "cli/exit.h"
#include "cli/options/options.h"
#include "cli/place.h"
#include "cli/terminal/bar.h"
#include "cli/report/use.h"
#include "engine/lab/lab.h"
#include "engine/plan/devices.h"
#include "moeflux_chat.h"

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
                 "an expert in memory replaces a chosen one that scores less than %g higher, so the text "
                 "depends on what is in memory",
                 (double)m->prefer_resident);
    exit_tell(o->log_level, EXIT_WARN, text);
}

int setup_open(struct loaded *l, const struct options *o, struct bar *bar, struct moeflux_err *e)
{
    return setup_open_for(l, o, bar, 1, bar_progress(bar), e);
}

static void keep_contexts(struct moeflux_options *engine, uint32_t n_sequences)
{
    uint64_t all = (uint64_t)n_sequences * (engine->context ? engine->context : MOEFLUX_DEFAULT_CONTEXT);
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

static int open_one(struct loaded *l, const struct moeflux_options *engine, struct moeflux_err *e)
{
    int rc = moeflux_model_open(&l->models[l->n_models], engine, e);
    l->n_models += rc == 0;
    return rc;
}

/* Opens a copy of the model on each device. */
static int open_copies(struct loaded *l, const struct moeflux_options *engine, uint32_t n_sequences,
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
                rc = open_one(l, &one, e);
            if (pass == 1 && !rc && !moeflux_model_get_info(l->models[i]).experts_resident)
                rc = does_not_fit(i, d.names[i], "what other copies leave is too little for all experts", e);
        }
    return rc;
}

static void warn(void *ctx, const char *text)
{
    const struct options *o = ctx;
    exit_tell(o->log_level, EXIT_WARN, text);
}

/* Gives new models to the chat, if there is one. */
static int renew(struct loaded *l, struct moeflux_err *e)
{
    l->info = moeflux_model_get_info(l->models[0]);
    return l->chat ? moeflux_chat_use_models(l->chat, l->models, l->n_models, e) : 0;
}

int setup_open_for(struct loaded *l, const struct options *o, struct bar *bar, uint32_t n_sequences,
                   struct moeflux_progress progress, struct moeflux_err *e)
{
    struct moeflux_options engine = {.progress = progress, .warning = {warn, (void *)(uintptr_t)o}};
    uint64_t start = clock_ns();
    options_engine(o, &engine);
    chat_template_free(&l->template);
    int rc = chat_template_read(&l->template, o, e);
    if (!rc && o->usage)
        rc = place_check("--usage", o->usage, e);
    if (!rc && o->replicate)
        rc = open_copies(l, &engine, n_sequences, e);
    else if (!rc) {
        keep_contexts(&engine, n_sequences);
        rc = o->trace ? lab_open_traced(&l->models[0], &engine, o->trace, e) : open_one(l, &engine, e);
        l->n_models = rc == 0;
    }
    l->load_ns = clock_ns() - start;
    bar_end(bar);
    if (!rc)
        rc = renew(l, e);
    if (rc) {
        setup_close_models(l);
        return rc;
    }
    if (o->active_experts || o->expert_share < 1)
        tell_experts(o, &l->info);
    if (o->prefer_resident > 0)
        tell_margin(o, &l->info);
    return 0;
}

int setup_need_tokenizer(const struct loaded *l, const struct options *o, const char *what,
                         struct moeflux_err *e)
{
    return l->info.tokenizer_path
               ? 0
               : err_set(e, ERR_USAGE, "%s has no tokenizer.json, which %s", o->model, what);
}

int setup_chat(struct loaded *l, const struct options *o, struct moeflux_err *e)
{
    const struct chat_template *t = &l->template;
    int rc = moeflux_chat_open(&l->chat, l->models[0], e);
    if (!rc && l->n_models > 1)
        rc = moeflux_chat_use_models(l->chat, l->models, l->n_models, e);
    if (!rc && (t->text || t->variables))
        rc = setup_need_tokenizer(l, o, "--chat-template needs", e);
    return rc ? rc : chat_template_use(t, l->chat, e);
}

int setup_check_context(const struct options *o, uint32_t own, struct moeflux_err *e)
{
    return o->ctx_size > own
               ? err_set(e, ERR_USAGE, "-c: %lld tokens, expected 1 to %u, the model's own maximum",
                         (long long)o->ctx_size, own)
               : 0;
}

static int draw_seed(struct loaded *l, const struct options *o, struct moeflux_err *e)
{
    struct moeflux_err why;
    l->seed = (uint64_t)o->seed;
    int rc = o->seed < 0 ? seed_draw(&l->seed, &why) : 0;
    return rc ? err_set(e, rc, "%s (give one with -s)", why.text) : 0;
}

int setup_start(struct loaded *l, const struct options *o, uint32_t max_context, struct moeflux_err *e)
{
    uint32_t own = l->info.max_context;
    l->max_context = max_context ? max_context : MOEFLUX_DEFAULT_CONTEXT;
    if (!max_context && own < l->max_context)
        l->max_context = own;
    int rc = draw_seed(l, o, e);
    return rc ? rc : moeflux_session_new(&l->session, l->models[0], l->max_context, e);
}

void setup_get_stats(const struct loaded *l, struct moeflux_stats *out)
{
    struct moeflux_stats more;
    moeflux_model_get_stats(l->models[0], out);
    for (uint32_t i = 1; i < l->n_models; i++) {
        moeflux_model_get_stats(l->models[i], &more);
        moeflux_stats_add(out, &more);
    }
}

static int tell_replay(const struct loaded *l, const struct options *o, struct moeflux_err *e)
{
    struct moeflux_stats stats;
    setup_get_stats(l, &stats);
    return use_report_tell(o, stats.n_slots + stats.n_host_slots, e);
}

int setup_save_usage(const struct loaded *l, const struct options *o, int rc, struct moeflux_err *e)
{
    if (l->n_models == 0 || (rc && rc != ERR_INTERRUPTED))
        return rc;
    int saved = o->usage ? moeflux_model_save_usage(l->models[0], o->usage, e) : 0;
    int traced = lab_save_trace(l->models[0], saved ? NULL : e);
    saved = saved ? saved : traced;
    if (!saved && !rc && o->trace && o->stats)
        saved = tell_replay(l, o, e);
    return saved ? saved : rc;
}

void setup_close_models(struct loaded *l)
{
    while (l->n_models > 0)
        moeflux_model_close(l->models[--l->n_models]);
}

void setup_close(struct loaded *l)
{
    moeflux_session_free(l->session);
    moeflux_chat_close(l->chat);
    chat_template_free(&l->template);
    setup_close_models(l);
    *l = (struct loaded){0};
}
