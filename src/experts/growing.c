#include "experts/growing.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "experts/slots.h"

struct growing {
    struct slots *slots;
    uint32_t n_all;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t asked, grown;
    uint32_t n_asked, n_there; /* chunks that were requested, that have memory */
    bool stopping;
    bool refused; /* the system has no more memory of this kind: no more chunks come */
};

static void *grow(void *arg)
{
    struct growing *g = arg;
    pthread_mutex_lock(&g->lock);
    while (!g->stopping && !g->refused && g->n_there < g->n_all) {
        if (g->n_there >= g->n_asked) {
            pthread_cond_wait(&g->asked, &g->lock);
            continue;
        }
        pthread_mutex_unlock(&g->lock);
        int rc = slots_allocate(g->slots, NULL);
        pthread_mutex_lock(&g->lock);
        g->n_there += rc == 0;
        g->refused = rc < 0;
        pthread_cond_signal(&g->grown);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

struct growing *growing_new(struct slots *s, struct moeflux_err *e)
{
    struct growing *g = mem_new(1, sizeof *g, e);
    if (!g)
        return NULL;
    *g = (struct growing){
        .slots = s, .n_all = slots_all_chunks(s), .n_asked = s->n_chunks, .n_there = s->n_chunks};
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->asked, NULL);
    pthread_cond_init(&g->grown, NULL);
    if (pthread_create(&g->thread, NULL, grow, g) == 0)
        return g;
    err_set(e, ERR_MEMORY, "the thread that allocates host memory could not be started");
    pthread_cond_destroy(&g->grown);
    pthread_cond_destroy(&g->asked);
    pthread_mutex_destroy(&g->lock);
    free(g);
    return NULL;
}

void growing_free(struct growing *g)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    g->stopping = true;
    pthread_cond_signal(&g->asked);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->thread, NULL);
    pthread_cond_destroy(&g->grown);
    pthread_cond_destroy(&g->asked);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

void growing_request(struct growing *g, uint32_t n)
{
    pthread_mutex_lock(&g->lock);
    if (g->n_asked < g->slots->n_chunks + n) {
        g->n_asked = g->slots->n_chunks + n;
        pthread_cond_signal(&g->asked);
    }
    pthread_mutex_unlock(&g->lock);
}

bool growing_has_more(struct growing *g)
{
    pthread_mutex_lock(&g->lock);
    bool goes_on = !g->refused && g->slots->n_chunks < g->n_all;
    pthread_mutex_unlock(&g->lock);
    return goes_on;
}

/* Takes allocated chunks into use. The lock is held. */
static uint32_t take(struct growing *g)
{
    uint32_t n = 0;
    while (g->slots->n_chunks < g->n_there)
        n += slots_adopt(g->slots);
    return n;
}

uint32_t growing_take(struct growing *g)
{
    pthread_mutex_lock(&g->lock);
    uint32_t n = take(g);
    pthread_mutex_unlock(&g->lock);
    return n;
}

uint32_t growing_await(struct growing *g)
{
    pthread_mutex_lock(&g->lock);
    while (!g->refused && g->n_there == g->slots->n_chunks && g->n_there < g->n_asked &&
           g->n_there < g->n_all)
        pthread_cond_wait(&g->grown, &g->lock);
    uint32_t n = take(g);
    pthread_mutex_unlock(&g->lock);
    return n;
}
