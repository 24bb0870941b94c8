#include "cli/batch.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
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
#include "generate/answer_json.h"
#include "generate/generator.h"
#include "generate/queue.h"
#include "generate/request.h"
#include "generate/tools.h"
#include "moeflux.h"
#include "text/constraint.h"

struct batch { /* zeroed at first */
    const struct options *options;
    struct request_options defaults;
    struct json_t *tools; /* of the defaults; NULL: none */
    struct str grammar;   /* of the defaults */
    struct bar bar;
    struct generator generator;
    struct lines lines;
    struct results results;
    struct json_t *seen; /* key -> line, of the requests of this run */
    struct queue queue;  /* requests in the order of the lines */
    bool at_end;         /* of the input */
    uint64_t base_seed;  /* of requests that have none: this and the number of the line */
    uint64_t n_done, n_failed, n_there, n_prompt, n_computed, prefill_ns;
};

/* ---- results ---- */

static char *error_line(const struct request *r, const char *text)
{
    json_t *object = json_object();
    json_object_set(object, "id", r->id);
    json_object_set_new(object, "line", json_integer((json_int_t)r->line));
    json_object_set_new(object, "error", output_json_text(text, strlen(text)));
    char *line = object ? json_dumps(object, 0) : NULL;
    json_decref(object);
    return line;
}

static char *answer_line(const struct generator *s, const struct request *r, const struct answer *a,
                         const struct stats *st)
{
    json_t *object = json_object(), *ids = json_array();
    for (size_t i = 0; i < a->tokens.n; i++)
        json_array_append_new(ids, json_integer(a->tokens.ids[i]));
    json_object_set(object, "id", r->id);
    json_object_set_new(object, "line", json_integer((json_int_t)r->line));
    json_object_set_new(object, "text", output_json_text(str_text(&a->text), a->text.len));
    if (a->thinking.len)
        json_object_set_new(object, "thinking", output_json_text(str_text(&a->thinking), a->thinking.len));
    if (a->n_calls)
        json_object_set_new(object, "tool_calls", answer_json_calls(a));
    json_object_set_new(object, "tokens", ids);
    json_object_set_new(object, "prompt_tokens", json_integer((json_int_t)r->tokens.n));
    json_object_set_new(object, "reused_tokens", json_integer((json_int_t)st->n_reused));
    json_object_set_new(object, "stop_reason", json_string(answer_stop_name(a->stop)));
    if (a->stop_text)
        json_object_set_new(object, "stop_text", json_string(a->stop_text));
    if (r->options.logprobs != REQUEST_NO_LOGPROBS)
        json_object_set_new(object, "logprobs", answer_json_logprobs(s->tokenizer, a));
    json_object_set_new(object, "seed", json_integer((json_int_t)s->seed));
    json_object_set_new(object, "time_to_first_token_s", stats_number(stats_first_token_s(st, a)));
    json_object_set_new(object, "decode_tok_s", stats_number(stats_rate(a->n_decoded, a->decode_ns)));
    char *line = object ? json_dumps(object, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    return line;
}

/* Takes `line` over; NULL stands for lack of memory. What was parsed of the request takes memory that is not needed any
 * more. */
static int set_result(struct queue_item *item, char *line, struct moeflux_err *e)
{
    item->result = line;
    request_free(&item->request);
    return line ? 0 : err_set(e, ERR_MEMORY, "out of memory for a result");
}

/* The request's own fault becomes its result; what would meet the next one too ends the run. */
static int refuse_item(struct queue_item *item, int rc, struct moeflux_err *e)
{
    if (rc != ERR_FORMAT && rc != ERR_USAGE && rc != ERR_UNSUPPORTED)
        return rc;
    item->failed = true;
    return set_result(item, error_line(&item->request, e->text), e);
}

static int write_result(struct batch *b, struct queue_item *item, struct moeflux_err *e)
{
    int rc = results_add(&b->results, item->result, e);
    b->n_failed += !rc && item->failed;
    b->n_done += !rc && !item->failed;
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

static int remember(struct batch *b, const struct request *r, struct moeflux_err *e)
{
    const json_t *first = json_object_get(b->seen, r->key);
    if (first && !json_is_null(r->id))
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
    int rc = text ? request_read(&item->request, text, len, b->lines.n, &b->defaults, e)
                  : request_too_long(&item->request, b->lines.n, LINES_MAX_BYTES, e);
    if (item->request.key && results_has(&b->results, item->request.key)) {
        b->n_there++;
        queue_remove(&b->queue, b->queue.n - 1);
        return 0;
    }
    if (!rc)
        rc = remember(b, &item->request, e);
    if (!rc)
        rc = request_encode(&item->request, &b->generator, e);
    if (!rc && item->request.tokens.n > b->generator.max_context)
        rc = err_set(e, ERR_USAGE, "line %" PRIu64 ": the prompt has %zu tokens, the context holds %u (-c)",
                     b->lines.n, item->request.tokens.n, b->generator.max_context);
    return rc ? refuse_item(item, rc, e) : 0;
}

static bool is_blank(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && (text[n] == ' ' || text[n] == '\t' || text[n] == '\r'))
        n++;
    return n == len;
}

static bool is_ours(const struct batch *b)
{
    return (b->lines.n - 1) % b->options->shard_n == b->options->shard_i - 1;
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
        if (b->at_end || !is_ours(b) || (rc == LINES_LINE && is_blank(text, len)))
            continue;
        if ((rc = take_line(b, rc == LINES_LINE ? text : NULL, len, e)))
            return rc;
    }
    return 0;
}

/* ---- one request ---- */

static int prefill(struct batch *b, struct queue_item *item, struct stats *st, struct moeflux_err *e)
{
    const struct request *r = &item->request;
    /* Without -s every line has its own, so that the same prompt gets several answers. */
    uint64_t seed = r->options.seed < 0 ? b->base_seed + r->line - 1 : (uint64_t)r->options.seed;
    st->start_ns = clock_ns();
    int rc = queue_prefill(&b->queue, item, seed, &st->n_reused, e);
    st->prefill_ns = clock_ns() - st->start_ns;
    st->n_prompt = (uint32_t)r->tokens.n - st->n_reused;
    bar_end(&b->bar);
    return rc;
}

static int compute(struct batch *b, struct queue_item *item, struct moeflux_err *e)
{
    struct generator *s = &b->generator;
    const struct request_options *o = &item->request.options;
    struct answer a = {0};
    struct stats st = {0};
    struct answer_options ao = request_answer(o);
    int rc = o->raw ? 0 : generator_use_chat(s, request_thinking(o), "a request", e);
    if (!rc)
        rc = prefill(b, item, &st, e);
    if (!rc)
        rc = request_constraint(o, s, &ao.constraint, e);
    if (!rc)
        rc = answer_run(&a, s, &ao, e);
    constraint_free(ao.constraint);
    if (!rc) {
        b->n_prompt += item->request.tokens.n;
        b->n_computed += st.n_prompt;
        b->prefill_ns += st.prefill_ns;
        rc = set_result(item, answer_line(s, &item->request, &a, &st), e);
    } else {
        rc = refuse_item(item, rc, e);
    }
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
    b->defaults.tools = b->tools;
    b->defaults.grammar = b->grammar.len ? str_text(&b->grammar) : NULL;
    rc = setup_open(&b->generator, o, &b->bar, e);
    if (!rc && !b->generator.tokenizer)
        rc = err_set(e, ERR_USAGE, "%s has no tokenizer.json, which --batch needs", o->model);
    if (!rc)
        rc = setup_start(&b->generator, o, (uint32_t)o->ctx_size, e);
    b->base_seed = b->generator.seed;
    return rc ? rc : queue_init(&b->queue, &b->generator, e);
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
    struct batch b = {
        .options = o, .defaults = options_request(o), .results = {.fd = -1}, .lines = {.input.fd = -1}};
    if (signals_catch_interrupt(e))
        return ERR_IO;
    signals_catch_termination();
    bar_init(&b.bar, t);
    int rc = lines_open(&b.lines, o->batch, e);
    if (!rc)
        rc = results_open(&b.results, o->output, out, e);
    if (!rc)
        rc = start(&b, e);
    if (!rc) {
        signals_hold(true);
        rc = loop(&b, e);
        signals_hold(false);
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
        rc = err_set(e, ERR_FORMAT, "%" PRIu64 " of the requests failed; their results have an \"error\"",
                     n_failed);
    return rc;
}
