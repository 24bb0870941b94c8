#include "engine/run/forward.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cpu/mapped.h"
#include "engine/run/chosen.h"
#include "engine/run/layers.h"
#include "engine/run/token.h"
#include "engine/sequence.h"

/* How long the caller waits before it asks its callback again. */
enum { SLICE_NS = 50000000 };
/* Rows of the head at once, if the logits of a whole chunk are wanted. */
enum { LOGIT_ROWS = 4 };
_Static_assert((int)LOGIT_ROWS <= (int)ARCH_HEAD_ROWS, "rows of logits");

struct forward;

/* Logits of a few tokens on the last stage, which end_rows copies to the caller. A host copy of them
 * (stage.logits) stays valid when the stage is given back. */
struct rows {
    bool is_there;
    bool is_wanted; /* false: the device samples from them, except those without a sampler */
    uint32_t n;
    uint32_t half; /* pass.half */
};

struct worker { /* one stage */
    struct forward *forward;
    uint32_t idx;
    uint32_t n_done;     /* chunks that it has handed over */
    uint32_t first_half; /* chunk 0's half of the crossing to the next stage */
    bool has_turn;       /* it holds its stage, from the first chunk to the last one */
    struct rows rows;    /* only those of the last stage are there */
    int rc;
    struct moeflux_err err;
};

struct forward {
    const struct forward_call *call;
    struct moeflux_model *m;
    struct moeflux_session *s; /* the first sequence */
    bool has_threads;          /* the workers run concurrently */
    bool is_watched;
    bool runs_on; /* work.runs_on */
    /* the evaluation writes data that belongs to the model, not to a stage: it keeps the first stage to
     * the end, so that it is the only one */
    bool is_only_one;
    struct worker workers[MOEFLUX_MAX_DEVICES];
    pthread_mutex_t lock; /* lock of n_done */
    pthread_cond_t moved; /* some n_done has changed, or the pipeline stops */
    atomic_bool stops;
};

/* Files may hold the dense weights, if they are mapped, and the experts of all sides. */
int forward_check_files(const struct moeflux_model *m, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t k = 0; rc == 0 && k < m->n_stages; k++) {
        const struct stage *at = &m->stages[k];
        rc = loader_check(&at->loader, e);
        for (int i = 0; rc == 0 && i < EXPERT_SIDES; i++)
            rc = at->sides[i].store ? expert_store_check(at->sides[i].store, e) : 0;
    }
    return rc;
}

/* ---- hidden states for the caller ---- */

static int hand_out_hidden(const struct forward *l, struct moeflux_err *e)
{
    struct moeflux_model *m = l->m;
    uint64_t layer_floats = (uint64_t)m->max_chunk * config_width(&m->dir.config);
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && l->call->outputs->hidden && i <= m->dir.config.n_layers; i++) {
        const struct stage *at = model_stage(m, i ? i - 1 : 0);
        rc = l->call->outputs->hidden(
            l->call->outputs->ctx, i, l->s->pos, l->call->n,
            (const float *)(const void *)at->hidden.host + (i - at->layers.first) * layer_floats, e);
    }
    return rc;
}

static int make_hidden_buffers(struct moeflux_model *m, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++) {
        struct stage *at = &m->stages[i];
        uint64_t n = at->layers.end - at->layers.first + 1;
        uint64_t floats = n * m->max_chunk * config_width(&m->dir.config);
        stage_take(at);
        if (!at->hidden.host)
            rc = model_fault(m, at,
                             exec_buffer_new(at->exec, &at->hidden, EXEC_HOST, floats * sizeof(float), e), e);
        stage_give(at);
    }
    return rc;
}

/* ---- logits for the caller ---- */

/* Returns the last stage's logits of a few tokens: f32 [n][vocab_size]. If they are a host copy, they stay
 * valid until end_logits, even if the stage computes something else, which uses the other half.
 * begin_logits must be called before they are computed. */
static const float *logits_of(const struct stage *at, uint32_t half)
{
    return (const float *)(const void *)(at->view.logits.host
                                             ? at->view.logits.host
                                             : at->logits.host + half * at->view.logits.bytes);
}

static void begin_logits(struct stage *at, uint32_t half)
{
    pthread_mutex_lock(&at->reading[half]);
    at->last_half = half;
}

static void end_logits(struct stage *at, uint32_t half)
{
    pthread_mutex_unlock(&at->reading[half]);
}

/* Finishes the batch with the logits of tokens from .. from + n - 1, which are then on the host. */
static int run_head(const struct pass *p, uint32_t from, uint32_t n, const float **rows,
                    struct moeflux_err *e)
{
    layers_head(p, from, n);
    *rows = logits_of(p->at, p->half);
    return exec_finish(p->at->exec, e);
}

static int all_logits(const struct pass *p, struct moeflux_err *e)
{
    uint32_t vocab = p->m->dir.config.vocab_size;
    for (uint32_t from = 0; from < p->chunk.n; from += LOGIT_ROWS) {
        uint32_t n = (uint32_t)size_min(LOGIT_ROWS, p->chunk.n - from);
        const float *rows;
        if (from > 0)
            exec_begin(p->at->exec);
        int rc = run_head(p, from, n, &rows, e);
        for (uint32_t i = 0; rc == 0 && i < n; i++)
            rc = p->outputs->each_logits(p->outputs->ctx, p->chunk.of.pos + from + i,
                                         rows + (uint64_t)i * vocab, e);
        if (rc < 0)
            return rc;
        if (p->outputs->logits && from + n == p->chunk.n)
            memcpy(p->outputs->logits, rows + (uint64_t)(n - 1) * vocab, vocab * sizeof(float));
    }
    return 0;
}

static int last_logits(const struct pass *p, struct moeflux_err *e)
{
    const float *row;
    int rc = run_head(p, p->chunk.n - 1, 1, &row, e);
    if (rc == 0)
        memcpy(p->outputs->logits, row, p->m->dir.config.vocab_size * sizeof(float));
    return rc;
}

/* ---- recurrent states: without any, make_older makes none, and nothing moves ---- */

uint32_t forward_n_older(uint32_t stage, uint32_t n_stages)
{
    return n_stages - 1 - stage;
}

static bool make_older(struct moeflux_session *s)
{
    struct moeflux_model *m = s->model;
    for (uint32_t i = 0; m->recurrent_state_bytes && i < m->n_stages; i++)
        for (uint32_t k = 0; k < forward_n_older(i, m->n_stages); k++) {
            struct exec_buffer *b = &s->on[i].older[k];
            if (b->address)
                continue;
            stage_take(&m->stages[i]);
            int rc = exec_buffer_new(m->stages[i].exec, b, EXEC_DEVICE, s->on[i].recurrent.bytes, NULL);
            m->stages[i].state_bytes += rc == 0 ? b->bytes : 0;
            stage_give(&m->stages[i]);
            if (rc < 0)
                return false;
        }
    return true;
}

bool forward_takes_chunks(struct moeflux_session *s, const struct moeflux_outputs *outputs)
{
    const struct moeflux_model *m = s->model;
    return m->n_stages > 1 && !m->trace && !outputs->hidden && make_older(s);
}

/* Makes a finished chunk's state the current one. Older ones follow it, and the oldest is overwritten
 * next. */
static void move_on(struct stage_state *on, uint32_t n_older)
{
    const struct exec_buffer current = on->recurrent;
    on->recurrent = on->recurrent_next;
    on->recurrent_next = n_older ? on->older[n_older - 1] : current;
    for (uint32_t k = n_older; k > 1; k--)
        on->older[k - 1] = on->older[k - 2];
    if (n_older)
        on->older[0] = current;
}

/* Goes back by n chunks. Without older states (one chunk) the last one is where the next would be written. */
static void move_back(struct stage_state *on, uint32_t n, uint32_t n_older)
{
    if (n == 0)
        return;
    struct exec_buffer *last = n_older ? &on->older[n - 1] : &on->recurrent_next;
    const struct exec_buffer current = on->recurrent;
    on->recurrent = *last;
    *last = current;
}

/* ---- what a stage reads ---- */

/* Returns position i of a chain, and the states before and after its token. The sequence's state stays. */
static struct arch_sequence link_of(const struct work *w, uint32_t i, const struct stage *at)
{
    const struct moeflux_session *s = w->list[0];
    const struct stage_state *on = &s->on[at - w->m->stages];
    bool has_state = at->view.sizes.recurrent > 0;
    return (struct arch_sequence){.pos = s->pos + i,
                                  .parity = s->parity ^ (i & 1),
                                  .kv_blocks = on->tables[ARCH_ROWS].table.address,
                                  .ring_blocks = on->tables[ARCH_WINDOW].table.address,
                                  .recurrent =
                                      (has_state && i > 0 ? on->drafted[i - 1] : on->recurrent).address,
                                  .recurrent_out = (has_state ? on->drafted[i] : on->recurrent).address};
}

/* Returns the work's pass on one stage. each: room for what the pass refers to. */
static struct pass pass_of(const struct work *w, struct stage *at,
                           struct arch_sequence each[MOEFLUX_MAX_PARALLEL])
{
    struct pass p = {.m = w->m,
                     .at = at,
                     .outputs = w->outputs,
                     .start_ns = clock_ns(),
                     .progress = &w->list[0]->progress_at,
                     .is_watched = w->is_watched,
                     .in = {at->x.host ? &at->x : NULL, 0},
                     .out = {at->x.host ? &at->x : NULL, 0},
                     .chunk = {.n = w->n,
                               .ids = at->ids.address,
                               .rope = at->rope.room.address,
                               .ngrams = at->ngrams.room.address,
                               .keep = w->keep,
                               .fed = at->view.fed.address,
                               .fed_is_own = w->list[0]->drafter.fed_is_own,
                               .kept = at->kept.address}};
    if (!w->is_batched) {
        p.chunk.of = pass_sequence(w, 0, at);
        return p;
    }
    for (uint32_t i = 0, n = w->is_chain ? w->n : arch_batch_sequences(&w->batch); i < n; i++)
        each[i] = w->is_chain ? link_of(w, i, at) : pass_sequence(w, i, at);
    p.chunk.each = each;
    p.chunk.batch = w->batch;
    p.chunk.is_chain = w->is_chain;
    p.chunk.plan_n = pass_plan_n(at, w->n);
    return p;
}

/* Adds the n-gram rows of a batch. */
static int add_batch_rows(const struct work *w, struct stage *at, struct moeflux_err *e)
{
    const struct arch_batch *b = &w->batch;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < arch_batch_sequences(b); i++) {
        const struct moeflux_session *s = w->list[i];
        uint32_t from = arch_batch_start(b, i);
        const struct ngram_text text = {s->history, w->ids + from - w->ahead, s->pos};
        rc = ngram_rows_add(&at->ngrams, &text, s->pos + w->ahead, arch_batch_end(b, i) - from, e);
    }
    return rc;
}

/* Begins to read the rows of the work's tokens, and notes those of the chunk that follows. */
static int start_rows(const struct work *w, struct stage *at, struct moeflux_err *e)
{
    const struct moeflux_session *s = w->list[0];
    /* Chunks of one evaluation have contiguous ids, and are not in the history yet. */
    const struct ngram_text text = {s->history, w->ids - w->ahead, s->pos};
    bool is_batch = w->is_batched && !w->is_chain;
    if (!at->ngrams.tables)
        return 0;
    ngram_rows_clear(&at->ngrams);
    int rc =
        is_batch ? add_batch_rows(w, at, e) : ngram_rows_add(&at->ngrams, &text, s->pos + w->ahead, w->n, e);
    if (rc < 0)
        return rc;
    ngram_rows_start(&at->ngrams);
    if (w->n_after == 0)
        return 0;
    return ngram_rows_add(&at->ngrams, &text, s->pos + w->ahead + w->n,
                          (uint32_t)size_min(w->n_after, w->m->max_chunk), e);
}

/* Fills in the hidden states that a drafter goes on from. */
static void feed(const struct work *w, struct stage *at)
{
    const struct moeflux_session *s = w->list[0];
    const struct drafter_rows *d = &s->drafter;
    uint64_t from = (uint64_t)(s->pos + w->ahead - d->fed_pos) * config_width(&w->m->dir.config);
    memcpy(at->fed.host, d->fed + from, pass_hidden_bytes(w->m, w->n));
}

/* Computes the angles of a token, or of the tokens of a batch or a chain. */
static void fill_angles(const struct work *w, struct pass *p)
{
    const struct arch_batch *b = &w->batch;
    bool is_batch = w->is_batched && !w->is_chain;
    float *to = rope_cache_of_tokens(&p->at->rope, p->half, &p->chunk.rope);
    for (uint32_t t = 0; !is_batch && t < w->n; t++)
        rope_cache_fill_token(w->m, to, w->n, t, w->list[0]->pos + w->ahead + t);
    for (uint32_t i = 0; is_batch && i < arch_batch_sequences(b); i++)
        for (uint32_t from = arch_batch_start(b, i), t = from; t < arch_batch_end(b, i); t++)
            rope_cache_fill_token(w->m, to, w->n, t, w->list[i]->pos + w->ahead + t - from);
}

/* Fills a stage's inputs: ids and positions. The device must not use them. */
static int fill_inputs(const struct work *w, struct pass *p, struct moeflux_err *e)
{
    struct moeflux_model *m = w->m;
    struct stage *at = p->at;
    memcpy(at->ids.host, w->ids, w->n * sizeof *w->ids);
    if (at->fed.host)
        feed(w, at);
    if (!w->is_batched && w->n > 1) {
        p->chunk.rope = rope_cache_of_chunk(&at->rope, m, w->n, p->chunk.of.pos);
        return start_rows(w, at, e);
    }
    fill_angles(w, p);
    return start_rows(w, at, e);
}

/* ---- the work of a stage ---- */

/* Finishes a chunk that another may follow. */
static int finish(const struct pass *p, struct moeflux_err *e)
{
    struct stage *at = p->at;
    uint64_t ticket;
    int rc = exec_submit(at->exec, &ticket, e);
    if (rc < 0)
        return rc;
    if (!at->computes_at_once && pass_n_decoding(p) == 0 && !p->chunk.batch.n_prompts)
        rope_cache_go_ahead(&at->rope, p->m);
    return exec_wait(at->exec, ticket, e);
}

static int compute_chunk(const struct work *w, const struct pass *p, struct moeflux_err *e)
{
    memset(p->at->is_seen, 0, p->m->dir.config.n_layers * sizeof *p->at->is_seen);
    begin_logits(p->at, p->half);
    int rc = layers_run(p, e);
    if (rc == 0 && pass_is_last(p) && p->outputs->each_logits)
        rc = all_logits(p, e);
    else if (rc == 0 && pass_is_last(p) && w->is_last && p->outputs->logits)
        rc = last_logits(p, e);
    else if (rc == 0)
        rc = finish(p, e);
    end_logits(p->at, p->half);
    return rc;
}

static int compute_tokens(const struct pass *p, struct moeflux_err *e)
{
    int rc = layers_run_tokens(p, e);
    return rc < 0 ? rc : exec_finish(p->at->exec, e);
}

/* Whether a token passes the stage's layers without the host, and only its logits are wanted. */
static bool is_plain(const struct work *w, const struct pass *p)
{
    const struct moeflux_outputs *o = w->outputs;
    if (w->is_watched || o->each_logits || o->hidden || !(w->is_batched || (w->n == 1 && o->logits)))
        return false;
    if (w->m->trace || stage_has_cpu_layers(p->at))
        return false;
    return stage_holds_all(p->at) || (!w->is_batched && layers_are_at_once(p));
}

/* Ends a pass with the result rc. */
static int end_pass(const struct work *w, const struct pass *p, int rc, struct moeflux_err *e)
{
    if (rc < 0)
        exec_abandon(p->at->exec);
    p->at->is_stopped |= rc == ERR_INTERRUPTED;
    stage_release(p->at);
    p->at->busy_ns += clock_ns() - p->start_ns;
    if (rc < 0)
        return model_fault(p->m, p->at, rc, e);
    rc = w->is_batched ? 0 : layers_see(p, e);
    if (rc == 0 && pass_is_last(p) && p->m->keeps_hidden)
        drafter_take(w,
                     (const float *)(const void *)(p->at->last.host ? p->at->last.host : p->at->view.x.host));
    return rc;
}

/* Computes the work of a pass. If *rows are there, the caller must call end_rows with the result. */
static int compute(const struct work *w, struct pass *p, struct rows *rows, struct moeflux_err *e)
{
    struct stage *at = p->at;
    bool plain = is_plain(w, p), has_rows = w->is_batched && pass_n_rows(p) > 0;
    p->half = 1 - at->last_half;
    if (plain)
        token_find(w, p);
    *rows = (struct rows){.is_there = pass_is_last(p) && (plain || has_rows),
                          .is_wanted = !p->chooses,
                          .half = p->half,
                          .n = pass_n_rows(p)};
    if (rows->is_there)
        begin_logits(at, p->half);
    int rc = p->ahead != PASS_IN_FLIGHT ? fill_inputs(w, p, e) : 0;
    p->awaits_rows = p->ahead == PASS_NOT_AHEAD;
    p->is_in_pieces = plain && p->ahead == PASS_NOT_AHEAD && !at->computes_at_once;
    if (rc == 0 && p->ahead == PASS_DEFERRED && at->ngrams.tables)
        rc = ngram_rows_wait(&at->ngrams, at->exec, e);
    if (rc < 0)
        return rc;
    if (w->m->named)
        chosen_prefetch_named(p, w->ids);
    if (!plain && w->ahead == 0 && !w->batch.n_prompts && (!w->is_batched || w->n <= EXEC_MAX_INVARIANT))
        chosen_track(w, at);
    rc = plain ? token_decode(w, p, e) : has_rows ? compute_tokens(p, e) : compute_chunk(w, p, e);
    return end_pass(w, p, rc, e);
}

/* ---- the workers ---- */

static bool is_last(const struct worker *t)
{
    return t->idx + 1 == t->forward->m->n_stages;
}

/* Whether the worker runs on the caller's thread, the only one that calls the progress callback. */
static bool is_caller(const struct worker *t)
{
    return !t->forward->has_threads || is_last(t);
}

static struct stage *stage_of(const struct worker *t)
{
    return &t->forward->m->stages[t->idx];
}

static uint32_t n_older_of(const struct worker *t)
{
    return t->forward->call->n_chunks > 1 ? forward_n_older(t->idx, t->forward->m->n_stages) : 0;
}

/* Whether the states move with the chunks. Those of several sequences move when all are accepted; a token
 * that cannot be stopped changes them in place, unless the one after it may be in flight. */
static bool moves(const struct forward *l)
{
    bool has_states = l->m->recurrent_state_bytes || l->call->n_chunks == 1;
    return (l->is_watched || l->runs_on) && !l->call->is_batched && has_states;
}

static bool go_on_worker(void *ctx)
{
    const struct forward *l = ctx;
    return !atomic_load(&l->stops);
}

/* Calls the progress callback; returns whether to go on. A single token is not reported as progress. */
static bool go_on(void *ctx)
{
    struct forward *l = ctx;
    struct progress_at *at = &l->s->progress_at;
    uint64_t here = (uint64_t)at->here * at->layer / l->m->dir.config.n_layers;
    bool is_prompt = at->total > 1;
    if (!atomic_load(&l->stops) &&
        !sequence_report(l->s, is_prompt ? at->before + here : 0, is_prompt ? at->total : 0)) {
        at->is_stopped = true;
        atomic_store(&l->stops, true);
    }
    return !atomic_load(&l->stops);
}

/* Waits until a worker has handed over n chunks. False: the pipeline stops. */
static bool await_chunks(struct worker *t, const struct worker *other, uint32_t n)
{
    struct forward *l = t->forward;
    pthread_mutex_lock(&l->lock);
    while (other->n_done < n && !atomic_load(&l->stops)) {
        clock_wait(&l->moved, &l->lock, SLICE_NS);
        pthread_mutex_unlock(&l->lock);
        if (is_caller(t))
            go_on(l);
        pthread_mutex_lock(&l->lock);
    }
    bool is_there = other->n_done >= n;
    pthread_mutex_unlock(&l->lock);
    return is_there && !atomic_load(&l->stops);
}

static struct work work_of(const struct forward *l, uint32_t chunk)
{
    const struct forward_call *c = l->call;
    uint32_t from = chunk * l->m->max_chunk;
    bool is_end = chunk + 1 == c->n_chunks;
    return (struct work){.m = l->m,
                         .list = c->list,
                         .ids = c->ids + from,
                         .n = is_end ? c->n - from : l->m->max_chunk,
                         .n_all = c->n - from,
                         .n_after = is_end ? c->n_after : c->n - from - l->m->max_chunk + c->n_after,
                         .keep = is_end ? c->keep : 0,
                         .batch = c->batch,
                         .is_batched = c->is_batched,
                         .is_chain = c->is_chain,
                         .is_watched = l->is_watched,
                         .runs_on = l->runs_on,
                         .is_last = is_end && c->is_last,
                         .is_moving = c->n_chunks > 1,
                         .ahead = from,
                         .flips = chunk,
                         .outputs = c->outputs,
                         .choice = c->choices};
}

/* ---- hidden states: if both devices see the memory of a crossing, no thread copies a prompt's ----
 *
 * Chunks use the two halves of a crossing alternately. When a worker begins chunk c, it has handed over
 * chunk c - 1. So the next worker had finished chunk c - 2 (hand_over), which was the last in the same
 * half. The next prompt continues with the other half: when it begins, the next stage may still compute
 * this prompt's last chunk, and its own second chunk comes after hand_over's wait for that stage. After a
 * stop a device may still read or write a half. Whoever takes its stage waits for that (take_stage), and
 * the result of what it reads is dropped. A token's commands are recorded before it is known whether
 * another sequence comes first, so its hidden states are always in the same place (stage.x). */

static bool crosses(const struct forward *l, const struct stage *at)
{
    return !l->call->is_batched && l->call->n > 1 && crossing_is_there(&at->crossing);
}

static uint32_t half_of(const struct worker *t, uint32_t chunk)
{
    return (t->first_half + chunk) & 1;
}

static void choose_halves(const struct worker *t, uint32_t chunk, struct pass *p)
{
    const struct stage *at = p->at;
    if (crosses(t->forward, at))
        p->out = crossing_out(&at->crossing, half_of(t, chunk));
    if (t->idx > 0 && crosses(t->forward, at - 1))
        p->in = crossing_in(&at[-1].crossing, half_of(t - 1, chunk));
}

/* ---- taking and leaving a stage ---- */

/* Sets (on) or ends the modes that the evaluation needs on a stage: `watch` if it is watched, batch-invariant
 * results in batched decode. */
static void set_modes(const struct forward *l, const struct stage *at, const struct exec_watch *watch,
                      bool on)
{
    struct exec *execs[] = {at->exec, at->sides[SIDE_HOST].exec};
    for (size_t i = 0; i < sizeof execs / sizeof *execs; i++) {
        if (!execs[i])
            continue;
        if (l->is_watched)
            exec_watch(execs[i], on ? watch : NULL);
        if (l->call->is_batched)
            exec_set_batch_invariant(execs[i], on);
    }
}

/* Takes the worker's stage for the first chunk, and waits until nothing else is in flight there. asks: the
 * watch of the calling thread, which may be another worker's. On failure the worker does not have the
 * turn. */
static int take_stage(struct worker *t, bool (*asks)(void *ctx), struct moeflux_err *e)
{
    struct forward *l = t->forward;
    struct stage *at = stage_of(t);
    const struct work w = work_of(l, 0);
    stage_take(at);
    int rc = token_is_in_flight(&w, at) ? 0 : stage_wait_idle(l->m, at, &(struct exec_watch){asks, l}, e);
    if (rc < 0) {
        stage_give(at);
        return rc;
    }
    t->has_turn = true;
    t->first_half = at->crossing.next;
    set_modes(l, at, &(struct exec_watch){is_caller(t) ? go_on : go_on_worker, l}, true);
    return 0;
}

/* Gives the worker's stage back after the last chunk; others may use it then. */
static void give_stage(struct worker *t, int rc)
{
    struct forward *l = t->forward;
    struct stage *at = stage_of(t);
    if (!t->has_turn)
        return;
    set_modes(l, at, NULL, false);
    /* A chunk that was stopped may still write to its next state. */
    at->is_stopped |= rc < 0 && l->is_watched;
    at->crossing.next = half_of(t, t->n_done);
    t->has_turn = false;
    stage_give(at);
}

/* Reports that the first stage is free for other sequences. */
static void tell_left(const struct forward *l)
{
    if (l->s->left)
        l->s->left(l->s->left_ctx);
    l->s->left = NULL;
}

/* Copies the rows to the caller if rc is 0. */
static void end_rows(const struct worker *t, int rc)
{
    const struct forward_call *c = t->forward->call;
    const struct rows *rows = &t->rows;
    struct stage *at = stage_of(t);
    const float *from = logits_of(at, rows->half);
    float *const *to = c->is_batched ? c->logits : &c->outputs->logits;
    uint32_t vocab = t->forward->m->dir.config.vocab_size;
    for (uint32_t i = 0; rc == 0 && i < rows->n; i++)
        if (rows->is_wanted || (c->is_batched && !c->choices[i].sampler))
            memcpy(to[i], from + (uint64_t)i * vocab, vocab * sizeof(float));
    end_logits(at, rows->half);
}

/* Ends the worker's part with the result rc, unless that was done. A host copy of logits is read after the
 * stage was given back. */
static void leave_stage(struct worker *t, int rc)
{
    const struct forward *l = t->forward;
    bool has_rows = t->rows.is_there, is_copy = has_rows && stage_of(t)->logits.host;
    t->rows.is_there = false;
    if (has_rows && !is_copy)
        end_rows(t, rc);
    if (t->idx > 0 || !l->is_only_one)
        give_stage(t, rc);
    if (has_rows && is_copy)
        end_rows(t, rc);
}

/* Returns the host's view of the hidden states that enter and leave a stage. */
static uint8_t *hidden_states(const struct stage *at)
{
    return at->view.x.host ? at->view.x.host : at->x.host;
}

/* Hands the chunk's hidden states over when the next stage has finished the chunk before. */
static int hand_over(struct worker *t, const struct work *w, uint32_t chunk)
{
    const struct stage *at = stage_of(t);
    if (is_last(t))
        return 0;
    if (!await_chunks(t, t + 1, chunk))
        return err_set(&t->err, ERR_INTERRUPTED, "interrupted");
    int rc = chunk == 0 ? take_stage(t + 1, is_caller(t) ? go_on : go_on_worker, &t->err) : 0;
    if (rc == 0 && !crosses(t->forward, at)) {
        uint64_t off = pass_lagged_off(w->m);
        memcpy(hidden_states(at + 1), hidden_states(at), pass_hidden_bytes(w->m, w->n));
        memcpy(hidden_states(at + 1) + off, hidden_states(at) + off, pass_lagged_bytes(w->m, w->n));
    }
    return rc;
}

/* Runs one chunk on one stage. */
static int run_chunk(struct worker *t, uint32_t chunk)
{
    struct forward *l = t->forward;
    struct arch_sequence each[MOEFLUX_MAX_PARALLEL];
    struct progress_at *progress = &l->s->progress_at;
    const struct work w = work_of(l, chunk);
    struct pass p = pass_of(&w, stage_of(t), each);
    if (is_caller(t)) {
        progress->before = progress->from + chunk * l->m->max_chunk;
        progress->here = w.n;
        progress->layer = p.at->layers.first;
    } else {
        p.progress = NULL;
    }
    choose_halves(t, chunk, &p);
    int rc = compute(&w, &p, &t->rows, &t->err);
    if (rc == 0)
        rc = hand_over(t, &w, chunk);
    if (rc == 0 && moves(l))
        move_on(&l->s->on[t->idx], n_older_of(t));
    return rc;
}

static void *run_worker(void *ctx)
{
    struct worker *t = ctx;
    struct forward *l = t->forward;
    for (uint32_t i = 0; t->rc == 0 && i < l->call->n_chunks; i++) {
        if (t->idx > 0 && !await_chunks(t, t - 1, i + 1))
            t->rc = err_set(&t->err, ERR_INTERRUPTED, "interrupted");
        else
            t->rc = run_chunk(t, i);
        pthread_mutex_lock(&l->lock);
        t->n_done += t->rc == 0;
        pthread_mutex_unlock(&l->lock);
        if (t->rc < 0)
            atomic_store(&l->stops, true);
        pthread_cond_broadcast(&l->moved);
    }
    /* After a failure another worker may be about to take the stage: forward_run gives it back. */
    if (t->rc == 0)
        leave_stage(t, 0);
    if (t->rc == 0 && t->idx == 0 && !l->is_only_one && !is_last(t))
        tell_left(l);
    return NULL;
}

/* Runs all workers: the last one on this thread, the others on threads of their own if they run
 * concurrently. */
static int run_workers(struct forward *l, struct moeflux_err *e)
{
    pthread_t threads[MOEFLUX_MAX_DEVICES];
    uint32_t n = l->m->n_stages, n_started = 0;
    int rc = 0;
    for (uint32_t i = 0; !l->has_threads && i + 1 < n; i++)
        if (run_worker(&l->workers[i]), l->workers[i].rc < 0)
            return 0;
    while (l->has_threads && rc == 0 && n_started + 1 < n) {
        if (pthread_create(&threads[n_started], NULL, run_worker, &l->workers[n_started]))
            rc = err_set(e, ERR_MEMORY, "a thread for a device cannot be made");
        else
            n_started++;
    }
    if (rc == 0)
        run_worker(&l->workers[n - 1]);
    else
        atomic_store(&l->stops, true);
    for (uint32_t i = 0; i < n_started; i++)
        pthread_join(threads[i], NULL);
    return rc;
}

/* Returns the fault that stopped the workers; it only interrupted the others. */
static int result_of(const struct forward *l, struct moeflux_err *e)
{
    const struct worker *at = NULL;
    for (uint32_t i = 0; i < l->m->n_stages; i++) {
        const struct worker *t = &l->workers[i];
        if (t->rc < 0 && (!at || at->rc == ERR_INTERRUPTED))
            at = t;
    }
    if (at && e)
        *e = at->err;
    return at ? at->rc : 0;
}

/* Moves all stages to the position after `chunks` chunks, and the sequence too. Returns the number of their
 * tokens. */
static uint32_t align_stages(struct forward *l, uint32_t chunks)
{
    struct moeflux_session *s = l->s;
    uint32_t all = l->call->n_chunks, tokens = chunks == all ? l->call->n : chunks * l->m->max_chunk;
    for (uint32_t i = 0; moves(l) && i < l->m->n_stages; i++)
        move_back(&s->on[i], l->workers[i].n_done - chunks, n_older_of(&l->workers[i]));
    bool is_kept = chunks == all && l->call->keep;
    s->parity ^= (chunks - is_kept) & 1;
    memmove(s->history + s->pos, l->call->ids, tokens * sizeof *s->history);
    s->pos += tokens;
    return tokens;
}

/* ---- all stages ---- */

/* Runs the evaluation, which has the first stage, and gives all stages back. *chunks: those that were
 * finished. */
static int run(struct forward *l, uint32_t *chunks, struct moeflux_err *e)
{
    uint64_t start = clock_ns(), n_repaired = mapped_n_repaired();
    uint32_t n = l->m->n_stages;
    int rc = run_workers(l, e);
    if (rc == 0)
        rc = result_of(l, e);
    *chunks = l->workers[n - 1].n_done;
    for (uint32_t i = n; i-- > 1;)
        leave_stage(&l->workers[i], rc);
    if (rc == 0) {
        /* Only what was finished says how long the next evaluation may take, and so whether it is watched. */
        l->m->step_ns = (clock_ns() - start) / l->call->n_chunks;
        /* Zeros stood for weights whose file was truncated meanwhile. */
        rc = n_repaired == mapped_n_repaired() ? 0 : forward_check_files(l->m, e);
        rc = rc ? rc : hand_out_hidden(l, e);
        *chunks = rc < 0 ? 0 : *chunks;
    }
    leave_stage(&l->workers[0], rc);
    give_stage(&l->workers[0], rc);
    return rc;
}

/* Whether it evaluates prompts, and nobody's next token, which must not be stopped. */
static bool has_prompts_alone(const struct forward_call *c)
{
    return c->is_batched ? !c->is_chain && c->batch.n_single == 0 : c->n > 1;
}

int forward_run(const struct forward_call *c, uint32_t *n_done, struct moeflux_err *e)
{
    struct moeflux_session *s = c->list[0];
    struct moeflux_model *m = s->model;
    const struct moeflux_outputs *o = c->outputs;
    struct forward l = {.call = c,
                        .m = m,
                        .s = s,
                        .has_threads = c->n_chunks > 1,
                        .is_watched = has_prompts_alone(c) || m->step_ns > QUICK_NS,
                        .is_only_one = c->n_chunks == 1 && (m->trace || m->prefer.margin > 0 || o->hidden),
                        .lock = PTHREAD_MUTEX_INITIALIZER};
    uint32_t chunks = 0;
    assert(m->n_stages > 0 && m->n_stages <= MOEFLUX_MAX_DEVICES);
    /* The hidden states of a token in flight would overwrite those that the host still reads, and a drafter
     * is fed by the host. */
    l.runs_on = c->choices && !c->is_batched && !l.is_watched && m->resident && m->n_stages == 1 &&
                (!m->keeps_hidden || (s->drafter.use == DRAFTER_RESTS && !m->dir.config.drafts)) &&
                !m->stages[0].ngrams.tables; /* the host must know a token to read its rows */
    for (uint32_t i = 0; i < m->n_stages; i++)
        l.workers[i] = (struct worker){.forward = &l, .idx = i};
    *n_done = 0;
    if (clock_init_cond(&l.moved))
        return err_set(e, ERR_MEMORY, "out of memory for a condition");
    int rc = o->hidden ? make_hidden_buffers(m, e) : 0;
    if (rc == 0)
        rc = forward_check_files(m, e);
    s->progress_at.from = s->progress_at.before;
    s->progress_at.here = 0;
    if (rc == 0)
        rc = take_stage(&l.workers[0], go_on, e);
    if (rc < 0) {
        /* Nothing has begun, so the states stay as they are, as after a chunk that is stopped. */
        s->is_stopped = !c->is_batched;
        pthread_cond_destroy(&l.moved);
        return rc;
    }
    s->is_stopped = l.is_watched && !c->is_batched;
    rc = run(&l, &chunks, e);
    if (!c->is_batched)
        *n_done = align_stages(&l, chunks);
    s->is_stopped = s->is_stopped && rc < 0;
    tell_left(&l);
    pthread_mutex_destroy(&l.lock);
    pthread_cond_destroy(&l.moved);
    return rc;
}
