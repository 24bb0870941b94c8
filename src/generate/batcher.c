#include "generate/batcher.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "engine/run/batched.h"
#include "generate/answer.h"
#include "generate/generator.h"

enum {
    PROMPT_MOST = 256, /* batcher_most_prompt of models that take parts of prompts */
    RIDING_MOST = 256, /* tokens of prompts that are evaluated with others' tokens, which they delay */
};

struct slots { /* a list, the oldest first */
    struct batcher_slot *first, **last;
};

struct batcher {
    struct moeflux_model *model;
    uint32_t most;        /* most tokens of a group */
    uint32_t most_prompt; /* batcher_most_prompt */
    uint32_t n_stages;
    bool is_exact; /* moeflux_batched_is_exact */
    bool prompts_first;
    pthread_mutex_t lock;         /* protects the members below */
    struct slots tokens, prompts; /* those that wait */
    /* threads that joined, that wait with a token, whose tokens are in flight */
    uint32_t n_joined, n_waiting, n_in_flight;
    /* threads that evaluate a prompt; those that joined since the last group began */
    uint32_t n_coming, n_came;
    uint32_t n_slots;
    bool is_taken; /* a group is on the first device */
};

/* A group has room for a part, whatever else is in it. */
static uint32_t choose_most_prompt(struct moeflux_model *m)
{
    uint32_t chunk = batched_chunk(m), beside = moeflux_max_batched(m);
    return batched_takes_prompts(m) && chunk > beside ? (uint32_t)size_min(chunk - beside, PROMPT_MOST) : 0;
}

int batcher_new(struct batcher **out, struct moeflux_model *m, bool prompts_first, struct moeflux_err *e)
{
    struct batcher *b = *out = mem_new(1, sizeof *b, e);
    if (!b)
        return ERR_MEMORY;
    b->model = m;
    b->most = (uint32_t)size_min(moeflux_max_batched(m), BATCHER_MOST);
    b->most_prompt = choose_most_prompt(m);
    b->n_stages = batched_n_stages(m);
    b->is_exact = moeflux_batched_is_exact(m);
    b->prompts_first = prompts_first && b->n_stages == 1 && !b->most_prompt;
    b->tokens.last = &b->tokens.first;
    b->prompts.last = &b->prompts.first;
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

/* ---- forming groups; the caller holds the lock ---- */

static uint32_t group_size(const struct batcher *b)
{
    return (uint32_t)size_min(b->most, div_up(b->n_joined, b->n_stages));
}

/* Returns whether the group waits for threads that evaluate a prompt. */
static bool awaits_prompts(const struct batcher *b)
{
    return b->prompts_first && b->n_coming > 0 && b->n_waiting < b->most && b->n_came < b->most;
}

/* Returns whether a group of tokens can begin: it is full, or every other thread waits or has its token in
 * flight. */
static bool is_ready(const struct batcher *b)
{
    uint32_t n_away = b->n_joined - b->n_waiting - b->n_in_flight;
    return b->n_waiting > 0 && !awaits_prompts(b) && !b->is_taken &&
           (b->n_waiting >= group_size(b) || n_away == 0);
}

/* Returns whether a group of prompts alone can begin: nobody decodes. */
static bool prompts_are_ready(const struct batcher *b)
{
    return b->prompts.first && b->n_joined == 0 && !b->is_taken;
}

static void post(struct batcher_slot *slot)
{
    slot->n_posts++;
    sem_post(&slot->posts);
}

/* Wakes a thread that waits, the one that does longest, if a group can begin: any of them may evaluate it. */
static void wake(struct batcher *b)
{
    if (is_ready(b))
        post(b->tokens.first);
    else if (prompts_are_ready(b))
        post(b->prompts.first);
}

static void put(struct slots *to, struct batcher_slot *slot)
{
    slot->next = NULL;
    *to->last = slot;
    to->last = &slot->next;
}

static struct batcher_slot *take(struct slots *from)
{
    struct batcher_slot *slot = from->first;
    from->first = slot->next;
    if (!from->first)
        from->last = &from->first;
    return slot;
}

/* Takes the oldest tokens, sorted by number: recordings that the model made ahead for the same slots in the
 * same order can then be used. */
static void take_tokens(struct batcher *b, struct batcher_slot *leader)
{
    uint32_t n = (uint32_t)size_min(b->n_waiting, group_size(b));
    for (uint32_t i = 0; i < n; i++) {
        struct batcher_slot *s = take(&b->tokens);
        uint32_t at = i;
        for (; at > 0 && leader->group[at - 1]->number > s->number; at--)
            leader->group[at] = leader->group[at - 1];
        leader->group[at] = s;
    }
    leader->n_group = n;
    b->n_waiting -= n;
    b->n_in_flight += n;
    b->n_came = 0;
}

/* Takes the oldest parts of prompts that there is room for. */
static void take_prompts(struct batcher *b, struct batcher_slot *leader)
{
    uint32_t chunk = batched_chunk(b->model), n = leader->n_group;
    uint32_t room = n ? (uint32_t)size_min(RIDING_MOST, chunk > n ? chunk - n : 0) : chunk;
    leader->n_prompts = 0;
    while (b->prompts.first && leader->n_group < b->most && b->prompts.first->prompt.n <= room) {
        struct batcher_slot *s = take(&b->prompts);
        room -= s->prompt.n;
        leader->group[leader->n_group++] = s;
        leader->n_prompts++;
    }
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

static void eval_each(const struct batcher_slot *leader)
{
    uint32_t n_tokens = leader->n_group - leader->n_prompts;
    for (uint32_t i = 0; i < leader->n_group; i++) {
        struct batcher_slot *s = leader->group[i];
        bool is_token = i < n_tokens;
        s->rc = batched_eval(&s->token, is_token, &s->prompt, !is_token, NULL, NULL, &s->error);
    }
}

/* Evaluates a group. A failure may be the fault of one sequence, and a stop is for prompts one caller's wish:
 * then each is evaluated alone. */
static void eval_group(struct batcher *b, const struct batcher_slot *leader)
{
    struct batched_token tokens[BATCHER_MOST];
    struct batched_prompt prompts[BATCHER_MOST];
    struct moeflux_err e = {0};
    uint32_t n = leader->n_group, n_tokens = n - leader->n_prompts;
    for (uint32_t i = 0; i < n_tokens; i++)
        tokens[i] = leader->group[i]->token;
    for (uint32_t i = n_tokens; i < n; i++)
        prompts[i - n_tokens] = leader->group[i]->prompt;
    int rc = batched_eval(tokens, n_tokens, prompts, n - n_tokens, leave_first, b, &e);
    if (rc && (rc != ERR_INTERRUPTED || n_tokens == 0) && n > 1) {
        eval_each(leader);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct batcher_slot *s = leader->group[i];
        s->token = i < n_tokens ? tokens[i] : s->token;
        s->rc = rc;
        s->error = e;
    }
}

/* Evaluates a group, which may not have the leader in it. The caller holds the lock, which is released
 * meanwhile. */
static void lead(struct batcher *b, struct batcher_slot *leader)
{
    if (is_ready(b))
        take_tokens(b, leader);
    take_prompts(b, leader);
    b->is_taken = true;
    pthread_mutex_unlock(&b->lock);
    eval_group(b, leader);
    pthread_mutex_lock(&b->lock);
    b->n_in_flight -= leader->n_group - leader->n_prompts;
}

/* Tells the threads of the group that their slots are done. A slot may be gone when its own thread knows. */
static void tell_group(struct batcher_slot *leader)
{
    for (uint32_t i = 0; i < leader->n_group; i++) {
        struct batcher_slot *s = leader->group[i];
        bool is_other = s != leader;
        s->n_posts += is_other; /* its thread reads it once the slot is done */
        atomic_store(&s->is_done, true);
        if (is_other)
            sem_post(&s->posts);
    }
    leader->n_group = leader->n_prompts = 0;
}

/* Evaluates groups as long as there is one to evaluate and the slot waits. */
static void lead_all(struct batcher *b, struct batcher_slot *slot)
{
    pthread_mutex_lock(&b->lock);
    while (!atomic_load(&slot->is_done) && (is_ready(b) || prompts_are_ready(b))) {
        lead(b, slot);
        pthread_mutex_unlock(&b->lock);
        tell_group(slot);
        pthread_mutex_lock(&b->lock);
    }
    pthread_mutex_unlock(&b->lock);
}

/* Waits until the slot, which gets into the list, is evaluated. The thread that completes a group evaluates
 * it, so nobody has to be woken for that. */
static int eval(struct batcher_slot *slot, struct slots *list, struct moeflux_err *e)
{
    struct batcher *b = slot->batcher;
    if (sem_init(&slot->posts, 0, 0) != 0)
        return err_errno(e, ERR_MEMORY, "a thread's place in a batch");
    slot->n_posts = 0;
    atomic_store(&slot->is_done, false);
    pthread_mutex_lock(&b->lock);
    put(list, slot);
    b->n_waiting += list == &b->tokens;
    pthread_mutex_unlock(&b->lock);
    lead_all(b, slot);
    /* Every post is awaited: then nobody else uses the slot. */
    for (uint32_t n = 0; !atomic_load(&slot->is_done) || n < slot->n_posts; n++) {
        while (sem_wait(&slot->posts) != 0)
            continue;
        lead_all(b, slot);
    }
    sem_destroy(&slot->posts);
    if (slot->rc < 0 && e)
        *e = slot->error;
    return slot->rc;
}

/* Appends a token to the generator's sequence. sampler: what may choose the next one; NULL: g->logits
 * receives the logits after it. */
static int eval_one(struct batcher_slot *slot, struct generator *g, int32_t id, const struct sampler *sampler,
                    struct moeflux_err *e)
{
    slot->token =
        (struct batched_token){.session = g->sequence, .id = id, .logits = g->logits, .sampler = sampler};
    return eval(slot, &slot->batcher->tokens, e);
}

/* ---- the generator's tokens ---- */

static bool is_alone(struct batcher *b)
{
    pthread_mutex_lock(&b->lock);
    bool is = b->n_joined == 1 && !(b->prompts_first && b->n_coming > 0);
    pthread_mutex_unlock(&b->lock);
    return is;
}

/* Whether the token needs no others: no answer waits for a batch, or the token was in a chain of drafts. */
static bool goes_alone(const struct batcher_slot *slot, const struct generator *g, int32_t id)
{
    return slot->batcher->is_exact && (draft_has(g, id) || is_alone(slot->batcher));
}

/* The caller holds the lock. */
static void expect(struct batcher_slot *slot, bool is_coming)
{
    struct batcher *b = slot->batcher;
    b->n_coming += (uint32_t)is_coming - (uint32_t)slot->is_coming;
    slot->is_coming = is_coming;
}

/* joins: the slot's thread decodes from now on, or else no longer. is_coming: it evaluates a prompt. */
static void join(struct batcher_slot *slot, bool joins, bool is_coming)
{
    struct batcher *b = slot->batcher;
    pthread_mutex_lock(&b->lock);
    b->n_came += joins && slot->is_coming;
    expect(slot, is_coming);
    b->n_joined += joins ? 1 : UINT32_MAX;
    slot->has_joined = joins;
    wake(b);
    pthread_mutex_unlock(&b->lock);
}

/* Evaluates the last token of a prompt, or of what an answer was forced to say, with the tokens of those who
 * decode. */
static int eval_end(struct batcher_slot *slot, struct generator *g, int32_t id, struct moeflux_err *e)
{
    if (slot->has_joined)
        return eval_one(slot, g, id, NULL, e);
    bool is_coming = slot->is_coming;
    join(slot, true, false);
    int rc = eval_one(slot, g, id, NULL, e);
    join(slot, false, is_coming);
    return rc;
}

/* Returns how many of a part's last tokens go with others: what is left after whole chunks, if it is short
 * enough. A prompt whose first chunks were evaluated before has the same rest. */
static uint32_t rest_of(const struct batcher *b, uint32_t n)
{
    uint32_t rest = n % batched_chunk(b->model);
    return rest <= b->most_prompt ? rest : 0;
}

/* Evaluates a part of a prompt: whole chunks alone, a short rest with others, and its end apart. What is done
 * depends on nothing but the part. */
static int eval_prompt(void *ctx, struct generator *g, const int32_t *ids, uint32_t n, bool is_end,
                       struct moeflux_err *e)
{
    struct batcher_slot *slot = ctx;
    struct batcher *b = slot->batcher;
    const struct batched_prompt all = {g->sequence, ids, n};
    struct moeflux_outputs outputs = {.logits = is_end ? g->logits : NULL};
    uint32_t rest = batched_takes_prompt(&all) ? rest_of(b, n) : 0;
    if (rest == 0)
        return moeflux_session_eval(g->sequence, ids, n, &outputs, e);
    outputs.logits = NULL;
    int rc = n > rest ? moeflux_session_eval(g->sequence, ids, n - rest, &outputs, e) : 0;
    slot->prompt = (struct batched_prompt){g->sequence, ids + n - rest, rest - is_end};
    if (rc == 0 && slot->prompt.n > 0)
        rc = eval(slot, &b->prompts, e);
    return rc || !is_end ? rc : eval_end(slot, g, ids[n - 1], e);
}

static int eval_token(void *ctx, struct generator *g, int32_t id, struct moeflux_err *e)
{
    struct batcher_slot *slot = ctx;
    /* The last token of a prompt. */
    if (!slot->has_joined)
        return eval_prompt(ctx, g, &id, 1, true, e);
    if (g->draft && goes_alone(slot, g, id))
        return draft_token(g, id, e);
    return eval_one(slot, g, id, NULL, e);
}

/* Evaluates a token and samples the next one. If no other answer runs, the device may sample and begin the
 * next evaluation, in exact arithmetic, and drafts are evaluated. */
static int eval_step(void *ctx, struct generator *g, int32_t id, bool more, int32_t *next,
                     struct moeflux_err *e)
{
    struct batcher_slot *slot = ctx;
    if (goes_alone(slot, g, id))
        return draft_step(g, id, more, next, e);
    int rc = eval_one(slot, g, id, g->sampler, e);
    return rc ? rc : batched_choose(&slot->token, g->sampler, next, e);
}

uint32_t batcher_most_prompt(const struct batcher *b)
{
    return b->most_prompt;
}

void batcher_bind(struct batcher *b, struct batcher_slot *slot, struct generator *g)
{
    slot->batcher = b;
    pthread_mutex_lock(&b->lock);
    slot->number = b->n_slots++;
    pthread_mutex_unlock(&b->lock);
    g->evaluator = (struct generator_evaluator){eval_prompt, eval_token, eval_step, slot};
}

void batcher_expect(struct batcher_slot *slot, bool is_coming)
{
    struct batcher *b = slot->batcher;
    pthread_mutex_lock(&b->lock);
    expect(slot, is_coming);
    wake(b);
    pthread_mutex_unlock(&b->lock);
}

int batcher_answer(struct batcher_slot *slot, struct answer *a, struct generator *g,
                   const struct answer_options *o, struct moeflux_err *e)
{
    join(slot, true, false);
    int rc = answer_run(a, g, o, e);
    join(slot, false, false);
    return rc;
}
