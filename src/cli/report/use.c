#include "cli/report/use.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "cli/options/number.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/say.h"
#include "experts/replay.h"
#include "experts/trace.h"
#include "experts/usage.h"
#include "moeflux.h"

/* Names of --cache-policy; lfu and best cannot be chosen by a flag. */
static const char *const policy_names[REPLAY_POLICIES] = {[REPLAY_FREQUENCY] = "frequency",
                                                          [REPLAY_CONTEXT] = "context",
                                                          [REPLAY_LRU] = "lru",
                                                          [REPLAY_LFU] = "lfu",
                                                          [REPLAY_BEST] = "best"};

/* Results for one cache size. */
struct row {
    uint32_t n_slots;
    bool is_plan;
    struct replay_result policies[REPLAY_POLICIES];
};

enum { TENTHS = 10, MAX_ROWS = TENTHS + 1 };

/* Numbers of tokens whose experts a cache might know ahead. */
static const uint32_t known_tokens[] = {1, 2, 4, 8, 16};
enum { N_KNOWN = sizeof known_tokens / sizeof *known_tokens, N_AHEAD = 2 };

/* What such foresight would be worth for one cache size. */
struct ahead {
    uint32_t n_slots;
    struct replay_result frequency, context, best, known[N_KNOWN];
};

struct trace_report {
    struct trace trace;
    uint32_t n_all;            /* experts in the layers that were used */
    uint32_t n_plan;           /* slots of the plan; 0: no model was given */
    struct row rows[MAX_ROWS]; /* [n_rows], ascending */
    uint32_t n_rows;
    struct ahead ahead[N_AHEAD]; /* caches for a quarter and for half of the experts */
    struct replay_layer *layers;
};

/* ---- numbers ---- */

/* Returns the hit rate of single tokens, which are what waits for the disk; of all if there are none. */
static double hits_of(const struct trace_report *f, const struct replay_result *r)
{
    double hits = (double)(f->trace.n_single ? r->n_single_hits : r->n_hits);
    double misses = (double)(f->trace.n_single ? r->n_single_misses : r->n_misses);
    return hits + misses > 0 ? hits / (hits + misses) : 0;
}

static double token_bytes(const struct trace_report *f, const struct replay_result *r)
{
    uint64_t misses = f->trace.n_single ? r->n_single_misses : r->n_misses;
    uint64_t tokens = f->trace.n_single ? f->trace.n_single : f->trace.n_batched;
    return tokens ? (double)misses * (double)f->trace.shape.expert_bytes / (double)tokens : 0;
}

static double slots_bytes(const struct trace_report *f, double n_slots)
{
    return n_slots * (double)f->trace.shape.expert_bytes;
}

/* Returns the slots with which a policy has this hit rate, interpolated between rows; NAN: none does. */
static double slots_for(const struct trace_report *f, enum replay_policy policy, double hits)
{
    double slots_before = 0, hits_before = 0;
    for (uint32_t i = 0; i < f->n_rows; i++) {
        double here = hits_of(f, &f->rows[i].policies[policy]), slots = f->rows[i].n_slots;
        if (here >= hits)
            return here > hits_before
                       ? slots_before + (slots - slots_before) * (hits - hits_before) / (here - hits_before)
                       : slots;
        hits_before = here;
        slots_before = slots;
    }
    return NAN;
}

/* ---- replays ---- */

static int check_model(struct trace_report *f, const struct options *o, struct moeflux_err *e)
{
    const struct trace_shape *s = &f->trace.shape;
    struct moeflux_options engine = {0};
    struct moeflux_needs needs;
    struct moeflux_plan plan;
    int rc = moeflux_get_needs(o->model, &needs, e);
    if (rc < 0)
        return rc;
    if (needs.n_layers != s->n_layers || needs.n_experts != s->n_experts)
        return err_set(e, ERR_FORMAT,
                       "%s: expected a trace of %" PRIu32 " layers and %" PRIu32
                       " experts, as %s has, found %" PRIu32 " and %" PRIu32,
                       o->trace, needs.n_layers, needs.n_experts, o->model, s->n_layers, s->n_experts);
    options_engine(o, &engine);
    engine.usage = NULL;
    rc = moeflux_make_plan(&engine, &plan, e);
    f->n_plan = rc == 0 ? (uint32_t)size_min(plan.n_slots + plan.n_host_slots, f->n_all) : 0;
    return rc;
}

static void add_row(struct trace_report *f, uint32_t n_slots, bool is_plan)
{
    uint32_t least = f->trace.shape.top_k;
    n_slots = n_slots < least ? least : n_slots;
    struct row *last = f->n_rows ? &f->rows[f->n_rows - 1] : NULL;
    if (last && last->n_slots == n_slots)
        last->is_plan |= is_plan;
    else
        f->rows[f->n_rows++] = (struct row){.n_slots = n_slots, .is_plan = is_plan};
}

static int fill_rows(struct trace_report *f, struct moeflux_err *e)
{
    bool has_plan = f->n_plan == 0;
    int rc = 0;
    for (uint32_t i = 1; i <= TENTHS; i++) {
        uint32_t n = (uint32_t)((uint64_t)f->n_all * i / TENTHS);
        if (!has_plan && f->n_plan <= n) {
            add_row(f, f->n_plan, true);
            has_plan = true;
        }
        add_row(f, n, false);
    }
    for (uint32_t i = 0; i < f->n_rows; i++)
        for (int p = 0; rc == 0 && p < REPLAY_POLICIES; p++)
            rc = replay_run(&f->trace, (enum replay_policy)p, f->rows[i].n_slots, &f->rows[i].policies[p],
                            NULL, e);
    return rc;
}

static int fill_ahead(struct trace_report *f, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < N_AHEAD; i++) {
        struct ahead *a = &f->ahead[i];
        a->n_slots = (uint32_t)size_max(f->n_all * (i + 1) / 4, f->trace.shape.top_k);
        rc = replay_run(&f->trace, REPLAY_FREQUENCY, a->n_slots, &a->frequency, NULL, e);
        if (rc == 0)
            rc = replay_run(&f->trace, REPLAY_CONTEXT, a->n_slots, &a->context, NULL, e);
        if (rc == 0)
            rc = replay_run(&f->trace, REPLAY_BEST, a->n_slots, &a->best, NULL, e);
        for (int k = 0; rc == 0 && k < N_KNOWN; k++)
            rc = replay_ahead(&f->trace, known_tokens[k], a->n_slots, &a->known[k], e);
    }
    return rc;
}

static int replay_all(struct trace_report *f, const struct options *o, struct moeflux_err *e)
{
    int rc = trace_read(&f->trace, o->trace, e);
    if (rc < 0)
        return rc;
    f->n_all = f->trace.n_used_layers * f->trace.shape.n_experts;
    if (f->trace.n_steps == 0)
        return err_set(e, ERR_FORMAT, "%s: the trace has no choices", o->trace);
    rc = o->model ? check_model(f, o, e) : 0;
    if (rc == 0)
        rc = fill_rows(f, e);
    if (rc == 0)
        rc = fill_ahead(f, e);
    f->layers = mem_new(f->trace.shape.n_layers, sizeof *f->layers, rc < 0 ? NULL : e);
    if (rc == 0)
        rc = f->layers ? replay_layers(&f->trace, f->layers, e) : ERR_MEMORY;
    return rc;
}

/* ---- as text ---- */

/* Adds a line for each layer that was used. has_reuse: with the distances between uses. */
static void add_layers(const struct replay_layer *layers, uint32_t n_layers, bool has_reuse, struct str *to)
{
    str_addf(to, "%5s %10s %8s  ", "layer", "uses", "experts");
    for (int k = 0; k < REPLAY_SHARES; k++)
        str_addf(to, "%4" PRIu32 " %%", replay_shares[k]);
    str_add_text(to, has_reuse ? "  reuse after 50 %  90 %\n" : "\n");
    for (uint32_t i = 0; i < n_layers; i++) {
        const struct replay_layer *l = &layers[i];
        if (l->n_uses == 0)
            continue;
        str_addf(to, "%5" PRIu32 " %10" PRIu64 " %8" PRIu32 "  ", i, l->n_uses, l->n_used);
        for (int k = 0; k < REPLAY_SHARES; k++)
            str_addf(to, "%6" PRIu32, l->cover[k]);
        if (has_reuse)
            str_addf(to, "  %16" PRIu64 " %5" PRIu64, l->reuse_median, l->reuse_90);
        str_add_text(to, "\n");
    }
}

static void print_head(const struct trace_report *f, const struct options *o, struct output *out)
{
    const struct trace *t = &f->trace;
    char each[32], all[32];
    number_show_bytes(each, sizeof each, (double)t->shape.expert_bytes);
    number_show_bytes(all, sizeof all, slots_bytes(f, f->n_all));
    output_addf(out, "Trace %s\n", o->trace);
    output_addf(out,
                "  experts    %" PRIu32 " layers of %" PRIu32 ", %" PRIu32
                " chosen per token, %s each, %s in all\n",
                t->n_used_layers, t->shape.n_experts, t->shape.top_k, each, all);
    output_addf(out,
                "  tokens     %" PRIu64 " one by one, %" PRIu64 " in %" PRIu64 " evaluation%s of several\n\n",
                t->n_single, t->n_batched, t->n_chunks, t->n_chunks == 1 ? "" : "s");
}

static void print_rows(const struct trace_report *f, struct output *out)
{
    output_addf(out, "Hits of %s, from an empty cache, and what a token reads\n",
                f->trace.n_single ? "tokens that came one by one" : "all tokens");
    output_addf(out, "%8s %7s %10s", "slots", "of all", "memory");
    for (int p = 0; p < REPLAY_POLICIES; p++)
        output_addf(out, " %9s", policy_names[p]);
    output_addf(out, " %10s %10s\n", "reads", "best reads");
    for (uint32_t i = 0; i < f->n_rows; i++) {
        const struct row *r = &f->rows[i];
        char memory[32];
        number_show_bytes(memory, sizeof memory, slots_bytes(f, r->n_slots));
        output_addf(out, "%8" PRIu32 " %5.0f %% %10s", r->n_slots, 100.0 * r->n_slots / f->n_all, memory);
        for (int p = 0; p < REPLAY_POLICIES; p++)
            output_addf(out, " %7.1f %%", 100 * hits_of(f, &r->policies[p]));
        for (int p = 0; p < REPLAY_POLICIES; p += REPLAY_BEST - REPLAY_FREQUENCY) {
            number_show_bytes(memory, sizeof memory, token_bytes(f, &r->policies[p]));
            output_addf(out, " %10s", memory);
        }
        output_addf(out, "%s\n", r->is_plan ? "  this plan" : "");
    }
}

/* Prints how much memory certain hit rates need, and what more memory than the plan's would save. */
static void print_targets(const struct trace_report *f, struct output *out)
{
    static const double targets[] = {0.5, 0.8, 0.9, 0.95};
    output_addf(out, "\nMemory for hits of %10s %10s\n", "frequency", "best");
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        output_addf(out, "%16.0f %%", 100 * targets[i]);
        for (int p = 0; p < REPLAY_POLICIES; p += REPLAY_BEST - REPLAY_FREQUENCY) {
            char memory[32] = "none";
            double slots = slots_for(f, (enum replay_policy)p, targets[i]);
            if (isfinite(slots))
                number_show_bytes(memory, sizeof memory, slots_bytes(f, slots));
            output_addf(out, " %10s", memory);
        }
        output_text(out, "\n");
    }
    for (uint32_t i = 0; i + 1 < f->n_rows; i++) {
        double here = token_bytes(f, &f->rows[i].policies[REPLAY_FREQUENCY]);
        double next = token_bytes(f, &f->rows[i + 1].policies[REPLAY_FREQUENCY]);
        char more[32];
        if (!f->rows[i].is_plan || here <= 0)
            continue;
        number_show_bytes(more, sizeof more, slots_bytes(f, f->rows[i + 1].n_slots - f->rows[i].n_slots));
        output_addf(out, "%s more than this plan has: a token reads %.0f %% less.\n", more,
                    100 * (1 - next / here));
    }
}

static void print_known(const struct trace_report *f, const char *what,
                        const struct replay_result *r[N_AHEAD], struct output *out)
{
    output_addf(out, "%-11s", what);
    for (int i = 0; i < N_AHEAD; i++) {
        const struct ahead *a = &f->ahead[i];
        double from = hits_of(f, &a->frequency), all = hits_of(f, &a->best) - from;
        double part = all > 0 ? (hits_of(f, r[i]) - from) / all : 0;
        output_addf(out, " %10.1f %% %7.0f %%", 100 * hits_of(f, r[i]), 100 * part);
    }
    output_text(out, "\n");
}

/* Prints how far policies that know only the past are from the best. */
static void print_ahead(const struct trace_report *f, struct output *out)
{
    const struct ahead *a = f->ahead;
    output_text(out,
                "\nHits if choices were known ahead, and the part of the distance from frequency to best\n");
    output_addf(out, "%-11s", "slots");
    for (int i = 0; i < N_AHEAD; i++)
        output_addf(out, " %12" PRIu32 " %9s", a[i].n_slots, "distance");
    output_text(out, "\n");
    print_known(f, "frequency", (const struct replay_result *[]){&a[0].frequency, &a[1].frequency}, out);
    print_known(f, "context", (const struct replay_result *[]){&a[0].context, &a[1].context}, out);
    for (int k = 0; k < N_KNOWN; k++) {
        char what[32];
        snprintf(what, sizeof what, "%" PRIu32 " token%s", known_tokens[k], known_tokens[k] > 1 ? "s" : "");
        print_known(f, what, (const struct replay_result *[]){&a[0].known[k], &a[1].known[k]}, out);
    }
    print_known(f, "best", (const struct replay_result *[]){&a[0].best, &a[1].best}, out);
}

static int print_text(const struct trace_report *f, const struct options *o, struct output *out,
                      struct moeflux_err *e)
{
    struct str table = {0};
    print_head(f, o, out);
    print_rows(f, out);
    print_targets(f, out);
    print_ahead(f, out);
    output_text(out, "\nThe fewest experts that have a part of a layer's uses; evaluations until an expert "
                     "is used again\n");
    add_layers(f->layers, f->trace.shape.n_layers, true, &table);
    output_add(out, str_text(&table), table.len);
    int rc = str_ok(&table) ? output_flush(out, e) : err_set(e, ERR_MEMORY, "out of memory for the table");
    str_free(&table);
    return rc;
}

/* ---- as JSON ---- */

static json_t *layers_json(const struct replay_layer *layers, uint32_t n_layers, bool has_reuse)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < n_layers; i++) {
        const struct replay_layer *l = &layers[i];
        json_t *one = json_object();
        if (l->n_uses == 0) {
            json_decref(one);
            continue;
        }
        json_object_set_new(one, "layer", json_integer(i));
        json_object_set_new(one, "uses", json_integer((json_int_t)l->n_uses));
        json_object_set_new(one, "experts_used", json_integer(l->n_used));
        for (int k = 0; k < REPLAY_SHARES; k++) {
            char key[32];
            snprintf(key, sizeof key, "cover_%" PRIu32, replay_shares[k]);
            json_object_set_new(one, key, json_integer(l->cover[k]));
        }
        if (has_reuse) {
            json_object_set_new(one, "reuse_50", json_integer((json_int_t)l->reuse_median));
            json_object_set_new(one, "reuse_90", json_integer((json_int_t)l->reuse_90));
        }
        json_array_append_new(all, one);
    }
    return all;
}

static json_t *row_json(const struct trace_report *f, const struct row *r)
{
    json_t *row = json_object(), *hits = json_object(), *bytes = json_object();
    for (int p = 0; p < REPLAY_POLICIES; p++) {
        json_object_set_new(hits, policy_names[p], json_real(hits_of(f, &r->policies[p])));
        json_object_set_new(bytes, policy_names[p], json_real(token_bytes(f, &r->policies[p])));
    }
    json_object_set_new(row, "slots", json_integer(r->n_slots));
    json_object_set_new(row, "bytes", json_real(slots_bytes(f, r->n_slots)));
    json_object_set_new(row, "plan", json_boolean(r->is_plan));
    json_object_set_new(row, "hits", hits);
    json_object_set_new(row, "token_bytes", bytes);
    return row;
}

static json_t *ahead_json(const struct trace_report *f)
{
    json_t *all = json_array();
    for (int i = 0; i < N_AHEAD; i++) {
        const struct ahead *a = &f->ahead[i];
        json_t *known = json_array();
        for (int k = 0; k < N_KNOWN; k++)
            json_array_append_new(known, json_pack("{s:i, s:f}", "tokens", (int)known_tokens[k], "hits",
                                                   hits_of(f, &a->known[k])));
        json_array_append_new(all,
                              json_pack("{s:i, s:f, s:f, s:f, s:o}", "slots", (int)a->n_slots, "frequency",
                                        hits_of(f, &a->frequency), "context", hits_of(f, &a->context), "best",
                                        hits_of(f, &a->best), "known", known));
    }
    return all;
}

static int print_json(const struct trace_report *f, const struct options *o, struct output *out,
                      struct moeflux_err *e)
{
    const struct trace *t = &f->trace;
    json_t *object = json_object(), *rows = json_array();
    json_object_set_new(object, "trace", output_json_text(o->trace, strlen(o->trace)));
    json_object_set_new(object, "layers_used", json_integer(t->n_used_layers));
    json_object_set_new(object, "experts", json_integer(t->shape.n_experts));
    json_object_set_new(object, "top_k", json_integer(t->shape.top_k));
    json_object_set_new(object, "one_expert_bytes", json_integer((json_int_t)t->shape.expert_bytes));
    json_object_set_new(object, "single_tokens", json_integer((json_int_t)t->n_single));
    json_object_set_new(object, "prompt_tokens", json_integer((json_int_t)t->n_batched));
    for (uint32_t i = 0; i < f->n_rows; i++)
        json_array_append_new(rows, row_json(f, &f->rows[i]));
    json_object_set_new(object, "rows", rows);
    json_object_set_new(object, "ahead", ahead_json(f));
    json_object_set_new(object, "layers", layers_json(f->layers, t->shape.n_layers, true));
    return output_json(out, object, e);
}

static int report_trace(const struct options *o, struct output *out, struct moeflux_err *e)
{
    struct trace_report f = {0};
    int rc = replay_all(&f, o, e);
    if (rc == 0)
        rc = o->json ? print_json(&f, o, out, e) : print_text(&f, o, out, e);
    trace_free(&f.trace);
    free(f.layers);
    return rc;
}

/* ---- a file of counts ---- */

static int read_layers(const struct options *o, uint32_t n_layers, uint32_t n_experts,
                       struct replay_layer *layers, struct moeflux_err *e)
{
    uint32_t *counts = mem_new((uint64_t)n_layers * n_experts, sizeof *counts, e);
    int rc = counts ? usage_read(o->usage, n_layers, n_experts, counts, e) : ERR_MEMORY;
    if (rc >= 0)
        rc = replay_cover(n_layers, n_experts, counts, layers, e);
    free(counts);
    return rc;
}

static int print_usage(const struct options *o, const struct replay_layer *layers, uint32_t n_layers,
                       uint32_t n_experts, struct output *out, struct moeflux_err *e)
{
    struct str table = {0};
    if (o->json) {
        json_t *object = json_object();
        json_object_set_new(object, "usage", output_json_text(o->usage, strlen(o->usage)));
        json_object_set_new(object, "experts", json_integer(n_experts));
        json_object_set_new(object, "layers", layers_json(layers, n_layers, false));
        return output_json(out, object, e);
    }
    output_addf(out, "Usage %s: %" PRIu32 " layers of %" PRIu32 " experts\n", o->usage, n_layers, n_experts);
    output_text(out, "The fewest experts that have a part of a layer's uses\n");
    add_layers(layers, n_layers, false, &table);
    output_add(out, str_text(&table), table.len);
    int rc = str_ok(&table) ? output_flush(out, e) : err_set(e, ERR_MEMORY, "out of memory for the table");
    str_free(&table);
    return rc;
}

static int report_usage(const struct options *o, struct output *out, struct moeflux_err *e)
{
    uint32_t n_layers, n_experts;
    struct moeflux_needs needs = {0};
    int rc = usage_read_shape(o->usage, &n_layers, &n_experts, e);
    if (rc == 0 && o->model)
        rc = moeflux_get_needs(o->model, &needs, e);
    if (rc < 0)
        return rc;
    if (o->model) { /* usage_read refuses a file of another shape */
        n_layers = needs.n_layers;
        n_experts = needs.n_experts;
    }
    struct replay_layer *layers = mem_new(n_layers, sizeof *layers, e);
    rc = layers ? read_layers(o, n_layers, n_experts, layers, e) : ERR_MEMORY;
    if (rc == 0)
        rc = print_usage(o, layers, n_layers, n_experts, out, e);
    free(layers);
    return rc;
}

int use_report_run(const struct options *o, struct output *out, struct moeflux_err *e)
{
    return o->trace ? report_trace(o, out, e) : report_usage(o, out, e);
}

/* ---- for --stats ---- */

static enum replay_policy policy_of(const struct options *o)
{
    static const enum replay_policy policies[] = {[MOEFLUX_CACHE_POLICY_AUTO] = REPLAY_FREQUENCY,
                                                  [MOEFLUX_CACHE_POLICY_LRU] = REPLAY_LRU,
                                                  [MOEFLUX_CACHE_POLICY_FREQUENCY] = REPLAY_FREQUENCY,
                                                  [MOEFLUX_CACHE_POLICY_CONTEXT] = REPLAY_CONTEXT};
    return policies[o->cache_policy];
}

void use_report_add(const struct moeflux_model *m, struct str *to)
{
    const struct moeflux_model_info info = moeflux_model_get_info(m);
    uint32_t *counts = mem_new((uint64_t)info.n_layers * info.n_experts, sizeof *counts, NULL);
    struct replay_layer *layers = mem_new(info.n_layers, sizeof *layers, NULL);
    uint64_t n_uses = 0;
    if (counts && layers) {
        moeflux_model_get_usage(m, counts);
        if (replay_cover(info.n_layers, info.n_experts, counts, layers, NULL) == 0)
            for (uint32_t i = 0; i < info.n_layers; i++)
                n_uses += layers[i].n_uses;
    }
    if (n_uses) {
        str_addf(to, "%-12s the fewest experts that have a part of a layer's uses:\n", "skew");
        add_layers(layers, info.n_layers, false, to);
    }
    free(counts);
    free(layers);
}

int use_report_tell(const struct options *o, uint64_t n_slots, struct moeflux_err *e)
{
    struct trace_report f = {0};
    struct str text = {0};
    struct replay_result now, best;
    int rc = trace_read(&f.trace, o->trace, e);
    f.n_all = f.trace.n_used_layers * f.trace.shape.n_experts;
    uint32_t n = (uint32_t)size_max(size_min(n_slots, f.n_all), f.trace.shape.top_k);
    f.layers = mem_new(size_max(f.trace.shape.n_layers, 1), sizeof *f.layers, rc < 0 ? NULL : e);
    if (rc == 0)
        rc = f.layers ? replay_layers(&f.trace, f.layers, e) : ERR_MEMORY;
    if (rc == 0)
        rc = replay_run(&f.trace, policy_of(o), n, &now, NULL, e);
    if (rc == 0)
        rc = replay_run(&f.trace, REPLAY_BEST, n, &best, NULL, e);
    if (rc == 0 && f.trace.n_steps) {
        str_addf(&text,
                 "%-12s %.1f %% hits with %" PRIu32
                 " slots from an empty cache; the best possible: %.1f %%\n",
                 "replay", 100 * hits_of(&f, &now), n, 100 * hits_of(&f, &best));
        add_layers(f.layers, f.trace.shape.n_layers, true, &text);
        say_text(&text);
    }
    str_free(&text);
    trace_free(&f.trace);
    free(f.layers);
    return rc;
}
