#include "generate/batcher.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "engine/run/batched.h"
#include "generate/answer.h"
#include "generate/generator.h"

struct batcher {
    struct moeflux_model *model;
    uint32_t most; /* tokens of a group */
    uint32_t n_stages;
    pthread_mutex_t lock;                      /* of what follows */
    struct batcher_slot *first, **last;        /* those that wait, the oldest first */
    uint32_t n_joined, n_waiting, n_under_way; /* threads; of those: that wait, whose tokens are evaluated */
    uint32_t n_slots;
    bool is_taken; /* the first device: by a group that has not left it */
};

int batcher_new(struct batcher **out, struct moeflux_model *m, struct moeflux_err *e)
{
    struct batcher *b = *out = mem_new(1, sizeof *b, e);
    if (!b)
        return ERR_MEMORY;
    b->model = m;
    b->most = (uint32_t)size_min(moeflux_max_batched(m), BATCHER_MOST);
    b->n_stages = batched_n_stages(m);
    b->last = &b->first;
    if (pthread_mutex_init(&b->lock, NULL) == 0)
        return 0;
    free(b);
    *out = NULL;
    return err_set(e, ERR_MEMORY, "out of memory for a lock");
}

void batcher_free(struct batcher *b)
{
    if (!b)
        return;
    pthread_mutex_destroy(&b->lock);
    free(b);
}

/* ---- which, and when; the lock is held ---- */

static uint32_t group_size(const struct batcher *b)
{
    return (uint32_t)size_min(b->most, div_up(b->n_joined, b->n_stages));
}

/* Whether a group begins: it is full, or nobody else can come before one that is under way is over. */
static bool is_ready(const struct batcher *b)
{
    uint32_t n_away = b->n_joined - b->n_waiting - b->n_under_way;
    return b->n_waiting > 0 && !b->is_taken && (b->n_waiting >= group_size(b) || n_away == 0);
}

/* The oldest one evaluates. */
static void wake(struct batcher *b)
{
    if (is_ready(b))
        pthread_cond_signal(&b->first->changed);
}

/* The oldest ones, in an order of their own: what the model has recorded ahead for them can be used then. */
static void take_group(struct batcher *b, struct batcher_slot *leader)
{
    uint32_t n = (uint32_t)size_min(b->n_waiting, group_size(b));
    for (uint32_t i = 0; i < n; i++) {
        struct batcher_slot *s = b->first;
        uint32_t at = i;
        b->first = s->next;
        for (; at > 0 && leader->group[at - 1]->number > s->number; at--)
            leader->group[at] = leader->group[at - 1];
        leader->group[at] = s;
    }
    if (!b->first)
        b->last = &b->first;
    leader->n_group = n;
    b->n_waiting -= n;
    b->n_under_way += n;
    b->is_taken = true;
}

/* ---- a group ---- */

static void leave_first(void *ctx)
{
    struct batcher *b = ctx;
    pthread_mutex_lock(&b->lock);
    b->is_taken = false;
    wake(b);
    pthread_mutex_unlock(&b->lock);
}

static void eval_each(struct batcher_slot *const *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct moeflux_outputs outputs = {.logits = list[i]->logits};
        list[i]->rc = moeflux_session_eval(list[i]->sequence, &list[i]->id, 1, &outputs, &list[i]->error);
    }
}

/* A failure may be one sequence's fault alone: then each is tried by itself. */
static void eval_group(struct batcher *b, const struct batcher_slot *leader)
{
    struct batcher_slot *const *list = leader->group;
    struct moeflux_session *sequences[BATCHER_MOST] = {0};
    float *logits[BATCHER_MOST] = {0};
    int32_t ids[BATCHER_MOST] = {0};
    struct moeflux_err e = {0};
    uint32_t n = leader->n_group;
    for (uint32_t i = 0; i < n; i++) {
        sequences[i] = list[i]->sequence;
        logits[i] = list[i]->logits;
        ids[i] = list[i]->id;
    }
    int rc = batched_eval(sequences, ids, n, logits, leave_first, b, &e);
    if (rc && rc != ERR_INTERRUPTED && n > 1) {
        eval_each(list, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        list[i]->rc = rc;
        list[i]->error = e;
    }
}

/* With the lock, which it gives up meanwhile. */
static void lead(struct batcher *b, struct batcher_slot *leader)
{
    take_group(b, leader);
    pthread_mutex_unlock(&b->lock);
    eval_group(b, leader);
    pthread_mutex_lock(&b->lock);
    b->n_under_way -= leader->n_group;
    for (uint32_t i = 0; i < leader->n_group; i++) {
        leader->group[i]->is_done = true;
        pthread_cond_signal(&leader->group[i]->changed);
    }
    leader->n_group = 0;
}

static void add(struct batcher *b, struct batcher_slot *slot)
{
    slot->is_done = false;
    slot->next = NULL;
    *b->last = slot;
    b->last = &slot->next;
    b->n_waiting++;
}

/* Appends a token to the generator's sequence; the logits after it are the generator's. */
static int eval(struct batcher_slot *slot, struct generator *g, int32_t id, struct moeflux_err *e)
{
    struct batcher *b = slot->batcher;
    if (pthread_cond_init(&slot->changed, NULL) != 0)
        return err_set(e, ERR_MEMORY, "out of memory for a lock");
    slot->sequence = g->sequence;
    slot->id = id;
    slot->logits = g->logits;
    pthread_mutex_lock(&b->lock);
    add(b, slot);
    wake(b);
    while (!slot->is_done)
        if (slot == b->first && is_ready(b))
            lead(b, slot);
        else
            pthread_cond_wait(&slot->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
    pthread_cond_destroy(&slot->changed);
    if (slot->rc < 0)
        *e = slot->error;
    return slot->rc;
}

/* ---- the generator's tokens ---- */

static bool is_alone(struct batcher *b)
{
    pthread_mutex_lock(&b->lock);
    bool is = b->n_joined == 1;
    pthread_mutex_unlock(&b->lock);
    return is;
}

static int eval_token(void *ctx, struct generator *g, int32_t id, struct moeflux_err *e)
{
    struct batcher_slot *slot = ctx;
    /* The end of a prompt. */
    if (!slot->has_joined)
        return moeflux_session_eval(g->sequence, &id, 1, &(struct moeflux_outputs){.logits = g->logits}, e);
    return eval(slot, g, id, e);
}

/* Where nobody else has an answer, the device may choose, and go on meanwhile. */
static int eval_step(void *ctx, struct generator *g, int32_t id, bool more, int32_t *next,
                     struct moeflux_err *e)
{
    struct batcher_slot *slot = ctx;
    if (is_alone(slot->batcher))
        return generator_step_alone(g, id, more, next, e);
    int rc = eval(slot, g, id, e);
    if (rc)
        return rc;
    sampler_accept(g->sampler, id);
    return generator_choose(g, next, e);
}

void batcher_bind(struct batcher *b, struct batcher_slot *slot, struct generator *g)
{
    slot->batcher = b;
    pthread_mutex_lock(&b->lock);
    slot->number = b->n_slots++;
    pthread_mutex_unlock(&b->lock);
    g->evaluator = (struct generator_evaluator){eval_token, eval_step, slot};
}

static void join(struct batcher_slot *slot, bool joins)
{
    struct batcher *b = slot->batcher;
    pthread_mutex_lock(&b->lock);
    b->n_joined += joins ? 1 : UINT32_MAX;
    slot->has_joined = joins;
    if (!joins)
        wake(b);
    pthread_mutex_unlock(&b->lock);
}

int batcher_answer(struct batcher_slot *slot, struct answer *a, struct generator *g,
                   const struct answer_options *o, struct moeflux_err *e)
{
    join(slot, true);
    int rc = answer_run(a, g, o, e);
    join(slot, false);
    return rc;
}
