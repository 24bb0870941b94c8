#include "generate/jobs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "generate/prefix.h"

/* A wait of some milliseconds, or without end. */
struct wait {
    struct timespec until;
    bool is_endless, is_over;
};

static struct wait begin_wait(uint32_t ms)
{
    return (struct wait){clock_timespec(clock_ns() + (uint64_t)ms * 1000000), ms == UINT32_MAX, false};
}

/* Waits for the condition. The caller holds the lock. */
static void wait_for(struct wait *w, struct jobs *q, pthread_cond_t *changed)
{
    int rc = w->is_endless ? pthread_cond_wait(changed, &q->lock)
                           : pthread_cond_timedwait(changed, &q->lock, &w->until);
    w->is_over = rc == ETIMEDOUT;
}

int jobs_init(struct jobs *q, uint32_t most_waiting, struct moeflux_err *e)
{
    *q = (struct jobs){.lock = PTHREAD_MUTEX_INITIALIZER, .most_waiting = most_waiting};
    if (clock_init_cond(&q->more) != 0)
        return err_set(e, ERR_MEMORY, "out of memory for a lock");
    q->most_running = UINT32_MAX;
    return 0;
}

void jobs_free(struct jobs *q)
{
    if (q->most_running)
        pthread_cond_destroy(&q->more);
    *q = (struct jobs){0};
}

struct moeflux_job *jobs_new(uint32_t n, struct moeflux_err *e)
{
    struct moeflux_job *j = mem_new(1, sizeof *j, e);
    if (!j)
        return NULL;
    j->choices = mem_new(n, sizeof *j->choices, e);
    if (j->choices && clock_init_cond(&j->changed) != 0)
        err_set(e, ERR_MEMORY, "out of memory for a lock");
    else if (j->choices) {
        j->n = n;
        j->copy = JOBS_NO_COPY;
        return j;
    }
    free(j->choices);
    free(j);
    return NULL;
}

/* Returns how many of the waiting jobs idle workers are about to take. Called with the lock. */
static uint32_t n_soon(const struct jobs *q)
{
    uint32_t n = 0, most = q->most_running > q->n_running ? q->most_running - q->n_running : 0;
    for (uint32_t i = 0; i < MOEFLUX_MAX_DEVICES; i++)
        n += q->groups[i].n_idle;
    return (uint32_t)size_min(n, most);
}

/* Returns how many requests wait when idle workers have taken what they are about to: one that waits for a
 * worker for any of its answers. Jobs of a request are consecutive. Called with the lock. */
static uint32_t n_requests(const struct jobs *q)
{
    const struct moeflux_job *j = q->first, *last = NULL;
    uint32_t n = 0;
    for (uint32_t soon = n_soon(q); j && soon > 0; soon--)
        j = j->next;
    for (; j; last = j, j = j->next)
        n += !last || last->call != j->call;
    return n;
}

/* Puts a job after those that wait with the same priority. The caller holds the lock. */
static void insert(struct jobs *q, struct moeflux_job *j)
{
    struct moeflux_job **at = &q->first;
    if (q->last && q->last->options.priority <= j->options.priority)
        at = &q->last->next;
    while (*at && (*at)->options.priority <= j->options.priority)
        at = &(*at)->next;
    j->next = *at;
    *at = j;
    if (!j->next)
        q->last = j;
}

int jobs_add(struct jobs *q, struct moeflux_job *const *list, size_t n, struct moeflux_err *e)
{
    uint32_t n_wait;
    int rc = 0;
    pthread_mutex_lock(&q->lock);
    if (q->closed)
        rc = err_set(e, ERR_INTERRUPTED, "%s", q->closed);
    else if (q->most_waiting < UINT32_MAX && (n_wait = n_requests(q)) >= q->most_waiting)
        rc = err_set(e, ERR_NO_FIT, "%u %s already, the most that may", n_wait,
                     n_wait == 1 ? "request waits" : "requests wait");
    q->n_calls += !rc;
    for (size_t i = 0; !rc && i < n; i++) {
        struct moeflux_job *j = list[i];
        j->state = JOB_WAITING;
        j->call = q->n_calls;
        insert(q, j);
        q->n_waiting++;
    }
    pthread_cond_broadcast(&q->more);
    pthread_mutex_unlock(&q->lock);
    return rc;
}

/* Returns whether this group is the one with an idle worker that has the fewest jobs. Of equal ones the first
 * counts, so that a single conversation stays on one copy. */
static bool has_fewest(const struct jobs *q, uint32_t group)
{
    uint32_t own = q->groups[group].n_running;
    for (uint32_t i = 0; i < MOEFLUX_MAX_DEVICES; i++) {
        const struct jobs_group *g = &q->groups[i];
        if (i != group && g->n_idle > 0 && (g->n_running < own || (g->n_running == own && i < group)))
            return false;
    }
    return true;
}

/* Returns whether the first job waits for the copy that has its prompt. Evaluating the prompt again on
 * another copy costs about as much as one more job there. It is not worth more than that: all prompts with
 * a common prefix would go to one copy. */
static bool goes_to_copy(const struct jobs *q)
{
    uint32_t copy = q->first->copy, fewest = UINT32_MAX;
    if (copy == JOBS_NO_COPY || q->groups[copy].n_running >= q->groups[copy].n_workers)
        return false;
    for (uint32_t i = 0; i < MOEFLUX_MAX_DEVICES; i++)
        if (q->groups[i].n_workers > 0 && q->groups[i].n_running < fewest)
            fewest = q->groups[i].n_running;
    return q->groups[copy].n_running <= fewest + 1;
}

/* Returns whether this group takes the first job. */
static bool is_next(const struct jobs *q, uint32_t group)
{
    return goes_to_copy(q) ? group == q->first->copy : has_fewest(q, group);
}

void jobs_add_worker(struct jobs *q, uint32_t group)
{
    pthread_mutex_lock(&q->lock);
    q->groups[group].n_workers++;
    pthread_mutex_unlock(&q->lock);
}

/* Moves the first waiting job to those that run. The caller holds the lock. */
static struct moeflux_job *start_first(struct jobs *q, uint32_t group)
{
    struct moeflux_job *j = q->first;
    if (!j)
        return NULL;
    q->first = j->next;
    if (!q->first)
        q->last = NULL;
    for (struct moeflux_job *other = q->running; other; other = other->next)
        other->was_alone = false;
    j->was_alone = !q->running;
    j->next = q->running;
    q->running = j;
    j->state = JOB_RUNNING;
    j->group = group;
    q->groups[group].n_running++;
    q->n_waiting--;
    q->n_running++;
    return j;
}

struct moeflux_job *jobs_take(struct jobs *q, uint32_t group)
{
    pthread_mutex_lock(&q->lock);
    q->groups[group].n_idle++;
    while (!q->closed && !q->is_paused && !(q->first && q->n_running < q->most_running && is_next(q, group)))
        pthread_cond_wait(&q->more, &q->lock);
    q->groups[group].n_idle--;
    struct moeflux_job *j = q->is_paused ? NULL : start_first(q, group);
    /* The next job may belong to another group. */
    if (j)
        pthread_cond_broadcast(&q->more);
    pthread_mutex_unlock(&q->lock);
    return j;
}

/* A copy of a piece. */
struct job_piece {
    struct job_piece *next;
    uint32_t idx;               /* the request's number */
    struct moeflux_piece piece; /* points to what follows */
    struct moeflux_call call;   /* without arguments: they come as texts */
    /* [1 + n_logprobs], if there are any; then the text, and the call's id and name with their NULs */
    struct moeflux_logprob logprobs[];
};

static struct job_piece *copy_piece(const struct moeflux_piece *p, struct moeflux_err *e)
{
    size_t n = p->logprobs ? 1 + (size_t)p->n_logprobs : 0;
    size_t n_id = p->call ? strlen(p->call->id) + 1 : 0, n_name = p->call ? strlen(p->call->name) + 1 : 0;
    struct job_piece *own = mem_new(1, sizeof *own + n * sizeof *own->logprobs + p->len + n_id + n_name, e);
    if (!own)
        return NULL;
    char *at = (char *)(own->logprobs + n);
    own->piece = *p;
    own->piece.text = at;
    if (n)
        memcpy(own->logprobs, p->logprobs, n * sizeof *own->logprobs);
    own->piece.logprobs = n ? own->logprobs : NULL;
    if (p->len)
        memcpy(at, p->text, p->len);
    if (p->call) {
        own->piece.call = &own->call;
        own->call = (struct moeflux_call){.id = memcpy(at + p->len, p->call->id, n_id),
                                          .name = memcpy(at + p->len + n_id, p->call->name, n_name),
                                          .arguments = "",
                                          .is_cut = p->call->is_cut};
    }
    return own;
}

int jobs_give(struct jobs *q, struct moeflux_job *j, const struct moeflux_piece *piece, struct moeflux_err *e)
{
    struct job_piece *p = copy_piece(piece, e);
    if (!p)
        return ERR_MEMORY;
    p->idx = j->at;
    pthread_mutex_lock(&q->lock);
    if (j->last)
        j->last->next = p;
    else
        j->first = p;
    j->last = p;
    pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&q->lock);
    return 0;
}

/* The caller holds the lock, or is the only one who has the job. */
static void free_pieces(struct moeflux_job *j)
{
    for (struct job_piece *p = j->first, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    j->first = j->last = NULL;
}

/* Removes a running job from those that run. The caller holds the lock. */
static void unlink_running(struct jobs *q, const struct moeflux_job *j)
{
    struct moeflux_job **at = &q->running;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    q->n_running--;
    q->groups[j->group].n_running--;
}

/* Returns the longest common prefix with the jobs of a list, up to `most` if none has more. */
static uint32_t common_with(const struct moeflux_job *list, const struct moeflux_job *j, uint32_t most)
{
    const struct token_list *own = &j->choices[0]->request.tokens;
    for (const struct moeflux_job *x = list; x; x = x->next) {
        const struct token_list *other = &x->choices[0]->request.tokens;
        uint32_t same = prefix_common(own->ids, own->n, other->ids, other->n);
        if (same > most && same < own->n)
            most = same;
    }
    return most;
}

uint32_t jobs_common(struct jobs *q, const struct moeflux_job *j)
{
    pthread_mutex_lock(&q->lock);
    uint32_t most = common_with(q->running, j, common_with(q->first, j, 0));
    pthread_mutex_unlock(&q->lock);
    return most;
}

void jobs_finish(struct jobs *q, struct moeflux_job *j)
{
    pthread_mutex_lock(&q->lock);
    unlink_running(q, j);
    j->state = JOB_DONE;
    q->n_ended++;
    /* The jobs that took the memory end, so the limit must not stay. One that is tried too early costs the
     * evaluation of a part of its prompt. */
    if (q->most_running < UINT32_MAX && ++q->n_fitted >= q->most_running) {
        q->most_running++;
        q->n_fitted = 0;
    }
    /* The connection may free the job as soon as the lock is released. */
    pthread_cond_broadcast(&j->changed);
    pthread_cond_broadcast(&q->more);
    pthread_mutex_unlock(&q->lock);
}

bool jobs_put_back(struct jobs *q, struct moeflux_job *j, bool freed)
{
    pthread_mutex_lock(&q->lock);
    bool may = (freed || !j->was_alone) && !q->closed;
    if (may) {
        unlink_running(q, j);
        free_pieces(j);
        j->state = JOB_WAITING;
        j->next = q->first;
        q->first = j;
        if (!q->last)
            q->last = j;
        q->n_waiting++;
        q->most_running = q->n_running ? q->n_running : 1;
        q->n_fitted = 0;
        pthread_cond_broadcast(&j->changed);
        pthread_cond_broadcast(&q->more);
    }
    pthread_mutex_unlock(&q->lock);
    return may;
}

const struct choice_result *jobs_result(const struct moeflux_job *j)
{
    uint32_t i = 0;
    while (i + 1 < j->n && !j->choices[i]->result.rc)
        i++;
    return &j->choices[i]->result;
}

uint64_t jobs_await(struct jobs *q, uint64_t seen, uint32_t ms)
{
    struct wait w = begin_wait(ms);
    pthread_mutex_lock(&q->lock);
    while (q->n_ended == seen && !w.is_over)
        wait_for(&w, q, &q->more);
    seen = q->n_ended;
    pthread_mutex_unlock(&q->lock);
    return seen;
}

bool jobs_wait(struct jobs *q, struct moeflux_job *j, uint32_t ms)
{
    struct wait w = begin_wait(ms);
    pthread_mutex_lock(&q->lock);
    while (j->state != JOB_DONE && !w.is_over)
        wait_for(&w, q, &j->changed);
    bool is = j->state == JOB_DONE;
    pthread_mutex_unlock(&q->lock);
    return is;
}

bool jobs_read(struct jobs *q, struct moeflux_job *j, uint32_t ms,
               void (*take)(void *ctx, uint32_t idx, const struct moeflux_piece *p), void *ctx)
{
    struct wait w = begin_wait(ms);
    pthread_mutex_lock(&q->lock);
    while (!j->first && j->state != JOB_DONE && !w.is_over)
        wait_for(&w, q, &j->changed);
    struct job_piece *p = j->first;
    j->first = j->last = NULL;
    bool done = j->state == JOB_DONE;
    pthread_mutex_unlock(&q->lock);
    for (struct job_piece *next; p; p = next) {
        next = p->next;
        take(ctx, p->idx, &p->piece);
        free(p);
    }
    return done;
}

/* Removes a waiting job. The caller holds the lock. */
static void unlink_waiting(struct jobs *q, struct moeflux_job *j)
{
    struct moeflux_job *before = NULL;
    for (struct moeflux_job *x = q->first; x != j; x = x->next)
        before = x;
    if (before)
        before->next = j->next;
    else
        q->first = j->next;
    if (q->last == j)
        q->last = before;
    q->n_waiting--;
}

void jobs_release(struct jobs *q, struct moeflux_job *j)
{
    if (!j)
        return;
    atomic_store(&j->cancelled, true);
    pthread_mutex_lock(&q->lock);
    while (j->state == JOB_RUNNING)
        pthread_cond_wait(&j->changed, &q->lock);
    if (j->state == JOB_WAITING)
        unlink_waiting(q, j);
    pthread_mutex_unlock(&q->lock);
    free_pieces(j);
    for (uint32_t i = 0; j->answers && i < j->n; i++)
        moeflux_answer_free(j->answers[i]);
    pthread_cond_destroy(&j->changed);
    free(j->answers);
    free(j->choices);
    free(j);
}

/* The caller holds the lock. */
static void fail(struct jobs *q, struct moeflux_job *j, const char *why)
{
    struct choice_result *r = &j->choices[0]->result;
    r->rc = err_set(&r->error, ERR_INTERRUPTED, "%s", why);
    j->state = JOB_DONE;
    q->n_ended++;
    pthread_cond_broadcast(&j->changed);
    pthread_cond_broadcast(&q->more);
}

void jobs_fail(struct jobs *q, struct moeflux_job *j, const char *why)
{
    pthread_mutex_lock(&q->lock);
    fail(q, j, why);
    pthread_mutex_unlock(&q->lock);
}

void jobs_close(struct jobs *q, const char *why)
{
    pthread_mutex_lock(&q->lock);
    q->closed = why;
    while (q->first) {
        struct moeflux_job *j = q->first;
        unlink_waiting(q, j);
        fail(q, j, why);
    }
    pthread_cond_broadcast(&q->more);
    pthread_mutex_unlock(&q->lock);
}

static void set_paused(struct jobs *q, bool on)
{
    pthread_mutex_lock(&q->lock);
    q->is_paused = on;
    pthread_cond_broadcast(&q->more);
    pthread_mutex_unlock(&q->lock);
}

void jobs_pause(struct jobs *q)
{
    set_paused(q, true);
}

void jobs_resume(struct jobs *q)
{
    set_paused(q, false);
}

bool jobs_drained(struct jobs *q, uint32_t ms)
{
    struct wait w = begin_wait(ms);
    pthread_mutex_lock(&q->lock);
    while (q->n_running && !w.is_over)
        wait_for(&w, q, &q->more);
    bool none = q->n_running == 0;
    pthread_mutex_unlock(&q->lock);
    return none;
}

void jobs_count(struct jobs *q, uint32_t *n_waiting, uint32_t *n_running)
{
    pthread_mutex_lock(&q->lock);
    *n_waiting = q->n_waiting;
    *n_running = q->n_running;
    pthread_mutex_unlock(&q->lock);
}
