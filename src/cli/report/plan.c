#include "cli/report/plan.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "cli/options/number.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "moeflux.h"

/* bytes UINT64_MAX: not known; note "": none */
static void print_bytes(struct output *out, const char *name, uint64_t bytes, const char *note)
{
    char amount[32] = "unknown";
    if (bytes != UINT64_MAX)
        number_show_bytes(amount, sizeof amount, (double)bytes);
    output_addf(out, "  %-20s %12s%s%s\n", name, amount, note[0] ? "  " : "", note);
}

static void print_experts(struct output *out, const char *name, uint64_t n, const struct moeflux_plan *p)
{
    char note[64];
    snprintf(note, sizeof note, "%" PRIu64 " of %" PRIu64 ", %.0f %%%s", n, p->n_experts,
             100.0 * (double)n / (double)p->n_experts, n == p->n_experts ? ": read once, at the start" : "");
    print_bytes(out, name, n * p->slot_bytes, note);
}

/* Prints the experts that the CPU computes for the device, and what else the host keeps for it. */
static void print_cpu(struct output *out, const struct moeflux_plan *p)
{
    char layers[64];
    snprintf(layers, sizeof layers, "for those of the first %" PRIu32 " layers", p->n_cpu_layers);
    if (p->n_cpu_layers)
        print_experts(out, "experts on CPU", p->n_cpu_slots, p);
    print_bytes(out, "host's activations", p->cpu_scratch_bytes, p->n_cpu_layers ? layers : "n-gram rows");
}

static void print_checkpoints(struct output *out, const struct moeflux_plan *p)
{
    char each[32], note[96];
    number_show_bytes(each, sizeof each, (double)p->checkpoint_bytes);
    snprintf(note, sizeof note, "at most %" PRIu32 " of %s, on the host", p->n_checkpoints, each);
    print_bytes(out, "checkpoints", p->n_checkpoints * p->checkpoint_bytes, note);
}

static void print_device(struct output *out, const struct moeflux_plan *p, uint32_t i)
{
    const struct moeflux_plan_device *d = &p->devices[i];
    char may[32], weights[32], states[32];
    number_show_bytes(may, sizeof may, (double)d->device_bytes);
    number_show_bytes(weights, sizeof weights, (double)d->weights_bytes);
    number_show_bytes(states, sizeof states, (double)d->state_bytes);
    output_addf(out, "  %" PRIu32 ": layers %" PRIu32 " to %" PRIu32 "  %s\n", i + 1, d->first_layer,
                d->end_layer - 1, d->device);
    output_addf(out, "     may hold %s; weights %s, states %s; %" PRIu64 " of %" PRIu64 " experts", may,
                weights, states, d->n_slots, d->n_experts);
    if (!d->is_unified)
        output_addf(out, ", %" PRIu64 " more on the host", d->n_host_slots);
    if (d->n_cpu_experts)
        output_addf(out, ", %" PRIu64 " of %" PRIu64 " on the CPU", d->n_cpu_slots, d->n_cpu_experts);
    output_addf(out, "\n");
}

void plan_report_print(const struct moeflux_plan *p, struct output *out)
{
    char context[48], chunk[48];
    snprintf(context, sizeof context, "%" PRIu32 " tokens (-c)", p->context);
    snprintf(chunk, sizeof chunk, "%" PRIu32 " tokens at once (--chunk)", p->chunk);
    output_addf(out, "Plan for %s\n", p->device);
    for (uint32_t i = 0; p->n_devices > 1 && i < p->n_devices; i++)
        print_device(out, p, i);
    if (p->n_devices > 1)
        output_addf(out, "Together:\n");
    print_bytes(out, "device memory", p->device_free_bytes,
                p->is_unified ? "free, and is the host's" : "free");
    print_bytes(out, "host memory", p->host_free_bytes, "free");
    print_bytes(out, "the device may hold", p->device_bytes,
                p->is_unified && p->checkpoint_bytes ? "weights, states, checkpoints, experts"
                                                     : "weights, states, experts");
    print_bytes(out, "dense weights", p->weights_bytes, "");
    print_bytes(out, "states", p->state_bytes, context);
    print_bytes(out, "activations", p->activation_bytes, chunk);
    if (p->checkpoint_bytes)
        print_checkpoints(out, p);
    if (p->driver_bytes)
        print_bytes(out, "the driver's own", p->driver_bytes, "set aside");
    print_experts(out, "experts on device", p->n_slots, p);
    if (p->n_cpu_layers || p->cpu_scratch_bytes)
        print_cpu(out, p);
    if (p->n_pinned)
        print_experts(out, "of them pinned", p->n_pinned, p);
    if (!p->is_unified)
        print_experts(out, "experts on host", p->n_host_slots, p);
    output_addf(out, "  %-20s %s\n", "experts read by", p->expert_io);
}

static json_t *devices_json(const struct moeflux_plan *p)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n_devices; i++) {
        const struct moeflux_plan_device *d = &p->devices[i];
        const struct {
            const char *key;
            uint64_t value;
        } numbers[] = {
            {"first_layer", d->first_layer},
            {"layers", d->end_layer - d->first_layer},
            {"device_free_bytes", d->device_free_bytes},
            {"device_bytes", d->device_bytes},
            {"weights_bytes", d->weights_bytes},
            {"state_bytes", d->state_bytes},
            {"activation_bytes", d->activation_bytes},
            {"driver_bytes", d->driver_bytes},
            {"experts", d->n_experts},
            {"slots", d->n_slots},
            {"host_slots", d->n_host_slots},
            {"pinned", d->n_pinned},
            {"cpu_experts", d->n_cpu_experts},
            {"cpu_slots", d->n_cpu_slots},
        };
        json_t *one = json_object();
        json_object_set_new(one, "device", output_json_text(d->device, strlen(d->device)));
        json_object_set_new(one, "unified", json_boolean(d->is_unified));
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            json_object_set_new(one, numbers[k].key,
                                numbers[k].value <= INT64_MAX ? json_integer((json_int_t)numbers[k].value)
                                                              : json_null());
        json_array_append_new(list, one);
    }
    return list;
}

struct json_t *plan_report_json(const struct moeflux_plan *p)
{
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"device_free_bytes", p->device_free_bytes},
        {"host_free_bytes", p->host_free_bytes},
        {"device_bytes", p->device_bytes},
        {"weights_bytes", p->weights_bytes},
        {"state_bytes", p->state_bytes},
        {"context", p->context},
        {"activation_bytes", p->activation_bytes},
        {"driver_bytes", p->driver_bytes},
        {"chunk", p->chunk},
        {"checkpoint_bytes", p->checkpoint_bytes},
        {"checkpoints", p->n_checkpoints},
        {"slot_bytes", p->slot_bytes},
        {"experts", p->n_experts},
        {"slots", p->n_slots},
        {"host_slots", p->n_host_slots},
        {"pinned", p->n_pinned},
        {"cpu_layers", p->n_cpu_layers},
        {"cpu_experts", p->n_cpu_experts},
        {"cpu_slots", p->n_cpu_slots},
        {"cpu_scratch_bytes", p->cpu_scratch_bytes},
    };
    json_t *object = json_object();
    json_object_set_new(object, "device", output_json_text(p->device, strlen(p->device)));
    json_object_set_new(object, "unified", json_boolean(p->is_unified));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(object, numbers[i].key,
                            numbers[i].value <= INT64_MAX ? json_integer((json_int_t)numbers[i].value)
                                                          : json_null());
    json_object_set_new(object, "experts_resident", json_boolean(p->experts_resident));
    json_object_set_new(object, "expert_io", output_json_text(p->expert_io, strlen(p->expert_io)));
    json_object_set_new(object, "devices", devices_json(p));
    return object;
}

int plan_report_run(const struct options *o, struct output *out, struct moeflux_err *e)
{
    struct moeflux_plan p;
    struct moeflux_options engine = {0};
    options_engine(o, &engine);
    int rc = moeflux_make_plan(&engine, &p, e);
    if (rc)
        return rc;
    if (o->json) {
        json_t *object = plan_report_json(&p);
        json_object_set_new(object, "set_elsewhere", defaults_json(&o->defaults));
        return output_json(out, object, e);
    }
    plan_report_print(&p, out);
    defaults_print(&o->defaults, out);
    return output_flush(out, e);
}
