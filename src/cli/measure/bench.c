#include "cli/measure/bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "cli/measure/bench_table.h"
#include "cli/measure/check_finite.h"
#include "cli/options/options.h"
#include "cli/prompt.h"
#include "cli/setup.h"
#include "cli/signals.h"
#include "cli/report/stats.h"
#include "cli/terminal/bar.h"
#include "cli/terminal/term.h"
#include "engine/lab/lab.h"
#include "moeflux.h"

struct bench {
    const struct options *options;
    struct loaded loaded;
    float *logits; /* [vocab_size] */
    struct bar bar;
    struct token_list ids; /* tokens to evaluate; after the last the first follows */
    const char *source;    /* "random ids" or "prompt" */
    size_t at;             /* tokens that were taken from `ids` */
    struct bench_table *table;
    /* --bench-parallel: further sequences in addition to the first, and a sampler for each of all */
    uint32_t n_others, n_samplers;
    struct moeflux_session *others[BENCH_MAX_PARALLEL - 1];
    struct moeflux_sampler *samplers[BENCH_MAX_PARALLEL]; /* greedy */
    uint64_t busy_ns;                                     /* processor time of what is timed */
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
        rc = token_list_add(&b->ids, (int32_t)(next_random(&state) % b->loaded.info.vocab_size), e);
    return rc;
}

static int encode_prompt(struct bench *b, const struct prompt *p, struct moeflux_err *e)
{
    struct moeflux_tokenizer *t = NULL;
    int64_t n = 0;
    int rc = setup_need_tokenizer(&b->loaded, b->options, "a text prompt needs (use --tokens-in)", e);
    if (!rc)
        rc = moeflux_tokenizer_open(&t, b->loaded.info.tokenizer_path, e);
    if (!rc)
        n = moeflux_tokenizer_encode_all(t, str_text(&p->text), p->text.len, true, true, &b->ids.ids, e);
    if (n > 0)
        b->ids.n = b->ids.cap = (size_t)n;
    moeflux_tokenizer_close(t);
    return n < 0 ? (int)n : rc;
}

/* Reads the user's prompt, to be measured instead of random ids: its routing is that of real text. */
static int read_prompt_ids(struct bench *b, struct moeflux_err *e)
{
    struct prompt p = {0};
    const struct options *o = b->options;
    b->source = "prompt";
    int rc = prompt_read(&p, o, e);
    if (!rc && p.is_ids) {
        b->ids = p.ids;
        p.ids = (struct token_list){0};
    } else if (!rc) {
        rc = encode_prompt(b, &p, e);
    }
    prompt_free(&p);
    return rc;
}

/* Copies the next n ids into `out`. */
static void take_ids(struct bench *b, int32_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = b->ids.ids[b->at++ % b->ids.n];
}

/* Evaluates tokens and adds the time to *ns. Fails if the logits are not finite: the time of a broken
 * computation is no measurement. */
static int evaluate(struct bench *b, const int32_t *ids, uint32_t n, uint64_t *ns, struct moeflux_err *e)
{
    const struct loaded *l = &b->loaded;
    uint64_t start = clock_ns();
    int rc = moeflux_session_eval(l->session, ids, n, &(struct moeflux_outputs){.logits = b->logits}, e);
    *ns += clock_ns() - start;
    return rc ? rc
              : check_finite_logits(b->logits, l->info.vocab_size, moeflux_session_position(l->session) - 1,
                                    e);
}

/* Decodes n tokens one by one, beginning with ids[0]. If all experts are resident, each next token is the
 * likeliest, as with --temp 0. Else the given ids are used, since they decide which experts are read. */
static int decode_all(struct bench *b, const int32_t *ids, uint32_t n, uint64_t *ns, struct moeflux_err *e)
{
    const struct loaded *l = &b->loaded;
    int32_t id = ids[0];
    int rc = 0;
    for (uint32_t i = 0; i < n && !rc; i++) {
        uint64_t start = clock_ns();
        if (signals_interrupted())
            return err_set(e, ERR_INTERRUPTED, "interrupted");
        if (!l->info.experts_resident)
            rc = evaluate(b, ids + i, 1, ns, e);
        else if (!(rc = moeflux_session_step(l->session, id, b->samplers[0], i + 1 < n, &id, e)))
            *ns += clock_ns() - start;
    }
    return rc;
}

/* Decodes n tokens of each sequence, one of each in a batch. ids [1 + n_others][n]: each sequence has its own
 * text, so that what is chosen is not used. */
static int decode_batched(struct bench *b, const int32_t *ids, uint32_t n, uint64_t *ns,
                          struct moeflux_err *e)
{
    struct moeflux_session *list[BENCH_MAX_PARALLEL] = {b->loaded.session};
    uint32_t n_batched = 1 + b->n_others;
    int rc = 0;
    memcpy(list + 1, b->others, b->n_others * sizeof *list);
    for (uint32_t i = 0; i < n && !rc; i++) {
        int32_t here[BENCH_MAX_PARALLEL], next[BENCH_MAX_PARALLEL];
        for (uint32_t k = 0; k < n_batched; k++)
            here[k] = ids[(size_t)k * n + i];
        uint64_t start = clock_ns();
        if (signals_interrupted())
            return err_set(e, ERR_INTERRUPTED, "interrupted");
        rc = moeflux_step_batched(list, here, n_batched, b->samplers, next, e);
        *ns += clock_ns() - start;
    }
    return rc;
}

static int go_back_in(struct moeflux_session *s, uint32_t depth, struct moeflux_err *e)
{
    return depth ? moeflux_session_truncate(s, depth, e) : moeflux_session_clear(s, e);
}

/* Goes back to the first `depth` tokens, so that every measurement begins with the same states. */
static int go_back(struct bench *b, uint32_t depth, struct moeflux_err *e)
{
    int rc = go_back_in(b->loaded.session, depth, e);
    for (uint32_t i = 0; i < b->n_others && !rc; i++)
        rc = go_back_in(b->others[i], depth, e);
    return rc;
}

/* Measures the nanoseconds for n tokens after `depth` others: prefill at once, or decode one by one after a
 * token that is not timed. */
static int measure(struct bench *b, bool decode, uint32_t n, uint32_t depth, uint64_t *ns,
                   struct moeflux_err *e)
{
    size_t n_ids = (size_t)n * (decode ? 1 + b->n_others : 1);
    int32_t *ids = mem_new(n_ids + 1, sizeof *ids, e);
    if (!ids)
        return ERR_MEMORY;
    take_ids(b, ids, n_ids + 1);
    uint64_t untimed = 0;
    *ns = 0;
    int rc = go_back(b, depth, e);
    if (!rc && decode)
        rc = evaluate(b, ids + n_ids, 1, &untimed, e);
    uint64_t begin = clock_busy_ns();
    if (!decode && !rc)
        rc = evaluate(b, ids, n, ns, e);
    if (decode && !rc)
        rc = b->n_others ? decode_batched(b, ids, n, ns, e) : decode_all(b, ids, n, ns, e);
    b->busy_ns += clock_busy_ns() - begin;
    free(ids);
    return rc;
}

/* Evaluates `depth` tokens of a sequence, or the first n of them, whose rows the others repeat. */
static int fill_one(struct moeflux_session *s, const int32_t *ids, uint32_t n, uint32_t depth,
                    struct moeflux_err *e)
{
    int rc = moeflux_session_eval(s, ids, n, &(struct moeflux_outputs){0}, e);
    if (!rc && n < depth)
        rc = lab_repeat_rows(s, depth, e);
    return rc ? rc : moeflux_session_checkpoint(s, e);
}

/* Prepares `depth` tokens of context, once for all measurements after them. Without room for a checkpoint a
 * recurrent model evaluates them again before each repetition, which is not timed. */
static int fill(struct bench *b, uint32_t depth, struct moeflux_err *e)
{
    uint32_t asked = (uint32_t)b->options->bench_fill, n = asked && asked < depth ? asked : depth;
    int rc = go_back(b, 0, e);
    if (rc || !depth)
        return rc;
    int32_t *ids = mem_new(n, sizeof *ids, e);
    if (!ids)
        return ERR_MEMORY;
    take_ids(b, ids, n);
    rc = fill_one(b->loaded.session, ids, n, depth, e);
    for (uint32_t i = 0; i < b->n_others && !rc; i++)
        rc = fill_one(b->others[i], ids, n, depth, e);
    free(ids);
    return rc;
}

static int bench_one(struct bench *b, bool decode, uint32_t n, uint32_t depth, struct moeflux_err *e)
{
    size_t reps = (size_t)b->options->bench_reps;
    uint32_t n_sequences = decode ? 1 + b->n_others : 1;
    double *rates = mem_new(reps, sizeof *rates, e);
    int rc = rates ? 0 : ERR_MEMORY;
    b->busy_ns = 0;
    for (size_t i = 0; i < reps && !rc; i++) {
        uint64_t ns;
        if (!(rc = measure(b, decode, n, depth, &ns, e)))
            rates[i] = stats_rate((uint64_t)n * n_sequences, ns ? ns : 1);
    }
    bar_end(&b->bar);
    if (!rc)
        bench_table_add(b->table,
                        &(struct bench_test){decode, n, depth, n_sequences,
                                             (double)b->busy_ns / 1e6 / (double)(reps * n * n_sequences)},
                        rates, reps);
    free(rates);
    return rc;
}

/* Runs once without timing, until pipelines, caches and clocks are ready. Each prefill length has its own
 * run: short prompts use other pipelines than long ones. */
static int warm_up(struct bench *b, uint32_t depth, struct moeflux_err *e)
{
    const struct number_list *prompts = &b->options->bench_prompt;
    uint64_t ns;
    int rc = 0;
    for (uint32_t i = 0; i < prompts->n && !rc; i++)
        rc = measure(b, false, prompts->values[i] ? prompts->values[i] : 2, depth, &ns, e);
    if (!rc)
        rc = measure(b, true, 2, depth, &ns, e);
    moeflux_model_reset_stats(b->loaded.models[0]);
    return rc;
}

static int measure_depth(struct bench *b, uint32_t depth, struct moeflux_err *e)
{
    const struct number_list *lists[2] = {&b->options->bench_prompt, &b->options->bench_gen};
    int rc = fill(b, depth, e);
    if (!rc)
        rc = warm_up(b, depth, e);
    /* A length of 0 leaves that kind of measurement out. */
    for (int kind = 0; kind < 2; kind++)
        for (uint32_t i = 0; i < lists[kind]->n && !rc; i++)
            if (lists[kind]->values[i])
                rc = bench_one(b, kind == 1, lists[kind]->values[i], depth, e);
    return rc;
}

static int measure_all(struct bench *b, struct moeflux_err *e)
{
    const struct number_list *depths = &b->options->bench_depth;
    int rc = 0;
    for (uint32_t i = 0; i < depths->n && !rc; i++)
        rc = measure_depth(b, depths->values[i], e);
    return rc;
}

static uint32_t largest(const struct number_list *l)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < l->n; i++)
        most = l->values[i] > most ? l->values[i] : most;
    return most;
}

/* Returns the context of the longest measurement, warm-up included, in tokens. */
static uint32_t needed_context(const struct options *o)
{
    uint32_t prompt = largest(&o->bench_prompt), gen = largest(&o->bench_gen) + 1;
    uint32_t most = prompt > gen ? prompt : gen;
    return (most > 4 ? most : 4) + largest(&o->bench_depth);
}

static int open_others(struct bench *b, struct moeflux_err *e)
{
    const struct loaded *l = &b->loaded;
    uint32_t n = (uint32_t)b->options->bench_parallel, most = moeflux_max_batched(l->models[0]);
    int rc = 0;
    if (n > 1 && n > most)
        return err_set(e, ERR_USAGE, "--bench-parallel %u: %s decodes at most %u sequence%s in one batch", n,
                       l->info.device, most, most == 1 ? "" : "s");
    n = n ? n : 1;
    if (!(b->logits = mem_new(l->info.vocab_size, sizeof *b->logits, e)))
        return ERR_MEMORY;
    struct moeflux_sampler_options greedy = moeflux_sampler_defaults();
    greedy.temperature = 0;
    for (; b->n_samplers < n && !rc; b->n_samplers += !rc)
        rc = moeflux_sampler_new(&b->samplers[b->n_samplers], &greedy, l->info.vocab_size, NULL, e);
    for (; b->n_others + 1 < n && !rc; b->n_others += !rc)
        rc = moeflux_session_new(&b->others[b->n_others], l->models[0], l->max_context, e);
    return rc;
}

static void close_others(struct bench *b)
{
    for (uint32_t i = 0; i < b->n_others; i++)
        moeflux_session_free(b->others[i]);
    for (uint32_t i = 0; i < b->n_samplers; i++)
        moeflux_sampler_free(b->samplers[i]);
    free(b->logits);
}

int bench_run(const struct options *o, const char *build, const struct term *t, struct output *out,
              struct moeflux_err *e)
{
    struct bench b = {.options = o};
    struct options sized = *o;
    if (signals_catch_interrupt(e))
        return ERR_IO;
    bar_init(&b.bar, t);
    uint32_t context = needed_context(o);
    sized.ctx_size = o->ctx_size ? o->ctx_size : context;
    int rc = setup_open(&b.loaded, &sized, &b.bar, e);
    if (!rc && o->ctx_size && o->ctx_size < context)
        rc = err_set(e, ERR_USAGE, "the longest measurement takes %u tokens, the context holds %lld (-c)",
                     context, (long long)o->ctx_size);
    if (!rc)
        rc = setup_start(&b.loaded, o, (uint32_t)sized.ctx_size, e);
    if (!rc)
        rc = open_others(&b, e);
    if (!rc)
        rc = o->prompt || o->file || o->tokens_in ? read_prompt_ids(&b, e) : make_random_ids(&b, e);
    if (!rc && !(b.table = mem_new(1, sizeof *b.table, e)))
        rc = ERR_MEMORY;
    if (!rc)
        rc = bench_table_init(b.table, build, o, &b.loaded, e);
    if (!rc)
        rc = measure_all(&b, e);
    bar_end(&b.bar);
    if (!rc)
        rc = bench_table_print(b.table, o, &b.loaded, b.source, out, e);
    if (!rc && o->stats)
        stats_print(&b.loaded, NULL);
    rc = setup_save_usage(&b.loaded, o, rc, e);
    token_list_free(&b.ids);
    free(b.table);
    close_others(&b);
    setup_close(&b.loaded);
    return rc;
}
