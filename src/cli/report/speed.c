#include "cli/report/speed.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/options/number.h"
#include "cli/output.h"
#include "engine/lab/lab.h"
#include "moeflux.h"

static const double HIT_RATES[] = {0, 0.25, 0.5, 0.8, 0.95, 1};
enum { N_HIT_RATES = sizeof HIT_RATES / sizeof *HIT_RATES };

/* Returns the share of experts that device and host hold. It is the hit rate if the router uses all experts
 * equally often. */
static double held_share(const struct moeflux_plan *p)
{
    double share = (double)(p->n_slots + p->n_host_slots + p->n_cpu_slots) / (double)p->n_experts;
    return share < 1 ? share : 1;
}

/* --- speeds --- */

static void print_speed(struct output *out, const char *name, double bytes_s, const char *note)
{
    char amount[32];
    number_show_bytes(amount, sizeof amount, bytes_s);
    output_addf(out, "  %-20s %10s/s%s%s\n", name, amount, note[0] ? "  " : "", note);
}

static void print_disk(const struct moeflux_needs *n, const struct lab_speeds *s, struct output *out)
{
    char note[128], read[32];
    if (s->disk_bytes_s <= 0) {
        output_addf(out, "  %-20s %12s  %s\n", "disk", "unknown", s->disk_how);
        return;
    }
    number_show_bytes(read, sizeof read, (double)s->disk_bytes);
    snprintf(note, sizeof note, "%s%s read by %.16s, %u experts at once%s", read,
             n->is_sketch ? " of a file for this" : "", s->disk_how, n->top_k,
             s->disk_is_direct ? "" : "; the page cache may have helped");
    print_speed(out, "disk", s->disk_bytes_s, note);
}

static void print_memory(const struct lab_speeds *s, struct output *out)
{
    char note[64];
    snprintf(note, sizeof note, "read by %u thread%s", s->n_threads, s->n_threads > 1 ? "s" : "");
    if (s->memory_bytes_s > 0)
        print_speed(out, "memory", s->memory_bytes_s, note);
}

static void print_device(const struct lab_speeds *s, struct output *out)
{
    if (s->device_fault[0]) {
        output_addf(out, "  %-20s %12s  %s\n", "device", "unknown", s->device_fault);
        return;
    }
    print_speed(out, "products", s->kernel_bytes_s, "4-bit matrix by vector");
    for (uint32_t i = 0; s->n_devices > 1 && i < s->n_devices; i++) {
        char name[32];
        snprintf(name, sizeof name, "  on device %u", i + 1);
        print_speed(out, name, s->devices[i].kernel_bytes_s, "");
    }
    if (s->cpu_bytes_s > 0)
        print_speed(out, "on the CPU", s->cpu_bytes_s, "the same product");
    if (s->copy_bytes_s > 0)
        print_speed(out, "host to device", s->copy_bytes_s, "experts copied");
    output_addf(out, "  %-20s %9.1f us  and %.1f us for a submission\n", "a small kernel",
                s->dispatch_s * 1e6, s->round_trip_s * 1e6);
}

/* --- what would help --- */

static void advise_on(const struct moeflux_plan *p, const struct lab_forecast *f, double hits, char *text,
                      size_t cap)
{
    char more[32];
    uint64_t n_held = p->n_slots + p->n_host_slots + p->n_cpu_slots;
    uint64_t missing = p->n_experts > n_held ? p->n_experts - n_held : 0;
    number_show_bytes(more, sizeof more, (double)missing * (double)p->slot_bytes);
    double percent = 100 * hits, all = f->apart_s * 1e3;
    if (f->disk_s >= f->compute_s + f->copy_s)
        snprintf(text, cap,
                 "Limit: the disk. At %.0f %% hits a token waits %.1f of %.1f ms for it; with %s more memory "
                 "all experts fit",
                 percent, f->disk_s * 1e3, all, more);
    else if (f->copy_s > f->compute_s)
        snprintf(
            text, cap,
            "Limit: device memory. At %.0f %% hits a token spends %.1f of %.1f ms on copies from the host",
            percent, f->copy_s * 1e3, all);
    else
        snprintf(text, cap, "Limit: the device. At %.0f %% hits it computes for %.1f of a token's %.1f ms",
                 percent, f->compute_s * 1e3, all);
}

/* Writes one line of advice; "" if too little is known. */
static void advise(const struct moeflux_needs *n, const struct moeflux_plan *p, const struct lab_speeds *s,
                   char *text, size_t cap)
{
    text[0] = '\0';
    if (!p || s->kernel_bytes_s <= 0)
        return;
    struct lab_forecast f = lab_make_forecast(n, p, s, held_share(p));
    if (p->experts_resident)
        snprintf(text, cap, "Limit: the device. All experts are in memory; a token is %.1f ms of computing",
                 f.compute_s * 1e3);
    else if (s->disk_bytes_s > 0)
        advise_on(p, &f, held_share(p), text, cap);
}

/* --- the table --- */

/* value < 0: not known */
static void print_number(struct output *out, int width, int digits, double value)
{
    if (value < 0)
        output_addf(out, " %*s", width, "-");
    else
        output_addf(out, " %*.*f", width, digits, value);
}

static double rate(double seconds)
{
    return seconds > 0 ? 1 / seconds : -1;
}

static void print_row(struct output *out, const struct lab_speeds *s, double hits,
                      const struct lab_forecast *f, const char *note)
{
    output_addf(out, "  %5.0f %% ", 100 * hits);
    print_number(out, 11, 1, s->kernel_bytes_s > 0 ? f->compute_s * 1e3 : -1);
    print_number(out, 9, 1, f->copy_s * 1e3);
    print_number(out, 9, 1, s->disk_bytes_s > 0 ? f->disk_s * 1e3 : -1);
    print_number(out, 10, 2, rate(f->apart_s));
    print_number(out, 10, 2, rate(f->overlapped_s));
    output_addf(out, "%s\n", note);
}

static void print_rows(const struct moeflux_needs *n, const struct moeflux_plan *p,
                       const struct lab_speeds *s, struct output *out)
{
    double here = p ? held_share(p) : -1;
    for (int i = 0; i < N_HIT_RATES; i++) {
        if (here >= 0 && here < HIT_RATES[i] && (i == 0 || here > HIT_RATES[i - 1])) {
            struct lab_forecast f = lab_make_forecast(n, p, s, here);
            print_row(out, s, here, &f, "  this plan");
        }
        struct lab_forecast f = lab_make_forecast(n, p, s, HIT_RATES[i]);
        print_row(out, s, HIT_RATES[i], &f, here == HIT_RATES[i] ? "  this plan" : "");
    }
}

/* --- where to compute experts --- */

/* A placement, the flags that ask for it and a token's time. */
struct placement {
    char flags[32];
    double seconds;
};
enum { MAX_PLACEMENTS = 4 };

static void add_placement(struct placement *all, uint32_t *n, const char *flags, double seconds)
{
    snprintf(all[*n].flags, sizeof all[*n].flags, "%s", flags);
    all[(*n)++].seconds = seconds;
}

/* Lists all experts on either, the best split of the layers and that of each layer's experts, if there is
 * one. Returns their number; 0: not known. *best: index of the fastest. */
static uint32_t list_placements(const struct moeflux_needs *needs, const struct moeflux_plan *plan,
                                const struct lab_speeds *s, struct placement all[MAX_PLACEMENTS],
                                uint32_t *best)
{
    struct lab_placement p;
    char flags[sizeof all->flags];
    uint32_t n = 0;
    *best = 0;
    if (!plan || !lab_compare_placements(needs, plan, s, &p))
        return 0;
    add_placement(all, &n, "--experts gpu", p.gpu_s);
    add_placement(all, &n, "--experts cpu", p.cpu_s);
    snprintf(flags, sizeof flags, "--n-cpu-moe %u", p.best_cpu_layers);
    if (p.best_cpu_layers > 0 && p.best_cpu_layers < needs->n_layers)
        add_placement(all, &n, flags, p.best_s);
    snprintf(flags, sizeof flags, "--experts cpu:%.2f", p.best_share);
    if (p.best_share > 0)
        add_placement(all, &n, flags, p.share_s);
    for (uint32_t i = 1; i < n; i++)
        *best = all[i].seconds < all[*best].seconds ? i : *best;
    return n;
}

static void print_placement(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                            const struct lab_speeds *s, struct output *out)
{
    struct placement all[MAX_PLACEMENTS];
    uint32_t best, n_all = list_placements(n, plan, s, all, &best);
    if (n_all > 0)
        output_text(out, "\nA token, by where its experts are computed\n");
    for (uint32_t i = 0; i < n_all; i++)
        output_addf(out, "  %-20s %9.2f ms%s\n", all[i].flags, all[i].seconds * 1e3,
                    i == best ? "  expected to be the fastest" : "");
}

/* --- how to share out layers --- */

static void show_shares(const struct lab_split *s, uint32_t n, char *text, size_t cap)
{
    text[0] = '\0';
    for (uint32_t i = 0; i < n; i++) {
        size_t at = strlen(text);
        snprintf(text + at, cap - at, "%s%u", i ? "," : "", s->n_layers[i]);
    }
}

static int print_split(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                       const struct lab_speeds *s, struct output *out, struct moeflux_err *e)
{
    struct lab_split split;
    char shares[MOEFLUX_MAX_DEVICES * 8];
    int rc = plan ? lab_find_split(n, plan, s, &split, e) : 0;
    if (rc <= 0)
        return rc;
    show_shares(&split, plan->n_devices, shares, sizeof shares);
    output_addf(out, "\n--tensor-split %s would be better: a token takes %.2f ms on all devices (now %.2f),",
                shares, split.best_token_s * 1e3, split.token_s * 1e3);
    output_addf(out, " of which %.2f on the slowest (now %.2f), which prompts wait for.\n",
                split.best_slowest_s * 1e3, split.slowest_s * 1e3);
    return 0;
}

static json_t *split_json(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                          const struct lab_speeds *s)
{
    struct lab_split split;
    char shares[MOEFLUX_MAX_DEVICES * 8];
    int rc = plan ? lab_find_split(n, plan, s, &split, NULL) : 0;
    if (rc < 0)
        return NULL;
    if (!plan || split.token_s <= 0)
        return json_null();
    show_shares(&split, plan->n_devices, shares, sizeof shares);
    return json_pack("{s:f, s:f, s:f, s:f, s:s, s:b}", "token_s", split.token_s, "slowest_s", split.slowest_s,
                     "best_token_s", split.best_token_s, "best_slowest_s", split.best_slowest_s, "best",
                     shares, "is_better", rc);
}

int speed_report_print(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                       const struct lab_speeds *s, struct output *out, struct moeflux_err *e)
{
    char text[256];
    output_text(out, "\nMeasured\n");
    print_disk(n, s, out);
    print_memory(s, out);
    print_device(s, out);
    if (s->disk_bytes_s <= 0 && s->kernel_bytes_s <= 0)
        return 0;
    output_text(out, "\nA token, by the share of its experts that are in memory\n");
    output_addf(out, "  %7s  %11s %9s %9s %10s %10s\n", "hits", "compute ms", "copy ms", "disk ms", "tok/s",
                "at best");
    print_rows(n, plan, s, out);
    output_text(out, "  tok/s: without prefetch; at best: every read overlaps with computing.\n");
    if (s->kernel_bytes_s <= 0 || s->disk_bytes_s <= 0)
        output_text(out, "  What could not be measured counts as nothing.\n");
    print_placement(n, plan, s, out);
    advise(n, plan, s, text, sizeof text);
    if (text[0])
        output_addf(out, "\n%s.\n", text);
    if (s->faster_device[0]) {
        char theirs[32], ours[32];
        number_show_bytes(theirs, sizeof theirs, s->faster_bytes_s);
        number_show_bytes(ours, sizeof ours, s->kernel_bytes_s);
        output_addf(out, "\n--device %s would be faster: %s multiplies at %s/s, %s at %s/s.\n",
                    s->faster_device, s->faster_name, theirs, s->device, ours);
    }
    return print_split(n, plan, s, out, e);
}

/* --- JSON --- */

static json_t *number_or_null(double value)
{
    return value > 0 ? json_real(value) : json_null();
}

static json_t *device_speeds_json(const struct lab_speeds *s)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < s->n_devices; i++) {
        json_t *one = json_object();
        json_object_set_new(one, "kernel_bytes_s", number_or_null(s->devices[i].kernel_bytes_s));
        json_object_set_new(one, "copy_bytes_s", number_or_null(s->devices[i].copy_bytes_s));
        json_object_set_new(one, "dispatch_s", number_or_null(s->devices[i].dispatch_s));
        json_object_set_new(one, "round_trip_s", number_or_null(s->devices[i].round_trip_s));
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *speeds_json(const struct lab_speeds *s)
{
    json_t *object = json_object();
    json_object_set_new(object, "disk_bytes_s", number_or_null(s->disk_bytes_s));
    json_object_set_new(object, "disk_direct", json_boolean(s->disk_is_direct));
    json_object_set_new(object, "disk_bytes", json_integer((json_int_t)s->disk_bytes));
    json_object_set_new(object, "disk_how", output_json_text(s->disk_how, strlen(s->disk_how)));
    json_object_set_new(object, "device", output_json_text(s->device, strlen(s->device)));
    json_object_set_new(object, "kernel_bytes_s", number_or_null(s->kernel_bytes_s));
    json_object_set_new(object, "copy_bytes_s", number_or_null(s->copy_bytes_s));
    json_object_set_new(object, "devices", device_speeds_json(s));
    json_object_set_new(object, "cpu_bytes_s", number_or_null(s->cpu_bytes_s));
    json_object_set_new(object, "dispatch_s", number_or_null(s->dispatch_s));
    json_object_set_new(object, "round_trip_s", number_or_null(s->round_trip_s));
    json_object_set_new(object, "memory_bytes_s", number_or_null(s->memory_bytes_s));
    json_object_set_new(object, "threads", json_integer(s->n_threads));
    json_object_set_new(object, "faster_device",
                        s->faster_device[0] ? json_string(s->faster_device) : json_null());
    json_object_set_new(object, "faster_bytes_s", number_or_null(s->faster_bytes_s));
    json_object_set_new(object, "device_fault", output_json_text(s->device_fault, strlen(s->device_fault)));
    return object;
}

static json_t *placement_json(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                              const struct lab_speeds *s)
{
    struct placement all[MAX_PLACEMENTS];
    uint32_t best, n_all = list_placements(n, plan, s, all, &best);
    json_t *list = json_array();
    for (uint32_t i = 0; i < n_all; i++)
        json_array_append_new(list, json_pack("{s:s, s:f}", "flags", all[i].flags, "s", all[i].seconds));
    if (n_all > 0)
        return json_pack("{s:f, s:f, s:f, s:s, s:o}", "gpu_s", all[0].seconds, "cpu_s", all[1].seconds,
                         "best_s", all[best].seconds, "best", all[best].flags, "all", list);
    json_decref(list);
    return json_null();
}

static json_t *row_json(double hits, const struct lab_forecast *f)
{
    json_t *row = json_object();
    json_object_set_new(row, "hits", json_real(hits));
    json_object_set_new(row, "compute_s", json_real(f->compute_s));
    json_object_set_new(row, "copy_s", json_real(f->copy_s));
    json_object_set_new(row, "disk_s", json_real(f->disk_s));
    json_object_set_new(row, "tok_s", number_or_null(rate(f->apart_s)));
    json_object_set_new(row, "best_tok_s", number_or_null(rate(f->overlapped_s)));
    return row;
}

void speed_report_json(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                       const struct lab_speeds *s, struct json_t *object)
{
    char text[256];
    json_t *rows = json_array();
    for (int i = 0; i < N_HIT_RATES; i++) {
        struct lab_forecast f = lab_make_forecast(n, plan, s, HIT_RATES[i]);
        json_array_append_new(rows, row_json(HIT_RATES[i], &f));
    }
    advise(n, plan, s, text, sizeof text);
    json_object_set_new(object, "speeds", speeds_json(s));
    json_object_set_new(object, "forecast", rows);
    if (plan) {
        struct lab_forecast f = lab_make_forecast(n, plan, s, held_share(plan));
        json_object_set_new(object, "here", row_json(held_share(plan), &f));
    }
    json_object_set_new(object, "placement", placement_json(n, plan, s));
    json_object_set_new(object, "tensor_split", split_json(n, plan, s));
    json_object_set_new(object, "advice", text[0] ? json_string(text) : json_null());
}
