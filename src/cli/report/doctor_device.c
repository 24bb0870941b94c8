#include "cli/report/doctor_device.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "cli/options/number.h"
#include "cli/options/options.h"
#include "cli/report/facts.h"
#include "cli/terminal/bar.h"

/* --- the self-test --- */

struct test {
    struct doctor_device *device;
    struct bar bar;
};

static void count_case(void *ctx, const struct lab_selftest_row *r)
{
    struct test *t = ctx;
    struct doctor_device *d = t->device;
    d->n_cases++;
    d->n_skipped += r->skipped;
    d->n_failed += !r->ok;
    if (!r->ok && !d->first_failed[0])
        snprintf(d->first_failed, sizeof d->first_failed, "%s, %s: error %.2e, bound %.2e", r->kernel,
                 r->shape, r->error, r->bound);
}

static void report_progress(void *ctx, uint32_t case_number, uint32_t n_cases)
{
    struct test *t = ctx;
    const struct moeflux_progress p = bar_progress(&t->bar);
    p.report(p.ctx, "testing", "cases", case_number - 1, n_cases);
}

static int test(struct doctor_device *d, const struct options *o, const struct term *t, struct moeflux_err *e)
{
    struct test test = {.device = d};
    bar_init(&test.bar, t);
    const struct lab_selftest_options lo = {.device = d->about.option,
                                            .cpu_isa = d->about.is_host ? options_cpu_isa(o) : NULL,
                                            .brief = true,
                                            .row = count_case,
                                            .progress = report_progress,
                                            .ctx = &test};
    int rc = lab_selftest(&lo, e);
    bar_end(&test.bar);
    d->tested = rc >= 0;
    return rc > 0 ? err_set(e, ERR_DEVICE, "%s: %u of %u kernel tests failed, the first: %s", d->about.name,
                            d->n_failed, d->n_cases, d->first_failed)
                  : rc;
}

int doctor_device_measure(struct doctor_device *d, const struct options *o,
                          const struct moeflux_options *engine, const struct term *t, struct moeflux_err *e)
{
    struct moeflux_options of = *engine;
    int rc = 0;
    of.cpu_isa = d->about.is_host ? engine->cpu_isa : NULL;
    if (!o->no_measure) {
        rc = lab_measure_device(&of, d->about.option, &d->speeds, e);
        d->measured = rc == 0;
    }
    if (rc == 0 && !o->no_selftest)
        rc = test(d, o, t, e);
    if (rc < 0 && !d->n_failed)
        snprintf(d->fault, sizeof d->fault, "%s", e->text);
    return rc;
}

/* --- the report --- */

static void heaps(const struct lab_device *d, const struct facts *f)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < d->n_heaps; i++) {
        const struct lab_heap *h = &d->heaps[i];
        const struct facts one = {.object = json_object()};
        char budget[32] = "unknown", used[32] = "unknown", note[128], title[24];
        if (h->budget_bytes != UINT64_MAX)
            number_show_bytes(budget, sizeof budget, (double)h->budget_bytes);
        if (h->used_bytes != UINT64_MAX)
            number_show_bytes(used, sizeof used, (double)h->used_bytes);
        snprintf(note, sizeof note, "%s, %s; budget %s, used %s", h->is_local ? "the device's" : "the host's",
                 h->is_mapped ? "mapped" : "not mapped", budget, used);
        snprintf(title, sizeof title, "  heap %u", i);
        facts_bytes(f, NULL, title, h->bytes, note);
        facts_count(&one, "bytes", h->bytes);
        facts_count(&one, "budget_bytes", h->budget_bytes);
        facts_count(&one, "used_bytes", h->used_bytes);
        facts_flag(&one, "device_local", h->is_local);
        facts_flag(&one, "mapped", h->is_mapped);
        json_array_append_new(list, one.object);
    }
    facts_value(f, "heaps", list);
}

static const char *yes(bool is)
{
    return is ? "yes" : "no";
}

static void limits(const struct lab_device *d, const struct facts *f)
{
    char processors[48] = "";
    if (d->n_processors)
        snprintf(processors, sizeof processors, ", %u shader cores", d->n_processors);
    facts_line(f, "  limits", "%u invocations a workgroup, %u B shared%s", d->max_workgroup,
               d->max_shared_bytes, processors);
    facts_count(f, "max_workgroup", d->max_workgroup);
    facts_count(f, "max_shared_bytes", d->max_shared_bytes);
    facts_count(f, "shader_cores", d->n_processors);
    facts_bytes(f, "max_allocation_bytes", "  largest buffer", d->max_alloc_bytes, "");
    facts_line(f, "  driver", "memory budgets %s, import of host memory %s, copy queue %s, timestamps %s",
               yes(d->has_budget), yes(d->imports_host), yes(d->has_copy_queue), yes(d->has_timestamps));
    facts_flag(f, "memory_budget", d->has_budget);
    facts_flag(f, "imports_host_memory", d->imports_host);
    facts_flag(f, "copy_queue", d->has_copy_queue);
    facts_flag(f, "timestamps", d->has_timestamps);
    facts_flag(f, "unified", d->is_unified);
    facts_bytes(f, "memory_bytes", "  memory", d->total_bytes,
                d->is_unified ? "unified: experts are used in place" : "its own: experts are copied");
    facts_bytes(f, "free_bytes", "  free", d->free_bytes, "");
}

static const char *matrices(const struct lab_device *d)
{
    if (d->uses_matrices)
        return d->uses_khr ? "VK_KHR_cooperative_matrix" : "VK_NV_cooperative_matrix";
    return d->has_nv || d->has_khr
               ? "not used: they need workgroups of 256 invocations and 32,768 B, and --prompt-type not f32"
               : "none that kernels here use";
}

static void kernels(const struct lab_device *d, const struct facts *f)
{
    facts_line(f, "  subgroup", "%u lanes, %s", d->subgroup_size,
               d->sets_subgroup_size ? "requested by each kernel" : "the device's only size");
    facts_count(f, "subgroup_size", d->subgroup_size);
    facts_flag(f, "subgroup_size_requested", d->sets_subgroup_size);
    facts_text(f, "matrix_units", "  matrix units", matrices(d));
    facts_line(f, "  numbers", "prompts %s, KV cache %s, float16 denormals %s",
               d->uses_matrices ? "float16 factors and float32 sums" : "float32",
               d->kv_is_f16 ? "f16" : "f32", d->has_denorm ? "kept" : "not kept: general kernels");
    facts_flag(f, "prompt_f16", d->uses_matrices);
    facts_flag(f, "kv_f16", d->kv_is_f16);
    facts_flag(f, "f16_denormals", d->has_denorm);
    facts_line(f, "  long dispatches", "%s",
               d->cuts_dispatches ? "run in pieces" : "run whole: a discrete device");
    facts_flag(f, "cuts_dispatches", d->cuts_dispatches);
}

static json_t *number_or_null(double value)
{
    return value > 0 ? json_real(value) : json_null();
}

static void speeds(const struct doctor_device *d, const struct facts *f)
{
    const struct lab_device_speeds *s = &d->speeds;
    char amount[32];
    facts_value(f, "kernel_bytes_s", number_or_null(s->kernel_bytes_s));
    facts_value(f, "copy_bytes_s", number_or_null(s->copy_bytes_s));
    facts_value(f, "dispatch_s", number_or_null(s->dispatch_s));
    facts_value(f, "round_trip_s", number_or_null(s->round_trip_s));
    if (!d->measured)
        return;
    number_show_bytes(amount, sizeof amount, s->kernel_bytes_s);
    facts_line(f, "  products", "%12s/s  4-bit matrix by vector", amount);
    number_show_bytes(amount, sizeof amount, s->copy_bytes_s);
    if (s->copy_bytes_s > 0)
        facts_line(f, "  host to device", "%12s/s", amount);
    facts_line(f, "  a small kernel", "%9.1f us  and %.1f us for a submission", s->dispatch_s * 1e6,
               s->round_trip_s * 1e6);
}

static void selftest(const struct doctor_device *d, const struct facts *f)
{
    char failed[192] = "", text[320];
    if (d->first_failed[0])
        snprintf(failed, sizeof failed, "; the first: %s", d->first_failed);
    snprintf(text, sizeof text, "%u cases, %u failed, %u skipped%s", d->n_cases, d->n_failed, d->n_skipped,
             failed);
    facts_line(f, "  self-test", "%s", d->tested ? text : "not run");
    facts_value(f, "selftest",
                d->tested
                    ? json_pack("{s:i, s:i, s:i, s:s}", "cases", (int)d->n_cases, "failed", (int)d->n_failed,
                                "skipped", (int)d->n_skipped, "first_failed", d->first_failed)
                    : json_null());
}

void doctor_device_report(const struct doctor_device *d, const struct facts *f)
{
    const struct lab_device *a = &d->about;
    facts_line(f, "device", "%s: %s, %s", a->option, a->name, a->kind);
    facts_text(f, "device", NULL, a->option);
    facts_text(f, "name", NULL, a->name);
    facts_text(f, "kind", NULL, a->kind);
    facts_text(f, "driver", a->driver[0] ? "  driver" : NULL, a->driver);
    if (!a->is_host) {
        limits(a, f);
        heaps(a, f);
        kernels(a, f);
    }
    speeds(d, f);
    selftest(d, f);
    if (d->fault[0])
        facts_line(f, "  fault", "%s", d->fault);
    facts_text(f, "fault", NULL, d->fault);
}
