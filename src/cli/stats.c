#include "cli/stats.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>

#include "cli/answer.h"
#include "cli/number.h"
#include "cli/session.h"

double stats_rate(uint64_t n_tokens, uint64_t ns)
{
    return n_tokens && ns ? (double)n_tokens * 1e9 / (double)ns : NAN;
}

double stats_first_token_s(const struct stats *st, const struct answer *a)
{
    return a->first_token_ns ? (double)(a->first_token_ns - st->start_ns) / 1e9 : NAN;
}

static void print_rate(FILE *to, const char *name, uint64_t n, uint64_t ns)
{
    fprintf(to, "%-12s %8" PRIu64 " tokens  %9.3f s", name, n, (double)ns / 1e9);
    if (n && ns)
        fprintf(to, "  %10.2f tok/s", stats_rate(n, ns));
    fputc('\n', to);
}

static void print_answer(const struct stats *st, const struct answer *a, FILE *to)
{
    if (!a || a->tokens.n == 0)
        return;
    fprintf(to, "%-12s %26.3f s\n", "first token", stats_first_token_s(st, a));
    print_rate(to, "decode", a->n_decoded, a->decode_ns);
    fprintf(to, "%-12s %8zu tokens  stop: %s\n", "answer", a->tokens.n, answer_stop_name(a->stop));
}

static void print_experts(const struct moeflux_stats *es, const char *io, FILE *to)
{
    char read[32], speed[32], slots[32];
    uint64_t chosen = es->n_hits + es->n_misses;
    number_show_bytes(read, sizeof read, (double)es->read_bytes);
    number_show_bytes(speed, sizeof speed,
                      es->read_ns ? (double)es->read_bytes * 1e9 / (double)es->read_ns : 0);
    number_show_bytes(slots, sizeof slots, (double)es->n_slots * (double)es->slot_bytes);
    fprintf(to, "%-12s %s read, %s/s at queue depth %.1f; %" PRIu64 " slots, %s\n", "experts", read, speed,
            es->read_ns ? (double)es->read_depth_ns / (double)es->read_ns : 0.0, es->n_slots, slots);
    fprintf(to, "%-12s %s\n", "read by", io);
    if (chosen)
        fprintf(to, "%-12s %.1f %% of %" PRIu64 " chosen experts\n", "hits",
                100.0 * (double)es->n_hits / (double)chosen, chosen);
}

static void print_ops(const struct moeflux_stats *es, FILE *to)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < es->n_ops; i++)
        total += es->ops[i].ns;
    if (!total)
        return;
    fprintf(to, "%-12s %26.3f s, by op:\n", "device time", (double)total / 1e9);
    for (uint32_t i = 0; i < es->n_ops; i++) {
        const struct moeflux_op_time *op = &es->ops[i];
        fprintf(to, "  %-24s %9" PRIu64 " x %10.1f us %10.3f ms %5.1f %%\n", op->name, op->n,
                op->n ? (double)op->ns / 1e3 / (double)op->n : 0.0, (double)op->ns / 1e6,
                100.0 * (double)op->ns / (double)total);
    }
}

void stats_print(const struct stats *st, const struct answer *a, const struct session *s, FILE *to)
{
    struct moeflux_stats es;
    char weights[32], state[32];
    moeflux_get_stats(s->model, &es);
    fprintf(to, "%-12s %s on %s\n", "model", s->info.architecture, s->info.device);
    fprintf(to, "%-12s %" PRIu64 "\n", "seed", s->seed);
    fprintf(to, "%-12s %26.3f s\n", "load", (double)s->load_ns / 1e9);
    if (st->n_prompt)
        print_rate(to, "prompt", st->n_prompt, st->prefill_ns);
    print_answer(st, a, to);
    number_show_bytes(weights, sizeof weights, (double)es.weights_bytes);
    number_show_bytes(state, sizeof state, (double)es.state_bytes);
    fprintf(to, "%-12s %s weights, %s states\n", "memory", weights, state);
    print_experts(&es, s->info.expert_io, to);
    fprintf(to, "%-12s %.3f s for the disk, %.3f s for the device\n", "waits", (double)es.wait_read_ns / 1e9,
            (double)es.wait_gpu_ns / 1e9);
    fprintf(to, "%-12s %" PRIu64 " submissions, %" PRIu64 " dispatches\n", "work", es.n_submits,
            es.n_dispatches);
    print_ops(&es, to);
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

struct json_t *stats_engine_json(const struct session *s)
{
    struct moeflux_stats es;
    moeflux_get_stats(s->model, &es);
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        {"submissions", es.n_submits},   {"dispatches", es.n_dispatches},
        {"read_bytes", es.read_bytes},   {"hits", es.n_hits},
        {"misses", es.n_misses},         {"slots", es.n_slots},
        {"slot_bytes", es.slot_bytes},   {"weights_bytes", es.weights_bytes},
        {"state_bytes", es.state_bytes},
    };
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_object_set_new(object, counts[i].key, json_integer((json_int_t)counts[i].value));
    json_object_set_new(object, "expert_io", json_string(s->info.expert_io));
    json_object_set_new(object, "queue_depth",
                        stats_number(es.read_ns ? (double)es.read_depth_ns / (double)es.read_ns : NAN));
    json_object_set_new(object, "read_s", json_real((double)es.read_ns / 1e9));
    json_object_set_new(object, "wait_read_s", json_real((double)es.wait_read_ns / 1e9));
    json_object_set_new(object, "wait_device_s", json_real((double)es.wait_gpu_ns / 1e9));
    json_object_set_new(object, "ops", ops_json(&es));
    return object;
}
