#include "cli/batch.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "cli/answer.h"
#include "cli/bar.h"
#include "cli/exit.h"
#include "cli/lines.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/prefix.h"
#include "cli/request.h"
#include "cli/results.h"
#include "cli/session.h"
#include "cli/signals.h"
#include "cli/stats.h"
#include "cli/term.h"
#include "moeflux.h"

enum { WINDOW = 256 }; /* requests that are held */
#define WINDOW_TOKENS ((size_t)1 << 22)

/* What saving tokens must be worth. A piece of a prompt costs an evaluation, and a request before its turn lets others
 * wait. Where experts are read from disk, nearly all are read for every piece. */
static const struct worth {
    uint32_t piece, order; /* tokens */
} worth_resident = {2, 1}, worth_streaming = {64, 32};

struct item {
    struct request request; /* empty once there is a result */
    uint64_t since;         /* n_chosen when its line was read */
    char *result;           /* the line; NULL: not computed yet */
    bool failed;            /* the result is an error */
};

struct batch { /* zeroed at first */
    const struct options *options;
    struct bar bar;
    struct session session;
    struct lines lines;
    struct results results;
    struct json_t *seen; /* key -> line, of the requests of this run */
    struct item *items;  /* [WINDOW], the first n_items in use, in the order of the lines */
    size_t n_items;
    uint64_t n_chosen; /* requests computed so far */
    bool at_end;       /* of the input */
    struct worth worth;
    uint32_t most_checkpoints;
    uint64_t base_seed; /* of requests that have none: this and the number of the line */
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

static char *answer_line(const struct session *s, const struct request *r, const struct answer *a,
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
    json_object_set_new(object, "tokens", ids);
    json_object_set_new(object, "prompt_tokens", json_integer((json_int_t)r->tokens.n));
    json_object_set_new(object, "reused_tokens", json_integer((json_int_t)st->n_reused));
    json_object_set_new(object, "stop_reason", json_string(answer_stop_name(a->stop)));
    json_object_set_new(object, "seed", json_integer((json_int_t)s->seed));
    json_object_set_new(object, "time_to_first_token_s", stats_number(stats_first_token_s(st, a)));
    json_object_set_new(object, "decode_tok_s", stats_number(stats_rate(a->n_decoded, a->decode_ns)));
    char *line = object ? json_dumps(object, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    return line;
}

/* Takes `line` over; NULL stands for lack of memory. What was parsed of the request takes memory that is not needed any
 * more. */
static int set_result(struct item *item, char *line, struct err *e)
{
    item->result = line;
    request_free(&item->request);
    return line ? 0 : err_set(e, ERR_MEMORY, "out of memory for a result");
}

/* The request's own fault becomes its result; what would meet the next one too ends the run. */
static int refuse_item(struct item *item, int rc, struct err *e)
{
    if (rc != ERR_FORMAT && rc != ERR_USAGE && rc != ERR_UNSUPPORTED)
        return rc;
    item->failed = true;
    return set_result(item, error_line(&item->request, e->text), e);
}

static int write_result(struct batch *b, struct item *item, struct err *e)
{
    int rc = results_add(&b->results, item->result, e);
    b->n_failed += !rc && item->failed;
    b->n_done += !rc && !item->failed;
    free(item->result);
    item->result = NULL;
    return rc;
}

/* Writes the results that there are; with --ordered only those at the front of the window, unless the run `ends`. */
static int write_done(struct batch *b, bool ends, struct err *e)
{
    size_t n_kept = 0;
    int rc = 0;
    for (size_t i = 0; i < b->n_items; i++) {
        struct item *item = &b->items[i];
        bool waits = b->options->ordered && !ends && n_kept;
        if (rc || !item->result || waits)
            b->items[n_kept++] = *item;
        else
            rc = write_result(b, item, e);
    }
    b->n_items = n_kept;
    return rc;
}

/* ---- the window ---- */

static int remember(struct batch *b, const struct request *r, struct err *e)
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
static int take_line(struct batch *b, const char *text, size_t len, struct err *e)
{
    struct item *item = &b->items[b->n_items];
    *item = (struct item){.since = b->n_chosen};
    int rc = text ? request_read(&item->request, text, len, b->lines.n, b->options, e)
                  : request_too_long(&item->request, b->lines.n, e);
    if (item->request.key && results_has(&b->results, item->request.key)) {
        b->n_there++;
        request_free(&item->request);
        return 0;
    }
    b->n_items++;
    if (!rc)
        rc = remember(b, &item->request, e);
    if (!rc)
        rc = request_encode(&item->request, &b->session, e);
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

static size_t count_tokens(const struct batch *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n_items; i++)
        n += b->items[i].request.tokens.n;
    return n;
}

/* Takes what lines there are; waits for one only when there is nothing else to do. */
static int fill(struct batch *b, struct err *e)
{
    while (!b->at_end && b->n_items < WINDOW && count_tokens(b) < WINDOW_TOKENS) {
        const char *text;
        size_t len;
        int rc = lines_next(&b->lines, b->n_items == 0, &text, &len, e);
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

static uint32_t common_with_sequence(const struct batch *b, const struct item *item)
{
    struct moeflux_session *q = b->session.sequence;
    return prefix_common(moeflux_history(q), moeflux_position(q), item->request.tokens.ids,
                         item->request.tokens.n);
}

/* The next one to compute: the first, or one that has much more in common with what was computed last. None waits for more
 * than WINDOW others: those that begin alike may never end. */
static struct item *choose(struct batch *b)
{
    struct item *best = NULL;
    uint32_t most = 0;
    for (size_t i = 0; i < b->n_items; i++) {
        struct item *item = &b->items[i];
        if (item->result)
            continue;
        if (!best && b->n_chosen - item->since >= WINDOW)
            return item;
        uint32_t same = common_with_sequence(b, item);
        if (best && same < most + b->worth.order)
            continue;
        best = item;
        most = same;
    }
    return best;
}

/* ---- one request ---- */

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Where the others part from this one, if going back there saves more than the piece costs; and where this one parted
 * from the last, as those will that have not been read yet. */
static struct prefix_stops choose_stops(const struct batch *b, const struct item *item, uint32_t n_before,
                                        uint32_t n_reused)
{
    uint32_t parts[WINDOW], n = 0, last = n_reused;
    uint32_t worth = b->worth.piece, n_there = moeflux_list_checkpoints(b->session.sequence, NULL, 0);
    uint32_t room = n_there + 1 < b->most_checkpoints ? b->most_checkpoints - 1 - n_there : 0;
    const struct token_list *own = &item->request.tokens;
    struct prefix_stops st = {0};
    if (n_before >= n_reused + worth && n_before < own->n)
        prefix_stop_at(&st, n_before, 1);
    for (size_t i = 0; i < b->n_items; i++) {
        const struct item *other = &b->items[i];
        if (other == item || other->result)
            continue;
        const struct token_list *ids = &other->request.tokens;
        uint32_t same = prefix_common(own->ids, own->n - 1, ids->ids, ids->n - 1);
        if (same > n_reused)
            parts[n++] = same;
    }
    if (n)
        qsort(parts, n, sizeof *parts, ascending);
    /* The shallow ones first: they serve the most requests. */
    for (uint32_t i = 0; i < n && st.n < room; i++)
        if ((uint64_t)(n - i) * (parts[i] - last) >= worth) {
            prefix_stop_at(&st, parts[i], 1);
            last = parts[i];
        }
    return st;
}

static int prefill(struct batch *b, struct item *item, struct stats *st, struct err *e)
{
    struct session *s = &b->session;
    const struct request *r = &item->request;
    const int32_t *ids = r->tokens.ids;
    uint32_t n = (uint32_t)r->tokens.n;
    /* Without -s every line has its own, so that the same prompt gets several answers. */
    uint64_t seed = r->options.seed < 0 ? b->base_seed + r->line - 1 : (uint64_t)r->options.seed;
    uint32_t n_before = common_with_sequence(b, item);
    st->start_ns = clock_ns();
    int rc = moeflux_reuse(s->sequence, ids, n, &st->n_reused, e);
    if (rc)
        return rc;
    struct sampler_options sampling = options_sampling(&r->options, seed);
    rc = session_new_sampler(s, &sampling, ids, st->n_reused, e);
    if (!rc && moeflux_checkpoint_bytes(s->sequence)) {
        struct prefix_stops stops = choose_stops(b, item, n_before, st->n_reused);
        uint32_t to = stops.n ? stops.at[stops.n - 1] : st->n_reused;
        rc = prefix_feed(s, ids, to, &stops, e);
    }
    uint32_t pos = moeflux_position(s->sequence);
    if (!rc)
        rc = session_eval(s, ids + pos, n - pos, NULL, e);
    st->prefill_ns = clock_ns() - st->start_ns;
    st->n_prompt = n - st->n_reused;
    bar_end(&b->bar);
    return rc;
}

static int compute(struct batch *b, struct item *item, struct err *e)
{
    struct session *s = &b->session;
    const struct options *o = &item->request.options;
    b->n_chosen++;
    struct answer a = {0};
    struct stats st = {0};
    struct answer_options ao = {
        .limit = o->predict == OPTIONS_NOT_GIVEN ? OPTIONS_NO_LIMIT : o->predict,
        .ignore_eos = o->ignore_eos,
        .chat = !o->raw,
    };
    int rc = o->raw ? 0 : session_use_chat(s, o, "--batch", e);
    if (!rc)
        rc = prefill(b, item, &st, e);
    if (!rc)
        rc = answer_run(&a, s, &ao, e);
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
static int worse(int rc, int of_results, const struct err *why, struct err *e)
{
    if (!of_results || (rc && rc != ERR_INTERRUPTED))
        return rc;
    *e = *why;
    return of_results;
}

static int loop(struct batch *b, struct err *e)
{
    for (;;) {
        int rc = fill(b, e);
        if (!rc)
            rc = write_done(b, false, e);
        struct item *item = rc ? NULL : choose(b);
        if (!rc && signals_asked())
            rc = err_set(e, ERR_INTERRUPTED, "interrupted");
        if (!rc && item)
            rc = compute(b, item, e);
        /* What is done is kept, whatever ended the run. */
        struct err closing;
        rc = worse(rc, write_done(b, rc != 0, &closing), &closing, e);
        if (rc)
            return rc;
        if (b->at_end && b->n_items == 0)
            return 0;
    }
}

static int set_checkpoints(struct batch *b, struct err *e)
{
    b->worth = b->session.info.experts_resident ? worth_resident : worth_streaming;
    int rc = moeflux_set_checkpoint_cap(b->session.sequence, UINT32_MAX, e);
    b->most_checkpoints = moeflux_checkpoint_cap(b->session.sequence);
    return rc;
}

static int start(struct batch *b, struct err *e)
{
    const struct options *o = b->options;
    int rc = 0;
    if (!(b->items = mem_new(WINDOW, sizeof *b->items, e)))
        return ERR_MEMORY;
    if (!(b->seen = json_object()))
        return err_set(e, ERR_MEMORY, "out of memory for the requests");
    rc = session_open(&b->session, o, &b->bar, e);
    if (!rc && !b->session.tokenizer)
        rc = err_set(e, ERR_USAGE, "%s has no tokenizer.json, which --batch needs", o->model);
    if (!rc)
        rc = session_start(&b->session, o, (uint32_t)o->ctx_size, e);
    b->base_seed = b->session.seed;
    return rc ? rc : set_checkpoints(b, e);
}

static void tell(const struct batch *b)
{
    char text[256], there[64] = "";
    if (b->n_there)
        snprintf(there, sizeof there, ", %" PRIu64 " there already", b->n_there);
    snprintf(text, sizeof text,
             "%" PRIu64 " answered, %" PRIu64 " failed%s; %" PRIu64 " of %" PRIu64 " prompt tokens computed",
             b->n_done, b->n_failed, there, b->n_computed, b->n_prompt);
    exit_warn(text);
}

static int finish(struct batch *b, struct err *e)
{
    for (size_t i = 0; b->items && i < b->n_items; i++) {
        free(b->items[i].result);
        request_free(&b->items[i].request);
    }
    free(b->items);
    json_decref(b->seen);
    lines_close(&b->lines);
    session_close(&b->session);
    return results_close(&b->results, e);
}

int batch_run(const struct options *o, const struct term *t, struct output *out, struct err *e)
{
    struct batch b = {.options = o, .results = {.fd = -1}, .lines = {.input.fd = -1}};
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
        stats_print(&st, NULL, &b.session);
    }
    rc = session_save_usage(&b.session, o, rc, e);
    uint64_t n_failed = b.n_failed;
    struct err closing;
    rc = worse(rc, finish(&b, &closing), &closing, e);
    if (!rc && n_failed)
        rc = err_set(e, ERR_FORMAT, "%" PRIu64 " of the requests failed; their results have an \"error\"",
                     n_failed);
    return rc;
}
