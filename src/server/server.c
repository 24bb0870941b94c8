#include "server/server.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "api/response_store.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "generate/chat_api.h"
#include "generate/jobs.h"
#include "generate/workers.h"
#include "server/answers.h"
#include "server/http.h"
#include "server/listener.h"
#include "server/state.h"

int server_new(struct server **out, const struct server_options *o, struct moeflux_err *e)
{
    struct server *s = mem_new(1, sizeof *s, e);
    *out = NULL;
    if (!s)
        return ERR_MEMORY;
    *s = (struct server){.options = *o, .listener = -1, .created = (int64_t)time(NULL)};
    s->defaults.turns = true;
    pthread_mutex_init(&s->notes_lock, NULL);
    s->defaults.responses = response_store_new(SERVER_RESPONSES, e);
    int rc = !s->defaults.responses ? ERR_MEMORY : o->key_file ? keys_read(&s->keys, o->key_file, e) : 0;
    if (!rc && o->keys)
        rc = keys_add(&s->keys, o->keys, e);
    if (!rc)
        rc = (s->jobs = mem_new(1, sizeof *s->jobs, e)) ? jobs_init(s->jobs, o->most_waiting, e) : ERR_MEMORY;
    s->has_jobs = !rc;
    if (!rc)
        rc = metrics_init(&s->metrics, e);
    s->has_metrics = s->has_jobs && !rc;
    if (!rc)
        rc = reading_init(&s->reading, e);
    s->has_reading = s->has_metrics && !rc;
    if (!rc && !(s->workers = workers_new(o->parallel, s->jobs, e)))
        rc = ERR_MEMORY;
    if (!rc)
        rc = s->listener = listener_open(o->host, o->port, s->url, sizeof s->url, e);
    if (rc < 0) {
        server_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

static bool go_on(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    struct server *s = ctx;
    if (atomic_load(&s->started) && !atomic_load(&s->is_opening))
        return workers_go_on(s->workers, what, unit, done, total);
    return !s->loading.report || s->loading.report(s->loading.ctx, what, unit, done, total);
}

/* Called on a worker's thread. */
static void note_loss(void *ctx, const struct moeflux_err *why)
{
    struct server *s = ctx;
    metrics_loss(&s->metrics);
    s->loss = *why;
    atomic_store(&s->is_lost, true);
    s->options.lost(s->options.ctx);
}

struct moeflux_progress server_progress(struct server *s, struct moeflux_progress loading)
{
    s->loading = loading;
    return (struct moeflux_progress){go_on, s};
}

/* Reads the values of fields that requests do not have. */
static int read_defaults(struct server *s, const struct moeflux_chat *chat, struct moeflux_err *e)
{
    struct request_options *o = &s->defaults.options;
    int rc = chat_api_read_how(chat, s->options.request, &s->how, e);
    *o = s->how.options;
    o->draft.no_files = true;
    o->draft.no_layer = o->draft.kind != DRAFT_MTP;
    return rc;
}

/* Finds out how the model's weights are stored, for clients. */
static int describe_weights(struct server *s, struct moeflux_err *e)
{
    struct moeflux_needs needs;
    int rc = moeflux_get_needs(s->info.dir, &needs, e);
    if (rc)
        return rc;
    memcpy(s->expert_format, needs.expert_formats, sizeof s->expert_format);
    memcpy(s->dense_format, needs.dense_formats, sizeof s->dense_format);
    return 0;
}

int server_start(struct server *s, struct moeflux_chat *chat, struct moeflux_err *e)
{
    struct generator *g = &chat->generator;
    const struct server_options *o = &s->options;
    if (!g->tokenizer)
        return err_set(e, ERR_USAGE, "%s has no tokenizer.json, which a server needs", g->dir);
    int rc = read_defaults(s, chat, e);
    if (!rc)
        rc = generator_prepare(g, o->context, e);
    if (rc)
        return rc;
    /* Connections encode texts in their own threads, whichever job the model computes. */
    tokenizer_set_progress(g->tokenizer, &(struct moeflux_progress){reading_go_on, &s->reading});
    const struct workers_options all = {.keep = {.most = o->sequences,
                                                 .bytes = o->state_bytes,
                                                 .dir = o->state_dir,
                                                 .dir_bytes = o->state_dir_bytes,
                                                 .dir_files = o->state_dir_files,
                                                 .tell = o->tell,
                                                 .ctx = o->ctx},
                                        .converse = true,
                                        .lost = o->lost ? note_loss : NULL,
                                        .ctx = s};
    /* A loss replaces the models, while connections go on. */
    if (!(s->reader = mem_new(1, sizeof *s->reader, e)))
        return ERR_MEMORY;
    generator_share(s->reader, g, 0);
    s->reader->model = NULL;
    s->tokenizer = moeflux_chat_tokenizer(chat);
    s->info = g->info;
    s->max_context = g->max_context;
    s->most_prompt_bytes = g->most_prompt_bytes;
    rc = describe_weights(s, e);
    atomic_store(&s->started, true);
    if (!rc)
        rc = workers_start(s->workers, g, &all, e);
    if (!rc)
        answers_count_engine(s);
    return rc ? rc : http_start(s, e);
}

int server_await_loss(struct server *s, struct moeflux_err *e)
{
    enum { LOOK_MS = 100 };
    if (!atomic_load(&s->is_lost))
        return 0;
    /* Other devices may have copies of the model, whose answers go on. */
    while (!jobs_drained(s->jobs, LOOK_MS))
        if (s->loading.report && !s->loading.report(s->loading.ctx, "", "", 0, 0))
            return err_set(e, ERR_INTERRUPTED, SERVER_ENDS);
    workers_join(s->workers);
    atomic_store(&s->is_opening, true);
    *e = s->loss;
    return ERR_LOST;
}

int server_resume(struct server *s, struct moeflux_err *e)
{
    atomic_store(&s->is_opening, false);
    atomic_store(&s->is_lost, false);
    return workers_restart(s->workers, e);
}

const char *server_url(const struct server *s)
{
    return s->url;
}

/* Waits until the connections have sent their last bytes; at most 2 s, because a client may not read them. */
static void wait_for_replies(struct server *s)
{
    const uint64_t most_ns = 2000000000;
    uint64_t begin = clock_ns();
    while (atomic_load(&s->n_open) > 0 && clock_ns() - begin < most_ns)
        nanosleep(&(struct timespec){0, 5000000}, NULL);
}

void server_stop(struct server *s)
{
    http_stop_accepting(s);
    jobs_close(s->jobs, SERVER_ENDS);
    reading_close(&s->reading);
    if (!jobs_drained(s->jobs, s->options.grace_s * 1000))
        workers_interrupt(s->workers);
    /* Saves the conversations first: connections may take long to end. */
    workers_join(s->workers);
    wait_for_replies(s);
    http_stop(s);
}

void server_free(struct server *s)
{
    if (!s)
        return;
    if (s->daemon)
        server_stop(s);
    if (s->has_jobs)
        jobs_close(s->jobs, SERVER_ENDS);
    workers_join(s->workers);
    workers_free(s->workers);
    if (s->has_metrics)
        metrics_free(&s->metrics);
    if (s->has_reading)
        reading_free(&s->reading);
    if (s->has_jobs)
        jobs_free(s->jobs);
    free(s->jobs);
    if (s->reader)
        generator_unshare(s->reader);
    free(s->reader);
    keys_free(&s->keys);
    response_store_free(s->defaults.responses);
    request_free(&s->how);
    pthread_mutex_destroy(&s->notes_lock);
    if (s->listener >= 0)
        close(s->listener);
    free(s);
}
