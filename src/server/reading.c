#include "server/reading.h"

#include "base/clock.h"
#include "base/err.h"
#include "server/http_request.h"
#include "server/state.h"

enum {
    SMALL_BODY = 64 << 10,   /* takes a few milliseconds and about 1 MB */
    MOST_READERS = 2,        /* each may take 300 MB and a core */
    MOST_BYTES = 256 << 20,  /* 16 of the largest bodies */
    LOOK_NS = 100 * 1000000, /* interval of checks whether the client has disconnected */
};

int reading_init(struct reading *r, struct moeflux_err *e)
{
    *r = (struct reading){0};
    if (pthread_mutex_init(&r->lock, NULL) != 0)
        return err_set(e, ERR_MEMORY, "out of memory for a lock");
    if (clock_init_cond(&r->freed) != 0) {
        pthread_mutex_destroy(&r->lock);
        return err_set(e, ERR_MEMORY, "out of memory for a lock");
    }
    if (pthread_key_create(&r->request, NULL) != 0) {
        pthread_cond_destroy(&r->freed);
        pthread_mutex_destroy(&r->lock);
        return err_set(e, ERR_MEMORY, "no thread-specific memory is left");
    }
    return 0;
}

void reading_free(struct reading *r)
{
    pthread_key_delete(r->request);
    pthread_cond_destroy(&r->freed);
    pthread_mutex_destroy(&r->lock);
}

bool reading_take(struct http_request *req, uint64_t n)
{
    struct reading *r = &req->server->reading;
    pthread_mutex_lock(&r->lock);
    bool fits = r->body_bytes + n <= MOST_BYTES;
    r->body_bytes += fits ? n : 0;
    pthread_mutex_unlock(&r->lock);
    req->taken_bytes += fits ? n : 0;
    return fits;
}

void reading_give(struct http_request *req)
{
    struct reading *r = &req->server->reading;
    str_free(&req->body);
    pthread_mutex_lock(&r->lock);
    r->body_bytes -= req->taken_bytes;
    pthread_mutex_unlock(&r->lock);
    req->taken_bytes = 0;
}

/* Waits a moment for a reader to end. The caller holds the lock. */
static void wait_a_moment(struct reading *r)
{
    clock_wait(&r->freed, &r->lock, LOOK_NS);
}

int reading_begin(struct http_request *req)
{
    struct reading *r = &req->server->reading;
    bool large = req->body.len > SMALL_BODY, gone = false;
    pthread_mutex_lock(&r->lock);
    while (!r->closed && !(gone = http_request_client_is_gone(req)) && large && r->n_busy == MOST_READERS)
        wait_a_moment(r);
    bool closed = r->closed;
    req->has_turn = large && !closed && !gone;
    r->n_busy += req->has_turn;
    pthread_mutex_unlock(&r->lock);
    if (closed)
        return refusal_set(&req->refusal, 503, NULL, NULL, SERVER_ENDS);
    if (gone)
        return refusal_set(&req->refusal, 503, NULL, NULL, "the client has disconnected");
    pthread_setspecific(r->request, req);
    return 0;
}

void reading_end(struct http_request *req)
{
    struct reading *r = &req->server->reading;
    pthread_setspecific(r->request, NULL);
    pthread_mutex_lock(&r->lock);
    r->n_busy -= req->has_turn;
    pthread_cond_signal(&r->freed);
    pthread_mutex_unlock(&r->lock);
    req->has_turn = false;
}

bool reading_go_on(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    struct reading *r = ctx;
    const struct http_request *req = pthread_getspecific(r->request);
    (void)what, (void)unit, (void)done, (void)total;
    if (!req)
        return true;
    pthread_mutex_lock(&r->lock);
    bool closed = r->closed;
    pthread_mutex_unlock(&r->lock);
    return !closed && !http_request_client_is_gone(req);
}

void reading_close(struct reading *r)
{
    pthread_mutex_lock(&r->lock);
    r->closed = true;
    pthread_cond_broadcast(&r->freed);
    pthread_mutex_unlock(&r->lock);
}
