#include "hub/download.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "hub/listing.h"
#include "hub/part_request.h"
#include "hub/repository.h"
#include "hub/retry.h"
#include "hub/transfer.h"

/* A part is large enough that its request costs little, and small enough that several fit in memory. */
#define PART_BYTES ((uint64_t)16 << 20)
/* How often the user is shown something, and how often a file that another program fetches is looked at. */
#define TICK_NS ((uint64_t)100000000)
#define LOOK_NS ((uint64_t)500000000)

enum state {
    STATE_NEW,
    STATE_LOCKED, /* another program has the lock */
    STATE_BEGINNING,
    STATE_OPEN,
    STATE_ENDING, /* the file is whole, and is being closed */
    STATE_DONE,
};

struct item {
    enum state state;
    uint64_t look_ns; /* STATE_LOCKED: when to try again */
    bool is_open;     /* `transfer` is to be closed */
    uint32_t n_parts; /* parts that connections fetch */
    struct transfer transfer;
};

struct download {
    const struct download_options *o;
    struct item *items;                   /* [o->n_files] */
    uint64_t present;                     /* bytes that the cache had at first */
    atomic_uint_fast64_t summed, fetched; /* bytes of these that are summed; new ones */
    atomic_bool failed;
    pthread_mutex_t lock; /* guards everything that follows, and the items' states */
    pthread_cond_t changed;
    uint32_t n_workers, n_held, n_done; /* running workers; parts in memory; items that are whole */
    bool said_locked;
    char note[700]; /* a line that the user should see; "": none */
    int rc;         /* the first failure, which `fault` explains */
    struct moeflux_err fault;
};

/* --- what threads share --- */

static bool is_stopped(void *ctx)
{
    const struct download *d = ctx;
    return atomic_load(&d->failed) || stop_is_set(&d->o->host.stop);
}

static void note(void *ctx, const char *text)
{
    struct download *d = ctx;
    pthread_mutex_lock(&d->lock);
    snprintf(d->note, sizeof d->note, "%s", text);
    pthread_mutex_unlock(&d->lock);
}

/* Keeps the first failure, which ends all workers. */
static void fail(struct download *d, int rc, const struct moeflux_err *e)
{
    pthread_mutex_lock(&d->lock);
    if (d->rc == 0) {
        d->rc = rc;
        d->fault = *e;
    }
    atomic_store(&d->failed, true);
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

static void set_state(struct download *d, struct item *item, enum state state)
{
    pthread_mutex_lock(&d->lock);
    d->n_done += state == STATE_DONE;
    item->state = state;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

/* --- the choice of work --- */

/* Whether the same bytes are being fetched under another name: they are one blob. */
static bool is_busy(const struct download *d, const struct listing_file *f)
{
    for (uint32_t i = 0; i < d->o->n_files; i++)
        if (d->items[i].state >= STATE_BEGINNING && d->items[i].state < STATE_DONE &&
            strcmp(d->o->files[i]->digest, f->digest) == 0)
            return true;
    return false;
}

/* Finds a file to begin. Called with the lock. */
static struct item *find_new(struct download *d)
{
    uint64_t now = clock_ns();
    for (uint32_t i = 0; i < d->o->n_files; i++) {
        struct item *item = &d->items[i];
        bool is_due = item->state == STATE_NEW || (item->state == STATE_LOCKED && now >= item->look_ns);
        if (is_due && !is_busy(d, d->o->files[i]))
            return item;
    }
    return NULL;
}

/* Finds the file with the fewest connections that can use another. Parts that wait for those before them
 * take memory: there are at most two for each connection. */
static struct item *find_open(struct download *d)
{
    struct item *best = NULL;
    for (uint32_t i = 0; i < d->o->n_files; i++) {
        struct item *item = &d->items[i];
        bool first;
        if (item->state != STATE_OPEN || !transfer_can_add(&item->transfer, &first) ||
            (!first && d->n_held >= 2 * d->o->parallel))
            continue;
        if (!best || item->n_parts < best->n_parts)
            best = item;
    }
    return best;
}

static bool all_done(const struct download *d)
{
    return d->n_done == d->o->n_files;
}

/* --- a worker --- */

/* Opens a file that nobody fetches. Its state is STATE_BEGINNING. */
static int begin(struct download *d, struct item *item, const struct listing_file *f, struct moeflux_err *e)
{
    struct stop stop = {is_stopped, d};
    int rc = transfer_begin(&item->transfer, d->o->repository, f, &d->summed, &stop, e);
    bool whole = rc == 1 || (rc == 0 && item->transfer.written == f->bytes);
    if (rc == 0 && whole)
        rc = transfer_finish(&item->transfer, e);
    if (rc == ERR_UNSUPPORTED) {
        transfer_close(&item->transfer);
        item->look_ns = clock_ns() + LOOK_NS;
        pthread_mutex_lock(&d->lock);
        if (!d->said_locked)
            snprintf(d->note, sizeof d->note, "%.300s: waiting for another program that fetches it", f->name);
        d->said_locked = true;
        pthread_mutex_unlock(&d->lock);
        set_state(d, item, STATE_LOCKED);
        return 0;
    }
    if (rc < 0 || whole)
        transfer_close(&item->transfer);
    else
        item->is_open = true;
    if (rc >= 0)
        set_state(d, item, whole ? STATE_DONE : STATE_OPEN);
    return rc < 0 ? rc : 0;
}

/* Fetches a part and, with the last one, ends the file. */
static int fetch(struct download *d, struct item *item, struct part *p, struct remote *remote,
                 struct moeflux_err *e)
{
    const struct download_options *o = d->o;
    const struct listing_file *f = item->transfer.file;
    struct stop stop = {is_stopped, d};
    struct retry retry = {.most = o->tries, .stop = &stop, .tell = note, .ctx = d};
    uint32_t n_freed = 0;
    struct str url = {0}, name = {0};
    str_addf(&url, "%s/%s/resolve/%s/", o->host.endpoint, o->name, o->repository->commit);
    remote_add_escaped(&url, f->name, true);
    str_addf(&name, "%s/%s", o->name, f->name);
    struct part_request q = {.remote = remote,
                             .retry = &retry,
                             .url = str_text(&url),
                             .name = str_text(&name),
                             .commit = o->repository->commit,
                             .part = p,
                             .done = &d->fetched};
    int rc = str_ok(&url) && str_ok(&name) ? part_request_run(&q, e)
                                           : err_set(e, ERR_MEMORY, "out of memory for a URL");
    if (rc == 0)
        rc = transfer_end_part(p, &n_freed, e);
    bool whole = rc == 1;
    if (whole)
        rc = transfer_finish(&item->transfer, e);
    str_free(&url);
    str_free(&name);
    pthread_mutex_lock(&d->lock);
    item->n_parts--;
    d->n_held -= n_freed;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    if (rc || !whole)
        return rc;
    set_state(d, item, STATE_ENDING); /* nobody looks at the transfer any more */
    item->is_open = false;
    transfer_close(&item->transfer);
    set_state(d, item, STATE_DONE);
    return 0;
}

/* Waits until something changes, or a locked file is to be looked at. Called with the lock. */
static void wait_for_work(struct download *d)
{
    clock_wait(&d->changed, &d->lock, LOOK_NS / 2);
}

/* Begins a part of an open file. *item: that file; NULL: none can have another. Called with the lock. */
static int add_part(struct download *d, struct item **item, struct part **p, struct moeflux_err *e)
{
    *p = NULL;
    *item = find_open(d);
    int rc = *item ? transfer_add_part(&(*item)->transfer, PART_BYTES, p, e) : 0;
    if (*p) {
        (*item)->n_parts++;
        d->n_held++;
    }
    return rc;
}

/* Does one piece of work, or waits for some. Open files come first, so that few are open at a time. Called
 * with the lock; returns with it. */
static int work_once(struct download *d, struct remote *remote, struct moeflux_err *e)
{
    struct item *item;
    struct part *p;
    int rc = add_part(d, &item, &p, e);
    if (rc)
        return rc;
    if (!p && (item = find_new(d)))
        item->state = STATE_BEGINNING;
    if (!p && !item) {
        wait_for_work(d);
        return 0;
    }
    pthread_mutex_unlock(&d->lock);
    rc = p ? fetch(d, item, p, remote, e) : begin(d, item, d->o->files[item - d->items], e);
    pthread_mutex_lock(&d->lock);
    return rc;
}

static void *work(void *ctx)
{
    struct download *d = ctx;
    struct moeflux_err e = {0};
    struct remote_host host = d->o->host;
    host.stop = (struct stop){is_stopped, d};
    struct remote *remote = remote_new(&host, &e);
    int rc = remote ? 0 : ERR_MEMORY;
    pthread_mutex_lock(&d->lock);
    while (rc == 0 && !all_done(d) && !is_stopped(d))
        rc = work_once(d, remote, &e);
    pthread_mutex_unlock(&d->lock);
    if (rc && rc != ERR_INTERRUPTED)
        fail(d, rc, &e);
    remote_free(remote);
    pthread_mutex_lock(&d->lock);
    d->n_workers--;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* --- the whole --- */

/* Shows how far the work is. Sums of what was there are a step of their own: they are faster than any
 * network, and would spoil the time that is left. */
static bool report(struct download *d, uint64_t total)
{
    uint64_t fetched = atomic_load(&d->fetched), summed = atomic_load(&d->summed);
    if (fetched == 0 && summed < d->present)
        return progress_report(&d->o->progress, "checking", "B", summed, d->present);
    return progress_report(&d->o->progress, "fetching", "B", size_min(d->present + fetched, total), total);
}

/* Shows progress until the workers have ended. Returns false if the user wants to end. */
static bool watch(struct download *d, uint64_t total)
{
    const struct download_options *o = d->o;
    bool go_on = true;
    pthread_mutex_lock(&d->lock);
    while (d->n_workers > 0) {
        char text[sizeof d->note];
        clock_wait(&d->changed, &d->lock, TICK_NS);
        memcpy(text, d->note, sizeof text);
        d->note[0] = '\0';
        pthread_mutex_unlock(&d->lock);
        if (text[0] && o->tell)
            o->tell(o->ctx, text);
        if (go_on && !report(d, total)) {
            go_on = false;
            atomic_store(&d->failed, true);
        }
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return go_on;
}

/* Starts the workers; fewer than wanted is no failure, none is. */
static int start(struct download *d, pthread_t *threads, uint32_t n, uint32_t *n_started,
                 struct moeflux_err *e)
{
    pthread_mutex_lock(&d->lock);
    for (*n_started = 0; *n_started < n; (*n_started)++) {
        if (pthread_create(&threads[*n_started], NULL, work, d))
            break;
        d->n_workers++;
    }
    pthread_mutex_unlock(&d->lock);
    return *n_started ? 0 : err_set(e, ERR_MEMORY, "no thread can be started");
}

static int run(struct download *d, uint64_t total, struct moeflux_err *e)
{
    pthread_t threads[DOWNLOAD_MAX_PARALLEL];
    uint32_t n;
    int rc = start(d, threads, d->o->parallel, &n, e);
    if (rc)
        return rc;
    bool go_on = watch(d, total);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    if (d->rc) {
        *e = d->fault;
        return d->rc;
    }
    return go_on && all_done(d) ? 0 : ERR_INTERRUPTED;
}

static uint64_t count_present(const struct repository *r, const struct listing_file *const *blobs, uint32_t n)
{
    uint64_t present = 0;
    for (uint32_t i = 0; i < n; i++)
        present += repository_count(r, blobs[i]);
    return present;
}

int download_run(const struct download_options *o, uint64_t *done_bytes, struct moeflux_err *e)
{
    struct download d = {.o = o, .items = mem_new(o->n_files, sizeof *d.items, e)};
    uint64_t total = 0;
    uint32_t n_blobs;
    const struct listing_file **blobs = d.items ? listing_blobs(o->files, o->n_files, &n_blobs, e) : NULL;
    *done_bytes = 0;
    if (!blobs) {
        free(d.items);
        return ERR_MEMORY;
    }
    for (uint32_t i = 0; i < n_blobs; i++)
        total += blobs[i]->bytes;
    d.present = count_present(o->repository, blobs, n_blobs);
    pthread_mutex_init(&d.lock, NULL);
    int rc = clock_init_cond(&d.changed) ? err_set(e, ERR_MEMORY, "no condition can be made") : 0;
    if (rc == 0) {
        rc = run(&d, total, e);
        pthread_cond_destroy(&d.changed);
    }
    for (uint32_t i = 0; i < o->n_files; i++)
        if (d.items[i].is_open)
            transfer_close(&d.items[i].transfer);
    *done_bytes = count_present(o->repository, blobs, n_blobs);
    pthread_mutex_destroy(&d.lock);
    free(d.items);
    free(blobs);
    return rc;
}

/* --- texts --- */

/* A missing network should be reported within seconds. */
enum { MAX_TEXT = 64 << 20, TEXT_TRIES = 5 };

static bool take_text(void *ctx, const struct remote_reply *reply, const char *bytes, size_t n)
{
    struct str *out = ctx;
    (void)reply;
    str_add(out, bytes, n);
    return str_ok(out) && out->len <= MAX_TEXT;
}

int download_text(const struct download_options *o, const char *path, struct str *out,
                  struct remote_reply *reply, struct moeflux_err *e)
{
    struct retry retry = {.most = (uint32_t)size_min(o->tries, TEXT_TRIES),
                          .stop = &o->host.stop,
                          .tell = o->tell,
                          .ctx = o->ctx};
    struct remote *remote = remote_new(&o->host, e);
    struct str url = {0}, shown = {0};
    str_addf(&url, "%s%s", o->host.endpoint, path);
    remote_add_shown(&shown, str_text(&url));
    struct remote_call call = {.url = str_text(&url), .take = take_text, .ctx = out};
    int rc = remote ? 0 : ERR_MEMORY;
    *reply = (struct remote_reply){0};
    for (bool again = rc == 0; again;) {
        str_clear(out);
        remote_reply_free(reply);
        rc = remote_get(remote, &call, reply, e);
        if (rc == 0 && stop_is_set(&o->host.stop))
            rc = ERR_INTERRUPTED;
        if (rc == 0 && (!str_ok(out) || out->len > MAX_TEXT))
            rc = err_set(e, ERR_FORMAT, "%s: the reply is longer than %d bytes", str_text(&shown), MAX_TEXT);
        again = rc == 0 && retry_may_help(reply);
        if (again)
            rc = retry_wait(&retry, reply, str_text(&shown), e);
        again = again && rc == 0;
    }
    if (rc == 0 && reply->cut)
        rc = err_set(e, ERR_IO, "%s: %s", str_text(&shown), reply->fault);
    remote_free(remote);
    str_free(&url);
    str_free(&shown);
    return rc;
}
