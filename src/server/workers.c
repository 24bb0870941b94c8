#include "server/workers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "api/choice.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "generate/answer.h"
#include "generate/batcher.h"
#include "generate/constrain.h"
#include "generate/generator.h"
#include "generate/prefill.h"
#include "generate/sequences.h"
#include "server/jobs.h"
#include "server/metrics.h"
#include "text/grammar/constraint.h"

struct worker {
    struct workers *all;
    struct copy *copy;
    pthread_t thread;
    struct generator generator;
    struct batcher_slot slot;
    struct job *job;
    uint32_t parting; /* tokens that the job's prompt has in common with another prompt; 0: none are known */
    struct constrain_ahead constraint; /* the constraint of the job's answer */
};

/* What the workers of one copy of the model share. */
struct copy {
    struct batcher *batcher;
    pthread_mutex_t lock; /* protects the sequences */
    bool has_lock;
    struct sequences *sequences;
};

struct workers {
    uint32_t n, n_started, n_copies;
    struct worker *each; /* [n] */
    struct copy copies[MOEFLUX_MAX_DEVICES];
    struct jobs *jobs;
    struct metrics *metrics;
    const struct generator *generator;
    pthread_key_t self; /* the worker of the calling thread */
    atomic_bool interrupted;
    _Atomic(uint64_t) told_ns; /* last update of the metrics */
};

struct workers *workers_new(uint32_t n, struct jobs *jobs, struct metrics *metrics, struct moeflux_err *e)
{
    struct workers *w = mem_new(1, sizeof *w, e);
    if (!w)
        return NULL;
    w->n = n;
    w->jobs = jobs;
    w->metrics = metrics;
    w->each = mem_new(n, sizeof *w->each, e);
    if (w->each && pthread_key_create(&w->self, NULL) == 0)
        return w;
    if (w->each)
        err_set(e, ERR_MEMORY, "no thread-specific memory is left");
    free(w->each);
    free(w);
    return NULL;
}

void workers_free(struct workers *w)
{
    if (!w)
        return;
    for (uint32_t i = 0; i < w->n_copies; i++) {
        batcher_free(w->copies[i].batcher);
        if (w->copies[i].has_lock)
            pthread_mutex_destroy(&w->copies[i].lock);
    }
    pthread_key_delete(w->self);
    free(w->each);
    free(w);
}

/* Returns whether a client waits for what the thread computes: its own answer, or a group of tokens. */
static bool is_wanted(const struct worker *k)
{
    bool is = k->slot.n_group == 0 && k->job && !atomic_load(&k->job->cancelled);
    for (uint32_t i = 0; i < k->slot.n_group; i++) {
        const struct worker *other = k->slot.group[i]->owner;
        is = is || !atomic_load(&other->job->cancelled);
    }
    return is;
}

bool workers_go_on(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    struct workers *w = ctx;
    const struct worker *k = pthread_getspecific(w->self);
    (void)what, (void)unit, (void)done, (void)total;
    return !k || (!atomic_load(&w->interrupted) && is_wanted(k));
}

/* ---- which copy ---- */

uint32_t workers_find_holder(struct workers *w, const struct choice *choice)
{
    enum { WORTH_IT = 32 }; /* tokens more than on other copies: fewer are evaluated in no time */
    const struct token_list *t = &choice->request.tokens;
    uint32_t holder = JOBS_NO_HOLDER, most = 0, second = 0;
    for (uint32_t i = 0; w->n_copies > 1 && !choice->score && i < w->n_copies; i++) {
        struct copy *c = &w->copies[i];
        pthread_mutex_lock(&c->lock);
        uint32_t here = c->sequences ? sequences_usable(c->sequences, t->ids, (uint32_t)t->n) : 0;
        pthread_mutex_unlock(&c->lock);
        if (here > most) {
            second = most;
            most = here;
            holder = i;
        } else if (here > second) {
            second = here;
        }
    }
    return most >= second + WORTH_IT ? holder : JOBS_NO_HOLDER;
}

/* ---- metrics ---- */

static void tell_metrics(struct workers *w)
{
    struct moeflux_stats stats;
    struct sequences_counts all = {0};
    for (uint32_t i = 0; i < w->n_copies; i++) {
        struct copy *c = &w->copies[i];
        pthread_mutex_lock(&c->lock);
        const struct sequences_counts counts = sequences_count(c->sequences);
        pthread_mutex_unlock(&c->lock);
        all.n += counts.n;
        all.n_used += counts.n_used;
        all.n_saved += counts.n_saved;
        all.bytes += counts.bytes;
        all.dir_bytes += counts.dir_bytes;
        all.n_loads += counts.n_loads;
        all.n_saves += counts.n_saves;
    }
    generator_get_stats(w->generator, &stats);
    metrics_engine(w->metrics, &stats, &all);
}

/* Updates the metrics several times a second, on whichever worker calls it. */
static void tell_metrics_sometimes(struct workers *w)
{
    const uint64_t often = 200000000;
    uint64_t now = clock_ns(), told = atomic_load(&w->told_ns);
    if (now - told > often && atomic_compare_exchange_strong(&w->told_ns, &told, now))
        tell_metrics(w);
}

/* ---- a job ---- */

static int give_piece(void *ctx, const struct answer_piece *p, struct moeflux_err *e)
{
    struct worker *k = ctx;
    int rc = jobs_give(k->all->jobs, k->job, p, e);
    if (p->id < 0)
        return rc;
    if (k->job->choice->result.n_answered++ == 0)
        metrics_first_token(k->all->metrics, clock_ns() - k->job->added_ns);
    tell_metrics_sometimes(k->all);
    return rc;
}

/* Adds a stop where the prompt parts from others with the same beginning, such as a document with other
 * questions. Later ones will part there, too. */
static void stop_at_parting(struct prefix_stops *stops, uint32_t parting, uint32_t n_reused)
{
    enum { WORTH_IT = 64 }; /* tokens; an evaluation costs more than fewer of them */
    if (parting >= n_reused + WORTH_IT)
        prefix_stop_at(stops, parting, WORTH_IT / 8);
}

static int prefill(struct worker *k, struct moeflux_err *e)
{
    struct choice *c = k->job->choice;
    const struct sampler_options sampling = request_sampling(&c->request.options, c->seed);
    struct prefill p = {.ids = c->request.tokens.ids,
                        .n = (uint32_t)c->request.tokens.n,
                        .sampling = &sampling,
                        .stops = c->stops,
                        .passes_last = true};
    int rc = prefill_begin(&k->generator, &p, &c->result.n_reused, e);
    stop_at_parting(&p.stops, k->parting, c->result.n_reused);
    return rc ? rc : prefill_run(&k->generator, &p, NULL, e);
}

static bool shrink(struct copy *c)
{
    pthread_mutex_lock(&c->lock);
    bool shrunk = sequences_shrink(c->sequences);
    pthread_mutex_unlock(&c->lock);
    return shrunk;
}

/* Evaluates the prompt; frees memory of idle sequences if there is too little. */
static int prefill_somehow(struct worker *k, struct moeflux_err *e)
{
    int rc = prefill(k, e);
    while (rc == ERR_NO_FIT && shrink(k->copy))
        rc = prefill(k, e);
    return rc;
}

static int take_sequence(struct worker *k, struct moeflux_err *e)
{
    const struct job *j = k->job;
    const struct token_list *prompt = &j->choice->request.tokens;
    struct copy *c = k->copy;
    struct moeflux_session **s = &k->generator.sequence;
    uint32_t with_jobs = jobs_common(k->all->jobs, j);
    pthread_mutex_lock(&c->lock);
    uint32_t with_idle = sequences_common(c->sequences, prompt->ids, (uint32_t)prompt->n);
    k->parting = with_jobs > with_idle ? with_jobs : with_idle;
    int rc = j->choice->score ? sequences_take_empty(c->sequences, s, e)
                              : sequences_take(c->sequences, prompt->ids, (uint32_t)prompt->n,
                                               j->choice->stops.n_shared, s, e);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static void put_sequence(struct worker *k)
{
    pthread_mutex_lock(&k->copy->lock);
    sequences_put(k->copy->sequences, k->generator.sequence);
    pthread_mutex_unlock(&k->copy->lock);
    k->generator.sequence = NULL;
}

static int answer(struct worker *k, struct answer *a, struct moeflux_err *e)
{
    struct generator *g = &k->generator;
    struct job *j = k->job;
    const struct request_options *o = &j->choice->request.options;
    struct answer_options ao = request_answer(o);
    ao.sink = (struct answer_sink){give_piece, k};
    int rc = take_sequence(k, e);
    if (rc)
        return rc;
    /* All workers use the grammars that the first one keeps. */
    request_constrain_ahead(o, &k->all->each[0].generator, &k->constraint);
    if (!o->raw)
        rc = generator_use_chat(g, request_reasoning(o), "a request", e);
    if (!rc)
        rc = j->choice->score ? choice_score(j->choice, g, e) : prefill_somehow(k, e);
    int made = constrain_await(&k->constraint, &ao.constraint, rc ? NULL : e);
    rc = rc ? rc : made;
    if (!rc)
        rc = batcher_answer(&k->slot, a, g, &ao, e);
    constraint_free(ao.constraint);
    put_sequence(k);
    return rc;
}

/* Makes an answer that the end of the server cut off before its first token an error, so that the client can
 * ask again: an empty answer would look like the model's. With tokens it stays an answer. */
static void refuse_unanswered(const struct answer *a, struct choice_result *r)
{
    bool interrupted = r->rc == ERR_INTERRUPTED || (r->rc == 0 && a->stop == ANSWER_INTERRUPTED);
    if (interrupted && r->n_answered == 0)
        r->rc = err_set(&r->error, ERR_INTERRUPTED, "the server is shutting down");
}

static void run(struct worker *k, struct job *j)
{
    struct choice_result *r = &j->choice->result;
    struct answer a = {0};
    k->job = j;
    r->rc = answer(k, &a, &r->error);
    r->stop = a.stop;
    r->stop_text = a.stop_text;
    refuse_unanswered(&a, r);
    tell_metrics(k->all);
    struct metrics_job counted = {
        .n_prompt = (uint32_t)j->choice->request.tokens.n,
        .n_cached = r->n_reused,
        .n_answered = r->n_answered,
        .decode_ns = a.decode_ns,
        .cancelled = atomic_load(&j->cancelled),
        .failed = r->rc && r->rc != ERR_INTERRUPTED,
    };
    metrics_job(k->all->metrics, &counted);
    answer_free(&a);
    k->job = NULL;
    jobs_finish(k->all->jobs, j);
}

static void *work(void *ctx)
{
    struct worker *k = ctx;
    pthread_setspecific(k->all->self, k);
    for (struct job *j; (j = jobs_take(k->all->jobs, (uint32_t)(k->copy - k->all->copies)));)
        run(k, j);
    return NULL;
}

/* ---- all of them ---- */

static int make_copies(struct workers *w, const struct generator *g, struct sequences *const *sequences,
                       struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t n = w->n_copies = 0; !rc && n <= g->n_copies; n++) {
        struct copy *c = &w->copies[n];
        c->sequences = sequences[n];
        c->has_lock = pthread_mutex_init(&c->lock, NULL) == 0;
        rc = c->has_lock ? batcher_new(&c->batcher, generator_copy(g, n), e)
                         : err_set(e, ERR_MEMORY, "out of memory for a lock");
        w->n_copies++;
    }
    return rc;
}

static int make_worker(struct workers *w, uint32_t idx, struct moeflux_err *e)
{
    struct worker *k = &w->each[idx];
    uint32_t copy = idx % w->n_copies;
    k->all = w;
    k->copy = &w->copies[copy];
    k->slot.owner = k;
    generator_share(&k->generator, w->generator, copy);
    k->generator.logits = mem_new(k->generator.info.vocab_size, sizeof(float), e);
    if (!k->generator.logits)
        return ERR_MEMORY;
    jobs_add_worker(w->jobs, copy);
    batcher_bind(k->copy->batcher, &k->slot, &k->generator);
    return idx == 0 ? constrain_share(&k->generator, e) : 0;
}

int workers_start(struct workers *w, const struct generator *g, struct sequences *const *sequences,
                  struct moeflux_err *e)
{
    w->generator = g;
    int rc = make_copies(w, g, sequences, e);
    for (uint32_t i = 0; !rc && i < w->n; i++)
        rc = make_worker(w, i, e);
    if (!rc)
        tell_metrics(w);
    for (uint32_t i = 0; !rc && i < w->n; i++) {
        if (pthread_create(&w->each[i].thread, NULL, work, &w->each[i]) != 0)
            rc = err_set(e, ERR_MEMORY, "no thread could be started for the answers");
        else
            w->n_started++;
    }
    if (rc) {
        jobs_close(w->jobs);
        workers_join(w);
    }
    return rc;
}

void workers_interrupt(struct workers *w)
{
    atomic_store(&w->interrupted, true);
}

void workers_forget_sequences(struct workers *w)
{
    for (uint32_t i = 0; i < w->n_copies; i++) {
        pthread_mutex_lock(&w->copies[i].lock);
        w->copies[i].sequences = NULL;
        pthread_mutex_unlock(&w->copies[i].lock);
    }
}

void workers_join(struct workers *w)
{
    if (!w)
        return;
    for (uint32_t i = 0; i < w->n_started; i++)
        pthread_join(w->each[i].thread, NULL);
    w->n_started = 0;
    for (uint32_t i = 0; i < w->n; i++)
        generator_unshare(&w->each[i].generator);
}
