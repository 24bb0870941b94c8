#include "server/server.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "api/response_store.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
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
    pthread_mutex_init(&s->notes_lock, NULL);
    s->responses = response_store_new(SERVER_RESPONSES, e);
    int rc = !s->responses ? ERR_MEMORY : o->key_file ? keys_read(&s->keys, o->key_file, e) : 0;
    if (!rc && o->keys)
        rc = keys_add(&s->keys, o->keys, e);
    if (!rc)
        rc = metrics_init(&s->metrics, e);
    s->has_metrics = !rc;
    if (!rc)
        rc = reading_init(&s->reading, e);
    s->has_reading = s->has_metrics && !rc;
    if (!rc)
        rc = s->listener = listener_open(o->host, o->port, s->url, sizeof s->url, e);
    if (rc < 0) {
        server_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

/* Shows how the model is opened. The pool stops evaluations by itself. */
static bool go_on(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    const struct server *s = ctx;
    bool opens = !atomic_load(&s->started) || atomic_load(&s->is_opening);
    return !opens || !s->loading.report || s->loading.report(s->loading.ctx, what, unit, done, total);
}

/* Called on a thread of the pool. */
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

/* Makes what connections read bodies with. They encode texts in their own threads, whichever job the model
 * computes. */
static int open_reader(struct server *s, struct moeflux_chat *chat, struct moeflux_err *e)
{
    const struct moeflux_progress progress = {reading_go_on, &s->reading};
    struct request_options *o = &s->reader.defaults.options;
    int rc = api_reader_open(&s->reader, chat, s->options.request, s->options.context, &progress, e);
    o->draft.no_files = true;
    o->draft.no_layer = o->draft.kind != DRAFT_MTP;
    s->reader.defaults.turns = true;
    s->reader.defaults.responses = s->responses;
    return rc;
}

/* Finds out how the model's weights are stored, for clients. */
static int describe_weights(struct server *s, struct moeflux_err *e)
{
    struct moeflux_needs needs;
    int rc = moeflux_get_needs(s->reader.info.dir, &needs, e);
    if (rc)
        return rc;
    memcpy(s->expert_format, needs.expert_formats, sizeof s->expert_format);
    memcpy(s->dense_format, needs.dense_formats, sizeof s->dense_format);
    return 0;
}

static int open_pool(struct server *s, struct moeflux_chat *chat, struct moeflux_err *e)
{
    const struct server_options *o = &s->options;
    const struct moeflux_pool_options all = {.parallel = o->parallel,
                                             .context = o->context,
                                             .most_waiting = o->most_waiting,
                                             .sequences = o->sequences,
                                             .bytes = o->state_bytes,
                                             .dir = o->state_dir,
                                             .dir_bytes = o->state_dir_bytes,
                                             .dir_files = o->state_dir_files,
                                             .warning = {o->tell, o->ctx},
                                             .lost = o->lost ? note_loss : NULL,
                                             .ctx = s};
    return moeflux_pool_open(&s->pool, chat, &all, e);
}

int server_start(struct server *s, struct moeflux_chat *chat, struct moeflux_err *e)
{
    if (!moeflux_chat_tokenizer(chat))
        return err_set(e, ERR_USAGE, "%s has no tokenizer.json, which a server needs",
                       moeflux_model_get_info(moeflux_chat_model(chat)).dir);
    s->tokenizer = moeflux_chat_tokenizer(chat);
    int rc = open_reader(s, chat, e);
    if (!rc)
        rc = describe_weights(s, e);
    atomic_store(&s->started, true);
    if (!rc)
        rc = open_pool(s, chat, e);
    if (rc)
        return rc;
    answers_count_engine(s);
    return http_start(s, e);
}

int server_await_loss(struct server *s, struct moeflux_err *e)
{
    enum { LOOK_MS = 100 };
    if (!atomic_load(&s->is_lost))
        return 0;
    /* Other devices may have copies of the model, whose answers go on. */
    while (!moeflux_pool_is_drained(s->pool, LOOK_MS))
        if (s->loading.report && !s->loading.report(s->loading.ctx, "", "", 0, 0))
            return err_set(e, ERR_INTERRUPTED, SERVER_ENDS);
    moeflux_pool_pause(s->pool);
    atomic_store(&s->is_opening, true);
    *e = s->loss;
    return ERR_LOST;
}

int server_resume(struct server *s, struct moeflux_err *e)
{
    atomic_store(&s->is_opening, false);
    atomic_store(&s->is_lost, false);
    return moeflux_pool_restart(s->pool, e);
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
    reading_close(&s->reading);
    /* Saves the conversations first: connections may take long to end. */
    moeflux_pool_end(s->pool, SERVER_ENDS, s->options.grace_s * 1000);
    wait_for_replies(s);
    http_stop(s);
}

void server_free(struct server *s)
{
    if (!s)
        return;
    if (s->daemon)
        server_stop(s);
    moeflux_pool_close(s->pool);
    if (s->has_metrics)
        metrics_free(&s->metrics);
    if (s->has_reading)
        reading_free(&s->reading);
    api_reader_close(&s->reader);
    keys_free(&s->keys);
    response_store_free(s->responses);
    pthread_mutex_destroy(&s->notes_lock);
    if (s->listener >= 0)
        close(s->listener);
    free(s);
}
