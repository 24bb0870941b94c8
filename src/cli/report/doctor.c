#include "cli/report/doctor.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/vfs.h>

#include "base/err.h"
#include "base/mem.h"
#include "cli/exit.h"
#include "cli/options/number.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/report/doctor_device.h"
#include "cli/report/facts.h"
#include "cli/report/hide_paths.h"
#include "cli/report/plan.h"
#include "cli/report/speed.h"
#include "cli/setup.h"
#include "engine/lab/lab.h"
#include "moeflux_chat.h"

enum { MAX_LISTED = 32 };

/* Everything that is reported. */
struct doctor {
    const char *build;
    struct lab_host host;
    double memory_bytes_s; /* 0: not measured */
    struct doctor_device devices[MOEFLUX_MAX_DEVICES];
    uint32_t n_devices;
    struct moeflux_device listed[MAX_LISTED];
    uint32_t n_listed;
    bool has_model;
    struct moeflux_needs needs;
    struct moeflux_plan plan;
    struct moeflux_err no_plan; /* why there is no plan; code 0: there is one */
    struct lab_speeds speeds;
    bool measured;
    struct moeflux_err first;                            /* the first problem; code 0: none */
    char problem[sizeof((struct moeflux_err *)0)->text]; /* its text for the page, without paths */
};

/* Keeps the first problem. */
static void note(struct doctor *d, const struct options *o, const struct moeflux_err *e)
{
    if (d->first.code)
        return;
    d->first = *e;
    exit_name_flags(&d->first);
    snprintf(d->problem, sizeof d->problem, "%s", d->first.text);
    hide_paths(d->problem, sizeof d->problem, o);
}

/* --- what is looked at --- */

static void look_at_devices(struct doctor *d, const struct options *o, const struct moeflux_options *engine,
                            const struct term *t)
{
    struct moeflux_err e = {0};
    struct lab_device *all = mem_new(MOEFLUX_MAX_DEVICES, sizeof *all, &e);
    int n = moeflux_list_devices(d->listed, MAX_LISTED, &e);
    d->n_listed = n < 0 ? 0 : n > MAX_LISTED ? MAX_LISTED : (uint32_t)n;
    if (n < 0 || !all || lab_describe_devices(engine, all, &d->n_devices, &e) < 0)
        note(d, o, &e);
    for (uint32_t i = 0; all && i < d->n_devices; i++) {
        d->devices[i].about = all[i];
        if (doctor_device_measure(&d->devices[i], o, engine, t, &e) < 0)
            note(d, o, &e);
        hide_paths(d->devices[i].fault, sizeof d->devices[i].fault, o);
    }
    free(all);
}

/* Opens what a prompt needs in addition to the weights. A model without a tokenizer takes token ids. */
static int check_text(const struct doctor *d, struct moeflux_err *e)
{
    struct moeflux_tokenizer *t = NULL;
    struct moeflux_err why = {0};
    if (!d->needs.tokenizer_path[0])
        return 0;
    int rc = moeflux_tokenizer_open(&t, d->needs.tokenizer_path, e);
    const char *template = rc ? NULL : moeflux_tokenizer_chat_template(t);
    if (template && (rc = moeflux_template_check(template, &why)))
        err_set(e, rc, "%s: %s", d->needs.tokenizer_path, why.text);
    moeflux_tokenizer_close(t);
    return rc;
}

static void look_at_model(struct doctor *d, const struct options *o, const struct moeflux_options *engine)
{
    struct moeflux_err e = {0};
    if (o->model_fault.code || moeflux_get_needs_with(engine, &d->needs, &e) < 0) {
        note(d, o, o->model_fault.code ? &o->model_fault : &e);
        return;
    }
    d->has_model = true;
    if (setup_check_context(o, d->needs.max_context, &d->no_plan) < 0 ||
        moeflux_make_plan(engine, &d->plan, &d->no_plan) < 0)
        note(d, o, &d->no_plan);
    exit_name_flags(&d->no_plan);
    hide_paths(d->no_plan.text, sizeof d->no_plan.text, o);
    if (check_text(d, &e) < 0)
        note(d, o, &e);
    d->measured = !o->no_measure;
    if (d->measured && lab_measure(engine, &d->speeds, &e) < 0)
        note(d, o, &e);
    hide_paths(d->speeds.disk_how, sizeof d->speeds.disk_how, o);
    hide_paths(d->speeds.device_fault, sizeof d->speeds.device_fault, o);
}

static void look(struct doctor *d, const struct options *o, const struct term *t)
{
    struct moeflux_options engine = {0};
    struct moeflux_err e = {0};
    options_engine(o, &engine);
    if (lab_describe_host(&engine, &d->host, &e) < 0)
        note(d, o, &e);
    if (!o->no_measure && lab_measure_memory(d->host.n_threads, &d->memory_bytes_s, &e) < 0)
        note(d, o, &e);
    look_at_devices(d, o, &engine, t);
    if (o->model)
        look_at_model(d, o, &engine);
}

/* --- what is reported --- */

static void program(const struct facts *f, const struct doctor *d)
{
    struct utsname u;
    char text[256];
    snprintf(text, sizeof text, MOEFLUX_VERSION ", build %s", d->build);
    facts_text(f, "version", NULL, MOEFLUX_VERSION);
    facts_text(f, "build", NULL, d->build);
    facts_line(f, "moeflux", "%s", text);
    /* The machine's own name stays out. */
    if (uname(&u) < 0)
        return;
    snprintf(text, sizeof text, "%.60s %.100s %.60s", u.sysname, u.release, u.machine);
    facts_text(f, "system", "system", text);
}

static void host(const struct facts *f, const struct doctor *d)
{
    const struct lab_host *h = &d->host;
    char amount[32];
    facts_text(f, "cpu", "processor", h->cpu);
    facts_text(f, "instruction_set", NULL, h->isa);
    facts_count(f, "processors", h->n_allowed);
    facts_count(f, "threads", h->n_threads);
    facts_line(f, "", "instruction set %s, %u threads on %u processors", h->isa, h->n_threads, h->n_allowed);
    facts_bytes(f, "memory_bytes", "memory", h->total_bytes, "");
    facts_bytes(f, "memory_free_bytes", "  free", h->free_bytes, "");
    facts_value(f, "memory_bytes_s", d->memory_bytes_s > 0 ? json_real(d->memory_bytes_s) : json_null());
    number_show_bytes(amount, sizeof amount, d->memory_bytes_s);
    if (d->memory_bytes_s > 0)
        facts_line(f, "  read", "%12s/s", amount);
}

static bool is_opened(const struct doctor *d, const struct moeflux_device *one)
{
    bool is = false;
    for (uint32_t i = 0; i < d->n_devices; i++)
        is = is || strcmp(d->devices[i].about.option, one->option) == 0 ||
             strcmp(d->devices[i].about.name, one->name) == 0;
    return is;
}

/* Adds the devices that are not used. */
static void others(const struct facts *f, const struct doctor *d)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < d->n_listed; i++) {
        const struct moeflux_device *one = &d->listed[i];
        if (is_opened(d, one) || strcmp(one->kind, "cpu") == 0)
            continue;
        facts_line(f, "not used", "device %s: %.100s, %s, %.120s%s%s", one->option, one->name, one->kind,
                   one->driver, one->usable ? "" : "; lacks ", one->usable ? "" : one->why_not);
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:b, s:s}", "device", one->option, "name",
                                              one->name, "kind", one->kind, "driver", one->driver, "usable",
                                              one->usable, "lacks", one->why_not));
    }
    facts_value(f, "not_used", list);
}

static void devices(const struct facts *f, const struct doctor *d)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < d->n_devices; i++) {
        const struct facts one = {.out = f->out, .object = f->object ? json_object() : NULL};
        facts_heading(f, "");
        doctor_device_report(&d->devices[i], &one);
        if (one.object)
            json_array_append_new(list, one.object);
    }
    facts_value(f, "devices", list);
}

/* Returns a file system's type; "another type" if it is none of the usual ones. */
static const char *file_system(const char *path)
{
    static const struct {
        unsigned type;
        const char *name;
    } known[] = {{0xef53, "ext4"},         {0x9123683e, "btrfs"},  {0x58465342, "xfs"},
                 {0x2fc12fc1, "zfs"},      {0x01021994, "tmpfs"},  {0x6969, "nfs"},
                 {0xff534d42, "cifs"},     {0xf2f52010, "f2fs"},   {0x794c7630, "overlay"},
                 {0x65735546, "fuse"},     {0x0bd00bd0, "lustre"}, {0x47504653, "gpfs"},
                 {0xca451a4e, "bcachefs"}, {0x5346544e, "ntfs"}};
    struct statfs fs;
    if (statfs(path, &fs) < 0)
        return "unknown";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].type == (unsigned)fs.f_type)
            return known[i].name;
    return "another type";
}

static void model(const struct facts *f, const struct options *o, const struct doctor *d)
{
    const struct moeflux_needs *n = &d->needs;
    facts_heading(f, "\nModel");
    facts_text(f, "architecture", "  architecture", n->architecture);
    facts_count(f, "layers", n->n_layers);
    facts_count(f, "experts", n->n_experts);
    facts_count(f, "top_k", n->top_k);
    facts_line(f, "  layers", "%u, %u experts in each, %u per token", n->n_layers, n->n_experts, n->top_k);
    facts_text(f, "dense_formats", "  dense formats", n->dense_formats);
    facts_text(f, "expert_formats", "  expert formats", n->expert_formats);
    facts_bytes(f, "dense_bytes", "  dense weights", n->dense_bytes, "");
    facts_bytes(f, "expert_bytes", "  routed experts", n->expert_bytes, "");
    facts_bytes(f, "floor_bytes", "  least memory", n->floor_bytes, "");
    facts_text(f, "file_system", "  file system", file_system(o->model));
}

static int print_model(const struct options *o, const struct doctor *d, struct output *out,
                       struct moeflux_err *e)
{
    const struct facts f = {.out = out};
    const struct moeflux_plan *plan = d->no_plan.code ? NULL : &d->plan;
    model(&f, o, d);
    output_text(out, "\n");
    if (plan)
        plan_report_print(plan, out);
    else
        output_addf(out, "It cannot run here: %s\n", d->no_plan.text);
    return d->measured ? speed_report_print(&d->needs, plan, &d->speeds, out, e) : 0;
}

static json_t *model_json(const struct options *o, const struct doctor *d)
{
    const struct facts f = {.object = json_object()};
    const struct moeflux_plan *plan = d->no_plan.code ? NULL : &d->plan;
    model(&f, o, d);
    facts_value(&f, "plan", plan ? plan_report_json(plan) : json_null());
    if (!plan)
        facts_text(&f, "no_plan", NULL, d->no_plan.text);
    if (d->measured)
        speed_report_json(&d->needs, plan, &d->speeds, f.object);
    return f.object;
}

static void report(const struct facts *f, const struct doctor *d)
{
    program(f, d);
    host(f, d);
    others(f, d);
    devices(f, d);
}

static int print_json(const struct options *o, const struct doctor *d, struct output *out,
                      struct moeflux_err *e)
{
    const struct facts f = {.object = json_object()};
    report(&f, d);
    facts_value(&f, "model", d->has_model ? model_json(o, d) : json_null());
    facts_flag(&f, "healthy", d->first.code == 0);
    facts_text(&f, "problem", NULL, d->problem);
    return output_json(out, f.object, e);
}

static int print_text(const struct options *o, const struct doctor *d, struct output *out,
                      struct moeflux_err *e)
{
    report(&(struct facts){.out = out}, d);
    int rc = d->has_model ? print_model(o, d, out, e) : 0;
    output_addf(out, "\n%s%s\n", d->first.code ? "Problem: " : "No problem was found.", d->problem);
    return rc < 0 ? rc : output_flush(out, e);
}

int doctor_run(const struct options *o, const char *build, const struct term *t, struct output *out,
               struct moeflux_err *e)
{
    struct doctor *d = mem_new(1, sizeof *d, e);
    if (!d)
        return ERR_MEMORY;
    d->build = build;
    look(d, o, t);
    int rc = o->json ? print_json(o, d, out, e) : print_text(o, d, out, e);
    if (rc == 0 && d->first.code) {
        *e = d->first;
        rc = (int)d->first.code;
    }
    free(d);
    return rc;
}
