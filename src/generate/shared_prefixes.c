#include "generate/shared_prefixes.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "moeflux.h"

/* A batch has one system text, a server has those of its clients. With recurrent layers each costs the memory
 * of a recurrent state. */
enum { MOST = 4 };

struct beginning {
    int32_t *ids; /* [n]; NULL: the entry is free */
    uint32_t n;
    struct moeflux_session *session; /* NULL: it is being computed */
    uint32_t n_users;                /* callers that read the session now */
    uint64_t last_use;
};

struct shared_prefixes {
    struct moeflux_model *model;
    uint32_t max_context;
    pthread_mutex_t lock; /* protects the members below */
    pthread_cond_t changed;
    struct beginning items[MOST];
    uint64_t clock;
};

int shared_prefixes_new(struct shared_prefixes **out, struct moeflux_model *m, uint32_t max_context,
                        struct moeflux_err *e)
{
    struct shared_prefixes *q = *out = mem_new(1, sizeof *q, e);
    if (!q)
        return ERR_MEMORY;
    q->model = m;
    q->max_context = max_context;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    return 0;
}

static void drop(struct beginning *x)
{
    moeflux_session_free(x->session);
    free(x->ids);
    *x = (struct beginning){0};
}

void shared_prefixes_free(struct shared_prefixes *q)
{
    if (!q)
        return;
    for (uint32_t i = 0; i < MOST; i++)
        drop(&q->items[i]);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

/* ---- the caller holds the lock ---- */

static struct beginning *find(struct shared_prefixes *q, const int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < MOST; i++) {
        struct beginning *x = &q->items[i];
        if (x->ids && x->n == n && memcmp(x->ids, ids, n * sizeof *ids) == 0)
            return x;
    }
    return NULL;
}

static struct beginning *find_oldest(struct shared_prefixes *q)
{
    struct beginning *oldest = NULL;
    for (uint32_t i = 0; i < MOST; i++) {
        struct beginning *x = &q->items[i];
        if (x->session && x->n_users == 0 && (!oldest || x->last_use < oldest->last_use))
            oldest = x;
    }
    return oldest;
}

/* Enters the tokens as being computed. False: there is no room. */
static bool begin(struct shared_prefixes *q, const int32_t *ids, uint32_t n)
{
    struct beginning *x = NULL;
    for (uint32_t i = 0; !x && i < MOST; i++)
        x = q->items[i].ids ? NULL : &q->items[i];
    x = x ? x : find_oldest(q);
    int32_t *own = x ? malloc(n * sizeof *own) : NULL;
    if (!own)
        return false;
    memcpy(own, ids, n * sizeof *own);
    drop(x);
    *x = (struct beginning){.ids = own, .n = n};
    return true;
}

/* ---- */

int shared_prefixes_take(struct shared_prefixes *q, struct moeflux_session *s, const int32_t *ids, uint32_t n,
                         bool may_hold, enum shared_prefix *found, struct moeflux_err *e)
{
    struct beginning *x;
    pthread_mutex_lock(&q->lock);
    while ((x = find(q, ids, n)) && !x->session)
        pthread_cond_wait(&q->changed, &q->lock);
    if (x) {
        x->n_users++;
        x->last_use = ++q->clock;
        *found = SHARED_PREFIX_HELD;
    } else {
        *found = may_hold && begin(q, ids, n) ? SHARED_PREFIX_OURS : SHARED_PREFIX_NONE;
    }
    pthread_mutex_unlock(&q->lock);
    if (!x)
        return 0;
    int rc = moeflux_session_fork(s, x->session, n, e);
    pthread_mutex_lock(&q->lock);
    x->n_users--;
    pthread_mutex_unlock(&q->lock);
    return rc;
}

static void end(struct shared_prefixes *q, struct moeflux_session *held, const int32_t *ids, uint32_t n)
{
    pthread_mutex_lock(&q->lock);
    struct beginning *x = find(q, ids, n);
    x->session = held;
    x->last_use = ++q->clock;
    if (!held)
        drop(x);
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

void shared_prefixes_give(struct shared_prefixes *q, struct moeflux_session *s, const int32_t *ids,
                          uint32_t n)
{
    struct moeflux_session *held;
    struct moeflux_err ignored;
    int rc = moeflux_session_new(&held, q->model, q->max_context, &ignored);
    if (!rc && moeflux_session_fork(held, s, n, &ignored)) {
        moeflux_session_free(held);
        held = NULL;
    }
    end(q, held, ids, n);
}

void shared_prefixes_give_up(struct shared_prefixes *q, const int32_t *ids, uint32_t n)
{
    end(q, NULL, ids, n);
}

bool shared_prefixes_shrink(struct shared_prefixes *q)
{
    pthread_mutex_lock(&q->lock);
    struct beginning *x = find_oldest(q);
    if (x)
        drop(x);
    pthread_mutex_unlock(&q->lock);
    return x != NULL;
}
