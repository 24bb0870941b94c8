#include "cli/report/plan.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "base/err.h"
#include "cli/options/number.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/report/facts.h"
#include "cli/setup.h"
#include "moeflux.h"

static void experts(const struct facts *f, const char *title, uint64_t n, const struct moeflux_plan *p)
{
    char note[64];
    snprintf(note, sizeof note, "%" PRIu64 " of %" PRIu64 ", %.0f %%%s", n, p->n_experts,
             100.0 * (double)n / (double)p->n_experts, n == p->n_experts ? ": read once, at the start" : "");
    facts_bytes(f, NULL, title, n * p->slot_bytes, note);
}

/* Adds the experts that the CPU computes for the device, and what else the host keeps for it. */
static void cpu(const struct facts *f, const struct moeflux_plan *p)
{
    char layers[64];
    bool is_used = p->n_cpu_layers || p->cpu_scratch_bytes;
    snprintf(layers, sizeof layers, "for those of the first %" PRIu32 " layers", p->n_cpu_layers);
    if (p->cpu_share > 0)
        snprintf(layers, sizeof layers, "for %g of each layer's experts", (double)p->cpu_share);
    if (p->n_cpu_layers)
        experts(f, "  experts on CPU", p->n_cpu_slots, p);
    facts_bytes(f, "cpu_scratch_bytes", is_used ? "  host's activations" : NULL, p->cpu_scratch_bytes,
                p->n_cpu_layers ? layers : "n-gram rows");
    facts_count(f, "cpu_layers", p->n_cpu_layers);
    facts_count(f, "cpu_experts", p->n_cpu_experts);
    facts_count(f, "cpu_slots", p->n_cpu_slots);
}

static void checkpoints(const struct facts *f, const struct moeflux_plan *p)
{
    char each[32], note[96];
    number_show_bytes(each, sizeof each, (double)p->checkpoint_bytes);
    snprintf(note, sizeof note, "at most %" PRIu32 " of %s, on the host", p->n_checkpoints, each);
    if (p->checkpoint_bytes)
        facts_bytes(f, NULL, "  checkpoints", p->n_checkpoints * p->checkpoint_bytes, note);
    facts_count(f, "checkpoint_bytes", p->checkpoint_bytes);
    facts_count(f, "checkpoints", p->n_checkpoints);
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

static json_t *devices_json(const struct moeflux_plan *p)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n_devices; i++) {
        const struct moeflux_plan_device *d = &p->devices[i];
        const struct facts f = {.object = json_object()};
        facts_text(&f, "device", NULL, d->device);
        facts_flag(&f, "unified", d->is_unified);
        facts_count(&f, "first_layer", d->first_layer);
        facts_count(&f, "layers", d->end_layer - d->first_layer);
        facts_count(&f, "device_free_bytes", d->device_free_bytes);
        facts_count(&f, "device_bytes", d->device_bytes);
        facts_count(&f, "weights_bytes", d->weights_bytes);
        facts_count(&f, "state_bytes", d->state_bytes);
        facts_count(&f, "activation_bytes", d->activation_bytes);
        facts_count(&f, "driver_bytes", d->driver_bytes);
        facts_count(&f, "experts", d->n_experts);
        facts_count(&f, "slots", d->n_slots);
        facts_count(&f, "host_slots", d->n_host_slots);
        facts_count(&f, "pinned", d->n_pinned);
        facts_count(&f, "cpu_experts", d->n_cpu_experts);
        facts_count(&f, "cpu_slots", d->n_cpu_slots);
        json_array_append_new(list, f.object);
    }
    return list;
}

static void memory(const struct facts *f, const struct moeflux_plan *p)
{
    char context[48], chunk[48];
    snprintf(context, sizeof context, "%" PRIu32 " tokens (-c)", p->context);
    snprintf(chunk, sizeof chunk, "%" PRIu32 " tokens at once (--chunk)", p->chunk);
    facts_bytes(f, "device_free_bytes", "  device memory", p->device_free_bytes,
                p->is_unified ? "free, and is the host's" : "free");
    facts_bytes(f, "host_free_bytes", "  host memory", p->host_free_bytes, "free");
    facts_bytes(f, "device_bytes", "  the device may hold", p->device_bytes,
                p->is_unified && p->checkpoint_bytes ? "weights, states, checkpoints, experts"
                                                     : "weights, states, experts");
    facts_bytes(f, "weights_bytes", "  dense weights", p->weights_bytes, "");
    facts_bytes(f, "state_bytes", "  states", p->state_bytes, context);
    facts_bytes(f, "activation_bytes", "  activations", p->activation_bytes, chunk);
    checkpoints(f, p);
    facts_bytes(f, "driver_bytes", p->driver_bytes ? "  the driver's own" : NULL, p->driver_bytes,
                "set aside");
    facts_count(f, "context", p->context);
    facts_count(f, "chunk", p->chunk);
}

static void report(const struct facts *f, const struct moeflux_plan *p)
{
    facts_text(f, "device", NULL, p->device);
    facts_flag(f, "unified", p->is_unified);
    memory(f, p);
    experts(f, "  experts on device", p->n_slots, p);
    cpu(f, p);
    if (p->n_pinned)
        experts(f, "  of them pinned", p->n_pinned, p);
    if (!p->is_unified)
        experts(f, "  experts on host", p->n_host_slots, p);
    facts_bytes(f, "multi_token_prediction_bytes", p->drafter_bytes ? "  draft layer" : NULL,
                p->drafter_bytes, "multi-token prediction: weights, states, experts");
    facts_count(f, "slot_bytes", p->slot_bytes);
    facts_count(f, "experts", p->n_experts);
    facts_count(f, "slots", p->n_slots);
    facts_count(f, "host_slots", p->n_host_slots);
    facts_count(f, "pinned", p->n_pinned);
    facts_flag(f, "experts_resident", p->experts_resident);
    facts_text(f, "expert_io", "  experts read by", p->expert_io);
}

void plan_report_print(const struct moeflux_plan *p, struct output *out)
{
    output_addf(out, "Plan for %s\n", p->device);
    for (uint32_t i = 0; p->n_devices > 1 && i < p->n_devices; i++)
        print_device(out, p, i);
    if (p->n_devices > 1)
        output_addf(out, "Together:\n");
    report(&(struct facts){.out = out}, p);
}

struct json_t *plan_report_json(const struct moeflux_plan *p)
{
    const struct facts f = {.object = json_object()};
    report(&f, p);
    facts_value(&f, "devices", devices_json(p));
    return f.object;
}

int plan_report_run(const struct options *o, struct output *out, struct moeflux_err *e)
{
    struct moeflux_plan p;
    struct moeflux_needs needs;
    struct moeflux_options engine = {0};
    options_engine(o, &engine);
    int rc = moeflux_get_needs_with(&engine, &needs, e);
    if (!rc)
        rc = setup_check_context(o, needs.max_context, e);
    if (!rc)
        rc = moeflux_make_plan(&engine, &p, e);
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
