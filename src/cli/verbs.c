#include "cli/verbs.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "cli/report/convert.h"
#include "cli/exit.h"
#include "cli/options/number.h"
#include "cli/options/options.h"
#include "cli/options/usage.h"
#include "cli/output.h"
#include "cli/say.h"
#include "cli/signals.h"
#include "cli/terminal/bar.h"
#include "cli/terminal/term.h"
#include "convert/convert.h"
#include "convert/check.h"
#include "engine/lab/lab.h"
#include "moeflux.h"

int verbs_help(const struct options *o, struct output *out, struct moeflux_err *e)
{
    struct str text = {0};
    usage_add(o, &text);
    output_add(out, str_text(&text), text.len);
    str_free(&text);
    return output_flush(out, e);
}

/* ---- convert ---- */

/* Choices are indices without the enums' first value, which stands for none; hence the + 1. */
static struct convert_settings settings_of(const struct options *o)
{
    return (struct convert_settings){
        .bits = (uint32_t)o->bits,
        .group = (uint32_t)o->group,
        .expert_bits = (uint32_t)o->expert_bits,
        .expert_group = (uint32_t)o->expert_group,
        .mode = o->mode == OPTIONS_NOT_GIVEN ? CONVERT_MODE_DEFAULT : (enum convert_mode)(o->mode + 1),
        .expert_mode = o->expert_mode == OPTIONS_NOT_GIVEN ? CONVERT_MODE_DEFAULT
                                                           : (enum convert_mode)(o->expert_mode + 1),
        .recipe = o->recipe == OPTIONS_NOT_GIVEN ? CONVERT_NO_RECIPE : (enum convert_recipe)(o->recipe + 1),
        .lossy = o->lossy,
        .half_scales = o->half_scales,
        .rule = o->scales == OPTIONS_NOT_GIVEN ? CONVERT_RULE_DEFAULT : (enum convert_rule)(o->scales + 1),
    };
}

static void say_result(const struct options *o, const struct convert_result *r, double seconds)
{
    char written[32], speed[32];
    number_show_bytes(written, sizeof written, (double)r->bytes_written);
    number_show_bytes(speed, sizeof speed, (double)r->bytes_read / (seconds > 0 ? seconds : 1));
    say("%s: %u tensors and %u layers of experts, %s written in %.1f s (read at %s/s)%s\n", o->dst,
        r->n_tensors, r->n_expert_layers, written, seconds, speed, o->verify ? ", verified" : "");
    if (r->n_left_out)
        say("left out: %u tensors of vision, projector or other parts\n", r->n_left_out);
    if (r->has_drafter)
        say("%s/mtp has the layer of multi-token prediction\n", o->dst);
    if (r->n_parts > 1)
        say("the experts are spread over %u directories\n", r->n_parts);
    if (r->n_layers_kept)
        say("%u layers were kept from an interrupted run\n", r->n_layers_kept);
    if (r->n_fewer)
        say("%u matrices have fewer bits than asked and were copied\n", r->n_fewer);
}

static int verify(const struct options *o, const struct term *t, struct moeflux_err *e)
{
    struct bar bar;
    char amount[32];
    bar_init(&bar, t);
    struct convert_check c = {
        .dir = o->src, .n_threads = (uint32_t)o->threads, .progress = bar_progress(&bar)};
    int rc = convert_check(&c, e);
    bar_end(&bar);
    if (rc)
        return rc;
    number_show_bytes(amount, sizeof amount, (double)c.bytes);
    if (o->log_level >= EXIT_INFO)
        say("%s: %u files, %s, as they were written\n", o->src, c.n_files, amount);
    return 0;
}

int verbs_convert(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    struct bar bar;
    struct convert_result r = {0};
    uint64_t start = clock_ns();
    if (signals_catch_interrupt(e))
        return ERR_IO;
    if (!o->dst)
        return verify(o, t, e);
    bar_init(&bar, t);
    struct convert_options co = {
        .src = o->src,
        .dst = o->dst,
        .spread = o->spread,
        .settings = settings_of(o),
        .no_drafter = o->no_mtp,
        .drafter_file = o->mtp,
        .verify = o->verify,
        .n_threads = (uint32_t)o->threads,
        .progress = bar_progress(&bar),
    };
    int rc = convert_run(&co, &r, e);
    bar_end(&bar);
    if (rc == ERR_INTERRUPTED)
        exit_tell(o->log_level, EXIT_WARN, "interrupted; the same command goes on with what is done");
    if (rc)
        return rc;
    if (o->log_level < EXIT_INFO)
        return 0;
    say_result(o, &r, (double)(clock_ns() - start) / 1e9);
    return convert_report_print(&r.errors, co.settings.rule != CONVERT_RULE_MINMAX, out, e);
}

/* ---- selftest ---- */

struct selftest {
    struct output *out;
    unsigned n_cases, n_skipped;
    char device[128]; /* the last case's */
    struct bar bar;
};

static void print_case(void *ctx, const struct lab_selftest_row *r)
{
    struct selftest *st = ctx;
    struct moeflux_err ignored;
    bar_hide(&st->bar);
    if (strcmp(st->device, r->device) != 0)
        output_addf(st->out, "%s%s\n", st->n_cases ? "\n" : "", r->device);
    snprintf(st->device, sizeof st->device, "%s", r->device);
    if (st->n_cases++ == 0)
        output_addf(st->out, "%-24s %-32s %10s %10s\n", "kernel", "shape", "error", "bound");
    if (r->skipped)
        output_addf(st->out, "%-24s %-32s %10s %10s  SKIP\n", r->kernel, r->shape, "-", "-");
    else
        output_addf(st->out, "%-24s %-32s %10.2e %10.2e  %s\n", r->kernel, r->shape, r->error, r->bound,
                    r->ok ? "ok" : "FAILED");
    st->n_skipped += r->skipped;
    /* A failure sticks in the output and is reported at the end. */
    output_flush(st->out, &ignored);
}

static void report_progress(void *ctx, uint32_t case_number, uint32_t n_cases)
{
    struct selftest *st = ctx;
    const struct moeflux_progress p = bar_progress(&st->bar);
    p.report(p.ctx, "testing", "cases", case_number - 1, n_cases);
}

int verbs_selftest(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    struct selftest st = {.out = out};
    bar_init(&st.bar, t);
    int n_failed = lab_selftest(&(struct lab_selftest_options){.device = o->device,
                                                               .cpu_isa = options_cpu_isa(o),
                                                               .full = o->word != NULL,
                                                               .row = print_case,
                                                               .progress = report_progress,
                                                               .ctx = &st},
                                e);
    bar_end(&st.bar);
    if (n_failed < 0)
        return n_failed;
    output_addf(out, "%u cases, %d failed", st.n_cases, n_failed);
    if (st.n_skipped)
        output_addf(out, ", %u skipped: this device has no kernels for them", st.n_skipped);
    output_addf(out, "\n");
    int rc = output_flush(out, e);
    if (rc)
        return rc;
    if (st.n_cases == st.n_skipped)
        return err_set(e, ERR_DEVICE, "the self-test ran no case");
    return n_failed ? err_set(e, ERR_DEVICE, "%d of %u kernel tests failed", n_failed, st.n_cases) : 0;
}
