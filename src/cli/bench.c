#include "cli/bench.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "cli/finite.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/setup.h"
#include "cli/signals.h"
#include "cli/stats.h"
#include "cli/table.h"
#include "cli/terminal/bar.h"
#include "cli/terminal/term.h"
#include "generate/generator.h"

enum { MAX_ROWS = 2 * NUMBER_LIST_MAX, N_COLUMNS = 8 };

static const struct table_column columns[N_COLUMNS] = {
    {"test", "test", -1},
    {"tokens", "tokens", 0},
    {"reps", "reps", 0},
    {"median_tok_s", "tok/s", 2},
    {"min_tok_s", "min", 2},
    {"max_tok_s", "max", 2},
    {"spread_percent", "spread %", 1},
    {"median_ms_per_token", "ms/token", 3},
};

struct bench {
    const struct options *options;
    struct generator generator;
    struct bar bar;
    struct token_list ids; /* what is evaluated: ids[i % n] */
    const char *source;    /* "random ids" or "prompt" */
    size_t at;
    struct table_cell cells[MAX_ROWS * N_COLUMNS];
    size_t n_rows;
};

/* splitmix64: the same seed gives the same ids on every machine. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int make_random_ids(struct bench *b, struct moeflux_err *e)
{
    enum { N_IDS = 65536 };
    uint64_t state = b->options->seed < 0 ? 1 : (uint64_t)b->options->seed;
    int rc = 0;
    b->source = "random ids";
    for (int i = 0; i < N_IDS && !rc; i++)
        rc = token_list_add(&b->ids, (int32_t)(next_random(&state) % b->generator.info.vocab_size), e);
    return rc;
}

/* A given prompt is measured instead of random ids: its routing is that of real text. */
static int read_prompt_ids(struct bench *b, struct moeflux_err *e)
{
    struct prompt p = {0};
    const struct options *o = b->options;
    b->source = "prompt";
    int rc = prompt_read(&p, o, e);
    if (!rc && p.is_ids) {
        b->ids = p.ids;
        p.ids = (struct token_list){0};
    } else if (!rc && !b->generator.tokenizer) {
        rc = err_set(e, ERR_USAGE, "%s has no tokenizer.json, which a text prompt needs (use --tokens-in)",
                     o->model);
    } else if (!rc) {
        rc = generator_encode(&b->generator, str_text(&p.text), p.text.len, SPECIALS_AS_TOKENS, &b->ids, NULL,
                              e);
    }
    prompt_free(&p);
    return rc;
}

/* The next n ids, wrapping around, into `out`. */
static void take_ids(struct bench *b, int32_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = b->ids.ids[b->at++ % b->ids.n];
}

/* Adds the time that it took to *ns; what a broken computation takes is no measurement. */
static int evaluate(struct generator *s, const int32_t *ids, size_t n, uint64_t *ns, struct moeflux_err *e)
{
    uint64_t start = clock_ns();
    int rc = generator_eval(s, ids, n, NULL, e);
    *ns += clock_ns() - start;
    return rc ? rc
              : finite_logits(s->logits, s->info.vocab_size, moeflux_session_position(s->sequence) - 1, e);
}

/* n tokens one by one, from ids[0] on. Where all experts are resident they are the likeliest ones, as in a run with --temp 0;
 * else those given, since the ids decide which experts have to be read. */
static int decode_all(struct bench *b, const int32_t *ids, uint32_t n, uint64_t *ns, struct moeflux_err *e)
{
    struct generator *s = &b->generator;
    int32_t id = ids[0];
    int rc = 0;
    for (uint32_t i = 0; i < n && !rc; i++) {
        uint64_t start = clock_ns();
        if (signals_interrupted())
            return err_set(e, ERR_INTERRUPTED, "interrupted");
        if (!s->info.experts_resident)
            rc = evaluate(s, ids + i, 1, ns, e);
        else if (!(rc = generator_step(s, id, i + 1 < n, &id, e)))
            *ns += clock_ns() - start;
    }
    return rc;
}

/* Nanoseconds for n tokens from an empty sequence: at once, or one by one after one that is not timed. */
static int measure(struct bench *b, bool decode, uint32_t n, uint64_t *ns, struct moeflux_err *e)
{
    struct generator *s = &b->generator;
    int32_t *ids = mem_new((uint64_t)n + 1, sizeof *ids, e);
    if (!ids)
        return ERR_MEMORY;
    take_ids(b, ids, (size_t)n + 1);
    uint64_t untimed = 0;
    *ns = 0;
    int rc = moeflux_session_clear(s->sequence, e);
    if (!rc && decode)
        rc = evaluate(s, ids + n, 1, &untimed, e);
    if (!decode && !rc)
        rc = evaluate(s, ids, n, ns, e);
    if (decode && !rc)
        rc = decode_all(b, ids, n, ns, e);
    free(ids);
    return rc;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void add_row(struct bench *b, bool decode, uint32_t n, double *rates, size_t reps)
{
    struct table_cell *row = &b->cells[b->n_rows++ * N_COLUMNS];
    qsort(rates, reps, sizeof *rates, compare);
    double median = (rates[reps / 2] + rates[(reps - 1) / 2]) / 2;
    row[0].text = decode ? "decode" : "prefill";
    row[1].number = n;
    row[2].number = (double)reps;
    row[3].number = median;
    row[4].number = rates[0];
    row[5].number = rates[reps - 1];
    row[6].number = 100 * (rates[reps - 1] - rates[0]) / median;
    row[7].number = 1e3 / median;
}

static int bench_one(struct bench *b, bool decode, uint32_t n, struct moeflux_err *e)
{
    size_t reps = (size_t)b->options->bench_reps;
    double *rates = mem_new(reps, sizeof *rates, e);
    int rc = rates ? 0 : ERR_MEMORY;
    for (size_t i = 0; i < reps && !rc; i++) {
        uint64_t ns;
        char what[48];
        snprintf(what, sizeof what, "%s %u", decode ? "decode" : "prefill", n);
        if (!(rc = measure(b, decode, n, &ns, e)))
            rates[i] = stats_rate(n, ns ? ns : 1);
    }
    bar_end(&b->bar);
    if (!rc)
        add_row(b, decode, n, rates, reps);
    free(rates);
    return rc;
}

/* Pipelines, caches and clocks settle in first runs that are not counted. Each length of prefill has one: short prompts
 * have other pipelines than long ones. */
static int warm_up(struct bench *b, struct moeflux_err *e)
{
    const struct number_list *prompts = &b->options->bench_prompt;
    uint64_t ns;
    int rc = 0;
    for (uint32_t i = 0; i < prompts->n && !rc; i++)
        rc = measure(b, false, prompts->values[i] ? prompts->values[i] : 2, &ns, e);
    if (!rc)
        rc = measure(b, true, 2, &ns, e);
    moeflux_model_reset_stats(b->generator.model);
    return rc;
}

static int measure_all(struct bench *b, struct moeflux_err *e)
{
    const struct number_list *lists[2] = {&b->options->bench_prompt, &b->options->bench_gen};
    int rc = warm_up(b, e);
    /* A length of 0 leaves that kind of measurement out. */
    for (int kind = 0; kind < 2; kind++)
        for (uint32_t i = 0; i < lists[kind]->n && !rc; i++)
            if (lists[kind]->values[i])
                rc = bench_one(b, kind == 1, lists[kind]->values[i], e);
    return rc;
}

static uint32_t needed_context(const struct options *o)
{
    uint32_t most = 4;
    for (uint32_t i = 0; i < o->bench_prompt.n; i++)
        most = o->bench_prompt.values[i] > most ? o->bench_prompt.values[i] : most;
    for (uint32_t i = 0; i < o->bench_gen.n; i++)
        most = o->bench_gen.values[i] >= most ? o->bench_gen.values[i] + 1 : most;
    return most;
}

static int print(const struct bench *b, struct output *out, struct moeflux_err *e)
{
    const struct options *o = b->options;
    const struct moeflux_model_info *info = &b->generator.info;
    struct table table = {columns, N_COLUMNS, b->n_rows, b->cells};
    if (o->json) {
        json_t *object = json_object();
        json_object_set_new(object, "model", output_json_text(o->model, strlen(o->model)));
        json_object_set_new(object, "architecture", json_string(info->architecture));
        json_object_set_new(object, "device", json_string(info->device));
        json_object_set_new(object, "ids", json_string(b->source));
        json_object_set_new(object, "load_s", json_real((double)b->generator.load_ns / 1e9));
        json_object_set_new(object, "experts_resident", json_boolean(info->experts_resident));
        json_object_set_new(object, "results", table_json(&table));
        json_object_set_new(object, "stats", stats_engine_json(&b->generator));
        return output_json(out, object, e);
    }
    if (!o->csv)
        output_addf(out, "%s on %s, %s, %s\n", info->architecture, info->device, b->source,
                    info->experts_resident ? "experts resident" : "experts streamed");
    table_print(&table, o->csv ? TABLE_CSV : TABLE_PLAIN, out);
    return output_flush(out, e);
}

int bench_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    struct bench b = {.options = o};
    struct options sized = *o;
    if (signals_catch_interrupt(e))
        return ERR_IO;
    bar_init(&b.bar, t);
    uint32_t context = needed_context(o);
    sized.ctx_size = o->ctx_size ? o->ctx_size : context;
    int rc = setup_open(&b.generator, &sized, &b.bar, e);
    if (!rc && o->ctx_size && o->ctx_size < context)
        rc = err_set(e, ERR_USAGE, "the longest measurement takes %u tokens, the context holds %lld (-c)",
                     context, (long long)o->ctx_size);
    if (!rc)
        rc = setup_start(&b.generator, o, (uint32_t)sized.ctx_size, e);
    const struct sampler_options greedy = {.top_p = 1, .repeat_penalty = 1};
    if (!rc)
        rc = generator_new_sampler(&b.generator, &greedy, NULL, 0, e);
    if (!rc)
        rc = o->prompt || o->file || o->tokens_in ? read_prompt_ids(&b, e) : make_random_ids(&b, e);
    if (!rc)
        rc = measure_all(&b, e);
    bar_end(&b.bar);
    if (!rc)
        rc = print(&b, out, e);
    if (!rc && o->stats) {
        struct stats none = {0};
        stats_print(&none, NULL, &b.generator);
    }
    rc = setup_save_usage(&b.generator, o, rc, e);
    token_list_free(&b.ids);
    generator_close(&b.generator);
    return rc;
}
