#include "cli/measure/compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/quote.h"
#include "cli/hub.h"
#include "cli/measure/compare_table.h"
#include "cli/prompt.h"
#include "cli/measure/row_file.h"
#include "cli/say.h"
#include "cli/setup.h"
#include "cli/signals.h"
#include "cli/report/stats.h"
#include "cli/terminal/bar.h"

struct compare {
    const struct options *options;
    struct bar bar;
    struct compared *all; /* [n] */
    uint32_t n;
    struct prompt text;
    struct token_list tokens;
    uint32_t context;     /* tokens of a window, the same for all */
    struct row_file rows; /* logits of the first one, a row for each scored token */
    double *log_sums;     /* [rows] ln of the sum of exponentials */
    float *row;           /* [vocab_size] a row of the file */
    struct compared *at;  /* the setting that is being evaluated */
};

/* ---- what is compared ---- */

static int read_setting(struct compared *c, const struct options *base, const char *text,
                        struct moeflux_err *e)
{
    struct moeflux_err why;
    c->name = text;
    int rc = words_split(&c->words, text, &why);
    if (!rc)
        rc = options_setting(base, c->words.argc, c->words.argv, &c->options, &why);
    c->options.hub_path = NULL; /* the base's is not the setting's own */
    if (!rc)
        rc = hub_use(&c->options, &why);
    return rc ? err_set(e, rc, "--compare \"%s\": %s", text, why.text) : 0;
}

static int read_settings(struct compare *c, struct moeflux_err *e)
{
    const struct options *o = c->options;
    c->n = o->compare.n + 1;
    c->all = mem_new(c->n, sizeof *c->all, e);
    if (!c->all)
        return ERR_MEMORY;
    c->all[0].name = o->model;
    c->all[0].options = *o;
    int rc = 0;
    for (uint32_t i = 1; i < c->n && !rc; i++)
        rc = read_setting(&c->all[i], o, o->compare.values[i - 1], e);
    return rc;
}

/* ---- the same vocabulary and the same ids ---- */

static int get_needs(struct compared *c, struct moeflux_err *e)
{
    struct moeflux_options engine = {0};
    options_engine(&c->options, &engine);
    return moeflux_get_needs_with(&engine, &c->needs, e);
}

/* of: has its needs. */
static int open_tokenizer(struct compare *c, const struct compared *of, struct moeflux_tokenizer **out,
                          struct moeflux_err *e)
{
    const struct moeflux_progress progress = bar_progress(&c->bar);
    const char *path = of->needs.tokenizer_path;
    *out = NULL;
    return scoring_open_tokenizer(out, path[0] ? path : NULL, of->options.model, &progress, e);
}

/* A tokenizer of the first model, and its directory. */
struct first {
    struct moeflux_tokenizer *tokenizer;
    const char *dir;
};

static int same_tokens(const struct first *a, const struct moeflux_tokenizer *b, const char *dir,
                       uint32_t n_ids, struct moeflux_err *e)
{
    for (int32_t id = 0; id < (int32_t)n_ids; id++) {
        const char *x = "", *y = "";
        size_t nx = moeflux_tokenizer_bytes(a->tokenizer, id, &x), ny = moeflux_tokenizer_bytes(b, id, &y);
        if (nx != ny || memcmp(x, y, nx) != 0)
            return err_set(e, ERR_USAGE, "%s: expected the tokenizer of %s: token %d is %s, not %s", dir,
                           a->dir, (int)id, quote_bytes(y, ny).text, quote_bytes(x, nx).text);
    }
    return 0;
}

/* Checks that a model's tokenizer gives the same ids. The vocabulary is not enough: the rules that split the
 * text may differ, so the text is encoded. */
static int check_tokenizer(struct compare *c, const struct first *first, const struct compared *at,
                           struct moeflux_err *e)
{
    struct moeflux_tokenizer *own;
    struct token_list ids = {0};
    const char *dir = at->options.model;
    int rc = open_tokenizer(c, at, &own, e);
    if (!rc)
        rc = scoring_encode(&c->text, own, &at->options, &ids, e);
    if (!rc)
        rc = same_tokens(first, own, dir, at->needs.vocab_size, e);
    if (!rc && (ids.n != c->tokens.n || memcmp(ids.ids, c->tokens.ids, ids.n * sizeof *ids.ids) != 0))
        rc = err_set(e, ERR_USAGE, "%s: expected the tokenizer of %s; it splits the text otherwise", dir,
                     first->dir);
    token_list_free(&ids);
    moeflux_tokenizer_close(own);
    return rc;
}

/* Checks the models of the settings. */
static int check_models(struct compare *c, const struct first *first, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 1; i < c->n && !rc; i++) {
        const struct options *o = &c->all[i].options;
        const struct moeflux_needs *needs = &c->all[i].needs;
        rc = get_needs(&c->all[i], e);
        if (!rc && needs->vocab_size != c->all[0].needs.vocab_size)
            rc = err_set(e, ERR_USAGE, "%s: expected %u tokens in the vocabulary, as %s has, found %u",
                         o->model, c->all[0].needs.vocab_size, first->dir, needs->vocab_size);
        if (!rc && strcmp(o->model, first->dir) != 0)
            rc = check_tokenizer(c, first, &c->all[i], e);
    }
    return rc;
}

/* Checks everything that can be checked before the first model is evaluated. */
static int prepare(struct compare *c, struct moeflux_err *e)
{
    struct first first = {.dir = c->options->model};
    int rc = scoring_read(&c->text, c->options, e);
    if (rc)
        return rc;
    rc = get_needs(&c->all[0], e);
    if (!rc)
        rc = open_tokenizer(c, &c->all[0], &first.tokenizer, e);
    if (!rc)
        rc = scoring_encode(&c->text, first.tokenizer, c->options, &c->tokens, e);
    if (!rc)
        rc = check_models(c, &first, e);
    moeflux_tokenizer_close(first.tokenizer);
    return rc;
}

/* Returns the largest window that all models have room for, in tokens. */
static uint32_t common_context(const struct compare *c)
{
    uint32_t context = c->options->ctx_size ? (uint32_t)c->options->ctx_size : MOEFLUX_DEFAULT_CONTEXT;
    for (uint32_t i = 0; !c->options->ctx_size && i < c->n; i++)
        if (c->all[i].needs.max_context)
            context = (uint32_t)size_min(context, c->all[i].needs.max_context);
    return context;
}

/* Checks that all settings can run, before the first one takes its time. */
static int check_plans(struct compare *c, struct moeflux_err *e)
{
    struct moeflux_plan plan;
    struct moeflux_err why;
    c->context = common_context(c);
    int rc = 0;
    for (uint32_t i = 0; i < c->n && !rc; i++) {
        struct moeflux_options engine = {.progress = bar_progress(&c->bar)};
        c->all[i].options.ctx_size = c->context;
        options_engine(&c->all[i].options, &engine);
        rc = moeflux_make_plan(&engine, &plan, &why);
        if (rc)
            rc = err_set(e, rc, "%s%s%s", i ? c->all[i].name : "", i ? ": " : "", why.text);
    }
    return rc;
}

static int make_room(struct compare *c, struct moeflux_err *e)
{
    uint64_t n = scoring_count(c->tokens.n, c->context);
    uint32_t vocab_size = c->all[0].needs.vocab_size;
    char what[96];
    snprintf(what, sizeof what, "the logits of %" PRIu64 " tokens, which --compare keeps,", n);
    c->log_sums = mem_new(n, sizeof *c->log_sums, e);
    c->row = mem_new(vocab_size, sizeof *c->row, e);
    return c->log_sums && c->row ? row_file_open(&c->rows, what, n, vocab_size, e) : ERR_MEMORY;
}

/* ---- evaluation ---- */

double compare_divergence(const float *p, double p_log_sum, const float *q, double q_log_sum, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        double log_p = (double)p[i] - p_log_sum, log_q = (double)q[i] - q_log_sum;
        sum += exp(log_p) * (log_p - log_q);
    }
    /* A sum below zero is a rounding error. */
    return fmax(sum, 0);
}

static uint32_t likeliest(const float *row, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (row[i] > row[best])
            best = i;
    return best;
}

static int keep(void *ctx, const struct scored_row *r, struct moeflux_err *e)
{
    struct compare *c = ctx;
    c->log_sums[r->idx] = r->log_sum;
    return row_file_write(&c->rows, r->idx, r->logits, e);
}

static int compare(void *ctx, const struct scored_row *r, struct moeflux_err *e)
{
    struct compare *c = ctx;
    uint32_t n = c->at->needs.vocab_size;
    int rc = row_file_read(&c->rows, r->idx, c->row, e);
    if (rc)
        return rc;
    average_add(&c->at->kl, compare_divergence(c->row, c->log_sums[r->idx], r->logits, r->log_sum, n));
    c->at->n_agreed += likeliest(c->row, n) == likeliest(r->logits, n);
    return 0;
}

/* Counts the experts of the setting that was evaluated. */
static void count_experts(struct compared *at, const struct loaded *l)
{
    struct moeflux_stats s;
    moeflux_model_get_stats(l->models[0], &s);
    uint64_t n_hits = s.n_hits + s.n_host_hits, n_asked = n_hits + s.n_misses;
    at->n_experts = l->info.expert_share >= 1 ? l->info.top_k
                    : s.n_choices             ? (double)s.n_chosen / (double)s.n_choices
                                              : (double)NAN;
    at->hit_rate = n_asked ? (double)n_hits / (double)n_asked : (double)NAN;
    at->read_bytes = (double)s.read_bytes / (double)at->n_tokens;
}

/* Whether a setting has --prefer-resident. Then all are evaluated token by token, so that differences come
 * from the experts only. */
static bool any_prefers_resident(const struct compare *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->all[i].options.prefer_resident > 0)
            return true;
    return false;
}

static int evaluate(struct compare *c, struct compared *at, struct moeflux_err *e)
{
    struct loaded l = {0};
    const struct options *o = &at->options;
    struct scoring scoring = {.loaded = &l,
                              .progress = bar_progress(&c->bar),
                              .tokens = &c->tokens,
                              .by_token = any_prefers_resident(c),
                              .row = at == c->all ? keep : compare,
                              .ctx = c};
    c->at = at;
    int rc = setup_open(&l, o, &c->bar, e);
    if (!rc)
        rc = setup_start(&l, o, c->context, e);
    if (!rc)
        rc = scoring_run(&scoring, e);
    bar_end(&c->bar);
    if (!rc && o->stats) {
        say("%s\n", at->name);
        stats_print(&l, NULL);
    }
    at->n_tokens = c->tokens.n;
    if (!rc)
        count_experts(at, &l);
    if (!rc)
        snprintf(at->device, sizeof at->device, "%s", l.info.device);
    at->nll = scoring.nll;
    at->ns = scoring.ns;
    setup_close(&l);
    return rc;
}

static int run_all(struct compare *c, struct output *out, struct moeflux_err *e)
{
    int rc = read_settings(c, e);
    if (!rc)
        rc = prepare(c, e);
    if (!rc)
        rc = check_plans(c, e);
    if (!rc)
        rc = make_room(c, e);
    for (uint32_t i = 0; i < c->n && !rc; i++)
        rc = evaluate(c, &c->all[i], e);
    return rc ? rc : compare_table_print(c->options, c->all, c->n, c->context, out, e);
}

int compare_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    struct compare c = {.options = o, .rows.fd = -1};
    if (signals_catch_interrupt(e))
        return ERR_IO;
    bar_init(&c.bar, t);
    int rc = run_all(&c, out, e);
    bar_end(&c.bar);
    for (uint32_t i = 1; c.all && i < c.n; i++) {
        words_free(&c.all[i].words);
        free(c.all[i].options.hub_path);
    }
    free(c.all);
    free(c.log_sums);
    free(c.row);
    row_file_close(&c.rows);
    token_list_free(&c.tokens);
    prompt_free(&c.text);
    return rc;
}
