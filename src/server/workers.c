#include "server/workers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "api/ask.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "generate/answer.h"
#include "generate/constrain.h"
#include "generate/generator.h"
#include "generate/sequences.h"
#include "server/jobs.h"
#include "server/metrics.h"
#include "server/turns.h"
#include "text/constraint.h"

/* A token that is to be evaluated, as soon as someone has a turn. Of whoever has the turn. */
struct step {
    bool wanted;
    int32_t id;
    bool chooses, more; /* of generator_step */
    bool is_chosen;     /* next: the choice; else there are logits */
    int32_t next;
    int rc;
    struct moeflux_err error;
};

struct worker {
    struct workers *all;
    pthread_t thread;
    struct generator generator;
    struct job *job;
    struct constrain_ahead constraint; /* of its answer */
    struct step step;
};

struct workers {
    uint32_t n, n_started;
    struct worker *each; /* [n] */
    struct jobs *jobs;
    struct metrics *metrics;
    struct sequences *sequences;
    struct turns turns;
    uint32_t together;        /* tokens that the model evaluates at once; 1: a turn ends with each token */
    _Atomic(uint64_t) active; /* bit i: what is computed now is for worker i */
    atomic_bool cut;
    uint64_t told_ns; /* when the metrics were brought up to date; of whoever has the turn */
};

struct workers *workers_new(uint32_t n, struct jobs *jobs, struct metrics *metrics, struct moeflux_err *e)
{
    struct workers *w = mem_new(1, sizeof *w, e);
    if (!w)
        return NULL;
    *w = (struct workers){.n = n, .jobs = jobs, .metrics = metrics};
    w->each = mem_new(n, sizeof *w->each, e);
    if (!w->each || turns_init(&w->turns, e)) {
        free(w->each);
        free(w);
        return NULL;
    }
    return w;
}

void workers_free(struct workers *w)
{
    if (!w)
        return;
    turns_free(&w->turns);
    free(w->each);
    free(w);
}

bool workers_go_on(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    struct workers *w = ctx;
    uint64_t active = atomic_load(&w->active);
    (void)what, (void)unit, (void)done, (void)total;
    if (active && atomic_load(&w->cut))
        return false;
    for (uint32_t i = 0; i < w->n; i++)
        if (active >> i & 1 && !atomic_load(&w->each[i].job->cancelled))
            return true;
    return !active;
}

/* ---- turns ---- */

static uint64_t bit_of(const struct worker *k)
{
    return (uint64_t)1 << (k - k->all->each);
}

static void begin_turn(struct worker *k)
{
    turns_begin(&k->all->turns);
    atomic_store(&k->all->active, bit_of(k));
}

static void tell_metrics(struct workers *w, uint64_t now)
{
    struct moeflux_stats stats;
    struct sequences_counts counts = sequences_count(w->sequences);
    moeflux_model_get_stats(w->each[0].generator.model, &stats);
    metrics_engine(w->metrics, &stats, &counts);
    w->told_ns = now;
}

static void end_turn(struct worker *k)
{
    tell_metrics(k->all, clock_ns());
    atomic_store(&k->all->active, 0);
    turns_end(&k->all->turns);
}

static void pass_turn(struct worker *k)
{
    const uint64_t often = 200000000;
    uint64_t now = clock_ns();
    if (now - k->all->told_ns > often)
        tell_metrics(k->all, now);
    k->generator.by_turns = turns_pass(&k->all->turns);
    if (k->generator.by_turns)
        atomic_store(&k->all->active, bit_of(k));
}

/* ---- tokens together ---- */

static void eval_each(struct worker *const *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct worker *k = list[i];
        const struct moeflux_outputs outputs = {.logits = k->generator.logits};
        atomic_store(&k->all->active, bit_of(k));
        k->step.rc = moeflux_session_eval(k->generator.sequence, &k->step.id, 1, &outputs, &k->step.error);
    }
}

/* Those that wait, `first` among them. A failure may be one sequence's fault alone: then each is tried by itself. */
static void eval_list(struct worker *const *list, uint32_t n)
{
    struct moeflux_session *sequences[WORKERS_MAX];
    float *logits[WORKERS_MAX];
    int32_t ids[WORKERS_MAX];
    struct moeflux_err e;
    uint64_t active = 0;
    for (uint32_t i = 0; i < n; i++) {
        sequences[i] = list[i]->generator.sequence;
        logits[i] = list[i]->generator.logits;
        ids[i] = list[i]->step.id;
        active |= bit_of(list[i]);
    }
    atomic_store(&list[0]->all->active, active);
    int rc = moeflux_eval_together(sequences, ids, n, logits, &e);
    if (rc && rc != ERR_INTERRUPTED) {
        eval_each(list, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        list[i]->step.rc = rc;
        list[i]->step.error = e;
    }
}

/* Nobody else waits: the device may choose, and go on meanwhile. */
static void step_alone(struct worker *k)
{
    struct step *s = &k->step;
    atomic_store(&k->all->active, bit_of(k));
    s->rc = generator_step_alone(&k->generator, s->id, s->more, &s->next, &s->error);
    s->is_chosen = true;
}

static void run_steps(struct worker *first)
{
    struct workers *w = first->all;
    struct worker *list[WORKERS_MAX] = {first};
    uint32_t n = 1;
    for (uint32_t i = 0; i < w->n && n < w->together; i++)
        if (&w->each[i] != first && w->each[i].step.wanted)
            list[n++] = &w->each[i];
    if (n == 1 && first->step.chooses)
        step_alone(first);
    else
        eval_list(list, n);
    for (uint32_t i = 0; i < n; i++)
        list[i]->step.wanted = false;
    atomic_store(&w->active, bit_of(first));
}

/* Leaves the token to whoever has the next turn, and to oneself when it has come round. */
static int run_step(struct worker *k, const struct step *what, struct moeflux_err *e)
{
    k->step = *what;
    k->step.wanted = true;
    pass_turn(k);
    if (k->step.wanted)
        run_steps(k);
    if (k->step.rc)
        *e = k->step.error;
    return k->step.rc;
}

static int eval_token(void *ctx, struct generator *g, int32_t id, struct moeflux_err *e)
{
    (void)g;
    return run_step(ctx, &(struct step){.id = id}, e);
}

static int eval_step(void *ctx, struct generator *g, int32_t id, bool more, int32_t *next,
                     struct moeflux_err *e)
{
    struct worker *k = ctx;
    int rc = run_step(k, &(struct step){.id = id, .chooses = true, .more = more}, e);
    *next = k->step.next;
    if (rc || k->step.is_chosen)
        return rc;
    sampler_accept(g->sampler, id);
    return generator_choose(g, next, e);
}

/* ---- a job ---- */

static int give_piece(void *ctx, const struct answer_piece *p, struct moeflux_err *e)
{
    struct worker *k = ctx;
    int rc = jobs_give(k->all->jobs, k->job, p, e);
    if (p->id < 0)
        return rc;
    if (k->job->ask->result.n_answered++ == 0)
        metrics_first_token(k->all->metrics, clock_ns() - k->job->added_ns);
    if (!rc && k->all->together == 1)
        pass_turn(k);
    return rc;
}

/* Those ahead of the sequence's position. */
static struct prefix_stops stops_from(const struct prefix_stops *all, uint32_t pos)
{
    struct prefix_stops st = {0};
    for (uint32_t i = 0; i < all->n; i++)
        if (all->at[i] >= pos)
            st.at[st.n++] = all->at[i];
    return st;
}

/* Checkpoints at the stops. The last one is passed over with the rest of the prompt, except that a single token is always an
 * evaluation of its own: the same prompt, asked again, has that one left and gets the same bits. */
static int feed(struct generator *g, const int32_t *ids, uint32_t n, struct prefix_stops *stops,
                struct moeflux_err *e)
{
    uint32_t last = stops->n ? stops->at[stops->n - 1] : 0, pos = moeflux_session_position(g->sequence);
    bool passes = last > pos && last + 1 < n;
    stops->n -= passes;
    int rc = prefix_feed(g, ids, stops->n ? stops->at[stops->n - 1] : pos, stops, e);
    if (passes)
        moeflux_session_checkpoint_at(g->sequence, last);
    return rc;
}

static int prefill(struct worker *k, struct moeflux_err *e)
{
    struct generator *g = &k->generator;
    struct job *j = k->job;
    const int32_t *ids = j->ask->request.tokens.ids;
    uint32_t n = (uint32_t)j->ask->request.tokens.n, n_reused;
    int rc = moeflux_session_reuse(g->sequence, ids, n, &n_reused, e);
    if (rc)
        return rc;
    j->ask->result.n_reused = n_reused;
    struct sampler_options sampling = request_sampling(&j->ask->request.options, j->ask->seed);
    rc = generator_new_sampler(g, &sampling, ids, n_reused, e);
    struct prefix_stops stops = stops_from(&j->ask->stops, n_reused);
    if (!rc && moeflux_session_checkpoint_bytes(g->sequence))
        rc = feed(g, ids, n, &stops, e);
    uint32_t pos = moeflux_session_position(g->sequence);
    /* With a single token others have a turn, and their constraints. */
    struct constraint *ready;
    if (!rc && pos + 1 == n)
        rc = constrain_await(&k->constraint, &ready, e);
    return rc ? rc : generator_eval(g, ids + pos, n - pos, NULL, e);
}

/* Memory that idle sequences have is given up for the one at hand. */
static int prefill_somehow(struct worker *k, struct moeflux_err *e)
{
    int rc = prefill(k, e);
    while (rc == ERR_NO_FIT && sequences_shrink(k->all->sequences))
        rc = prefill(k, e);
    return rc;
}

static int take_sequence(struct worker *k, struct moeflux_err *e)
{
    const struct job *j = k->job;
    struct moeflux_session **s = &k->generator.sequence;
    return j->ask->score ? sequences_take_empty(k->all->sequences, s, e)
                         : sequences_take(k->all->sequences, j->ask->request.tokens.ids,
                                          (uint32_t)j->ask->request.tokens.n, s, e);
}

static int answer(struct worker *k, struct answer *a, struct moeflux_err *e)
{
    struct generator *g = &k->generator;
    struct job *j = k->job;
    const struct request_options *o = &j->ask->request.options;
    struct answer_options ao = request_answer(o);
    ao.sink = (struct answer_sink){give_piece, k};
    int rc = take_sequence(k, e);
    if (rc)
        return rc;
    /* All have what one of them keeps of grammars: whoever has the turn has that, too. */
    request_constrain_ahead(o, &k->all->each[0].generator, &k->constraint);
    if (!o->raw)
        rc = generator_use_chat(g, request_thinking(o), "a request", e);
    if (!rc)
        rc = j->ask->score ? ask_score(j->ask, g, e) : prefill_somehow(k, e);
    int made = constrain_await(&k->constraint, &ao.constraint, rc ? NULL : e);
    rc = rc ? rc : made;
    pass_turn(k);
    if (!rc)
        rc = answer_run(a, g, &ao, e);
    constraint_free(ao.constraint);
    sequences_put(k->all->sequences, g->sequence);
    g->sequence = NULL;
    return rc;
}

static void run(struct worker *k, struct job *j)
{
    struct ask_result *r = &j->ask->result;
    struct answer a = {0};
    k->job = j;
    begin_turn(k);
    r->rc = answer(k, &a, &r->error);
    r->stop = a.stop;
    end_turn(k);
    struct metrics_job counted = {
        .n_prompt = (uint32_t)j->ask->request.tokens.n,
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
    for (struct job *j; (j = jobs_take(k->all->jobs));)
        run(k, j);
    return NULL;
}

/* ---- all of them ---- */

int workers_start(struct workers *w, const struct generator *g, struct sequences *sequences,
                  struct moeflux_err *e)
{
    int rc = 0;
    w->sequences = sequences;
    w->together = (uint32_t)size_min(moeflux_most_together(g->model), w->n);
    for (uint32_t i = 0; !rc && i < w->n; i++) {
        struct worker *k = &w->each[i];
        k->all = w;
        generator_share(&k->generator, g);
        k->generator.logits = mem_new(g->info.vocab_size, sizeof(float), e);
        rc = k->generator.logits ? 0 : ERR_MEMORY;
        if (w->together > 1)
            k->generator.evaluator = (struct generator_evaluator){eval_token, eval_step, k};
    }
    if (!rc)
        tell_metrics(w, clock_ns());
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

void workers_cut(struct workers *w)
{
    atomic_store(&w->cut, true);
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
