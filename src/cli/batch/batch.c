#include "cli/batch/batch.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
#include "engine/run/batched.h"
#include "generate/chat_api.h"
#include "generate/prefix.h"
#include "generate/jobs.h"
#include "generate/queue.h"
#include "generate/request.h"
#include "generate/turn_stops.h"
#include "generate/workers.h"
#include "moeflux_chat.h"

struct batch { /* zeroed at first */
    const struct options *options;
    struct batch_defaults defaults;
    struct json_t *settings;       /* settings.h */
    struct moeflux_request *asked; /* has the fields that flags set and lines override */
    struct request how;            /* what was read of it */
    struct bar bar;
    struct batch_progress progress;
    struct loaded loaded;
    struct generator *generator; /* the chat's */
    struct lines lines;
    struct results results;
    struct json_t *seen; /* key -> line, for the requests of this run */
    struct queue queue;  /* requests in the order of the lines; item.of: a struct batch_item */
    bool at_end;         /* the input has ended */
    bool as_openai;      /* the last line was in OpenAI's form */
    uint64_t n_done, n_failed;
    uint64_t n_there, n_there_failed; /* answered by an earlier run; those of them that failed */
    uint32_t n_workers, n_running;    /* lines that may be answered concurrently, and those that are */
    uint64_t n_ended;                 /* the last jobs_await */
    struct jobs jobs;
    struct workers *workers;
    /* Tokens of prompts: all, those that had to be computed, and the time that took. */
    uint64_t n_prompt, n_computed, prefill_ns;
    struct batch_times times;
};

/* ---- results ---- */

/* Sets the result and takes over `line`; NULL: ERR_MEMORY. The parsed request is freed. */
static int set_result(struct queue_item *item, char *line, struct moeflux_err *e)
{
    item->result = line;
    batch_item_free(item->of);
    item->of = NULL;
    item->tokens = NULL;
    return line ? 0 : err_set(e, ERR_MEMORY, "out of memory for a result");
}

/* Turns a fault of the request itself into its result. A failure that would meet the next request too ends
 * the run. */
static int refuse_item(struct queue_item *item, int rc, struct moeflux_err *e)
{
    if (rc != ERR_FORMAT && rc != ERR_USAGE && rc != ERR_UNSUPPORTED)
        return rc;
    item->failed = true;
    return set_result(item, batch_item_refused(item->of, rc, e), e);
}

static int write_result(struct batch *b, struct queue_item *item, struct moeflux_err *e)
{
    batch_progress_make_way(&b->progress);
    int rc = results_add(&b->results, item->result, e);
    b->n_failed += !rc && item->failed;
    b->n_done += !rc && !item->failed;
    batch_progress_show(&b->progress, b->n_done, b->n_failed, b->n_there);
    return rc;
}

/* Writes the results in the queue. With --ordered only those at its front, unless the run ends. */
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

static bool has_prompt_of(const struct choice *c, const struct choice *other)
{
    const struct token_list *a = &c->request.tokens, *b = &other->request.tokens;
    return a->n == b->n && prefix_common(a->ids, a->n, b->ids, b->n) == a->n;
}

static void tell_skipped_tool(const struct batch *b, const struct request *r)
{
    char text[160];
    if (!r->skipped_tool)
        return;
    snprintf(text, sizeof text, "line %" PRIu64 ": tools of type \"%.40s\" are left out", b->lines.n,
             r->skipped_tool);
    exit_tell(b->options->log_level, EXIT_WARN, text);
}

/* Finds where the item's prompts are cut. Choices of one prompt are consecutive. */
static void find_cuts(struct batch *b, struct queue_item *item, struct choice *choices, uint32_t n)
{
    for (uint32_t i = 0; b->queue.chunk && i < n; i++)
        if (i > 0 && has_prompt_of(&choices[i], &choices[i - 1]))
            choices[i].cuts = choices[i - 1].cuts;
        else
            turn_stops_find_cuts(&choices[i].request, b->generator, &choices[i].cuts);
    item->cuts = choices->cuts;
}

/* Adds a line to the queue. text NULL: it was too long. */
static int take_line(struct batch *b, const char *text, size_t len, struct moeflux_err *e)
{
    struct queue_item *item = queue_add(&b->queue);
    struct batch_item *r;
    uint32_t n;
    int rc = batch_item_read(&r, text, len, b->lines.n, LINES_MAX_BYTES, b->generator, &b->defaults,
                             &b->as_openai, e);
    item->of = r;
    if (rc == ERR_MEMORY)
        return rc;
    bool failed;
    if (results_has(&b->results, r->key, &failed)) {
        b->n_there++;
        b->n_there_failed += failed;
        drop_item(b, b->queue.n - 1);
        return 0;
    }
    if (!rc)
        rc = remember(b, r, e);
    if (!rc)
        tell_skipped_tool(b, &batch_item_choices(r, &n)->request);
    if (!rc)
        rc = batch_item_encode(r, b->generator, e);
    if (rc)
        return refuse_item(item, rc, e);
    struct choice *choices = batch_item_choices(r, &n);
    item->tokens = &choices->request.tokens;
    find_cuts(b, item, choices, n);
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

/* Reads available lines into the queue. Waits for one only if the queue is empty. */
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

/* ---- answers ---- */

/* Chooses the checkpoints of the item's prompts. Choices of one prompt are consecutive. */
static void choose_stops(const struct batch *b, const struct queue_item *item, struct choice *choices,
                         uint32_t n)
{
    const struct moeflux_session *s = b->n_workers == 1 ? workers_latest(b->workers) : NULL;
    for (uint32_t i = 0; i < n; i++)
        choices[i].stops = i > 0 && has_prompt_of(&choices[i], &choices[i - 1])
                               ? choices[i - 1].stops
                               : queue_stops(&b->queue, item, &choices[i].request.tokens, s);
}

static int begin_item(struct batch *b, struct queue_item *item, struct moeflux_err *e)
{
    uint32_t n;
    struct choice *choices = batch_item_choices(item->of, &n);
    choose_stops(b, item, choices, n);
    if (!(item->job = jobs_new(choices, n, &batch_item_calls, item->of, e)))
        return ERR_MEMORY;
    item->job->copy = workers_find_copy(b->workers, choices);
    int rc = jobs_add(&b->jobs, &item->job, 1, e);
    if (!rc) {
        b->n_running++;
        return 0;
    }
    jobs_release(&b->jobs, item->job);
    item->job = NULL;
    return rc;
}

static int begin_waiting(struct batch *b, struct moeflux_err *e)
{
    struct queue_item *item;
    int rc = 0;
    while (!rc && b->n_running < b->n_workers &&
           (item = queue_choose(&b->queue, b->n_workers == 1 ? workers_latest(b->workers) : NULL)))
        rc = begin_item(b, item, e);
    return rc;
}

static void count_prompts(struct batch *b, const struct choice *choices, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        b->n_prompt += choices[i].request.tokens.n;
        b->n_computed += choices[i].request.tokens.n - choices[i].result.n_reused;
        b->prefill_ns += choices[i].result.prefill_ns;
    }
}

/* Takes the result of an item whose job is done. */
static int take_done(struct batch *b, struct queue_item *item, struct moeflux_err *e)
{
    struct batch_item *own = item->of;
    const struct choice_result *r = &jobs_result(item->job)->result;
    int rc = r->rc;
    if (rc)
        *e = r->error;
    else
        count_prompts(b, item->job->choices, item->job->n);
    jobs_release(&b->jobs, item->job);
    item->job = NULL;
    b->n_running--;
    if (rc)
        return refuse_item(item, rc, e);
    char *line = own->result;
    own->result = NULL;
    return set_result(item, line, e);
}

/* Waits for the next end of a job. Returns the first failure; the results of all that are done are kept. */
static int await_some(struct batch *b, uint32_t ms, struct moeflux_err *e)
{
    int rc = 0;
    struct moeflux_err later;
    b->n_ended = jobs_await(&b->jobs, b->n_ended, ms);
    for (size_t i = 0; i < b->queue.n; i++) {
        struct queue_item *item = &b->queue.items[i];
        if (!item->job || !jobs_is_done(&b->jobs, item->job))
            continue;
        int one = take_done(b, item, rc ? &later : e);
        rc = rc ? rc : one;
    }
    return rc;
}

/* Waits after a failure for the running items and keeps their results. Returns rc. */
static int drain(struct batch *b, int rc)
{
    struct moeflux_err ignored;
    jobs_close(&b->jobs, "interrupted");
    while (b->n_running > 0)
        await_some(b, UINT16_MAX, &ignored);
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

static int compute(struct batch *b, struct moeflux_err *e)
{
    enum { ASK_AGAIN_MS = 50 };
    for (;;) {
        int rc = fill(b, e);
        if (!rc && signals_asked())
            rc = err_set(e, ERR_INTERRUPTED, "interrupted");
        if (!rc)
            rc = begin_waiting(b, e);
        /* More lines may come in the meantime. */
        bool may_come = !b->at_end && b->n_running < b->n_workers;
        if (!rc && b->n_running > 0)
            rc = await_some(b, may_come ? ASK_AGAIN_MS : UINT16_MAX, e);
        if (rc)
            rc = drain(b, rc);
        struct moeflux_err closing;
        rc = choose_failure(rc, write_done(b, rc != 0, &closing), &closing, e);
        if (rc)
            return drain(b, rc);
        if (b->at_end && b->queue.n == 0)
            return 0;
    }
}

/* Starts the workers, which have sequences of their own: the first session is freed. One worker reuses all
 * that it can of a prompt. With several, each cuts a prompt at the same places, whichever others there are: a
 * result does not depend on them. */
static int make_workers(struct batch *b, struct moeflux_err *e)
{
    struct generator *g = b->generator;
    uint32_t chunk = b->n_workers > 1 ? batched_chunk(g->model) : 0;
    const struct workers_options o = {
        .keep = {.most = b->n_workers, .chunk = chunk, .checkpoints = chunk ? 0 : UINT32_MAX},
        .waits = true,
    };
    g->sequence = b->loaded.session;
    int rc = queue_init(&b->queue, g, chunk, e);
    moeflux_session_free(b->loaded.session);
    b->loaded.session = g->sequence = NULL;
    if (!rc)
        rc = jobs_init(&b->jobs, UINT32_MAX, e);
    if (!rc && !(b->workers = workers_new(b->n_workers, &b->jobs, e)))
        rc = ERR_MEMORY;
    return rc ? rc : workers_start(b->workers, g, &o, e);
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
    b->n_workers = o->parallel ? (uint32_t)o->parallel : default_workers(n_devices, !o->replicate);
    if (o->replicate && b->n_workers < n_devices)
        return err_set(e, ERR_USAGE,
                       "--parallel: expected at least %u with --replicate, a line a copy, found %u",
                       n_devices, b->n_workers);
    rc = setup_open_for(&b->loaded, o, &b->bar, b->n_workers, bar_progress(&b->bar), e);
    while (rc == ERR_NO_FIT && !o->parallel && !o->replicate && b->n_workers > 1) {
        uint32_t fewer = default_workers(n_devices, false);
        b->n_workers = fewer < b->n_workers ? fewer : 1;
        rc = setup_open_for(&b->loaded, o, &b->bar, b->n_workers, bar_progress(&b->bar), e);
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

/* Gives the chat's generator to the workers. */
static int use_chat(struct batch *b, struct moeflux_err *e)
{
    struct moeflux_chat *chat = b->loaded.chat;
    int rc = chat_api_read_how(chat, b->asked, &b->how, e);
    if (rc)
        return rc;
    b->generator = &chat->generator;
    b->defaults.options = b->how.options;
    b->defaults.base_seed = b->loaded.seed;
    b->defaults.tokenizer = moeflux_chat_tokenizer(chat);
    rc = generator_prepare(b->generator, b->loaded.max_context, e);
    return rc ? rc : make_workers(b, e);
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
    return rc ? rc : use_chat(b, e);
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
             b->n_done, b->n_failed, there, b->n_computed, b->n_prompt);
    exit_tell(b->options->log_level, EXIT_INFO, text);
}

/* Returns the time for prompts. Those that are evaluated concurrently count once. */
static uint64_t prefill_ns(const struct batch *b)
{
    struct moeflux_stats stats;
    if (b->n_workers == 1)
        return b->prefill_ns;
    setup_get_stats(&b->loaded, &stats);
    return stats.prefill_ns;
}

static void print_stats(struct batch *b)
{
    struct str times = {0};
    batch_times_print(&b->times, &times);
    say_text(&times);
    str_free(&times);
    stats_print_all(&b->loaded, b->n_computed, prefill_ns(b));
}

static int finish(struct batch *b, struct moeflux_err *e)
{
    if (b->workers)
        jobs_close(&b->jobs, "the run has ended");
    workers_join(b->workers);
    workers_free(b->workers);
    jobs_free(&b->jobs);
    while (b->queue.n > 0)
        drop_item(b, b->queue.n - 1);
    queue_free(&b->queue);
    batch_times_free(&b->times);
    json_decref(b->seen);
    json_decref(b->settings);
    lines_close(&b->lines);
    setup_close(&b->loaded);
    request_free(&b->how);
    moeflux_request_free(b->asked);
    return results_close(&b->results, e);
}

int batch_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    struct batch b = {.options = o,
                      .defaults = {.model = options_model_name(o)},
                      .results = {.fd = -1},
                      .lines = {.input.fd = -1},
                      .times = {.lock = PTHREAD_MUTEX_INITIALIZER}};
    b.defaults.times = &b.times;
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
