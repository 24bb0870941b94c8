#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/err.h"
#include "build_id.h"
#include "base/str.h"
#include "cli/batch/batch.h"
#include "cli/measure/bench.h"
#include "cli/options/completion.h"
#include "cli/report/device.h"
#include "cli/exit.h"
#include "cli/report/inspect.h"
#include "cli/talk/interactive.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/measure/perplexity.h"
#include "cli/place.h"
#include "cli/report/plan.h"
#include "cli/prompt.h"
#include "cli/run.h"
#include "cli/setup.h"
#include "cli/signals.h"
#include "cli/terminal/bar.h"
#include "cli/terminal/term.h"
#include "cli/verbs.h"
#include "cli/which_model.h"
#include "generate/generator.h"
#include "moeflux.h"
#include "server/server.h"

static int print_help(const struct options *o, struct output *out, struct moeflux_err *e)
{
    struct str text = {0};
    options_help(o, &text);
    output_add(out, str_text(&text), text.len);
    str_free(&text);
    return output_flush(out, e);
}

static void tell_line(void *ctx, const char *text)
{
    (void)ctx;
    exit_warn(text);
}

static void tell_nothing(void *ctx, const char *text)
{
    (void)ctx;
    (void)text;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Answers side by side, and sequences in memory, where nothing says how many: each of several devices has
 * something to do. */
static int choose_parallel(const struct options *o, struct server_options *so, struct moeflux_err *e)
{
    enum { OF_A_DEVICE = 4, MOST = 64, DEFAULT_SEQUENCES = 4 };
    uint32_t n, wanted = (uint32_t)o->sequences;
    int rc = setup_n_devices(o, &n, e);
    if (rc)
        return rc;
    so->parallel = o->parallel ? (uint32_t)o->parallel : n > 1 ? least(n * OF_A_DEVICE, MOST) : 1;
    if (!o->parallel && wanted)
        so->parallel = least(so->parallel, wanted);
    so->sequences = wanted ? wanted : so->parallel > DEFAULT_SEQUENCES ? so->parallel : DEFAULT_SEQUENCES;
    if (o->replicate && so->parallel < n)
        return err_set(e, ERR_USAGE,
                       "--parallel: expected at least %u with --replicate, an answer a copy, found %u", n,
                       so->parallel);
    return 0;
}

static struct server_options server_options_of(const struct options *o)
{
    return (struct server_options){
        .host = o->host,
        .port = (uint16_t)o->port,
        .key_file = o->api_key_file,
        .cors = o->cors,
        .name = options_model_name(o),
        .context = (uint32_t)o->ctx_size,
        .state_bytes = o->state_memory,
        .state_dir = o->state_dir,
        .state_dir_bytes = o->state_disk,
        .state_dir_files = (uint32_t)o->state_files,
        .most_waiting = (uint32_t)o->queue,
        .grace_s = (uint32_t)o->grace,
        .request = options_request(o),
        .tell = o->log_level >= EXIT_WARN ? tell_line : tell_nothing,
    };
}

/* Until a signal says that it is enough. */
static int serve(const struct options *o, const struct term *t, struct moeflux_err *e)
{
    struct server_options so = server_options_of(o);
    struct generator g = {0};
    struct server *s = NULL;
    struct bar bar;
    if (signals_catch_interrupt(e))
        return ERR_IO;
    signals_catch_termination();
    bar_init(&bar, t);
    int rc = choose_parallel(o, &so, e);
    if (!rc)
        rc = server_new(&s, &so, e);
    if (!rc)
        rc = setup_open_for(&g, o, &bar, so.sequences, server_progress(s, bar_progress(&bar)), e);
    if (!rc)
        rc = server_start(s, &g, e);
    if (!rc) {
        char line[192];
        snprintf(line, sizeof line, "listening on %s", server_url(s));
        exit_tell(o->log_level, EXIT_INFO, line);
        signals_wait(-1);
        server_stop(s);
    }
    server_free(s);
    rc = setup_save_usage(&g, o, rc, e);
    generator_close(&g);
    return rc;
}

static int dispatch(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    if (o->help)
        return print_help(o, out, e);
    const char *model = o->verb != VERB_CONVERT ? o->model : o->dst ? o->src : NULL;
    if (model && which_model_check(model, o->verb == VERB_CONVERT, e))
        return (int)e->code;
    bool evaluates = o->verb == VERB_RUN || o->verb == VERB_BATCH || o->verb == VERB_SERVE ||
                     o->verb == VERB_BENCH || o->verb == VERB_PERPLEXITY;
    if (evaluates && place_check_outputs(o, e))
        return ERR_USAGE;
    switch (o->verb) {
    case VERB_CONVERT:
        return verbs_convert(o, t, out, e);
    case VERB_COMPLETION:
        return completion_run(o, out, e);
    case VERB_SERVE:
        return serve(o, t, e);
    case VERB_INSPECT:
        return inspect_run(o, out, e);
    case VERB_LIST_DEVICES:
        return device_report_run(o, out, e);
    case VERB_SELFTEST:
        return verbs_selftest(o, out, e);
    case VERB_PLAN:
        return plan_report_run(o, out, e);
    case VERB_BATCH:
        return batch_run(o, t, out, e);
    case VERB_BENCH:
        return bench_run(o, MOEFLUX_BUILD, t, out, e);
    case VERB_PERPLEXITY:
        return perplexity_run(o, t, out, e);
    case VERB_VERSION:
        output_text(out, "moeflux " MOEFLUX_VERSION "\n");
        return output_flush(out, e);
    default:
        if (!prompt_is_given(o, t) && o->tools)
            return err_set(e, ERR_USAGE, "--tools goes with a prompt or --batch, not with a conversation");
        if (!prompt_is_given(o, t))
            return interactive_run(o, t, out, e);
        return o->resume ? interactive_continue(o, t, out, e) : run_once(o, t, out, e);
    }
}

/* A model with experts on 8 disks has 8 files a layer, each open twice for direct reads; the usual limit is
 * 1024. */
static void allow_many_files(void)
{
    const rlim_t enough = 4096;
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur >= enough)
        return;
    l.rlim_cur = l.rlim_max < enough ? l.rlim_max : enough;
    /* Where it may not be raised, opening names the file that is one too many. */
    (void)setrlimit(RLIMIT_NOFILE, &l);
}

/* Where no device is named none is taken that is software, so that the Vulkan loader (from 1.3.234 on) need
 * not load the driver of one: Mesa's brings a compiler along, 60 ms of each start. What the user has set
 * stays. */
static void skip_software_drivers(const struct options *o)
{
    bool is_named = o->device && strcmp(o->device, "auto") != 0 && strcmp(o->device, "all") != 0;
    if (!is_named && o->verb != VERB_LIST_DEVICES)
        (void)setenv("VK_LOADER_DRIVERS_DISABLE", "*lvp_icd*,*swiftshader_icd*", 0);
}

int main(int argc, char **argv)
{
    struct options o;
    struct output out;
    struct moeflux_err e = {0}, closing = {0};
    struct term t = term_look();
    signals_ignore_failed_writes();
    allow_many_files();
    output_init(&out, STDOUT_FILENO);
    int rc = options_parse(&o, argc, argv, &e);
    t.quiet = o.log_level < EXIT_INFO;
    if (o.color)
        t.out_dress = o.color == 1;
    if (!rc) {
        skip_software_drivers(&o);
        rc = dispatch(&o, &t, &out, &e);
    }
    if (rc < 0)
        options_explain(&o, &e);
    options_free(&o);
    /* A failure that was found first is the one that is told. */
    int closed = output_close(&out, &closing);
    return rc ? exit_report(rc, &e) : exit_report(closed, &closing);
}
