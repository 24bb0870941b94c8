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
#include "cli/report/plan.h"
#include "cli/report/speed.h"
#include "cli/report/stats.h"
#include "cli/report/use.h"
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

static void print_bytes(struct output *out, const char *name, uint64_t bytes, const char *note)
{
    char amount[32];
    number_show_bytes(amount, sizeof amount, (double)bytes);
    output_addf(out, "%-22s %12s%s%s\n", name, amount, note[0] ? "  " : "", note);
}

static void print_count(struct output *out, const char *name, double count)
{
    static const char *const units[] = {"", " thousand", " million", " billion"};
    size_t unit = 0;
    while (unit < 3 && count >= 1000) {
        count /= 1000;
        unit++;
    }
    output_addf(out, unit ? "%-22s %.1f%s\n" : "%-22s %.0f%s\n", name, count, units[unit]);
}

static void print_shape(struct output *out, const struct moeflux_needs *n)
{
    char own[48] = "", windows[48] = "";
    if (n->top_k != n->own_top_k)
        snprintf(own, sizeof own, " (the model's own number: %u)", n->own_top_k);
    output_addf(out, "%-22s %s\n", "architecture", n->architecture);
    output_addf(out, "%-22s %s\n", "layout",
                n->is_assumed  ? "a configuration alone; formats as moeflux convert makes them: 4 bits"
                : n->is_sketch ? "a configuration alone; formats by its quantization table"
                : n->packed    ? "packed (moeflux convert)"
                : n->is_gguf   ? "GGUF, as it is"
                               : "safetensors, as they are");
    if (n->n_left_out)
        output_addf(out, "%-22s %u tensors of vision or multi-token prediction\n", "left out", n->n_left_out);
    if (n->n_windowed)
        snprintf(windows, sizeof windows, ", %u attention to %u positions", n->n_windowed, n->window);
    output_addf(out, "%-22s %u, %u of them full attention%s\n", "layers", n->n_layers,
                n->n_attention - n->n_windowed, windows);
    output_addf(out, "%-22s %u wide, %u tokens in the vocabulary\n", "hidden", n->hidden, n->vocab_size);
    output_addf(out, "%-22s %u a layer, %u chosen per token%s, %u wide\n", "experts", n->n_experts, n->top_k,
                own, n->moe_inner);
    if (n->max_context)
        output_addf(out, "%-22s %u tokens\n", "longest context", n->max_context);
    print_count(out, "parameters", (double)n->n_params);
    print_count(out, "active per token", (double)n->n_active_params);
}

/* Whether all experts are of one size. */
static bool is_even(const struct moeflux_needs *n)
{
    return n->expert_bytes == n->one_expert_bytes * n->n_experts * n->n_expert_layers;
}

/* Prints the directories that share the experts, unless there is only the model's. */
static void print_parts(struct output *out, const struct inspection *f)
{
    for (uint32_t i = 0; f->n_parts > 1 && i < f->n_parts; i++) {
        char name[32];
        snprintf(name, sizeof name, "    part %u", i);
        print_bytes(out, name, f->needs.expert_bytes / f->n_parts, f->parts[i].path);
    }
}

/* Prints, for a configuration alone, whether the model has room on its disk. */
static void print_room(const struct options *o, const struct inspection *f, struct output *out)
{
    const struct moeflux_needs *n = &f->needs;
    struct statvfs fs;
    if (!n->is_sketch || statvfs(o->model, &fs) < 0)
        return;
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    print_bytes(out, "  free there", room,
                room < n->dense_bytes + n->expert_bytes ? "too little for this model" : "");
}

static void print_sizes(const struct options *o, struct output *out, const struct inspection *f)
{
    const struct moeflux_needs *n = &f->needs;
    char note[96];
    output_text(out, "\nOn disk\n");
    print_bytes(out, "  dense weights", n->dense_bytes, "stay in memory");
    snprintf(note, sizeof note, "%s%.3f MB each", is_even(n) ? "" : "up to ",
             (double)n->one_expert_bytes / 1e6);
    print_bytes(out, "  routed experts", n->expert_bytes, note);
    if (n->table_bytes)
        print_bytes(out, "  n-gram tables", n->table_bytes, "stay on disk, a token reads some rows");
    output_addf(out, "%-22s %s\n", "  dense formats", n->dense_formats);
    output_addf(out, "%-22s %s\n", "  expert formats", n->expert_formats);
    print_parts(out, f);
    print_room(o, f, out);
    output_text(out, "\nRead per token\n");
    print_bytes(out, "  dense weights", n->token_dense_bytes, "from memory");
    snprintf(note, sizeof note, "from memory or disk");
    if (n->expert_share < 1)
        snprintf(note, sizeof note, "at most (--expert-share %g), from memory or disk",
                 (double)n->expert_share);
    print_bytes(out, "  routed experts", n->token_expert_bytes, note);
    print_bytes(out, "  together", n->token_dense_bytes + n->token_expert_bytes, "");
    output_text(out, "\nMemory\n");
    snprintf(note, sizeof note, "%" PRIu64 " B fixed and %" PRIu64 " B per token", n->recurrent_state_bytes,
             n->kv_bytes_per_pos);
    snprintf(note + strlen(note), sizeof note - strlen(note), ", here %" PRIu64 " tokens", short_context(n));
    print_bytes(out, "  states", state_bytes(n, short_context(n)), note);
    if (n->max_context > short_context(n))
        print_bytes(out, "  states, longest", state_bytes(n, n->max_context), "at the longest context");
    print_bytes(out, "  everything resident",
                n->dense_bytes + n->expert_bytes + state_bytes(n, short_context(n)), "no reads once loaded");
    print_bytes(out, "  least", n->floor_bytes, "dense weights, a short context, one layer's experts");
}

static json_t *parts_json(const struct inspection *f)
{
    json_t *paths = json_array();
    for (uint32_t i = 0; i < f->n_parts; i++)
        json_array_append_new(paths, output_json_text(f->parts[i].path, strlen(f->parts[i].path)));
    return paths;
}

static json_t *needs_json(const struct options *o, const struct inspection *f)
{
    const struct moeflux_needs *n = &f->needs;
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"layers", n->n_layers},
        {"attention_layers", n->n_attention},
        {"window_layers", n->n_windowed},
        {"window", n->window},
        {"hidden", n->hidden},
        {"vocab_size", n->vocab_size},
        {"experts", n->n_experts},
        {"top_k", n->top_k},
        {"model_top_k", n->own_top_k},
        {"moe_inner", n->moe_inner},
        {"max_context", n->max_context},
        {"params", n->n_params},
        {"active_params", n->n_active_params},
        {"dense_bytes", n->dense_bytes},
        {"expert_bytes", n->expert_bytes},
        {"table_bytes", n->table_bytes},
        {"one_expert_bytes", n->one_expert_bytes},
        {"token_dense_bytes", n->token_dense_bytes},
        {"token_expert_bytes", n->token_expert_bytes},
        {"kv_bytes_per_token", n->kv_bytes_per_pos},
        {"fixed_state_bytes", n->recurrent_state_bytes},
        {"resident_bytes", n->dense_bytes + n->expert_bytes + state_bytes(n, short_context(n))},
        {"floor_bytes", n->floor_bytes},
    };
    json_t *object = json_object();
    json_object_set_new(object, "model", output_json_text(o->model, strlen(o->model)));
    json_object_set_new(object, "architecture", json_string(n->architecture));
    json_object_set_new(object, "packed", n->is_sketch ? json_null() : json_boolean(n->packed));
    json_object_set_new(object, "gguf", json_boolean(n->is_gguf));
    json_object_set_new(object, "tensors_left_out", json_integer(n->n_left_out));
    json_object_set_new(object, "config_alone", json_boolean(n->is_sketch));
    json_object_set_new(object, "formats_assumed", json_boolean(n->is_assumed));
    json_object_set_new(object, "parts", parts_json(f));
    json_object_set_new(object, "expert_share", json_real(stats_share(n->expert_share)));
    json_object_set_new(object, "expert_formats", json_string(n->expert_formats));
    json_object_set_new(object, "dense_formats", json_string(n->dense_formats));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(object, numbers[i].key, json_integer((json_int_t)numbers[i].value));
    return object;
}

static const struct moeflux_plan *plan_of(const struct inspection *f)
{
    return f->no_plan.code ? NULL : &f->plan;
}

static int print_json(const struct options *o, const struct inspection *f, struct output *out,
                      struct moeflux_err *e)
{
    json_t *object = needs_json(o, f);
    const struct moeflux_plan *plan = plan_of(f);
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
    rc = moeflux_make_plan(&engine, &f->plan, &f->no_plan);
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
    print_shape(out, &f.needs);
    print_sizes(o, out, &f);
    print_plan(&f, out);
    defaults_print(&o->defaults, out);
    if (f.measured)
        rc = speed_report_print(&f.needs, plan_of(&f), &f.speeds, out, e);
    return rc ? rc : output_flush(out, e);
}
