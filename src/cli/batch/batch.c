#include "cli/batch/batch.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/reader.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/batch/item.h"
#include "cli/batch/progress.h"
#include "cli/exit.h"
#include "cli/options/answer_grammar.h"
#include "cli/batch/lines.h"
#include "cli/options/ask.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/batch/results.h"
#include "cli/batch/settings.h"
#include "cli/batch/times.h"
#include "cli/say.h"
#include "cli/setup.h"
#include "cli/signals.h"
#include "cli/report/stats.h"
#include "cli/terminal/bar.h"
#include "cli/terminal/term.h"
#include "moeflux_chat.h"

enum {
    MOST_ITEMS = MOEFLUX_POOL_MAX_HELD, /* lines that are answered or wait, or whose results do */
    MOST_TOKENS = 1 << 22               /* tokens of their prompts */
};

struct batch { /* zeroed at first */
    const struct options *options;
    struct json_t *settings;       /* settings.h */
    struct moeflux_request *asked; /* has the fields that flags set and lines override */
    struct bar bar;
    struct batch_progress progress;
    struct loaded loaded;
    struct api_reader reader;
    struct batch_reader from;
    struct lines lines;
    struct results results;
    struct json_t *seen;                  /* key -> line, for the requests of this run */
    struct batch_item *items[MOST_ITEMS]; /* [n_items] in the order of the lines */
    size_t n_items;
    bool at_end;          /* the input has ended */
    bool has_told_unseen; /* that the chat template leaves tools out */
    uint64_t n_done, n_failed;
    uint64_t n_there, n_there_failed; /* answered by an earlier run; those of them that failed */
    uint32_t n_parallel;              /* lines that may be answered concurrently */
    uint64_t n_ended;                 /* the last moeflux_pool_await */
    struct moeflux_pool *pool;
    struct batch_prompts prompts;
    struct batch_times times;
};

/* ---- results ---- */

/* Turns a fault of the request itself into its result. A failure that would meet the next request too ends
 * the run. */
static int refuse_item(struct batch_item *item, int rc, struct moeflux_err *e)
{
    if (rc != ERR_FORMAT && rc != ERR_USAGE && rc != ERR_UNSUPPORTED)
        return rc;
    item->failed = true;
    return batch_item_set_result(item, batch_item_refused(item, rc, e), e);
}

static int write_result(struct batch *b, const struct batch_item *item, struct moeflux_err *e)
{
    batch_progress_make_way(&b->progress);
    int rc = results_add(&b->results, item->result, e);
    b->n_failed += !rc && item->failed;
    b->n_done += !rc && !item->failed;
    batch_progress_show(&b->progress, b->n_done, b->n_failed, b->n_there);
    return rc;
}

static void drop_item(struct batch *b, size_t idx)
{
    batch_item_free(b->items[idx]);
    b->n_items--;
    memmove(b->items + idx, b->items + idx + 1, (b->n_items - idx) * sizeof *b->items);
}

/* Writes the results. With --ordered only those before the first line without one, unless the run ends. */
static int write_done(struct batch *b, bool ends, struct moeflux_err *e)
{
    int rc = 0;
    for (size_t i = 0; i < b->n_items && !rc;) {
        if (!b->items[i]->result && b->options->ordered && !ends)
            break;
        if (!b->items[i]->result) {
            i++;
            continue;
        }
        rc = write_result(b, b->items[i], e);
        if (!rc)
            drop_item(b, i);
    }
    return rc;
}

/* ---- the window ---- */

static bool has_room(const struct batch *b)
{
    size_t n_tokens = 0;
    for (size_t i = 0; i < b->n_items; i++)
        n_tokens += b->items[i]->result ? 0 : batch_line_n_tokens(&b->items[i]->line);
    return b->n_items < MOST_ITEMS && n_tokens < MOST_TOKENS;
}

static int remember(struct batch *b, const struct batch_line *r, struct moeflux_err *e)
{
    const json_t *first = json_object_get(b->seen, r->key);
    if (first && r->has_id)
        return err_set(e, ERR_FORMAT, "line %" PRIu64 ": line %" JSON_INTEGER_FORMAT " has the same id",
                       r->line, json_integer_value(first));
    if (json_object_set_new(b->seen, r->key, json_integer((json_int_t)r->line)) < 0)
        return err_set(e, ERR_MEMORY, "out of memory for line %" PRIu64, r->line);
    return 0;
}

static void tell_skipped_tool(const struct batch *b, const char *type)
{
    char text[160];
    if (!type)
        return;
    snprintf(text, sizeof text, "line %" PRIu64 ": tools of type \"%.40s\" are left out", b->lines.n, type);
    exit_tell(b->options->log_level, EXIT_WARN, text);
}

/* Says once that the model does not see the tools: all lines have one template. */
static void tell_unseen_tools(struct batch *b, const struct batch_line *line)
{
    char text[160];
    if (b->has_told_unseen || !batch_line_hides_tools(line))
        return;
    b->has_told_unseen = true;
    snprintf(text, sizeof text,
             "line %" PRIu64 ": the chat template leaves tools out: the model does not see them", line->line);
    exit_tell(b->options->log_level, EXIT_WARN, text);
}

/* Gives a line to the pool, which holds it. */
static int hold(struct batch *b, struct batch_item *item, struct moeflux_err *e)
{
    item->tokenizer = moeflux_chat_tokenizer(b->loaded.chat);
    item->times = &b->times;
    int rc = batch_line_encode(&item->line, &b->from, e);
    if (!rc)
        tell_unseen_tools(b, &item->line);
    if (!rc)
        rc = batch_item_new_job(item, b->pool, e);
    return rc ? rc : moeflux_pool_add(b->pool, &item->job, 1, e);
}

/* Takes a line. text NULL: it was too long. */
static int take_line(struct batch *b, const char *text, size_t len, struct moeflux_err *e)
{
    struct batch_item *item;
    bool failed;
    int rc = batch_item_read(&item, &b->from, text, len, b->lines.n, e);
    if (!item)
        return rc;
    b->items[b->n_items++] = item;
    if (!rc)
        rc = remember(b, &item->line, e);
    if (rc == ERR_MEMORY)
        return rc;
    if (results_take(&b->results, item->line.key, !rc, &failed)) {
        b->n_there++;
        b->n_there_failed += failed;
        drop_item(b, b->n_items - 1);
        return 0;
    }
    if (!rc)
        tell_skipped_tool(b, item->line.skipped_tool);
    if (!rc)
        rc = hold(b, item, e);
    return rc ? refuse_item(item, rc, e) : 0;
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

/* Reads available lines. Waits for one only if there is nothing to do. */
static int fill(struct batch *b, struct moeflux_err *e)
{
    while (!b->at_end && has_room(b)) {
        const char *text;
        size_t len;
        int rc = lines_next(&b->lines, b->n_items == 0, &text, &len, e);
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

/* ---- answers ---- */

/* Takes the result of an item whose job has ended. */
static int take_done(struct batch *b, struct batch_item *item, struct moeflux_err *e)
{
    int rc = moeflux_job_result(item->job, e);
    moeflux_job_free(item->job);
    item->job = NULL;
    if (rc)
        return refuse_item(item, rc, e);
    b->prompts.n += item->prompts.n;
    b->prompts.n_computed += item->prompts.n_computed;
    b->prompts.ns += item->prompts.ns;
    char *line = item->answer;
    item->answer = NULL;
    return batch_item_set_result(item, line, e);
}

/* Takes the results of the jobs that have ended. Returns the first failure. */
static int take_all_done(struct batch *b, struct moeflux_err *e)
{
    int rc = 0;
    struct moeflux_err later;
    for (size_t i = 0; i < b->n_items; i++) {
        struct batch_item *item = b->items[i];
        if (!item->job || !moeflux_job_wait(item->job, 0))
            continue;
        int one = take_done(b, item, rc ? &later : e);
        rc = rc ? rc : one;
    }
    return rc;
}

/* Waits after a failure for the lines that are being answered and keeps their results. Returns rc. */
static int drain(struct batch *b, int rc)
{
    struct moeflux_err ignored;
    moeflux_pool_end(b->pool, "interrupted", UINT32_MAX);
    take_all_done(b, &ignored);
    return rc;
}

/* Returns the failure that is reported: the first one, except that a failure of the results' file replaces an
 * interruption. */
static int choose_failure(int rc, int of_results, const struct moeflux_err *why, struct moeflux_err *e)
{
    if (!of_results || (rc && rc != ERR_INTERRUPTED))
        return rc;
    *e = *why;
    return of_results;
}

static bool has_jobs(const struct batch *b)
{
    size_t i = 0;
    while (i < b->n_items && !b->items[i]->job)
        i++;
    return i < b->n_items;
}

static int compute(struct batch *b, struct moeflux_err *e)
{
    enum { ASK_AGAIN_MS = 50 };
    for (;;) {
        uint32_t n_waiting, n_running;
        int rc = fill(b, e);
        if (!rc && signals_asked())
            rc = err_set(e, ERR_INTERRUPTED, "interrupted");
        if (!rc)
            moeflux_pool_begin(b->pool);
        moeflux_pool_count(b->pool, &n_waiting, &n_running);
        /* More lines may come in the meantime. */
        bool may_come = !b->at_end && n_waiting + n_running < b->n_parallel;
        if (!rc && has_jobs(b)) {
            b->n_ended = moeflux_pool_await(b->pool, b->n_ended, may_come ? ASK_AGAIN_MS : UINT16_MAX);
            rc = take_all_done(b, e);
        }
        if (rc)
            rc = drain(b, rc);
        struct moeflux_err closing;
        rc = choose_failure(rc, write_done(b, rc != 0, &closing), &closing, e);
        if (rc)
            return drain(b, rc);
        if (b->at_end && b->n_items == 0)
            return 0;
    }
}

/* ---- the run ---- */

/* Returns how many lines are answered concurrently without --parallel: a group for each device. Devices that
 * share the layers have one group more (has_more): while one is handed over, or its tokens are sampled, every
 * device has another to compute. */
static uint32_t default_workers(uint32_t n_devices, bool has_more)
{
    enum { WORKERS_OF_A_GROUP = 8, MOST_WORKERS = 64 };
    uint64_t n_groups = (uint64_t)n_devices + has_more;
    return n_devices > 1 ? (uint32_t)size_min(n_groups * WORKERS_OF_A_GROUP, MOST_WORKERS) : 1;
}

/* Chooses how many lines are answered concurrently, and opens the model with memory for them. Without
 * --parallel, if they do not fit, tries it without the additional group, then with one line. */
static int open_model(struct batch *b, struct moeflux_err *e)
{
    const struct options *o = b->options;
    uint32_t n_devices;
    int rc = setup_n_devices(o, &n_devices, e);
    if (rc)
        return rc;
    b->n_parallel = o->parallel ? (uint32_t)o->parallel : default_workers(n_devices, !o->replicate);
    if (o->replicate && b->n_parallel < n_devices)
        return err_set(e, ERR_USAGE,
                       "--parallel: expected at least %u with --replicate, a line a copy, found %u",
                       n_devices, b->n_parallel);
    rc = setup_open_for(&b->loaded, o, &b->bar, b->n_parallel, bar_progress(&b->bar), e);
    while (rc == ERR_NO_FIT && !o->parallel && !o->replicate && b->n_parallel > 1) {
        uint32_t fewer = default_workers(n_devices, false);
        b->n_parallel = fewer < b->n_parallel ? fewer : 1;
        rc = setup_open_for(&b->loaded, o, &b->bar, b->n_parallel, bar_progress(&b->bar), e);
    }
    return rc;
}

/* Makes the request that lines override. */
static int make_defaults(struct batch *b, struct moeflux_err *e)
{
    const struct options *o = b->options;
    char *grammar = NULL, *tools = NULL;
    int rc = answer_grammar_read(o, &grammar, e);
    if (!rc && o->tools)
        rc = moeflux_tools_read(o->tools, &tools, e);
    if (!rc)
        rc = ask_defaults(&b->asked, o, e);
    if (!rc && tools)
        rc = moeflux_request_set(b->asked, "tools", tools, e);
    if (!rc && grammar)
        rc = moeflux_request_set_text(b->asked, "grammar", grammar, e);
    free(grammar);
    free(tools);
    return rc;
}

/* Opens the pool, which has sequences of its own: the first session is freed. */
static int open_pool(struct batch *b, struct moeflux_err *e)
{
    const struct moeflux_pool_options o = {.reuse = MOEFLUX_POOL_BATCH,
                                           .parallel = b->n_parallel,
                                           .context = b->loaded.max_context,
                                           .holds = true};
    int rc = api_reader_open(&b->reader, b->loaded.chat, b->asked, o.context, NULL, e);
    b->from = (struct batch_reader){.reader = &b->reader,
                                    .model = options_model_name(b->options),
                                    .base_seed = b->loaded.seed,
                                    .max_bytes = LINES_MAX_BYTES};
    moeflux_session_free(b->loaded.session);
    b->loaded.session = NULL;
    return rc ? rc : moeflux_pool_open(&b->pool, b->loaded.chat, &o, e);
}

static int start(struct batch *b, struct moeflux_err *e)
{
    const struct options *o = b->options;
    int rc = make_defaults(b, e);
    if (!rc && !(b->seen = json_object()))
        rc = err_set(e, ERR_MEMORY, "out of memory for the requests");
    if (!rc)
        rc = open_model(b, e);
    if (!rc)
        rc = setup_need_tokenizer(&b->loaded, o, "--batch needs", e);
    if (!rc)
        rc = setup_chat(&b->loaded, o, e);
    if (!rc)
        rc = setup_start(&b->loaded, o, (uint32_t)o->ctx_size, e);
    return rc ? rc : open_pool(b, e);
}

/* Adds to the settings which model it is, and checks the results that are there. A name alone does not tell
 * a model from the one that was in its directory before. */
static int check_model(struct batch *b, struct moeflux_err *e)
{
    uint64_t fingerprint;
    if (!b->options->output)
        return 0;
    int rc = moeflux_model_fingerprint(b->loaded.models[0], &fingerprint, e);
    if (rc)
        return rc;
    settings_add_model(b->settings, fingerprint);
    return results_check_model(&b->results, e);
}

/* Counts the lines of this run, for the time left on a terminal. This reads the file twice. */
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
    batch_progress_begin(&b->progress, t, total, !b->options->output);
    batch_progress_show(&b->progress, 0, 0, 0);
    /* The batch's progress and the bar would share one line. */
    b->bar.on = false;
    return rc;
}

static void tell_counts(const struct batch *b)
{
    char text[256], there[64] = "";
    if (b->n_there)
        snprintf(there, sizeof there, ", %" PRIu64 " there already", b->n_there);
    snprintf(text, sizeof text,
             "%" PRIu64 " answered, %" PRIu64 " failed%s; %" PRIu64 " of %" PRIu64 " prompt tokens computed",
             b->n_done, b->n_failed, there, b->prompts.n_computed, b->prompts.n);
    exit_tell(b->options->log_level, EXIT_INFO, text);
}

/* Returns the time for prompts. Those that are evaluated concurrently count once. */
static uint64_t prefill_ns(const struct batch *b)
{
    struct moeflux_stats stats;
    if (b->n_parallel == 1)
        return b->prompts.ns;
    setup_get_stats(&b->loaded, &stats);
    return stats.prefill_ns;
}

static void print_stats(struct batch *b)
{
    struct str times = {0};
    batch_times_print(&b->times, &times);
    say_text(&times);
    str_free(&times);
    stats_print_all(&b->loaded, b->prompts.n_computed, prefill_ns(b));
}

static int finish(struct batch *b, struct moeflux_err *e)
{
    moeflux_pool_end(b->pool, "the run has ended", 0);
    while (b->n_items > 0)
        drop_item(b, b->n_items - 1);
    moeflux_pool_close(b->pool);
    api_reader_close(&b->reader);
    batch_times_free(&b->times);
    json_decref(b->seen);
    json_decref(b->settings);
    lines_close(&b->lines);
    setup_close(&b->loaded);
    moeflux_request_free(b->asked);
    return results_close(&b->results, e);
}

int batch_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    struct batch b = {.options = o,
                      .results = {.fd = -1},
                      .lines = {.input.fd = -1},
                      .times = {.lock = PTHREAD_MUTEX_INITIALIZER}};
    if (signals_catch_interrupt(e))
        return ERR_IO;
    signals_catch_termination();
    bar_init(&b.bar, t);
    b.settings = settings_of(o);
    int rc = lines_open(&b.lines, o->batch, e);
    if (!rc)
        rc = results_open(&b.results, o, b.settings, out, e);
    if (!rc)
        rc = start(&b, e);
    if (!rc)
        rc = check_model(&b, e);
    if (!rc)
        rc = begin_progress(&b, t, e);
    if (!rc) {
        signals_hold(true);
        rc = compute(&b, e);
        signals_hold(false);
        batch_progress_end(&b.progress);
        tell_counts(&b);
    }
    if (!rc && o->stats)
        print_stats(&b);
    rc = setup_save_usage(&b.loaded, o, rc, e);
    uint64_t n_failed = b.n_failed, n_earlier = b.n_there_failed;
    struct moeflux_err closing;
    rc = choose_failure(rc, finish(&b, &closing), &closing, e);
    if (!rc && n_failed)
        rc = err_set(e, ERR_FORMAT, "%" PRIu64 " of the requests failed; their results say why", n_failed);
    else if (!rc && n_earlier)
        rc = err_set(e, ERR_FORMAT,
                     "%" PRIu64 " of the requests failed in an earlier run (--retry-failed repeats them)",
                     n_earlier);
    return rc;
}
