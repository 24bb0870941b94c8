#include "cli/batch/workers.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "engine/run/batched.h"
#include "generate/batcher.h"
#include "generate/constrain.h"
#include "generate/generator.h"
#include "generate/prefill.h"
#include "generate/request.h"

enum worker_state { WORKER_FREE, WORKER_RUNNING, WORKER_DONE };

struct worker {
    struct batch_workers *all;
    pthread_t thread;
    uint32_t copy; /* index of the model's copy that it computes on */
    struct generator generator;
    struct batcher_slot slot;
    struct batch_answerer answerer;
    uint32_t n_prompt; /* tokens of the last prompt that the sequence has */
    uint32_t n_common; /* see batch_workers_begin */
    enum worker_state state;
    pthread_cond_t wanted; /* signalled when the state becomes WORKER_RUNNING, and at the end */
    bool has_cond;
    struct batch_done work;
};

struct batch_workers {
    struct generator *generator;
    uint32_t n, n_started, most; /* workers; most: those that may run at a time */
    uint32_t chunk;              /* tokens */
    pthread_mutex_t lock;        /* guards the workers' states and work, and the fields that follow */
    pthread_cond_t changed;      /* a worker is done */
    uint32_t n_running;
    bool ends;
    struct worker *each; /* [n] */
    struct batcher *batchers[MOEFLUX_MAX_DEVICES];
};

/* ---- a prompt ---- */

static struct prefill prefill_of(const struct worker *x, const struct token_list *tokens)
{
    return (struct prefill){
        .ids = tokens->ids, .n = (uint32_t)tokens->n, .chunk = x->all->chunk, .n_held = x->n_prompt};
}

/* Returns how many tokens of the prompt the worker's sequence has. */
static uint32_t n_usable(const struct worker *x, const struct token_list *tokens)
{
    const struct prefill p = prefill_of(x, tokens);
    return x->generator.sequence ? prefill_whole_chunks(&p, x->generator.sequence) : 0;
}

static int prefill(void *ctx, const struct request *r, uint64_t seed, uint32_t *n_reused,
                   struct moeflux_err *e)
{
    struct worker *x = ctx;
    uint32_t stop = x->n_common / x->all->chunk * x->all->chunk;
    const struct sampler_options sampling = request_sampling(&r->options, seed);
    struct prefill p = prefill_of(x, &r->tokens);
    p.sampling = &sampling;
    x->n_prompt = 0;
    int rc = prefill_begin(&x->generator, &p, n_reused, e);
    if (rc)
        return rc;
    if (stop > *n_reused && stop < p.n)
        prefix_stop_at(&p.stops, stop, 1);
    rc = prefill_run(&x->generator, &p, NULL, e);
    x->n_prompt = rc ? 0 : p.n;
    return rc;
}

/* ---- a worker ---- */

static void drop_sequence(struct worker *x)
{
    moeflux_session_free(x->generator.sequence);
    x->generator.sequence = NULL;
    x->n_prompt = 0;
}

static void answer(struct worker *x)
{
    struct batch_done *w = &x->work;
    struct generator *g = &x->generator;
    w->rc = g->sequence ? 0 : moeflux_session_new(&g->sequence, g->model, g->max_context, &w->error);
    if (!w->rc)
        w->rc = batch_answer(&x->answerer, w->item, &w->line, &w->error);
    if (w->rc)
        drop_sequence(x);
}

static void *run(void *ctx)
{
    struct worker *x = ctx;
    struct batch_workers *all = x->all;
    pthread_mutex_lock(&all->lock);
    for (;;) {
        while (x->state != WORKER_RUNNING && !all->ends)
            pthread_cond_wait(&x->wanted, &all->lock);
        if (x->state != WORKER_RUNNING)
            break;
        pthread_mutex_unlock(&all->lock);
        answer(x);
        pthread_mutex_lock(&all->lock);
        x->state = WORKER_DONE;
        pthread_cond_signal(&all->changed);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

static int start(struct batch_workers *all, struct worker *x, uint64_t base_seed, struct moeflux_err *e)
{
    x->all = all;
    x->copy = (uint32_t)(x - all->each) % (1 + all->generator->n_copies);
    generator_share(&x->generator, all->generator, x->copy);
    x->generator.logits = mem_new(all->generator->info.vocab_size, sizeof(float), e);
    if (!x->generator.logits)
        return ERR_MEMORY;
    batcher_bind(all->batchers[x->copy], &x->slot, &x->generator);
    x->answerer = (struct batch_answerer){.generator = &x->generator,
                                          .grammars = all->generator,
                                          .slot = &x->slot,
                                          .base_seed = base_seed,
                                          .prefill = prefill,
                                          .ctx = x};
    x->has_cond = pthread_cond_init(&x->wanted, NULL) == 0;
    if (!x->has_cond || pthread_create(&x->thread, NULL, run, x) != 0)
        return err_set(e, ERR_MEMORY, "no thread could be started for the answers");
    all->n_started++;
    return 0;
}

/* ---- all of them ---- */

int batch_workers_new(struct batch_workers **out, struct generator *g, uint32_t n, uint64_t base_seed,
                      struct moeflux_err *e)
{
    struct batch_workers *all = *out = mem_new(1, sizeof *all, e);
    if (!all)
        return ERR_MEMORY;
    *all = (struct batch_workers){.generator = g,
                                  .n = n,
                                  .most = n,
                                  .chunk = batched_chunk(g->model),
                                  .lock = PTHREAD_MUTEX_INITIALIZER,
                                  .changed = PTHREAD_COND_INITIALIZER};
    all->each = mem_new(n, sizeof *all->each, e);
    int rc = all->each ? constrain_share(g, e) : ERR_MEMORY;
    for (uint32_t i = 0; !rc && i <= g->n_copies; i++)
        rc = batcher_new(&all->batchers[i], generator_copy(g, i), e);
    for (uint32_t i = 0; !rc && i < n; i++)
        rc = start(all, &all->each[i], base_seed, e);
    if (rc) {
        batch_workers_free(all);
        *out = NULL;
    }
    return rc;
}

void batch_workers_free(struct batch_workers *all)
{
    if (!all)
        return;
    pthread_mutex_lock(&all->lock);
    all->ends = true;
    for (uint32_t i = 0; i < all->n_started; i++)
        pthread_cond_signal(&all->each[i].wanted);
    pthread_mutex_unlock(&all->lock);
    for (uint32_t i = 0; i < all->n_started; i++)
        pthread_join(all->each[i].thread, NULL);
    for (uint32_t i = 0; all->each && i < all->n; i++) {
        struct worker *x = &all->each[i];
        free(x->work.line);
        drop_sequence(x);
        generator_unshare(&x->generator);
        if (x->has_cond)
            pthread_cond_destroy(&x->wanted);
    }
    for (uint32_t i = 0; i < MOEFLUX_MAX_DEVICES; i++)
        batcher_free(all->batchers[i]);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    free(all->each);
    free(all);
}

uint32_t batch_workers_n_free(struct batch_workers *all)
{
    return all->most > all->n_running ? all->most - all->n_running : 0;
}

uint32_t batch_workers_n_running(struct batch_workers *all)
{
    return all->n_running;
}

/* Returns how many workers of a copy of the model are not free. The lock is held. */
static uint32_t load_of(const struct batch_workers *all, uint32_t copy)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < all->n; i++)
        n += all->each[i].copy == copy && all->each[i].state != WORKER_FREE;
    return n;
}

/* Returns a free worker on the least loaded copy: the one that has the longest prefix of
 * the prompt, else one that has memory already. The lock is held. */
static struct worker *choose(const struct batch_workers *all, const struct token_list *tokens)
{
    struct worker *best = NULL;
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t i = 0; i < all->n; i++) {
        struct worker *x = &all->each[i];
        if (x->state != WORKER_FREE)
            continue;
        uint32_t load = load_of(all, x->copy), has = n_usable(x, tokens);
        uint32_t worth = has + (x->generator.sequence != NULL);
        if (best && (load > least || (load == least && worth <= most)))
            continue;
        best = x;
        least = load;
        most = worth;
    }
    return best;
}

void batch_workers_begin(struct batch_workers *all, struct batch_item *item, const struct token_list *tokens,
                         uint32_t n_common)
{
    pthread_mutex_lock(&all->lock);
    struct worker *x = choose(all, tokens);
    x->work = (struct batch_done){.item = item, .was_alone = true};
    x->n_common = n_common;
    for (uint32_t i = 0; i < all->n; i++) {
        struct worker *other = &all->each[i];
        if (other == x || (other->state == WORKER_FREE && !other->generator.sequence))
            continue;
        x->work.was_alone = other->work.was_alone = false;
    }
    x->state = WORKER_RUNNING;
    all->n_running++;
    pthread_cond_signal(&x->wanted);
    pthread_mutex_unlock(&all->lock);
}

static struct worker *find_done(const struct batch_workers *all)
{
    for (uint32_t i = 0; i < all->n; i++)
        if (all->each[i].state == WORKER_DONE)
            return &all->each[i];
    return NULL;
}

bool batch_workers_await(struct batch_workers *all, uint32_t ms, struct batch_done *out)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + (uint64_t)ms * 1000000;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&all->lock);
    struct worker *x = find_done(all);
    for (int rc = 0; !x && rc == 0; x = find_done(all))
        rc = pthread_cond_timedwait(&all->changed, &all->lock, &until);
    if (x) {
        *out = x->work;
        x->work = (struct batch_done){0};
        x->state = WORKER_FREE;
        all->n_running--;
    }
    pthread_mutex_unlock(&all->lock);
    return x != NULL;
}

bool batch_workers_shrink(struct batch_workers *all, const struct batch_done *refused)
{
    pthread_mutex_lock(&all->lock);
    for (uint32_t i = 0; i < all->n; i++)
        if (all->each[i].state == WORKER_FREE)
            drop_sequence(&all->each[i]);
    all->most = all->n_running > 0 ? all->n_running : 1;
    pthread_mutex_unlock(&all->lock);
    return !refused->was_alone;
}

struct batch_counts batch_workers_counts(const struct batch_workers *all)
{
    struct batch_counts sum = {0};
    for (uint32_t i = 0; i < all->n; i++) {
        sum.n_prompt += all->each[i].answerer.counts.n_prompt;
        sum.n_computed += all->each[i].answerer.counts.n_computed;
        sum.prefill_ns += all->each[i].answerer.counts.prefill_ns;
    }
    return sum;
}
