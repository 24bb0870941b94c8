#include "cli/exit.h"
#include "cli/report/inspect.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/err.h"
#include "cli/options/number.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/report/facts.h"
#include "cli/report/plan.h"
#include "cli/report/speed.h"
#include "cli/report/stats.h"
#include "cli/report/use.h"
#include "cli/setup.h"
#include "engine/lab/lab.h"
#include "moeflux.h"

/* Everything that is reported. */
struct inspection {
    struct moeflux_needs needs;
    struct moeflux_part parts[MOEFLUX_MAX_PARTS];
    uint32_t n_parts;
    struct moeflux_plan plan;
    struct moeflux_err no_plan; /* why there is no plan; code 0: there is one */
    struct lab_speeds speeds;
    bool measured;
};

/* Memory is given for this context, in tokens, and for the model's own maximum. */
enum { SHORT_CONTEXT = 8192 };

static uint64_t state_bytes(const struct moeflux_needs *n, uint64_t n_pos)
{
    return n->recurrent_state_bytes + n_pos * n->kv_bytes_per_pos;
}

static uint64_t short_context(const struct moeflux_needs *n)
{
    return n->max_context && n->max_context < SHORT_CONTEXT ? n->max_context : SHORT_CONTEXT;
}

static void amount(const struct facts *f, const char *key, const char *title, uint64_t n)
{
    double count = (double)n;
    static const char *const units[] = {"", " thousand", " million", " billion"};
    size_t unit = 0;
    while (unit < 3 && count >= 1000) {
        count /= 1000;
        unit++;
    }
    facts_line(f, title, unit ? "%.1f%s" : "%.0f%s", count, units[unit]);
    facts_count(f, key, n);
}

static void shape(const struct facts *f, const struct moeflux_needs *n)
{
    char own[48] = "", windows[48] = "";
    if (n->top_k != n->own_top_k)
        snprintf(own, sizeof own, " (the model's own number: %u)", n->own_top_k);
    facts_text(f, "architecture", "architecture", n->architecture);
    facts_line(f, "layout", "%s",
               n->is_assumed  ? "a configuration alone; formats as moeflux convert makes them: 4 bits"
               : n->is_sketch ? "a configuration alone; formats by its quantization table"
               : n->packed    ? "packed (moeflux convert)"
               : n->is_gguf   ? "GGUF, as it is"
                              : "safetensors, as they are");
    if (n->n_left_out)
        facts_line(f, "left out", "%u tensors of vision or other parts", n->n_left_out);
    if (n->has_drafter)
        facts_line(f, "drafts", "a layer of multi-token prediction (--draft mtp)");
    if (n->n_windowed)
        snprintf(windows, sizeof windows, ", %u attention to %u positions", n->n_windowed, n->window);
    facts_line(f, "layers", "%u, %u of them full attention%s", n->n_layers, n->n_attention - n->n_windowed,
               windows);
    facts_line(f, "hidden", "%u wide, %u tokens in the vocabulary", n->hidden, n->vocab_size);
    facts_line(f, "experts", "%u a layer, %u chosen per token%s, %u wide", n->n_experts, n->top_k, own,
               n->moe_inner);
    if (n->max_context)
        facts_line(f, "longest context", "%u tokens", n->max_context);
    amount(f, "params", "parameters", n->n_params);
    amount(f, "active_params", "active per token", n->n_active_params);
}

/* Adds the numbers of the lines above. */
static void shape_counts(const struct facts *f, const struct moeflux_needs *n)
{
    facts_value(f, "packed", n->is_sketch ? json_null() : json_boolean(n->packed));
    facts_flag(f, "gguf", n->is_gguf);
    facts_flag(f, "config_alone", n->is_sketch);
    facts_flag(f, "formats_assumed", n->is_assumed);
    facts_count(f, "tensors_left_out", n->n_left_out);
    facts_flag(f, "multi_token_prediction", n->has_drafter);
    facts_count(f, "layers", n->n_layers);
    facts_count(f, "attention_layers", n->n_attention);
    facts_count(f, "window_layers", n->n_windowed);
    facts_count(f, "window", n->window);
    facts_count(f, "hidden", n->hidden);
    facts_count(f, "vocab_size", n->vocab_size);
    facts_count(f, "experts", n->n_experts);
    facts_count(f, "top_k", n->top_k);
    facts_count(f, "model_top_k", n->own_top_k);
    facts_count(f, "moe_inner", n->moe_inner);
    facts_count(f, "max_context", n->max_context);
}

/* Whether all experts are of one size. */
static bool is_even(const struct moeflux_needs *n)
{
    return n->expert_bytes == n->one_expert_bytes * n->n_experts * n->n_expert_layers;
}

/* Adds the directories that share the experts; the text has them unless there is only the model's. */
static void parts(const struct facts *f, const struct inspection *i)
{
    json_t *paths = json_array();
    for (uint32_t k = 0; k < i->n_parts; k++) {
        const char *path = i->parts[k].path;
        char title[32];
        snprintf(title, sizeof title, "    part %u", k);
        json_array_append_new(paths, output_json_text(path, strlen(path)));
        if (i->n_parts > 1)
            facts_bytes(f, NULL, title, i->needs.expert_bytes / i->n_parts, path);
    }
    facts_value(f, "parts", paths);
}

/* Adds, for a configuration alone, whether the model has room on its disk. */
static void room(const struct facts *f, const struct options *o, const struct moeflux_needs *n)
{
    struct statvfs fs;
    if (!n->is_sketch || statvfs(o->model, &fs) < 0)
        return;
    uint64_t bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    facts_bytes(f, NULL, "  free there", bytes,
                bytes < n->dense_bytes + n->expert_bytes ? "too little for this model" : "");
}

static void disk(const struct facts *f, const struct options *o, const struct inspection *i)
{
    const struct moeflux_needs *n = &i->needs;
    char note[96];
    facts_heading(f, "\nOn disk");
    facts_bytes(f, "dense_bytes", "  dense weights", n->dense_bytes, "stay in memory");
    snprintf(note, sizeof note, "%s%.3f MB each", is_even(n) ? "" : "up to ",
             (double)n->one_expert_bytes / 1e6);
    facts_bytes(f, "expert_bytes", "  routed experts", n->expert_bytes, note);
    facts_count(f, "one_expert_bytes", n->one_expert_bytes);
    facts_bytes(f, "table_bytes", n->table_bytes ? "  n-gram tables" : NULL, n->table_bytes,
                "stay on disk, a token reads some rows");
    facts_text(f, "dense_formats", "  dense formats", n->dense_formats);
    facts_text(f, "expert_formats", "  expert formats", n->expert_formats);
    parts(f, i);
    room(f, o, n);
}

static void memory(const struct facts *f, const struct moeflux_needs *n)
{
    char note[96];
    uint64_t at = short_context(n);
    facts_heading(f, "\nRead per token");
    facts_bytes(f, "token_dense_bytes", "  dense weights", n->token_dense_bytes, "from memory");
    snprintf(note, sizeof note, "from memory or disk");
    if (n->expert_share < 1)
        snprintf(note, sizeof note, "at most (--expert-share %g), from memory or disk",
                 (double)n->expert_share);
    facts_value(f, "expert_share", json_real(stats_share(n->expert_share)));
    facts_bytes(f, "token_expert_bytes", "  routed experts", n->token_expert_bytes, note);
    facts_bytes(f, NULL, "  together", n->token_dense_bytes + n->token_expert_bytes, "");
    facts_heading(f, "\nMemory");
    snprintf(note, sizeof note, "%" PRIu64 " B fixed and %" PRIu64 " B per token, here %" PRIu64 " tokens",
             n->recurrent_state_bytes, n->kv_bytes_per_pos, at);
    facts_bytes(f, NULL, "  states", state_bytes(n, at), note);
    facts_count(f, "fixed_state_bytes", n->recurrent_state_bytes);
    facts_count(f, "kv_bytes_per_token", n->kv_bytes_per_pos);
    if (n->max_context > at)
        facts_bytes(f, NULL, "  states, longest", state_bytes(n, n->max_context), "at the longest context");
    facts_bytes(f, "resident_bytes", "  everything resident",
                n->dense_bytes + n->expert_bytes + state_bytes(n, at), "no reads once loaded");
    facts_bytes(f, "floor_bytes", "  least", n->floor_bytes,
                "dense weights, a short context, one layer's experts");
}

static void report(const struct facts *f, const struct options *o, const struct inspection *i)
{
    facts_text(f, "model", NULL, o->model);
    shape(f, &i->needs);
    shape_counts(f, &i->needs);
    disk(f, o, i);
    memory(f, &i->needs);
}

static const struct moeflux_plan *plan_of(const struct inspection *f)
{
    return f->no_plan.code ? NULL : &f->plan;
}

static int print_json(const struct options *o, const struct inspection *f, struct output *out,
                      struct moeflux_err *e)
{
    json_t *object = json_object();
    const struct moeflux_plan *plan = plan_of(f);
    report(&(struct facts){.object = object}, o, f);
    json_object_set_new(object, "plan", plan ? plan_report_json(plan) : json_null());
    if (!plan)
        json_object_set_new(object, "no_plan", output_json_text(f->no_plan.text, strlen(f->no_plan.text)));
    json_object_set_new(object, "set_elsewhere", defaults_json(&o->defaults));
    if (f->measured)
        speed_report_json(&f->needs, plan, &f->speeds, object);
    return output_json(out, object, e);
}

static void print_plan(const struct inspection *f, struct output *out)
{
    output_text(out, "\n");
    if (plan_of(f))
        plan_report_print(&f->plan, out);
    else
        output_addf(out, "It cannot run here: %s\n", f->no_plan.text);
}

/* Fills the report. A plan that fails is no failure unless the usage is wrong: a model that cannot run here
 * is still described. */
static int inspect_model(struct inspection *f, const struct options *o, struct moeflux_err *e)
{
    struct moeflux_options engine = {0};
    options_engine(o, &engine);
    int rc = moeflux_get_needs_with(&engine, &f->needs, e);
    if (rc < 0)
        return rc;
    int n_parts = f->needs.is_sketch ? 0 : moeflux_list_parts(o->model, f->parts, MOEFLUX_MAX_PARTS, e);
    if (n_parts < 0)
        return n_parts;
    f->n_parts = (uint32_t)n_parts;
    rc = setup_check_context(o, f->needs.max_context, &f->no_plan);
    if (!rc)
        rc = moeflux_make_plan(&engine, &f->plan, &f->no_plan);
    exit_name_flags(&f->no_plan);
    if (rc == ERR_USAGE) {
        *e = f->no_plan;
        return rc;
    }
    f->measured = !o->no_measure;
    return f->measured ? lab_measure(&engine, &f->speeds, e) : 0;
}

int inspect_run(const struct options *o, struct output *out, struct moeflux_err *e)
{
    if (o->trace || o->usage)
        return use_report_run(o, out, e);
    struct inspection f = {0};
    int rc = inspect_model(&f, o, e);
    if (rc)
        return rc;
    if (o->json)
        return print_json(o, &f, out, e);
    report(&(struct facts){.out = out}, o, &f);
    print_plan(&f, out);
    defaults_print(&o->defaults, out);
    if (f.measured)
        rc = speed_report_print(&f.needs, plan_of(&f), &f.speeds, out, e);
    return rc ? rc : output_flush(out, e);
}
