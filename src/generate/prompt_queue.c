#include "generate/prompt_queue.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "moeflux.h"

/* prompt_queue_most of models that take prompts together. */
enum { MOST_TOKENS = 256 };

/* A part on its thread's stack. */
struct waiting {
    struct batched_prompt prompt;
    bool is_done;
    int rc;
    struct moeflux_err error;
    struct waiting *next;
    pthread_cond_t changed;
};

struct prompt_queue {
    uint32_t most_prompts, most_tokens; /* of a group */
    bool takes;                         /* batched_takes_prompts */
    pthread_mutex_t lock;               /* protects the members below */
    struct waiting *first, **last;      /* the oldest first */
    bool is_busy;                       /* a group is being evaluated */
};

int prompt_queue_new(struct prompt_queue **out, struct moeflux_model *m, struct moeflux_err *e)
{
    struct prompt_queue *q = *out = mem_new(1, sizeof *q, e);
    if (!q)
        return ERR_MEMORY;
    q->takes = batched_takes_prompts(m);
    q->most_prompts = moeflux_max_batched(m);
    q->most_tokens = batched_chunk(m);
    q->last = &q->first;
    if (pthread_mutex_init(&q->lock, NULL) == 0)
        return 0;
    free(q);
    *out = NULL;
    return err_set(e, ERR_MEMORY, "out of memory for a lock");
}

void prompt_queue_free(struct prompt_queue *q)
{
    if (!q)
        return;
    pthread_mutex_destroy(&q->lock);
    free(q);
}

uint32_t prompt_queue_most(const struct prompt_queue *q)
{
    return q->takes ? MOST_TOKENS : 0;
}

bool prompt_queue_takes(const struct prompt_queue *q, const struct batched_prompt *p)
{
    return p->n <= prompt_queue_most(q) && batched_takes_prompt(p);
}

/* Takes the oldest parts that fit in an evaluation. Returns how many. The caller holds the lock. */
static uint32_t take_group(struct prompt_queue *q, struct waiting **group)
{
    uint32_t n = 0, n_tokens = 0;
    while (q->first && n < q->most_prompts && n_tokens + q->first->prompt.n <= q->most_tokens) {
        struct waiting *w = group[n++] = q->first;
        n_tokens += w->prompt.n;
        q->first = w->next;
    }
    if (!q->first)
        q->last = &q->first;
    return n;
}

/* Evaluates a group. A failure may be the fault of one part, or of a caller that stops: then each is evaluated
 * alone. */
static void eval_group(struct waiting *const *group, uint32_t n)
{
    struct batched_prompt prompts[MOEFLUX_MAX_PARALLEL];
    struct moeflux_err e = {0};
    for (uint32_t i = 0; i < n; i++)
        prompts[i] = group[i]->prompt;
    int rc = batched_feed(prompts, n, &e);
    for (uint32_t i = 0; i < n; i++) {
        group[i]->rc = rc;
        group[i]->error = e;
        if (rc && n > 1)
            group[i]->rc = batched_feed(&prompts[i], 1, &group[i]->error);
    }
}

/* Evaluates a group that begins with the caller's part. The caller holds the lock, which is released
 * meanwhile. */
static void lead(struct prompt_queue *q)
{
    struct waiting *group[MOEFLUX_MAX_PARALLEL];
    uint32_t n = take_group(q, group);
    q->is_busy = true;
    pthread_mutex_unlock(&q->lock);
    eval_group(group, n);
    pthread_mutex_lock(&q->lock);
    q->is_busy = false;
    for (uint32_t i = 0; i < n; i++) {
        group[i]->is_done = true;
        pthread_cond_signal(&group[i]->changed);
    }
    if (q->first)
        pthread_cond_signal(&q->first->changed);
}

int prompt_queue_feed(struct prompt_queue *q, const struct batched_prompt *p, struct moeflux_err *e)
{
    struct waiting w = {.prompt = *p};
    if (pthread_cond_init(&w.changed, NULL) != 0)
        return err_set(e, ERR_MEMORY, "out of memory for a lock");
    pthread_mutex_lock(&q->lock);
    *q->last = &w;
    q->last = &w.next;
    while (!w.is_done)
        if (q->first == &w && !q->is_busy)
            lead(q);
        else
            pthread_cond_wait(&w.changed, &q->lock);
    pthread_mutex_unlock(&q->lock);
    pthread_cond_destroy(&w.changed);
    if (w.rc < 0)
        *e = w.error;
    return w.rc;
}
