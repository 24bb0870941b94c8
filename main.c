/* main.c - the program: parses the command line and runs the verb that it names. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "build_id.h"
#include "cli/batch/batch.h"
#include "cli/measure/bench.h"
#include "cli/options/ask.h"
#include "cli/options/check.h"
#include "cli/options/completion.h"
#include "cli/options/explain.h"
#include "cli/report/device.h"
#include "cli/report/doctor.h"
#include "cli/exit.h"
#include "cli/get/get.h"
#include "cli/hub.h"
#include "cli/report/inspect.h"
#include "cli/talk/interactive.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/measure/perplexity.h"
#include "cli/place.h"
#include "cli/report/plan.h"
#include "cli/prompt.h"
#include "cli/run.h"
#include "cli/say.h"
#include "cli/setup.h"
#include "cli/signals.h"
#include "cli/startup.h"
#include "cli/terminal/bar.h"
#include "cli/terminal/term.h"
#include "cli/verbs.h"
#include "cli/which_model.h"
#include "moeflux_chat.h"
#include "server/serve.h"

/* What the callbacks of the verb `serve` need. */
struct serving {
    const struct options *options;
    struct bar bar;
    struct loaded loaded;
    struct moeflux_request *request;
};

static void tell_warning(void *ctx, const char *text)
{
    const struct serving *s = ctx;
    exit_tell(s->options->log_level, EXIT_WARN, text);
}

static int open_model(void *ctx, struct moeflux_chat **chat, uint32_t n_sequences,
                      struct moeflux_progress progress, struct moeflux_err *e)
{
    struct serving *s = ctx;
    int rc = setup_open_for(&s->loaded, s->options, &s->bar, n_sequences, progress, e);
    if (!rc && !*chat)
        rc = setup_chat(&s->loaded, s->options, e);
    *chat = s->loaded.chat;
    return rc;
}

static void tell_url(void *ctx, const char *url)
{
    const struct serving *s = ctx;
    char line[192];
    snprintf(line, sizeof line, "listening on %s", url);
    exit_tell(s->options->log_level, EXIT_INFO, line);
}

static void wait_for_signal(void *ctx)
{
    (void)ctx;
    signals_wait(-1);
}

static void wake(void *ctx)
{
    (void)ctx;
    signals_wake();
}

static int close_model(void *ctx, int rc, struct moeflux_err *e)
{
    struct serving *s = ctx;
    rc = setup_save_usage(&s->loaded, s->options, rc, e);
    setup_close_models(&s->loaded);
    return rc;
}

static struct server_options server_options_of(const struct options *o, struct serving *s)
{
    return (struct server_options){
        .host = o->host,
        .port = (uint16_t)o->port,
        .key_file = o->api_key_file,
        .keys = o->api_key,
        .cors = o->cors,
        .name = options_model_name(o),
        .context = (uint32_t)o->ctx_size,
        .parallel = (uint32_t)o->parallel,
        .sequences = (uint32_t)o->sequences,
        .state_bytes = o->state_memory,
        .state_dir = o->state_dir,
        .state_dir_bytes = o->state_disk,
        .state_dir_files = (uint32_t)o->state_files,
        .most_waiting = (uint32_t)o->queue,
        .address_connections =
            o->address_connections == OPTIONS_NOT_GIVEN ? SERVE_CHOOSES : (uint32_t)o->address_connections,
        .grace_s = (uint32_t)o->grace,
        .request = s->request,
        .tell = tell_warning,
        .lost = wake,
        .ctx = s,
    };
}

static int serve(const struct options *o, const struct term *t, struct moeflux_err *e)
{
    struct serving s = {.options = o};
    if (signals_catch_interrupt(e))
        return ERR_IO;
    signals_catch_termination();
    bar_init(&s.bar, t);
    int rc = ask_defaults(&s.request, o, e);
    if (rc)
        return rc;
    struct serve_options so = {
        .server = server_options_of(o, &s),
        .replicate = o->replicate,
        .opens_once = o->trace != NULL,
        .loading = bar_progress(&s.bar),
        .open = open_model,
        .listening = tell_url,
        .wait = wait_for_signal,
        .closing = close_model,
        .ctx = &s,
    };
    rc = setup_n_devices(o, &so.n_devices, e);
    if (!rc)
        rc = serve_run(&so, e);
    setup_close(&s.loaded);
    moeflux_request_free(s.request);
    return rc;
}

static int check_model(const struct options *o, struct moeflux_err *e)
{
    const char *model = o->verb != VERB_CONVERT ? o->model : o->dst ? o->src : NULL;
    bool plans = o->verb == VERB_INSPECT || o->verb == VERB_PLAN || o->verb == VERB_DOCTOR;
    int rc = model ? which_model_check(model, plans, e) : 0;
    /* A word after `run` may be the name of a model of Ollama. */
    if (!rc && model && o->foreign.takes_operands)
        rc = which_model_require(model, e);
    return rc;
}

/* Finds the model. The doctor's page says what is wrong with it. */
static int find_model(struct options *o, struct moeflux_err *e)
{
    int rc = o->help ? 0 : hub_use(o, e);
    if (!rc && !o->help)
        rc = check_model(o, e);
    if (!rc || o->verb != VERB_DOCTOR)
        return rc ? rc : options_take_model(o, e);
    o->model_fault = *e;
    return 0;
}

static int dispatch(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    if (o->help)
        return verbs_help(o, out, e);
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
    case VERB_DOCTOR:
        return doctor_run(o, MOEFLUX_BUILD, t, out, e);
    case VERB_GET:
        return get_run(o, t, out, e);
    case VERB_LIST_DEVICES:
        return device_report_run(o, out, e);
    case VERB_SELFTEST:
        return verbs_selftest(o, t, out, e);
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
        if (!prompt_is_given(o, t) && check_conversation(o, e))
            return ERR_USAGE;
        if (!prompt_is_given(o, t))
            return interactive_run(o, t, out, e);
        return o->resume ? interactive_continue(o, t, out, e) : run_once(o, t, out, e);
    }
}

int main(int argc, char **argv)
{
    struct options o;
    struct output out;
    struct moeflux_err e = {0}, closing = {0};
    struct term t = term_look();
    signals_ignore_failed_writes();
    signals_catch_bus_errors();
    startup_keep_standard_files();
    startup_allow_many_files();
    output_init(&out, STDOUT_FILENO);
    int rc = options_parse(&o, argc, argv, &e);
    t.quiet = o.log_level < EXIT_INFO;
    if (o.color)
        t.out_dress = o.color == 1;
    if (!rc && o.log_level >= EXIT_INFO)
        say_text(&o.foreign.notes);
    if (!rc)
        rc = find_model(&o, &e);
    if (!rc) {
        startup_skip_software_drivers(&o);
        rc = dispatch(&o, &t, &out, &e);
    }
    if (rc < 0)
        explain_failure(&o, &e);
    options_free(&o);
    /* The first failure is the one that is reported. */
    int closed = output_close(&out, &closing);
    return rc ? exit_report(rc, &e) : exit_report(closed, &closing);
}
