#include "cli/measure/bench_table.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cores.h"
#include "base/err.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/report/stats.h"
#include "cli/setup.h"

/* Scripts read CSV by position: new keys go to the end. Columns without a key are in the plain table only. */
enum column {
    MODEL_TITLE,
    SIZE_TITLE,
    PARAMS_TITLE,
    BITS_TITLE,
    BACKEND_TITLE,
    THREADS_TITLE,
    TEST_TITLE,
    TEST,
    TOKENS,
    REPS,
    MEDIAN,
    DEVIATION_TITLE,
    LEAST,
    MOST,
    SPREAD,
    MS_PER_TOKEN,
    DEPTH,
    MODEL,
    MODEL_BYTES,
    PARAMS,
    BITS,
    BACKEND,
    BUILD,
    PARALLEL,
    THREADS,
    DEVIATION,
    DEVICE,
    BUSY_MS,
    N_COLUMNS
};
_Static_assert((int)N_COLUMNS == (int)BENCH_COLUMNS, "rows have as many cells");

static const struct table_column columns[N_COLUMNS] = {
    [MODEL_TITLE] = {NULL, "model", -1},
    [SIZE_TITLE] = {NULL, "size", -1},
    [PARAMS_TITLE] = {NULL, "params B", 2},
    [BITS_TITLE] = {NULL, "bits", 2},
    [BACKEND_TITLE] = {NULL, "backend", -1},
    [THREADS_TITLE] = {NULL, "threads", 0},
    [TEST_TITLE] = {NULL, "test", -1},
    [TEST] = {"test", NULL, -1},
    [TOKENS] = {"tokens", NULL, 0},
    [REPS] = {"reps", "reps", 0},
    [MEDIAN] = {"median_tok_s", "tok/s", 2},
    [DEVIATION_TITLE] = {NULL, "+-", 2},
    [LEAST] = {"min_tok_s", "min", 2},
    [MOST] = {"max_tok_s", "max", 2},
    [SPREAD] = {"spread_percent", "spread %", 1},
    [MS_PER_TOKEN] = {"median_ms_per_token", "ms/token", 3},
    [DEPTH] = {"depth", NULL, 0},
    [MODEL] = {"model", NULL, -1},
    [MODEL_BYTES] = {"model_bytes", NULL, 0},
    [PARAMS] = {"params", NULL, 0},
    [BITS] = {"bits_per_weight", NULL, 2},
    [BACKEND] = {"backend", NULL, -1},
    [BUILD] = {"build", NULL, -1},
    [PARALLEL] = {"parallel", NULL, 0},
    [THREADS] = {"threads", NULL, 0},
    [DEVIATION] = {"deviation_tok_s", NULL, 2},
    [DEVICE] = {"device", NULL, -1},
    [BUSY_MS] = {"processor_ms_per_token", NULL, 3},
};

/* Writes "34.7B" or "3.4M". */
static void show_count(char *buf, size_t cap, double n)
{
    if (n >= 1e9)
        snprintf(buf, cap, "%.1fB", n / 1e9);
    else
        snprintf(buf, cap, "%.1fM", n / 1e6);
}

int bench_table_init(struct bench_table *t, const char *build, const struct options *from,
                     const struct loaded *l, struct moeflux_err *e)
{
    struct moeflux_needs needs;
    char all[16], active[16];
    const struct moeflux_options o = {.dir = from->model, .active_experts = l->info.top_k};
    int rc = moeflux_get_needs_with(&o, &needs, e);
    if (rc < 0)
        return rc;
    *t = (struct bench_table){.build = build,
                              .backend = l->info.backend,
                              .device = l->info.device,
                              .n_threads = from->threads ? (uint32_t)from->threads : cores_useful(""),
                              .bytes = (double)needs.dense_bytes + (double)needs.expert_bytes,
                              .n_params = (double)needs.n_params};
    show_count(all, sizeof all, (double)needs.n_params);
    show_count(active, sizeof active, (double)needs.n_active_params);
    snprintf(t->model, sizeof t->model, "%s %s.A%s", needs.architecture, all, active);
    number_show_bytes(t->size, sizeof t->size, t->bytes);
    return 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void name_test(char *name, size_t cap, const struct bench_test *what)
{
    char parallel[16] = "", depth[16] = "";
    if (what->parallel > 1)
        snprintf(parallel, sizeof parallel, " x %u", what->parallel);
    if (what->depth)
        snprintf(depth, sizeof depth, " @ d%u", what->depth);
    snprintf(name, cap, "%s %u%s%s", what->decode ? "decode" : "prefill", what->n, parallel, depth);
}

/* Returns the standard deviation of a sample, 0 of one number. */
static double deviation(const double *x, size_t n)
{
    double mean = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    return n > 1 ? sqrt(squares / (double)(n - 1)) : 0;
}

void bench_table_add(struct bench_table *t, const struct bench_test *what, double *rates, size_t reps)
{
    struct table_cell *row = &t->cells[t->n_rows * N_COLUMNS];
    char *name = t->names[t->n_rows++];
    qsort(rates, reps, sizeof *rates, compare);
    double median = (rates[reps / 2] + rates[(reps - 1) / 2]) / 2;
    row[TEST].text = what->decode ? "decode" : "prefill";
    name_test(name, sizeof t->names[0], what);
    row[MODEL].text = row[MODEL_TITLE].text = t->model;
    row[SIZE_TITLE].text = t->size;
    row[MODEL_BYTES].number = t->bytes;
    row[PARAMS].number = t->n_params;
    row[PARAMS_TITLE].number = t->n_params / 1e9;
    row[BITS].number = row[BITS_TITLE].number = 8 * t->bytes / t->n_params;
    row[BACKEND].text = row[BACKEND_TITLE].text = t->backend;
    row[TEST_TITLE].text = name;
    row[TOKENS].number = what->n;
    row[REPS].number = (double)reps;
    row[MEDIAN].number = median;
    row[LEAST].number = rates[0];
    row[MOST].number = rates[reps - 1];
    row[SPREAD].number = 100 * (rates[reps - 1] - rates[0]) / median;
    row[MS_PER_TOKEN].number = 1e3 / median;
    row[DEPTH].number = what->depth;
    row[PARALLEL].number = what->parallel;
    row[THREADS].number = row[THREADS_TITLE].number = t->n_threads;
    row[DEVICE].text = t->device;
    row[BUSY_MS].number = what->busy_ms;
    row[DEVIATION].number = row[DEVIATION_TITLE].number = deviation(rates, reps);
    row[BUILD].text = t->build;
}

static int print_json(const struct bench_table *t, const struct table *table, const struct options *o,
                      const struct loaded *l, const char *ids, struct output *out, struct moeflux_err *e)
{
    json_t *object = json_object();
    json_object_set_new(object, "model", output_json_text(o->model, strlen(o->model)));
    json_object_set_new(object, "architecture", json_string(l->info.architecture));
    json_object_set_new(object, "device", json_string(l->info.device));
    json_object_set_new(object, "ids", json_string(ids));
    json_object_set_new(object, "load_s", json_real((double)l->load_ns / 1e9));
    json_object_set_new(object, "experts_resident", json_boolean(l->info.experts_resident));
    json_object_set_new(object, "backend", json_string(t->backend));
    json_object_set_new(object, "build", json_string(t->build));
    json_object_set_new(object, "results", table_json(table));
    if (o->json_full)
        json_object_set_new(object, "stats", stats_engine_json(l));
    return output_json(out, object, e);
}

int bench_table_print(const struct bench_table *t, const struct options *o, const struct loaded *l,
                      const char *ids, struct output *out, struct moeflux_err *e)
{
    const struct table table = {columns, N_COLUMNS, t->n_rows, t->cells};
    if (o->json)
        return print_json(t, &table, o, l, ids, out, e);
    if (!o->csv)
        output_addf(out, "%s on %s, %s, %s, build %s\n", l->info.architecture, l->info.device, ids,
                    l->info.experts_resident ? "experts resident" : "experts streamed", t->build);
    table_print(&table, o->csv ? TABLE_CSV : TABLE_PLAIN, out);
    return output_flush(out, e);
}
