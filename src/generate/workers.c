#include "generate/workers.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/progress.h"
#include "engine/model.h"
#include "engine/sequence.h"
#include "generate/answer_api.h"
#include "generate/batcher.h"
#include "generate/choice.h"
#include "generate/constrain.h"
#include "generate/generator.h"
#include "generate/jobs.h"
#include "generate/prefill.h"
#include "generate/shared_prefixes.h"

struct worker {
    struct workers *all;
    struct copy *copy;
    pthread_t thread;
    struct generator generator;
    struct batcher_slot slot;
    struct moeflux_job *job;
    uint32_t common_prefix; /* tokens that the job's prompt shares with another prompt; 0: none are known */
    struct prefix_evaluated held; /* the sequence's first tokens */
    bool is_saving;               /* a sequence is saved for later jobs, which no client's leaving ends */
};

/* What the workers of one copy of the model share. */
struct copy {
    struct workers *all;
    struct moeflux_progress progress; /* the model's own */
    atomic_bool is_lost;              /* its device is */
    struct batcher *batcher;
    pthread_mutex_t lock; /* protects the sequences */
    struct sequences *sequences;
    struct shared_prefixes *prefixes;
};

struct workers {
    uint32_t n, n_started, n_copies;
    struct worker *each; /* [n] */
    struct copy copies[MOEFLUX_MAX_DEVICES];
    struct saved_sequences *saved; /* outlives the copies' sequences; NULL: none */
    struct jobs *jobs;
    const struct generator *generator;
    struct workers_options options;
    pthread_key_t self; /* the worker of the calling thread */
    atomic_bool interrupted;
    atomic_bool is_lost; /* a copy is */
};

struct workers *workers_new(uint32_t n, struct jobs *jobs, struct moeflux_err *e)
{
    struct workers *w = mem_new(1, sizeof *w, e);
    if (!w)
        return NULL;
    w->n = n;
    w->jobs = jobs;
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
    for (uint32_t i = 0; i < w->n_copies; i++)
        pthread_mutex_destroy(&w->copies[i].lock);
    pthread_key_delete(w->self);
    free(w->each);
    free(w);
}

/* Returns whether someone waits for what the thread computes: its own answer, or a group of tokens. */
static bool is_wanted(const struct worker *k)
{
    bool is = k->slot.n_group == 0 && k->job && !atomic_load(&k->job->cancelled);
    for (uint32_t i = 0; i < k->slot.n_group; i++) {
        const struct worker *other = k->slot.group[i]->owner;
        is = is || !atomic_load(&other->job->cancelled);
    }
    return is;
}

/* Returns whether an evaluation should continue. A function for moeflux_progress; ctx: the copy. */
static bool go_on(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    const struct copy *c = ctx;
    const struct worker *k = pthread_getspecific(c->all->self);
    if (k && k->is_saving)
        return true;
    return (!k || (!atomic_load(&c->all->interrupted) && is_wanted(k))) &&
           progress_report(&c->progress, what, unit, done, total);
}

/* A function for sequences_options.saves; ctx: the workers. */
static void note_saving(void *ctx, bool on)
{
    const struct workers *w = ctx;
    struct worker *k = pthread_getspecific(w->self);
    if (k)
        k->is_saving = on;
}

/* ---- which copy ---- */

static struct sequences_prompt prompt_of(const struct choice *c)
{
    return (struct sequences_prompt){.ids = c->request.tokens.ids,
                                     .n = (uint32_t)c->request.tokens.n,
                                     .n_shared = c->stops.n_shared,
                                     .cuts = c->cuts};
}

uint32_t workers_find_copy(struct workers *w, const struct choice *choice)
{
    enum { WORTH_IT = 32 }; /* tokens more than on other copies: fewer are evaluated in no time */
    const struct sequences_prompt p = prompt_of(choice);
    uint32_t copy = JOBS_NO_COPY, most = 0, second = 0;
    for (uint32_t i = 0; w->n_copies > 1 && !choice->score && i < w->n_copies; i++) {
        struct copy *c = &w->copies[i];
        pthread_mutex_lock(&c->lock);
        uint32_t here = c->sequences ? sequences_usable(c->sequences, &p) : 0;
        pthread_mutex_unlock(&c->lock);
        if (here > most) {
            second = most;
            most = here;
            copy = i;
        } else if (here > second) {
            second = here;
        }
    }
    return most >= second + WORTH_IT ? copy : JOBS_NO_COPY;
}

/* ---- counts ---- */

struct moeflux_sequence_counts workers_count(struct workers *w)
{
    struct moeflux_sequence_counts counts = {0};
    for (uint32_t i = 0; i < w->n_copies; i++) {
        struct copy *c = &w->copies[i];
        struct moeflux_sequence_counts one = counts;
        pthread_mutex_lock(&c->lock);
        if (c->sequences) {
            /* All copies count the same files. */
            one = sequences_count(c->sequences);
            one.n += counts.n;
            one.n_used += counts.n_used;
            one.bytes += counts.bytes;
        }
        pthread_mutex_unlock(&c->lock);
        counts = one;
    }
    return counts;
}

const struct moeflux_session *workers_latest(const struct workers *w)
{
    const struct sequences *q = w->copies[0].sequences;
    return q ? sequences_latest(q) : NULL;
}

/* ---- a sequence ---- */

static int take_sequence(struct worker *k, struct moeflux_err *e)
{
    const struct choice *first = k->job->choices[0];
    const struct sequences_prompt prompt = prompt_of(first);
    struct copy *c = k->copy;
    struct moeflux_session **s = &k->generator.sequence;
    bool converses = k->all->options.converse;
    uint32_t with_jobs = converses ? jobs_common(k->all->jobs, k->job) : 0;
    pthread_mutex_lock(&c->lock);
    uint32_t with_idle = converses ? sequences_common(c->sequences, prompt.ids, prompt.n) : 0;
    k->common_prefix = with_jobs > with_idle ? with_jobs : with_idle;
    int rc;
    do
        rc = first->score ? sequences_take_empty(c->sequences, s, e)
                          : sequences_take(c->sequences, &prompt, s, e);
    while (rc == ERR_NO_FIT && shared_prefixes_shrink(c->prefixes));
    k->held = (struct prefix_evaluated){0};
    if (!rc)
        k->held = sequences_held(c->sequences, *s);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static void put_sequence(struct worker *k, bool keep)
{
    struct moeflux_session *s = k->generator.sequence;
    k->generator.sequence = NULL;
    pthread_mutex_lock(&k->copy->lock);
    if (s && keep)
        sequences_put(k->copy->sequences, s, &k->held);
    else if (s)
        sequences_drop(k->copy->sequences, s);
    pthread_mutex_unlock(&k->copy->lock);
}

/* Frees the memory of an idle sequence of a copy, which is saved first, or of a shared beginning. False:
 * there is none. */
static bool shrink(struct copy *c)
{
    pthread_mutex_lock(&c->lock);
    bool shrunk = sequences_shrink(c->sequences);
    pthread_mutex_unlock(&c->lock);
    return shrunk || shared_prefixes_shrink(c->prefixes);
}

/* Reserves memory for n more tokens; frees that of idle sequences if there is too little. A function for
 * generator_room; ctx: the worker. */
static int make_room(void *ctx, struct moeflux_session *s, size_t n, struct moeflux_err *e)
{
    struct worker *k = ctx;
    uint32_t pos = moeflux_session_position(s);
    uint32_t end = pos + (uint32_t)size_min(n, k->generator.max_context - pos);
    int rc = 0;
    /* Tokens of a chain of drafts have room: what is shared must not be copied before they are taken. */
    if (!sequence_has_room(s, end))
        do
            rc = sequence_reserve(s, end, e);
        while (rc == ERR_NO_FIT && shrink(k->copy));
    return rc;
}

/* ---- a prompt ---- */

/* Adds a stop where the prompt parts from others with the same beginning, such as a document with other
 * questions. Later ones will part there, too. */
static void stop_at_common_prefix(struct prefix_stops *stops, uint32_t common_prefix, uint32_t n_reused)
{
    enum { WORTH_IT = 64 }; /* tokens; an evaluation costs more than fewer of them */
    if (common_prefix >= n_reused + WORTH_IT)
        prefix_stop_at(stops, common_prefix, WORTH_IT / 8);
}

/* Gives the sequence the beginnings of the prompt that other sequences have. *ours: tokens of the one that
 * this worker computes for others; 0: none. In conversations only a beginning that another one has is
 * worth it. A job that lacked memory computes none: it would be freed for the job's sake, and computed again
 * in the next attempt. */
static int share_prefix(struct worker *k, struct prefill *p, uint32_t *ours, struct moeflux_err *e)
{
    struct moeflux_session *s = k->generator.sequence;
    uint32_t has = prefill_usable(p, s);
    *ours = 0;
    for (uint32_t i = 0; i < p->cuts.n && *ours == 0; i++) {
        uint32_t n = p->cuts.at[i];
        enum shared_prefix found;
        if (n <= has || n >= p->n || (k->all->options.converse && k->common_prefix < n))
            continue;
        int rc = shared_prefixes_take(k->copy->prefixes, s, p->ids, n, !k->job->lacked_memory, &found, e);
        if (rc)
            return rc;
        if (found == SHARED_PREFIX_HELD)
            p->held = (struct prefix_evaluated){n, p->cuts};
        *ours = found == SHARED_PREFIX_OURS ? n : 0;
    }
    return 0;
}

/* Evaluates the beginning that other sequences wait for, or will have. */
static int compute_prefix(struct worker *k, const struct prefill *p, uint32_t n, struct moeflux_err *e)
{
    int rc = n ? prefill_feed(&k->generator, p, n, e) : 0;
    if (n && !rc)
        shared_prefixes_give(k->copy->prefixes, k->generator.sequence, p->ids, n);
    return rc;
}

/* Evaluates the prompt once. */
static int try_prefill(struct worker *k, const struct choice *c, struct prefill *p, uint32_t *n_reused,
                       struct moeflux_err *e)
{
    uint32_t ours;
    int rc = share_prefix(k, p, &ours, e);
    if (rc)
        return rc;
    rc = prefill_begin(&k->generator, p, n_reused, e);
    p->stops = c->stops;
    stop_at_common_prefix(&p->stops, k->common_prefix, *n_reused);
    rc = rc ? rc : compute_prefix(k, p, ours, e);
    if (rc && ours)
        shared_prefixes_give_up(k->copy->prefixes, p->ids, ours);
    return rc ? rc : prefill_run(&k->generator, p, NULL, e);
}

/* Evaluates the prompt; frees memory of idle sequences if there is too little. */
static int prefill(void *ctx, const struct choice *c, const struct moeflux_sampler_options *sampling,
                   uint32_t *n_reused, struct moeflux_err *e)
{
    struct worker *k = ctx;
    struct prefill p = {.ids = c->request.tokens.ids,
                        .n = (uint32_t)c->request.tokens.n,
                        .sampling = sampling,
                        .cuts = c->cuts,
                        .chunk = k->all->options.keep.chunk,
                        .held = k->held,
                        .stops = c->stops,
                        .passes_above =
                            k->all->options.converse ? batcher_most_prompt(k->copy->batcher) : UINT32_MAX};
    int rc;
    k->held = (struct prefix_evaluated){p.n, p.cuts};
    batcher_expect(&k->slot, true);
    do {
        rc = try_prefill(k, c, &p, n_reused, e);
        k->job->lacked_memory |= rc == ERR_NO_FIT;
    } while (rc == ERR_NO_FIT && shrink(k->copy));
    return rc;
}

/* ---- a job ---- */

static int keep_piece(void *ctx, const struct moeflux_piece *p, struct moeflux_err *e)
{
    struct worker *k = ctx;
    struct moeflux_job *j = k->job;
    const struct moeflux_job_options *o = &j->options;
    int rc = o->keeps_pieces ? jobs_give(k->all->jobs, j, p, e) : 0;
    if (!rc && o->piece && !atomic_load(&j->cancelled) && !o->piece(o->ctx, j->at, p))
        atomic_store(&j->cancelled, true);
    return rc;
}

/* Answers the job's current choice in the worker's sequence. */
static int answer(struct worker *k, struct answer *a, struct moeflux_err *e)
{
    struct choice *c = k->job->choices[k->job->at];
    const struct choice_call call = {.generator = &k->generator,
                                     /* All workers use the grammars that the first one keeps. */
                                     .grammars = &k->all->each[0].generator,
                                     .slot = &k->slot,
                                     .sink = {keep_piece, k},
                                     .prefill = prefill,
                                     .ctx = k};
    int rc = c->score ? moeflux_session_clear(k->generator.sequence, e) : 0;
    k->held.n = c->score ? 0 : k->held.n;
    rc = rc ? rc : choice_answer(c, &call, a, e);
    batcher_expect(&k->slot, false);
    return rc;
}

/* Moves an answer to the job, if it keeps them. */
static int keep_answer(struct moeflux_job *j, struct moeflux_answer *a, struct moeflux_err *e)
{
    if (!j->answers)
        return 0;
    if (!(j->answers[j->at] = mem_new(1, sizeof *a, e)))
        return ERR_MEMORY;
    *j->answers[j->at] = *a;
    *a = (struct moeflux_answer){0};
    return 0;
}

/* Answers the current choice and hands the answer to the job's owner. Returns the result. */
static int answer_one(struct worker *k, struct moeflux_job *j, int rc)
{
    struct choice *c = j->choices[j->at];
    const struct moeflux_job_options *o = &j->options;
    struct choice_result *r = &c->result;
    struct moeflux_answer a = {.seed = c->seed,
                               .n_prompt = (uint32_t)c->request.tokens.n,
                               .continues = !c->request.options.new_message};
    r->rc = rc ? rc : answer(k, &a.own, &r->error);
    answer_api_count(&a, r);
    if (!r->rc)
        r->rc = answer_api_finish(&a, &c->request, &r->error);
    r->error.code = r->rc;
    if (o->ended) {
        const struct moeflux_answer_info info = moeflux_answer_get_info(&a);
        o->ended(o->ctx, j->at, &info, &r->error);
        r->rc = r->error.code;
    }
    if (!r->rc)
        r->rc = keep_answer(j, &a, &r->error);
    answer_api_clear(&a);
    return r->rc;
}

/* Discards what an earlier attempt has left. */
static int begin(struct moeflux_job *j, struct moeflux_err *e)
{
    const struct moeflux_job_options *o = &j->options;
    for (uint32_t i = 0; i < j->n; i++) {
        choice_reset(j->choices[i]);
        if (j->answers)
            moeflux_answer_free(j->answers[i]);
        if (j->answers)
            j->answers[i] = NULL;
    }
    if (atomic_load(&j->cancelled))
        return err_set(e, ERR_INTERRUPTED, "the job was cancelled");
    return o->begin ? o->begin(o->ctx, e) : 0;
}

/* Returns the result of the last choice that was computed. */
static int answer_all(struct worker *k, struct moeflux_job *j)
{
    struct choice_result *r = &j->choices[0]->result;
    int rc = begin(j, &r->error);
    if (!rc)
        rc = take_sequence(k, &r->error);
    for (j->at = 0; j->at < j->n; j->at++)
        if ((rc = answer_one(k, j, rc)))
            break;
    return rc;
}

/* Frees all idle sequences. False: there are none. */
static bool shrink_all(struct worker *k)
{
    bool any = false;
    for (uint32_t i = 0; i < k->all->n_copies; i++)
        while (shrink(&k->all->copies[i]))
            any = true;
    return any;
}

/* Lets no worker begin a job on a lost device. */
static void lose(struct worker *k, const struct moeflux_job *j)
{
    struct workers *w = k->all;
    if (!w->options.lost)
        return;
    jobs_pause(w->jobs);
    atomic_store(&k->copy->is_lost, true);
    if (!atomic_exchange(&w->is_lost, true))
        w->options.lost(w->options.lost_ctx, &jobs_result(j)->error);
}

static void run(struct worker *k, struct moeflux_job *j)
{
    struct workers *w = k->all;
    k->job = j;
    int rc = answer_all(k, j);
    bool waits = rc == ERR_NO_FIT && w->options.waits;
    j->lacked_memory |= waits;
    if (rc == ERR_LOST)
        lose(k, j);
    put_sequence(k, !waits && rc != ERR_LOST);
    k->job = NULL;
    if (!waits || !jobs_put_back(w->jobs, j, shrink_all(k)))
        jobs_finish(w->jobs, j);
}

static void *work(void *ctx)
{
    struct worker *k = ctx;
    pthread_setspecific(k->all->self, k);
    const struct workers_options *o = &k->all->options;
    for (struct moeflux_job *j; (j = jobs_take(k->all->jobs, (uint32_t)(k->copy - k->all->copies)));) {
        run(k, j);
        if (o->ended)
            o->ended(o->ended_ctx);
    }
    return NULL;
}

/* ---- all of them ---- */

static int make_copy(struct workers *w, uint32_t idx, const struct sequences_options *keep,
                     struct moeflux_err *e)
{
    const struct generator *g = w->generator;
    struct moeflux_model *m = generator_copy(g, idx);
    struct copy *c = &w->copies[idx];
    struct sequences *sequences;
    c->all = w;
    c->progress = m->progress;
    m->progress = (struct moeflux_progress){go_on, c};
    int rc = sequences_new(&sequences, m, keep, e);
    /* After a loss, others may ask for a copy meanwhile. */
    pthread_mutex_lock(&c->lock);
    c->sequences = sequences;
    pthread_mutex_unlock(&c->lock);
    if (!rc)
        rc = shared_prefixes_new(&c->prefixes, m, g->max_context, e);
    if (!rc)
        rc = batcher_new(&c->batcher, m, !w->options.converse, e);
    return rc;
}

static int make_copies(struct workers *w, struct moeflux_err *e)
{
    const struct generator *g = w->generator;
    struct sequences_options keep = w->options.keep;
    keep.max_context = g->max_context;
    keep.saves = note_saving;
    keep.saves_ctx = w;
    keep.most = div_up(keep.most, w->n_copies);
    /* 0 would be no limit. */
    keep.bytes = keep.bytes ? size_max(keep.bytes / w->n_copies, 1) : 0;
    int rc = w->options.files.dir
                 ? saved_sequences_open(&w->saved, generator_copy(g, 0), &w->options.files, e)
                 : 0;
    keep.saved = w->saved;
    for (uint32_t i = 0; !rc && i < w->n_copies; i++)
        rc = make_copy(w, i, &keep, e);
    return rc;
}

static int make_worker(struct workers *w, uint32_t idx, struct moeflux_err *e)
{
    struct worker *k = &w->each[idx];
    uint32_t copy = idx % w->n_copies;
    *k = (struct worker){.all = w, .copy = &w->copies[copy], .slot.owner = k};
    generator_share(&k->generator, w->generator, copy);
    k->generator.progress = k->generator.model->progress;
    k->generator.logits = mem_new(k->generator.info.vocab_size, sizeof(float), e);
    if (!k->generator.logits)
        return ERR_MEMORY;
    batcher_bind(k->copy->batcher, &k->slot, &k->generator);
    k->generator.room = (struct generator_room){make_room, k};
    return idx == 0 ? constrain_share(&k->generator, e) : 0;
}

int workers_check_models(const struct generator *g, struct moeflux_err *e)
{
    for (uint32_t i = 0; i <= g->n_copies; i++)
        if (generator_copy(g, i)->progress.report == go_on)
            return err_set(e, ERR_USAGE, "model %u of the chat has a pool, which must end first", i);
    return 0;
}

static int start(struct workers *w, struct moeflux_err *e)
{
    int rc = workers_check_models(w->generator, e);
    rc = rc ? rc : make_copies(w, e);
    for (uint32_t i = 0; !rc && i < w->n; i++)
        rc = make_worker(w, i, e);
    for (uint32_t i = 0; !rc && i < w->n; i++) {
        if (pthread_create(&w->each[i].thread, NULL, work, &w->each[i]) != 0)
            rc = err_set(e, ERR_MEMORY, "no thread could be started for the answers");
        else
            w->n_started++;
    }
    if (rc) {
        jobs_close(w->jobs, "the workers could not be started");
        workers_join(w);
    }
    return rc;
}

int workers_start(struct workers *w, struct generator *g, const struct workers_options *o,
                  struct moeflux_err *e)
{
    w->generator = g;
    w->options = *o;
    w->n_copies = 1 + g->n_copies;
    assert(w->n_copies > 0);
    for (uint32_t i = 0; i < w->n_copies; i++)
        pthread_mutex_init(&w->copies[i].lock, NULL);
    for (uint32_t i = 0; i < w->n; i++)
        jobs_add_worker(w->jobs, i % w->n_copies);
    return start(w, e);
}

int workers_restart(struct workers *w, struct moeflux_err *e)
{
    for (uint32_t i = 0; i < w->n_copies; i++)
        atomic_store(&w->copies[i].is_lost, false);
    atomic_store(&w->is_lost, false);
    jobs_resume(w->jobs);
    return start(w, e);
}

void workers_interrupt(struct workers *w)
{
    atomic_store(&w->interrupted, true);
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
    for (uint32_t i = 0; i < w->n_copies; i++) {
        shared_prefixes_free(w->copies[i].prefixes);
        w->copies[i].prefixes = NULL;
        batcher_free(w->copies[i].batcher);
        w->copies[i].batcher = NULL;
    }
    /* Others may still ask for a copy. */
    for (uint32_t i = 0; i < w->n_copies; i++) {
        struct sequences *q = w->copies[i].sequences;
        pthread_mutex_lock(&w->copies[i].lock);
        w->copies[i].sequences = NULL;
        pthread_mutex_unlock(&w->copies[i].lock);
        if (q && atomic_load(&w->copies[i].is_lost))
            sequences_forget(q);
        sequences_free(q);
        if (w->copies[i].all)
            generator_copy(w->generator, i)->progress = w->copies[i].progress;
        w->copies[i].all = NULL;
    }
    saved_sequences_close(w->saved);
    w->saved = NULL;
}
