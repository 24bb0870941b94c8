#include <sys/resource.h>
#include <unistd.h>

#include "base/err.h"
#include "build_id.h"
#include "base/str.h"
#include "cli/batch.h"
#include "cli/bench.h"
#include "cli/exit.h"
#include "cli/inspect.h"
#include "cli/interactive.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/perplexity.h"
#include "cli/place.h"
#include "cli/plan_report.h"
#include "cli/prompt.h"
#include "cli/run.h"
#include "cli/signals.h"
#include "cli/terminal/term.h"
#include "cli/verbs.h"
#include "moeflux.h"

static int print_help(const struct options *o, struct output *out, struct moeflux_err *e)
{
    struct str text = {0};
    options_help(o, &text);
    output_add(out, str_text(&text), text.len);
    str_free(&text);
    return output_flush(out, e);
}

static int dispatch(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    if (o->help)
        return print_help(o, out, e);
    bool evaluates =
        o->verb == VERB_RUN || o->verb == VERB_BATCH || o->verb == VERB_BENCH || o->verb == VERB_PERPLEXITY;
    if (evaluates && place_check_outputs(o, e))
        return ERR_USAGE;
    switch (o->verb) {
    case VERB_CONVERT:
        return verbs_convert(o, t, out, e);
    case VERB_INSPECT:
        return inspect_run(o, out, e);
    case VERB_LIST_DEVICES:
        return verbs_list_devices(o, out, e);
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
        return o->resume ? err_set(e, ERR_USAGE, "--resume needs a terminal on stdin")
                         : run_once(o, t, out, e);
    }
}

/* A model with experts on 8 disks has 8 files a layer, each open twice for direct reads; the usual limit is 1024. */
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
    if (!rc)
        rc = dispatch(&o, &t, &out, &e);
    /* A failure that was found first is the one that is told. */
    int closed = output_close(&out, &closing);
    return rc ? exit_report(rc, &e) : exit_report(closed, &closing);
}
