#include "cli/report/stats.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "cli/options/number.h"
#include "cli/say.h"
#include "cli/report/facts.h"
#include "cli/report/use.h"
#include "cli/setup.h"
#include "engine/lab/lab.h"
#include "moeflux_chat.h"

double stats_rate(uint64_t n_tokens, uint64_t ns)
{
    return n_tokens && ns ? (double)n_tokens * 1e9 / (double)ns : NAN;
}

double stats_first_token_s(const struct moeflux_answer_info *a)
{
    return a->first_ns ? (double)a->first_ns / 1e9 : NAN;
}

static void print_rate(struct str *to, const char *name, uint64_t n, uint64_t ns)
{
    str_addf(to, "%-12s %8" PRIu64 " tokens  %9.3f s", name, n, (double)ns / 1e9);
    if (n && ns)
        str_addf(to, "  %10.2f tok/s", stats_rate(n, ns));
    str_add_text(to, "\n");
}

static void print_answer(const struct moeflux_answer_info *a, struct str *to)
{
    if (!a || a->n_tokens == 0)
        return;
    str_addf(to, "%-12s %26.3f s\n", "first token", stats_first_token_s(a));
    print_rate(to, "decode", a->n_decoded, a->decode_ns);
    if (a->n_drafted)
        str_addf(to, "%-12s %8" PRIu64 " tokens  %" PRIu64 " accepted; %.2f tokens per evaluation\n",
                 "drafted", a->n_drafted, a->n_accepted,
                 (double)(a->n_evaluations + a->n_accepted) / (double)a->n_evaluations);
    str_addf(to, "%-12s %8u tokens  stop: %s\n", "answer", a->n_tokens, moeflux_stop_name(a->stop));
}

static double part_of(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : NAN;
}

/* Returns the host memory that the checkpoints take, in bytes. */
static uint64_t checkpoint_bytes_of(const struct loaded *l)
{
    return l->session ? moeflux_session_list_checkpoints(l->session, NULL, 0) *
                            moeflux_session_checkpoint_bytes(l->session)
                      : 0;
}

static void print_experts(const struct moeflux_stats *es, const char *io, struct str *to)
{
    char read[32], speed[32], slots[32];
    number_show_bytes(read, sizeof read, (double)es->read_bytes);
    number_show_bytes(speed, sizeof speed,
                      es->read_ns ? (double)es->read_bytes * 1e9 / (double)es->read_ns : 0);
    number_show_bytes(slots, sizeof slots, (double)es->n_slots * (double)es->slot_bytes);
    str_addf(to, "%-12s %s read, %s/s at queue depth %.1f; %" PRIu64 " slots, %s", "experts", read, speed,
             es->read_ns ? (double)es->read_depth_ns / (double)es->read_ns : 0.0, es->n_slots, slots);
    number_show_bytes(slots, sizeof slots, (double)es->n_host_slots * (double)es->slot_bytes);
    if (es->n_host_slots)
        str_addf(to, "; host: %" PRIu64 ", %s", es->n_host_slots, slots);
    if (es->n_cpu_slots)
        str_addf(to, "; the CPU's: %" PRIu64 " of the slots", es->n_cpu_slots);
    str_addf(to, "\n%-12s %s\n", "read by", io);
}

/* Prints the speed limit that the disk sets, if there was no prefill: no overlap of reads and computing is
 * faster. */
static void print_bound(const struct moeflux_stats *es, struct str *to)
{
    char each[32];
    if (es->read_bytes == 0 || es->read_ns == 0 || es->n_decode_tokens == 0 || es->n_prefill_tokens > 0)
        return;
    double bytes = (double)es->read_bytes / (double)es->n_decode_tokens;
    number_show_bytes(each, sizeof each, bytes);
    str_addf(to, "%-12s %s of experts a token, for which this disk takes %.3f ms: at most %.1f tok/s\n",
             "reads", each, (double)es->read_ns / 1e6 / (double)es->n_decode_tokens,
             (double)es->n_decode_tokens * 1e9 / (double)es->read_ns);
}

static void print_hits(const struct moeflux_stats *es, struct str *to)
{
    uint64_t chosen = es->n_hits + es->n_host_hits + es->n_misses;
    if (!chosen)
        return;
    str_addf(to, "%-12s %.1f %% of %" PRIu64 " chosen experts", "hits", 100 * part_of(es->n_hits, chosen),
             chosen);
    if (es->n_host_slots)
        str_addf(to, " on the device, %.1f %% on the host", 100 * part_of(es->n_host_hits, chosen));
    str_addf(to, "; %.1f %% from disk\n", 100 * part_of(es->n_misses, chosen));
    if (es->n_preferred)
        str_addf(to, "%-12s %" PRIu64 " resident experts to better ones that were not (%.1f %%)\n",
                 "preferred", es->n_preferred, 100 * part_of(es->n_preferred, chosen));
    if (es->n_promoted || es->n_demoted)
        str_addf(to, "%-12s %" PRIu64 " to the device, %" PRIu64 " to the host\n", "moved", es->n_promoted,
                 es->n_demoted);
}

static void print_cpu(const struct moeflux_stats *es, struct str *to)
{
    if (es->n_cpu_experts)
        str_addf(to, "%-12s %" PRIu64 " chosen experts computed in %.3f s, waits for them included\n", "CPU",
                 es->n_cpu_experts, (double)es->cpu_experts_ns / 1e9);
}

static void print_rows(const struct moeflux_stats *es, struct str *to)
{
    if (es->n_rows)
        str_addf(to, "%-12s %" PRIu64 " rows of n-gram tables, waited for %.3f s\n", "rows", es->n_rows,
                 (double)es->wait_rows_ns / 1e9);
}

static void print_prefetch(const struct moeflux_stats *es, struct str *to)
{
    if (!es->n_predicted)
        return;
    str_addf(to, "%-12s %" PRIu64 " experts, %.1f %% of them right; %.1f %% of %" PRIu64 " chosen ones\n",
             "predicted", es->n_predicted, 100 * part_of(es->n_predicted_right, es->n_predicted),
             es->n_predictable ? 100 * part_of(es->n_predicted_right, es->n_predictable) : 0.0,
             es->n_predictable);
    str_addf(to, "%-12s %" PRIu64 " experts, %" PRIu64 " of them used, %" PRIu64 " not\n", "read ahead",
             es->n_prefetched, es->n_prefetched_used, es->n_prefetched - es->n_prefetched_used);
}

static void print_waits(const struct moeflux_stats *es, struct str *to)
{
    uint64_t n_tokens = es->n_prefill_tokens + es->n_decode_tokens;
    str_addf(to, "%-12s %.3f s for the disk", "waits", (double)es->wait_read_ns / 1e9);
    if (es->wait_read_ns && n_tokens)
        str_addf(to, " (%.3f ms a token)", (double)es->wait_read_ns / 1e6 / (double)n_tokens);
    str_addf(to, ", %.3f s for the device\n", (double)es->wait_gpu_ns / 1e9);
}

/* Prints the layers that tokens waited for longest, the longest first. */
static void print_worst_layers(const struct loaded *l, struct str *to)
{
    enum { MOST = 4 };
    uint32_t worst[MOST], n = 0;
    for (uint32_t i = 0; i < l->info.n_layers; i++) {
        uint64_t ns = lab_layer_wait_ns(l->models[0], i);
        uint32_t at = n;
        while (at > 0 && lab_layer_wait_ns(l->models[0], worst[at - 1]) < ns)
            at--;
        if (ns == 0 || at == MOST)
            continue;
        n += n < MOST;
        memmove(worst + at + 1, worst + at, (n - at - 1) * sizeof *worst);
        worst[at] = i;
    }
    if (n)
        str_addf(to, "%-12s", "worst layers");
    for (uint32_t i = 0; i < n; i++)
        str_addf(to, "%s %u: %.3f s", i ? "," : "", worst[i],
                 (double)lab_layer_wait_ns(l->models[0], worst[i]) / 1e9);
    if (n)
        str_add_text(to, "\n");
}

/* Returns the seconds in which the device was idle while another one worked. */
static double idle_s(const struct moeflux_stats *es, const struct moeflux_device_stats *d)
{
    return es->work_ns > d->busy_ns ? (double)(es->work_ns - d->busy_ns) / 1e9 : 0.0;
}

/* Prints rows for each device if there are several. */
static void print_devices(const struct moeflux_stats *es, struct str *to)
{
    for (uint32_t i = 0; es->n_devices > 1 && i < es->n_devices; i++) {
        const struct moeflux_device_stats *d = &es->devices[i];
        uint64_t chosen = d->n_hits + d->n_host_hits + d->n_misses;
        char weights[32], state[32];
        number_show_bytes(weights, sizeof weights, (double)d->weights_bytes);
        number_show_bytes(state, sizeof state, (double)d->state_bytes);
        str_addf(to, "device %-5" PRIu32 " layers %" PRIu32 " to %" PRIu32 ", %s\n", i + 1, d->first_layer,
                 d->end_layer - 1, d->device);
        str_addf(to, "%-12s %s weights, %s states, %" PRIu64 " slots", "", weights, state, d->n_slots);
        if (d->n_host_slots)
            str_addf(to, ", %" PRIu64 " on the host", d->n_host_slots);
        if (chosen)
            str_addf(to, "; hits %.1f %%", 100 * part_of(d->n_hits, chosen));
        str_addf(to, "\n%-12s busy %.3f s, of which %.3f s waiting for the disk; idle %.3f s\n", "",
                 (double)d->busy_ns / 1e9, (double)d->wait_read_ns / 1e9, idle_s(es, d));
    }
}

static void print_ops(const struct moeflux_stats *es, struct str *to)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < es->n_ops; i++)
        total += es->ops[i].ns;
    if (!total)
        return;
    str_addf(to, "%-12s %26.3f s, by op:\n", "device time", (double)total / 1e9);
    for (uint32_t i = 0; i < es->n_ops; i++) {
        const struct moeflux_op_time *op = &es->ops[i];
        str_addf(to, "  %-24s %9" PRIu64 " x %10.1f us %10.3f ms %5.1f %%\n", op->name, op->n,
                 op->n ? (double)op->ns / 1e3 / (double)op->n : 0.0, (double)op->ns / 1e6,
                 100.0 * (double)op->ns / (double)total);
    }
}

static void print_all(const struct loaded *l, const struct moeflux_answer_info *a, uint64_t n_prompt,
                      uint64_t prompt_ns, struct str *to)
{
    struct moeflux_stats es;
    char weights[32], state[32];
    uint64_t checkpoints = checkpoint_bytes_of(l);
    setup_get_stats(l, &es);
    str_addf(to, "%-12s %s on %s\n", "model", l->info.architecture, l->info.device);
    str_addf(to, "%-12s %" PRIu64 "\n", "seed", a ? a->seed : l->seed);
    str_addf(to, "%-12s %26.3f s\n", "load", (double)l->load_ns / 1e9);
    if (a && a->n_reused)
        str_addf(to, "%-12s %8" PRIu32 " tokens\n", "reused", a->n_reused);
    if (n_prompt)
        print_rate(to, "prompt", n_prompt, prompt_ns);
    if (!a && es.n_decode_tokens)
        print_rate(to, "decode", es.n_decode_tokens, es.decode_ns);
    print_answer(a, to);
    number_show_bytes(weights, sizeof weights, (double)es.weights_bytes);
    number_show_bytes(state, sizeof state, (double)es.state_bytes);
    str_addf(to, "%-12s %s weights%s, %s states", "memory", weights,
             es.weights_mapped_bytes ? " (mapped)" : "", state);
    number_show_bytes(state, sizeof state, (double)checkpoints);
    if (checkpoints)
        str_addf(to, ", %s checkpoints", state);
    number_show_bytes(state, sizeof state, (double)es.drafter_bytes);
    if (es.drafter_bytes)
        str_addf(to, ", %s multi-token prediction", state);
    number_show_bytes(state, sizeof state, (double)es.device_used_bytes);
    if (es.device_used_bytes)
        str_addf(to, "; %s of device memory in all", state);
    str_addf(to, "\n");
    print_devices(&es, to);
    print_experts(&es, l->info.expert_io, to);
    print_bound(&es, to);
    print_hits(&es, to);
    print_cpu(&es, to);
    print_prefetch(&es, to);
    print_rows(&es, to);
    print_waits(&es, to);
    print_worst_layers(l, to);
    use_report_add(l->models[0], to);
    if (es.n_compiled)
        str_addf(to, "%-12s %" PRIu64 " compiled in %.3f s after the load, when they were first needed\n",
                 "kernels", es.n_compiled, (double)es.compile_ns / 1e9);
    str_addf(to, "%-12s %" PRIu64 " submissions, %" PRIu64 " dispatches\n", "work", es.n_submits,
             es.n_dispatches);
    print_ops(&es, to);
}

static void print(const struct loaded *l, const struct moeflux_answer_info *a, uint64_t n_prompt,
                  uint64_t prompt_ns)
{
    struct str text = {0};
    print_all(l, a, n_prompt, prompt_ns, &text);
    say_text(&text);
    str_free(&text);
}

void stats_print(const struct loaded *l, const struct moeflux_answer_info *a)
{
    print(l, a, a ? a->n_prompt - a->n_reused : 0, a ? a->prompt_ns : 0);
}

void stats_print_all(const struct loaded *l, uint64_t n_prompt, uint64_t prompt_ns)
{
    print(l, NULL, n_prompt, prompt_ns);
}

struct json_t *stats_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *ops_json(const struct moeflux_stats *es)
{
    json_t *ops = json_array();
    for (uint32_t i = 0; i < es->n_ops; i++) {
        json_t *op = json_object();
        json_object_set_new(op, "name", json_string(es->ops[i].name));
        json_object_set_new(op, "n", json_integer((json_int_t)es->ops[i].n));
        json_object_set_new(op, "s", json_real((double)es->ops[i].ns / 1e9));
        json_array_append_new(ops, op);
    }
    return ops;
}

static json_t *devices_json(const struct moeflux_stats *es)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < es->n_devices; i++) {
        const struct moeflux_device_stats *d = &es->devices[i];
        const struct facts f = {.object = json_object()};
        facts_text(&f, "device", NULL, d->device);
        facts_count(&f, "first_layer", d->first_layer);
        facts_count(&f, "layers", d->end_layer - d->first_layer);
        facts_count(&f, "weights_bytes", d->weights_bytes);
        facts_count(&f, "state_bytes", d->state_bytes);
        facts_count(&f, "slots", d->n_slots);
        facts_count(&f, "host_slots", d->n_host_slots);
        facts_count(&f, "hits", d->n_hits);
        facts_count(&f, "host_hits", d->n_host_hits);
        facts_count(&f, "misses", d->n_misses);
        facts_seconds(&f, "busy_s", d->busy_ns);
        facts_seconds(&f, "wait_read_s", d->wait_read_ns);
        facts_value(&f, "idle_s", json_real(idle_s(es, d)));
        json_array_append_new(list, f.object);
    }
    return list;
}

static void add_counts(const struct facts *f, const struct moeflux_stats *es, uint64_t checkpoint_bytes)
{
    facts_count(f, "compiled_kernels", es->n_compiled);
    facts_count(f, "submissions", es->n_submits);
    facts_count(f, "dispatches", es->n_dispatches);
    facts_count(f, "read_bytes", es->read_bytes);
    facts_count(f, "reads", es->n_reads);
    facts_count(f, "hits", es->n_hits);
    facts_count(f, "host_hits", es->n_host_hits);
    facts_count(f, "misses", es->n_misses);
    facts_count(f, "slots", es->n_slots);
    facts_count(f, "host_slots", es->n_host_slots);
    facts_count(f, "slot_bytes", es->slot_bytes);
    facts_count(f, "preferred", es->n_preferred);
    facts_count(f, "cpu_slots", es->n_cpu_slots);
    facts_count(f, "cpu_experts", es->n_cpu_experts);
    facts_count(f, "predicted", es->n_predicted);
    facts_count(f, "predicted_right", es->n_predicted_right);
    facts_count(f, "predictable", es->n_predictable);
    facts_count(f, "prefetched", es->n_prefetched);
    facts_count(f, "prefetched_used", es->n_prefetched_used);
    facts_count(f, "prefetched_unused", es->n_prefetched - es->n_prefetched_used);
    facts_count(f, "promoted", es->n_promoted);
    facts_count(f, "demoted", es->n_demoted);
    facts_count(f, "weights_bytes", es->weights_bytes);
    facts_count(f, "weights_mapped_bytes", es->weights_mapped_bytes);
    facts_count(f, "state_bytes", es->state_bytes);
    facts_count(f, "multi_token_prediction_bytes", es->drafter_bytes);
    facts_count(f, "device_used_bytes", es->device_used_bytes);
    facts_count(f, "checkpoint_bytes", checkpoint_bytes);
}

/* Adds rates; null if nothing was counted. */
static void add_rates(const struct facts *f, const struct moeflux_stats *es)
{
    uint64_t chosen = es->n_hits + es->n_host_hits + es->n_misses;
    uint64_t n_tokens = es->n_prefill_tokens + es->n_decode_tokens;
    facts_value(f, "experts_per_token", stats_number(part_of(es->n_chosen, es->n_choices)));
    facts_value(f, "hit_rate", stats_number(part_of(es->n_hits, chosen)));
    facts_value(f, "host_hit_rate", stats_number(part_of(es->n_host_hits, chosen)));
    facts_value(f, "disk_rate", stats_number(part_of(es->n_misses, chosen)));
    facts_value(f, "prediction_recall", stats_number(part_of(es->n_predicted_right, es->n_predictable)));
    facts_value(f, "prediction_precision", stats_number(part_of(es->n_predicted_right, es->n_predicted)));
    facts_value(f, "queue_depth", stats_number(part_of(es->read_depth_ns, es->read_ns)));
    facts_value(f, "read_bytes_per_s", stats_number(1e9 * part_of(es->read_bytes, es->read_ns)));
    facts_value(f, "wait_read_s_per_token", stats_number(part_of(es->wait_read_ns, n_tokens) / 1e9));
}

static json_t *layer_waits_json(const struct loaded *l)
{
    json_t *waits = json_array();
    for (uint32_t i = 0; i < l->info.n_layers; i++)
        json_array_append_new(waits, json_real((double)lab_layer_wait_ns(l->models[0], i) / 1e9));
    return waits;
}

double stats_share(float share)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", (double)share);
    return strtod(text, NULL);
}

struct json_t *stats_engine_json(const struct loaded *l)
{
    struct moeflux_stats es;
    setup_get_stats(l, &es);
    const struct facts f = {.object = json_object()};
    add_counts(&f, &es, checkpoint_bytes_of(l));
    add_rates(&f, &es);
    facts_count(&f, "active_experts", l->info.top_k);
    facts_value(&f, "expert_share", json_real(stats_share(l->info.expert_share)));
    facts_value(&f, "prefer_resident", json_real(stats_share(l->info.prefer_resident)));
    facts_text(&f, "expert_io", NULL, l->info.expert_io);
    facts_seconds(&f, "compile_s", es.compile_ns);
    facts_seconds(&f, "read_s", es.read_ns);
    facts_seconds(&f, "wait_read_s", es.wait_read_ns);
    facts_count(&f, "rows", es.n_rows);
    facts_seconds(&f, "wait_rows_s", es.wait_rows_ns);
    facts_seconds(&f, "wait_device_s", es.wait_gpu_ns);
    facts_seconds(&f, "cpu_experts_s", es.cpu_experts_ns);
    facts_value(&f, "layer_wait_s", layer_waits_json(l));
    facts_value(&f, "devices", devices_json(&es));
    facts_value(&f, "ops", ops_json(&es));
    return f.object;
}
