#include "engine/run/work.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/run/chosen.h"
#include "engine/run/layers.h"

/* Rows of the head at once, if the logits of a whole chunk are wanted. */
enum { LOGIT_ROWS = 4 };
_Static_assert((int)LOGIT_ROWS <= (int)ARCH_HEAD_ROWS, "rows of logits");

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

/* Returns the position of sequence i of the work, and its state on the stage. Work that may be stopped, or
 * has a token after it in flight, does not change the recurrent state in place. The KV cache needs no copy:
 * the next chunk writes the same positions again. */
static struct arch_sequence sequence_of(const struct work *w, uint32_t i, const struct stage *at)
{
    const struct moeflux_session *s = w->list[i];
    const struct stage_state *on = &s->on[at - w->m->stages];
    bool moves = w->is_batched || w->is_watched || w->runs_on;
    bool is_swapped = moves && !w->is_moving && w->flips % 2 != 0;
    return (struct arch_sequence){.pos = s->pos + w->ahead,
                                  .parity = s->parity ^ (w->flips & 1),
                                  .kv_blocks = on->tables[ARCH_ROWS].table.address,
                                  .ring_blocks = on->tables[ARCH_WINDOW].table.address,
                                  .recurrent = (is_swapped ? on->recurrent_next : on->recurrent).address,
                                  .recurrent_out =
                                      (moves && !is_swapped ? on->recurrent_next : on->recurrent).address};
}

/* Whether the next token is sampled on this stage, if the token passes it without the host. */
static bool chooses(const struct work *w, const struct stage *at)
{
    return w->choice && at == &w->m->stages[w->m->n_stages - 1];
}

struct pass work_pass(const struct work *w, struct stage *at, struct arch_sequence each[MOEFLUX_MAX_PARALLEL])
{
    struct pass p = {.s = w->is_batched ? NULL : w->list[0],
                     .m = w->m,
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
        p.chunk.of = sequence_of(w, 0, at);
        return p;
    }
    for (uint32_t i = 0, n = w->is_chain ? w->n : arch_batch_sequences(&w->batch); i < n; i++)
        each[i] = w->is_chain ? link_of(w, i, at) : sequence_of(w, i, at);
    p.chunk.each = each;
    p.chunk.batch = w->batch;
    p.chunk.is_chain = w->is_chain;
    p.chunk.plan_n = pass_plan_n(at, w->n);
    return p;
}

/* Returns the place of a sequence, or that of the least recently seen one. */
static uint32_t find_place(const struct stage *at, uint64_t mark)
{
    const struct tracked_sequence *f = at->tracked;
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < PREDICTOR_PLACES; i++) {
        if (f[i].mark == mark)
            return i;
        if (f[i].last_use < f[oldest].last_use)
            oldest = i;
    }
    return oldest;
}

/* Selects the predictor's places for the work's sequences and notes their positions after the work. What the
 * predictor has seen of a sequence counts only if the sequence goes on from there. */
static void track(const struct work *w, struct stage *at)
{
    uint32_t places[EXEC_MAX_INVARIANT];
    bool is_apart = w->is_batched && !w->is_chain;
    uint32_t n = is_apart ? w->n : 1, here = is_apart ? 1 : w->n_all;
    uint64_t now = ++at->n_tracked;
    for (uint32_t i = 0; i < n; i++) {
        const struct moeflux_session *s = w->list[i];
        struct tracked_sequence *f = &at->tracked[places[i] = find_place(at, s->mark)];
        if (f->mark != s->mark || f->pos != s->pos)
            predictor_forget(&at->predictor, places[i]);
        *f = (struct tracked_sequence){s->mark, s->pos + here, now};
    }
    predictor_select(&at->predictor, places, n);
}

/* Returns the host's view of the hidden states that enter and leave a stage. */
static uint8_t *hidden_states(const struct stage *at)
{
    return at->view.x.host ? at->view.x.host : at->x.host;
}

void work_hand_over(const struct work *w, const struct stage *at)
{
    if (at + 1 < w->m->stages + w->m->n_stages)
        memcpy(hidden_states(at + 1), hidden_states(at), pass_hidden_bytes(w->m, w->n));
}

void work_set_up(const struct work *w, const struct stage *at, const struct exec_watch *watch, bool on)
{
    struct exec *execs[] = {at->exec, at->sides[SIDE_HOST].exec};
    for (size_t i = 0; i < sizeof execs / sizeof *execs; i++) {
        if (!execs[i])
            continue;
        if (w->is_watched)
            exec_watch(execs[i], on ? watch : NULL);
        if (w->is_batched)
            exec_set_batch_invariant(execs[i], on);
    }
}

/* ---- what is recorded ahead ---- */

static bool is_same_group(const struct recorded *a, const struct work *w)
{
    bool is = a->n == w->n && a->is_batched == w->is_batched;
    for (uint32_t i = 0; is && i < a->n; i++)
        is = a->marks[i] == w->list[i]->mark;
    return is;
}

/* Returns whether the work is what was recorded ahead. */
static enum pass_ahead state_ahead(const struct work *w, const struct stage *at)
{
    const struct recorded *a = &at->ahead.next;
    bool is = !w->is_chain && !w->batch.n_prompts && is_same_group(a, w) && a->chooses == chooses(w, at);
    for (uint32_t i = 0; is && i < a->n; i++) {
        const struct arch_sequence have = a->each[i], want = sequence_of(w, i, at);
        is = have.pos == want.pos && have.parity == want.parity && have.kv_blocks == want.kv_blocks &&
             have.ring_blocks == want.ring_blocks && have.recurrent == want.recurrent &&
             have.recurrent_out == want.recurrent_out;
    }
    if (is && a->is_in_flight)
        is = w->runs_on && a->id == w->ids[0] && step_is_next(w->m, w->choice);
    else
        is = is && exec_is_deferred(at->exec);
    return !is ? PASS_NOT_AHEAD : a->is_in_flight ? PASS_IN_FLIGHT : PASS_DEFERRED;
}

/* Whether each sequence has room for a token after the current one. */
static bool may_go_on(const struct work *w)
{
    bool may = true;
    for (uint32_t i = 0; i < w->n; i++)
        may = may && w->list[i]->pos + 1 < w->list[i]->max_context;
    return may;
}

/* Returns the index of the work's group, or of the least recently seen one. */
static uint32_t find(const struct ahead *a, const struct work *w)
{
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < AHEAD_GROUPS; i++) {
        if (is_same_group(&a->groups[i].next, w))
            return i;
        if (a->groups[i].last_use < a->groups[oldest].last_use)
            oldest = i;
    }
    return oldest;
}

/* Returns the work's next tokens. The states that they refer to may be gone when they are recorded; then the
 * recording is never used. */
static struct recorded next_of(const struct work *w, const struct stage *at)
{
    struct work after = *w;
    struct recorded r = {
        .n = may_go_on(w) ? w->n : 0, .is_batched = w->is_batched, .chooses = chooses(w, at)};
    after.ahead = after.flips = 1;
    for (uint32_t i = 0; i < r.n; i++) {
        r.each[i] = sequence_of(&after, i, at);
        r.marks[i] = w->list[i]->mark;
    }
    return r;
}

/* Notes that the work has come to the stage, after which group, and what its next tokens are. Returns true,
 * with *next, if something should be recorded now: in a batch of its own, followed by note_ahead. The
 * batch is submitted if at->ahead.wanted.is_in_flight, else deferred. each: room for what *next refers to. */
static bool choose_ahead(const struct work *w, const struct pass *here,
                         struct arch_sequence each[MOEFLUX_MAX_PARALLEL], struct pass *next)
{
    struct stage *at = here->at;
    struct ahead *a = &at->ahead;
    uint32_t own = find(a, w);
    if (!is_same_group(&a->groups[own].next, w))
        a->groups[own].next_group = own;
    a->groups[own].next = next_of(w, at);
    a->groups[own].last_use = ++a->clock;
    a->groups[a->last].next_group = own;
    a->last = own;
    a->wanted = a->groups[w->runs_on ? own : a->groups[own].next_group].next;
    a->wanted.half = 1 - here->half;
    a->wanted.is_in_flight = w->runs_on;
    /* A wasted token would delay threads that wait for the stage. */
    if (w->runs_on && (!w->choice->more || turns_are_wanted(&at->turn)))
        return false;
    /* What a drafter is fed with differs from token to token. */
    if (a->wanted.n == 0 || at->computes_at_once || w->m->dir.config.drafts)
        return false;
    const struct work after = {.m = w->m, .list = w->list, .n = a->wanted.n, .outputs = w->outputs};
    *next = work_pass(&after, at, NULL);
    memcpy(each, a->wanted.each, a->wanted.n * sizeof *each);
    next->s = NULL;
    next->progress = NULL;
    next->half = a->wanted.half;
    next->chooses = a->wanted.chooses;
    next->chunk.of = each[0];
    next->chunk.each = a->wanted.is_batched ? each : NULL;
    next->chunk.batch.n_single = a->wanted.n;
    next->chunk.plan_n = a->wanted.is_batched ? pass_plan_n(at, a->wanted.n) : 0;
    float *rope = rope_cache_of_tokens(&at->rope, next->half, &next->chunk.rope);
    if (a->wanted.is_in_flight) {
        rope_cache_fill(w->m, rope, 1, each[0].pos);
        next->chunk.ids = step_id(w->m, here->half);
    }
    return true;
}

/* Notes whether the recording succeeded; if not, nothing is recorded. */
static void note_ahead(struct stage *at, bool done)
{
    at->ahead.next = at->ahead.wanted;
    at->ahead.next.n = done ? at->ahead.wanted.n : 0;
}

int work_drop_ahead(struct stage *at, struct moeflux_err *e)
{
    struct recorded *a = &at->ahead.next;
    bool is = a->n > 0 && a->is_in_flight;
    a->n = is ? 0 : a->n;
    return is ? exec_wait(at->exec, a->ticket, e) : 0;
}

/* ---- a pass ---- */

int work_enter(const struct work *w, struct stage *at, const struct exec_watch *watch, struct moeflux_err *e)
{
    stage_take(at);
    if (chooses(w, at) && !w->is_batched)
        step_begin(w->m, w->choice);
    int rc = state_ahead(w, at) == PASS_IN_FLIGHT ? 0 : stage_wait_idle(w->m, at, watch, e);
    if (rc < 0)
        stage_give(at);
    return rc;
}

static int end_pass(const struct pass *p, int rc, struct moeflux_err *e)
{
    if (rc < 0)
        exec_abandon(p->at->exec);
    p->at->is_stopped |= rc == ERR_INTERRUPTED;
    stage_release(p->at);
    p->at->busy_ns += clock_ns() - p->start_ns;
    return model_fault(p->m, p->at, rc, e);
}

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

static int compute_chunk(const struct pass *p, bool last, struct moeflux_err *e)
{
    int rc = layers_run(p, e);
    if (rc == 0 && pass_is_last(p) && p->outputs->each_logits)
        rc = all_logits(p, e);
    else if (rc == 0 && pass_is_last(p) && last && p->outputs->logits)
        rc = last_logits(p, e);
    else if (rc == 0)
        rc = finish(p, e);
    return end_pass(p, rc, e);
}

static int run_chunk(const struct pass *p, bool last, struct moeflux_err *e)
{
    memset(p->at->is_seen, 0, p->m->dir.config.n_layers * sizeof *p->at->is_seen);
    begin_logits(p->at, p->half);
    int rc = compute_chunk(p, last, e);
    end_logits(p->at, p->half);
    return rc < 0 ? rc : layers_see(p, e);
}

static int run_tokens(const struct pass *p, struct moeflux_err *e)
{
    int rc = layers_run_tokens(p, e);
    if (rc == 0)
        rc = exec_finish(p->at->exec, e);
    return end_pass(p, rc, e);
}

/* ---- tokens, with every expert where the device can read it ---- */

/* Records the copies of the logits that the host samples from although the device samples others. */
static void copy_rows(const struct work *w, const struct pass *p)
{
    const struct stage *at = p->at;
    uint64_t row = (uint64_t)w->m->dir.config.vocab_size * sizeof(float);
    for (uint32_t i = 0; !at->view.logits.host && i < pass_n_rows(p); i++)
        if (!w->choice[i].sampler)
            exec_copy(at->exec, &at->logits, p->half * at->view.logits.bytes + i * row, &at->view.logits,
                      i * row, row);
}

/* Submits the tokens, unless they are in flight. *ticket: of the batch that ends with their logits, or with
 * the choice. If they were deferred, sampling is a submission of its own: it depends on the sampler's
 * state, which a deferred recording cannot know. */
static int submit_tokens(const struct work *w, const struct pass *p, uint64_t *ticket, struct moeflux_err *e)
{
    struct exec *x = p->at->exec;
    bool is_deferred = p->ahead == PASS_DEFERRED;
    *ticket = p->at->ahead.next.ticket;
    note_ahead(p->at, false);
    if (p->ahead == PASS_IN_FLIGHT)
        return 0;
    int rc = is_deferred ? exec_submit_deferred(x, ticket, e) : layers_run_tokens(p, e);
    if (rc < 0 || (is_deferred && !p->chooses))
        return rc;
    if (is_deferred)
        exec_begin(x);
    if (p->chooses && w->is_batched)
        copy_rows(w, p);
    if (p->chooses && w->is_batched)
        step_record_each(p->m, w->choice, pass_n_rows(p));
    else if (p->chooses)
        step_record(p->m, w->choice, p->half);
    return exec_submit(x, ticket, e);
}

/* Records the next tokens while the device computes. If a token that would be in flight cannot be, it is
 * begun when it is the current one. */
static int record_next(const struct work *w, const struct pass *next, struct moeflux_err *e)
{
    struct exec *x = next->at->exec;
    struct recorded *wanted = &next->at->ahead.wanted;
    int rc = layers_run_tokens(next, wanted->is_in_flight ? NULL : e);
    if (wanted->is_in_flight) {
        step_record_next(w->m, w->choice, next->half);
        if (rc == 0)
            rc = exec_submit(x, &wanted->ticket, NULL);
        if (rc < 0)
            exec_abandon(x);
    } else {
        exec_defer(x);
    }
    note_ahead(next->at, rc == 0);
    return wanted->is_in_flight ? 0 : rc;
}

/* Begins to read the n-gram rows of the token that was sampled after the work's. */
static void guess_rows(const struct work *w, struct stage *at, int32_t next)
{
    const struct moeflux_session *s = w->list[0];
    const int32_t ids[] = {w->ids[0], next};
    const struct ngram_text text = {s->history, ids, s->pos};
    ngram_rows_clear(&at->ngrams);
    if (w->choice->result[1] == SAMPLE_OK && ngram_rows_add(&at->ngrams, &text, s->pos + 1, 1, NULL) == 0)
        ngram_rows_start(&at->ngrams);
}

/* Decodes tokens. next: what to record ahead, or NULL. */
static int decode_tokens(const struct work *w, const struct pass *p, const struct pass *next,
                         struct moeflux_err *e)
{
    uint64_t ticket;
    int rc = submit_tokens(w, p, &ticket, e);
    if (rc < 0)
        return rc;
    if (next)
        rc = record_next(w, next, e);
    int waited = exec_wait(p->at->exec, ticket, rc < 0 ? NULL : e);
    rc = rc < 0 ? rc : waited;
    if (rc < 0)
        work_drop_ahead(p->at, NULL);
    else if (p->chooses && w->is_batched)
        step_end_each(p->m, w->choice, pass_n_rows(p));
    else if (p->chooses)
        step_end(p->m, w->choice, p->half);
    if (rc == 0 && p->chooses && !w->is_batched) {
        p->at->ahead.next.id = (int32_t)w->choice->result[0];
        guess_rows(w, p->at, p->at->ahead.next.id);
    }
    return rc;
}

/* Decodes a token of each of a list of sequences, with every expert where the device can read it. */
static int decode_stage(const struct work *w, const struct pass *p, struct moeflux_err *e)
{
    struct arch_sequence each[MOEFLUX_MAX_PARALLEL];
    struct pass next;
    /* How many tokens of a chain will count is not known, nor when those come whose prompts end. */
    bool goes_on = !w->is_chain && !w->batch.n_prompts && choose_ahead(w, p, each, &next);
    int rc = end_pass(p, decode_tokens(w, p, goes_on ? &next : NULL, e), e);
    return rc == 0 && !w->is_batched ? layers_see(p, e) : rc;
}

/* ---- a stage ---- */

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
    uint64_t from = (uint64_t)(s->pos + w->ahead - d->fed_pos) * w->m->dir.config.hidden;
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

int work_run(const struct work *w, struct pass *p, struct work_rows *rows, struct moeflux_err *e)
{
    struct stage *at = p->at;
    bool plain = is_plain(w, p), has_rows = w->is_batched && pass_n_rows(p) > 0;
    p->chooses = plain && chooses(w, at);
    p->ahead = plain ? state_ahead(w, at) : PASS_NOT_AHEAD;
    p->half = p->ahead ? at->ahead.next.half : 1 - at->last_half;
    *rows = (struct work_rows){.is_there = pass_is_last(p) && (plain || has_rows),
                               .is_wanted = !p->chooses,
                               .half = p->half,
                               .n = pass_n_rows(p)};
    if (rows->is_there)
        begin_logits(at, p->half);
    int rc = p->ahead != PASS_IN_FLIGHT ? fill_inputs(w, p, e) : 0;
    p->awaits_rows = p->ahead == PASS_NOT_AHEAD;
    p->is_in_pieces = plain && p->ahead == PASS_NOT_AHEAD && !at->computes_at_once;
    if (rc == 0 && p->ahead == PASS_DEFERRED)
        rc = ngram_rows_wait(&at->ngrams, at->exec, e);
    if (rc < 0)
        return rc;
    if (w->m->named)
        chosen_prefetch_named(p, w->ids);
    if (!plain && w->ahead == 0 && !w->batch.n_prompts && (!w->is_batched || w->n <= EXEC_MAX_INVARIANT))
        track(w, at);
    rc = plain ? decode_stage(w, p, e) : has_rows ? run_tokens(p, e) : run_chunk(p, w->is_last, e);
    if (rc == 0 && pass_is_last(p) && w->m->keeps_hidden)
        drafter_take(w, (const float *)(const void *)(at->last.host ? at->last.host : at->view.x.host));
    return rc;
}

void work_end_rows(const struct work *w, const struct work_rows *rows, int rc)
{
    const struct moeflux_model *m = w->m;
    struct stage *at = &w->m->stages[m->n_stages - 1];
    const float *from = logits_of(at, rows->half);
    float *const *to = w->is_batched ? w->logits : &w->outputs->logits;
    uint32_t vocab = m->dir.config.vocab_size;
    for (uint32_t i = 0; rc == 0 && i < rows->n; i++)
        if (rows->is_wanted || (w->is_batched && !w->choice[i].sampler))
            memcpy(to[i], from + (uint64_t)i * vocab, vocab * sizeof(float));
    end_logits(at, rows->half);
}
