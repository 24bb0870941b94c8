#include "cli/batch.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/ask.h"
#include "api/completion.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "cli/batch_item.h"
#include "cli/batch_progress.h"
#include "cli/exit.h"
#include "cli/form.h"
#include "cli/lines.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/results.h"
#include "cli/setup.h"
#include "cli/signals.h"
#include "cli/stats.h"
#include "cli/terminal/bar.h"
#include "cli/terminal/term.h"
#include "generate/answer.h"
#include "generate/constrain.h"
#include "generate/generator.h"
#include "generate/queue.h"
#include "generate/request.h"
#include "generate/tools.h"
#include "moeflux.h"
#include "text/constraint.h"

struct batch { /* zeroed at first */
    const struct options *options;
    struct batch_defaults defaults;
    struct json_t *tools; /* of the defaults; NULL: none */
    struct str grammar;   /* of the defaults */
    struct bar bar;
    struct batch_progress progress;
    struct generator generator;
    struct lines lines;
    struct results results;
    struct json_t *seen; /* key -> line, of the requests of this run */
    struct queue queue;  /* requests in the order of the lines; each is `of` a struct batch_item */
    bool at_end;         /* of the input */
    bool as_call;        /* the last line was in OpenAI's form */
    uint64_t n_done, n_failed, n_there, n_prompt, n_computed, prefill_ns;
};

/* ---- results ---- */

/* Takes `line` over; NULL stands for lack of memory. What was parsed of the request takes memory that is not needed any
 * more. */
static int set_result(struct queue_item *item, char *line, struct moeflux_err *e)
{
    item->result = line;
    batch_item_free(item->of);
    item->of = NULL;
    item->tokens = NULL;
    return line ? 0 : err_set(e, ERR_MEMORY, "out of memory for a result");
}

/* The request's own fault becomes its result; what would meet the next one too ends the run. */
static int refuse_item(struct queue_item *item, int rc, struct moeflux_err *e)
{
    if (rc != ERR_FORMAT && rc != ERR_USAGE && rc != ERR_UNSUPPORTED)
        return rc;
    item->failed = true;
    return set_result(item, batch_item_refused(item->of, rc, e), e);
}

static int write_result(struct batch *b, struct queue_item *item, struct moeflux_err *e)
{
    int rc = results_add(&b->results, item->result, e);
    b->n_failed += !rc && item->failed;
    b->n_done += !rc && !item->failed;
    batch_progress_show(&b->progress, b->n_done, b->n_failed, b->n_there);
    return rc;
}

/* Writes the results that there are; with --ordered only those at the front of the queue, unless the run `ends`. */
static int write_done(struct batch *b, bool ends, struct moeflux_err *e)
{
    int rc = 0;
    for (size_t i = 0; i < b->queue.n && !rc;) {
        if (!b->queue.items[i].result && b->options->ordered && !ends)
            break;
        if (!b->queue.items[i].result) {
            i++;
            continue;
        }
        rc = write_result(b, &b->queue.items[i], e);
        if (!rc)
            queue_remove(&b->queue, i);
    }
    return rc;
}

/* ---- the window ---- */

static void drop_item(struct batch *b, size_t idx)
{
    batch_item_free(b->queue.items[idx].of);
    queue_remove(&b->queue, idx);
}

static int remember(struct batch *b, const struct batch_item *r, struct moeflux_err *e)
{
    const json_t *first = json_object_get(b->seen, r->key);
    if (first && r->has_id)
        return err_set(e, ERR_FORMAT, "line %" PRIu64 ": line %" JSON_INTEGER_FORMAT " has the same id",
                       r->line, json_integer_value(first));
    if (json_object_set_new(b->seen, r->key, json_integer((json_int_t)r->line)) < 0)
        return err_set(e, ERR_MEMORY, "out of memory for line %" PRIu64, r->line);
    return 0;
}

/* text NULL: it was too long. */
static int take_line(struct batch *b, const char *text, size_t len, struct moeflux_err *e)
{
    struct queue_item *item = queue_add(&b->queue);
    struct batch_item *r;
    struct ask *ask;
    int rc = batch_item_read(&r, text, len, b->lines.n, LINES_MAX_BYTES, &b->generator, &b->defaults,
                             &b->as_call, e);
    item->of = r;
    if (rc == ERR_MEMORY)
        return rc;
    if (results_has(&b->results, r->key)) {
        b->n_there++;
        drop_item(b, b->queue.n - 1);
        return 0;
    }
    if (!rc)
        rc = remember(b, r, e);
    if (!rc)
        rc = batch_item_encode(r, &b->generator, e);
    if (rc)
        return refuse_item(item, rc, e);
    item->tokens = &batch_item_request(r, 0, &ask)->tokens;
    return 0;
}

static bool is_blank(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && (text[n] == ' ' || text[n] == '\t' || text[n] == '\r'))
        n++;
    return n == len;
}

static bool is_ours(const struct batch *b, uint64_t line)
{
    return (line - 1) % b->options->shard_n == b->options->shard_i - 1;
}

/* Takes what lines there are; waits for one only when there is nothing else to do. */
static int fill(struct batch *b, struct moeflux_err *e)
{
    while (!b->at_end && queue_has_room(&b->queue)) {
        const char *text;
        size_t len;
        int rc = lines_next(&b->lines, b->queue.n == 0, &text, &len, e);
        if (rc < 0 || rc == LINES_NOT_YET)
            return rc < 0 ? rc : 0;
        b->at_end = rc == LINES_END;
        if (b->at_end || !is_ours(b, b->lines.n) || (rc == LINES_LINE && is_blank(text, len)))
            continue;
        if ((rc = take_line(b, rc == LINES_LINE ? text : NULL, len, e)))
            return rc;
    }
    return 0;
}

/* ---- one request ---- */

/* Where the pieces of an answer go: of a line of OpenAI's form alone. */
struct keeper {
    struct completion *completion;
    struct ask *ask;
    uint32_t idx;
};

static int keep_piece(void *ctx, const struct answer_piece *p, struct moeflux_err *e)
{
    struct keeper *k = ctx;
    (void)e;
    k->ask->result.n_answered += p->id >= 0;
    completion_keep(k->completion, k->idx, p);
    return 0;
}

static int prefill(struct batch *b, struct queue_item *item, const struct request *r, uint64_t seed,
                   struct stats *st, struct moeflux_err *e)
{
    st->start_ns = clock_ns();
    int rc = queue_prefill(&b->queue, item, r, seed, &st->n_reused, e);
    st->prefill_ns = clock_ns() - st->start_ns;
    st->n_prompt = (uint32_t)r->tokens.n - st->n_reused;
    bar_end(&b->bar);
    return rc;
}

/* Of tokens that the sequence has there are no logits: all are evaluated. */
static int score(struct batch *b, struct ask *ask, struct stats *st, struct moeflux_err *e)
{
    st->start_ns = clock_ns();
    int rc = moeflux_session_clear(b->generator.sequence, e);
    if (!rc)
        rc = ask_score(ask, &b->generator, e);
    st->prefill_ns = clock_ns() - st->start_ns;
    st->n_prompt = (uint32_t)ask->request.tokens.n;
    return rc;
}

/* One answer of those that the item wants. */
static int compute_ask(struct batch *b, struct queue_item *item, uint32_t idx, struct answer *a,
                       struct stats *st, struct moeflux_err *e)
{
    struct generator *s = &b->generator;
    struct batch_item *l = item->of;
    struct ask *ask;
    const struct request *r = batch_item_request(l, idx, &ask);
    const struct request_options *o = &r->options;
    struct keeper keeper = {l->call.completion, ask, idx};
    struct answer_options ao = request_answer(o);
    if (ask)
        ao.sink = (struct answer_sink){keep_piece, &keeper};
    /* Without -s every line has its own, so that the same prompt gets several answers. */
    uint64_t seed = ask ? ask->seed : o->seed < 0 ? b->defaults.base_seed + l->line - 1 : (uint64_t)o->seed;
    struct constrain_ahead ahead;
    request_constrain_ahead(o, s, &ahead);
    int rc = o->raw ? 0 : generator_use_chat(s, request_thinking(o), "a request", e);
    if (!rc)
        rc = ask && ask->score ? score(b, ask, st, e) : prefill(b, item, r, seed, st, e);
    int made = constrain_await(&ahead, &ao.constraint, rc ? NULL : e);
    rc = rc ? rc : made;
    if (!rc)
        rc = answer_run(a, s, &ao, e);
    constraint_free(ao.constraint);
    if (ask) {
        ask->result.n_reused = st->n_reused;
        ask->result.stop = a->stop;
    }
    b->n_prompt += rc ? 0 : r->tokens.n;
    b->n_computed += rc ? 0 : st->n_prompt;
    b->prefill_ns += rc ? 0 : st->prefill_ns;
    return rc;
}

static int compute(struct batch *b, struct queue_item *item, struct moeflux_err *e)
{
    uint32_t n = batch_item_n_asks(item->of);
    struct answer a = {0};
    struct stats st = {0};
    int rc = 0;
    for (uint32_t i = 0; !rc && i < n; i++) {
        answer_free(&a);
        st = (struct stats){0};
        rc = compute_ask(b, item, i, &a, &st, e);
    }
    rc = rc ? refuse_item(item, rc, e)
            : set_result(item, batch_item_answer(item->of, &b->generator, &a, &st), e);
    answer_free(&a);
    return rc;
}

/* ---- the run ---- */

/* Of two failures the first is told; one of the results' file rather than an interruption. */
static int worse(int rc, int of_results, const struct moeflux_err *why, struct moeflux_err *e)
{
    if (!of_results || (rc && rc != ERR_INTERRUPTED))
        return rc;
    *e = *why;
    return of_results;
}

static int loop(struct batch *b, struct moeflux_err *e)
{
    for (;;) {
        int rc = fill(b, e);
        if (!rc)
            rc = write_done(b, false, e);
        struct queue_item *item = rc ? NULL : queue_choose(&b->queue);
        if (!rc && signals_asked())
            rc = err_set(e, ERR_INTERRUPTED, "interrupted");
        if (!rc && item)
            rc = compute(b, item, e);
        /* What is done is kept, whatever ended the run. */
        struct moeflux_err closing;
        rc = worse(rc, write_done(b, rc != 0, &closing), &closing, e);
        if (rc)
            return rc;
        if (b->at_end && b->queue.n == 0)
            return 0;
    }
}

static int start(struct batch *b, struct moeflux_err *e)
{
    const struct options *o = b->options;
    int rc = form_read(o, &b->grammar, e);
    if (!rc && o->tools)
        rc = tools_read(o->tools, &b->tools, e);
    if (!rc && !(b->seen = json_object()))
        rc = err_set(e, ERR_MEMORY, "out of memory for the requests");
    if (rc)
        return rc;
    b->defaults.options.tools = b->tools;
    b->defaults.options.grammar = b->grammar.len ? str_text(&b->grammar) : NULL;
    rc = setup_open(&b->generator, o, &b->bar, e);
    if (!rc && !b->generator.tokenizer)
        rc = err_set(e, ERR_USAGE, "%s has no tokenizer.json, which --batch needs", o->model);
    if (!rc)
        rc = setup_start(&b->generator, o, (uint32_t)o->ctx_size, e);
    b->defaults.base_seed = b->generator.seed;
    return rc ? rc : queue_init(&b->queue, &b->generator, e);
}

/* The lines that are this run's, where that is worth reading the file twice: a terminal shows how many are left. */
static int count_lines(const struct batch *b, uint64_t *n, struct moeflux_err *e)
{
    struct lines all;
    const char *text;
    size_t len;
    *n = 0;
    int rc = lines_open(&all, b->options->batch, e);
    while (!rc && (rc = lines_next(&all, true, &text, &len, e)) > LINES_END) {
        *n += is_ours(b, all.n) && !(rc == LINES_LINE && is_blank(text, len));
        rc = 0;
    }
    lines_close(&all);
    return rc;
}

static int begin_progress(struct batch *b, const struct term *t, struct moeflux_err *e)
{
    uint64_t total = 0;
    int rc = t->err_dress && file_is_regular(b->options->batch) ? count_lines(b, &total, e) : 0;
    batch_progress_begin(&b->progress, t, total);
    batch_progress_show(&b->progress, 0, 0, 0);
    /* There is one line for both. */
    b->bar.on = false;
    return rc;
}

static void tell(const struct batch *b)
{
    char text[256], there[64] = "";
    if (b->n_there)
        snprintf(there, sizeof there, ", %" PRIu64 " there already", b->n_there);
    snprintf(text, sizeof text,
             "%" PRIu64 " answered, %" PRIu64 " failed%s; %" PRIu64 " of %" PRIu64 " prompt tokens computed",
             b->n_done, b->n_failed, there, b->n_computed, b->n_prompt);
    exit_tell(b->options->log_level, EXIT_INFO, text);
}

static int finish(struct batch *b, struct moeflux_err *e)
{
    while (b->queue.n > 0)
        drop_item(b, b->queue.n - 1);
    queue_free(&b->queue);
    json_decref(b->seen);
    json_decref(b->tools);
    lines_close(&b->lines);
    generator_close(&b->generator);
    str_free(&b->grammar);
    return results_close(&b->results, e);
}

int batch_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    struct batch b = {.options = o,
                      .defaults = {.options = options_request(o), .model = options_model_name(o)},
                      .results = {.fd = -1},
                      .lines = {.input.fd = -1}};
    if (signals_catch_interrupt(e))
        return ERR_IO;
    signals_catch_termination();
    bar_init(&b.bar, t);
    int rc = lines_open(&b.lines, o->batch, e);
    if (!rc)
        rc = results_open(&b.results, o->output, o->retry_failed, out, e);
    if (!rc)
        rc = start(&b, e);
    if (!rc)
        rc = begin_progress(&b, t, e);
    if (!rc) {
        signals_hold(true);
        rc = loop(&b, e);
        signals_hold(false);
        batch_progress_end(&b.progress);
        tell(&b);
    }
    if (!rc && o->stats) {
        struct stats st = {.n_prompt = (uint32_t)b.n_computed, .prefill_ns = b.prefill_ns};
        stats_print(&st, NULL, &b.generator);
    }
    rc = setup_save_usage(&b.generator, o, rc, e);
    uint64_t n_failed = b.n_failed;
    struct moeflux_err closing;
    rc = worse(rc, finish(&b, &closing), &closing, e);
    if (!rc && n_failed)
        rc = err_set(e, ERR_FORMAT, "%" PRIu64 " of the requests failed; their results say why", n_failed);
    return rc;
}
