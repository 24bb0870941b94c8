/* The forward pass of a chunk of tokens: embedding, layers, head. */
#include <string.h>

#include "args.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/real.h"
#include "engine/run/ahead.h"
#include "engine/run/chosen.h"
#include "engine/run/stage.h"
#include "engine/run/stage_run.h"
#include "engine/run/stage_turn.h"

/* Fills the inputs of an idle stage: the ids of the first stage, the positions of all. */
static void fill_inputs(const struct work *w, const int32_t *ids, struct pass *p)
{
    struct moeflux_model *m = w->m;
    struct stage *at = p->at;
    if (at == m->stages)
        memcpy(at->ids.host, ids, w->n * sizeof *ids);
    if (pass_n_decoding(p) == 0) {
        p->chunk.rope = rope_cache_of_chunk(&at->rope, m, w->n, w->list[0]->pos);
        return;
    }
    float *to = rope_cache_of_tokens(&at->rope);
    for (uint32_t i = 0; i < w->n; i++)
        rope_cache_fill(m, to + (size_t)i * m->dir.config.rotary_dim, 1, w->list[i]->pos);
}

static int hand_out_hidden(const struct work *w, struct moeflux_err *e)
{
    struct moeflux_model *m = w->m;
    uint64_t layer_floats = (uint64_t)m->max_chunk * m->dir.config.hidden;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && w->outputs->hidden && i <= m->dir.config.n_layers; i++) {
        const struct stage *at = model_stage(m, i ? i - 1 : 0);
        rc = w->outputs->hidden(
            w->outputs->ctx, i, w->list[0]->pos, w->n,
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
        stage_take(at);
        if (!at->hidden.host)
            rc = model_fault(m, at,
                             exec_buffer_new(at->exec, &at->hidden, EXEC_HOST,
                                             n * m->max_chunk * m->dir.config.hidden * sizeof(float), e),
                             e);
        stage_give(at);
    }
    return rc;
}

/* ---- tokens, with every expert where the device can read it ---- */

int forward_record_token(struct moeflux_session *s, const struct arch_chunk *c, struct moeflux_err *e)
{
    struct moeflux_outputs none = {0};
    struct stage *at = s->model->stages;
    const struct pass p = {.s = s, .m = s->model, .at = at, .outputs = &none, .chunk = *c};
    int rc = stage_record_layers(&p, e);
    arch_head(at->arch, 0, 1);
    return rc;
}

/* Decodes tokens. is_ahead: they were recorded ahead. next: what to record while the device computes, or
 * NULL. Sampling is a submission of its own: it depends on the sampler's state, which a recording ahead
 * cannot know. */
static int decode_tokens(const struct work *w, const struct pass *p, bool is_ahead, const struct pass *next,
                         struct moeflux_err *e)
{
    struct exec *x = p->at->exec;
    uint64_t ticket = 0;
    int rc = is_ahead ? 0 : stage_record_tokens(p, e);
    if (rc == 0)
        rc = is_ahead ? exec_submit_deferred(x, &ticket, e) : exec_submit(x, &ticket, e);
    if (rc < 0)
        return rc;
    if (p->chooses)
        rc = step_submit_choice(p->m, w->choice, &ticket, e);
    if (rc == 0 && next) {
        ahead_recorded(p->at, false);
        rc = stage_record_tokens(next, e);
        exec_defer(x);
        ahead_recorded(p->at, rc == 0);
    }
    int waited = exec_wait(x, ticket, rc < 0 ? NULL : e);
    if (rc == 0 && waited == 0 && p->chooses)
        step_end_choice(p->m, w->choice);
    return rc < 0 ? rc : waited;
}

/* Decodes a token of each of a list of sequences, with every expert where the device can read it. */
static int decode_stage(const struct work *w, const struct pass *p, struct moeflux_err *e)
{
    struct arch_sequence each[MOEFLUX_MAX_BATCHED];
    struct pass next;
    bool is_ahead = ahead_is_recorded(w, p->at), goes_on = ahead_choose(w, p, each, &next);
    int rc = stage_end(p, decode_tokens(w, p, is_ahead, goes_on ? &next : NULL, e), e);
    return rc == 0 && !w->is_batched ? chosen_see(p, e) : rc;
}

/* ---- chunks, and tokens whose experts the host has to load ---- */

/* Calls the progress callback; returns whether to go on. A single token is not reported as progress. */
static bool go_on(void *ctx)
{
    struct moeflux_session *s = ctx;
    struct progress_at *at = &s->progress_at;
    uint32_t n_layers = s->model->dir.config.n_layers;
    uint64_t part = (uint64_t)at->here * at->layer / n_layers;
    bool yes = progress_report(&s->model->progress, at->what, "tok", at->total > 1 ? at->before + part : 0,
                               at->total > 1 ? at->total : 0);
    at->is_stopped |= !yes;
    return yes;
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

void forward_track(const struct work *w, struct stage *at)
{
    uint32_t places[MOEFLUX_MAX_BATCHED];
    uint32_t n = w->is_batched ? w->n : 1, here = w->is_batched ? 1 : w->n;
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

static int run_tokens(const struct pass *p, struct moeflux_err *e)
{
    int rc = stage_record_tokens(p, e);
    if (rc == 0)
        rc = exec_finish(p->at->exec, e);
    return stage_end(p, rc, e);
}

/* ---- all stages ---- */

/* Mapped files may hold the dense weights and the experts of all sides. */
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

/* Sets (on) or ends the modes that the work needs: watched submissions if it may be stopped, batch-invariant
 * results in batched decode. */
static void set_up(const struct work *w, const struct stage *at, bool on)
{
    struct exec *execs[] = {at->exec, at->sides[SIDE_HOST].exec};
    for (size_t i = 0; i < sizeof execs / sizeof *execs; i++) {
        if (!execs[i])
            continue;
        if (w->is_watched)
            exec_watch(execs[i], on ? &(struct exec_watch){go_on, w->list[0]} : NULL);
        if (w->is_batched)
            exec_set_batch_invariant(execs[i], on);
    }
}

/* Whether a token passes the stage's layers without the host, and only its logits are wanted. */
static bool is_plain(const struct work *w, const struct pass *p)
{
    const struct moeflux_outputs *o = w->outputs;
    if (w->is_watched || o->each_logits || o->hidden || !(w->is_batched || (w->n == 1 && o->logits)))
        return false;
    if (w->m->trace || stage_has_cpu_layers(p->at))
        return false;
    return stage_holds_all(p->at) || (!w->is_batched && pass_is_at_once(p));
}

static void copy_logits(const struct work *w, float *const *logits, uint32_t half)
{
    uint32_t vocab = w->m->dir.config.vocab_size;
    const float *rows = stage_logits(&w->m->stages[w->m->n_stages - 1], half);
    for (uint32_t i = 0; i < w->n; i++)
        memcpy(logits[i], rows + (uint64_t)i * vocab, vocab * sizeof(float));
}

/* The inputs of an evaluation: ids [work.n]; logits [work.n] in batched decode; last: a chunk's last logits
 * are wanted (outputs->logits). */
struct input {
    const int32_t *ids;
    float *const *logits;
    bool last;
};

/* Ends the work on the last stage: gives the stage back, unless the work keeps it, and copies the logits to
 * the caller (NULL: not). A host copy is read after the stage was given back. */
static void end_tokens(const struct work *w, float *const *logits, uint32_t half, bool keeps, int rc)
{
    struct stage *at = &w->m->stages[w->m->n_stages - 1];
    bool is_copy = at->logits.host != NULL;
    if (is_copy && !keeps)
        stage_give(at);
    if (rc == 0 && logits)
        copy_logits(w, logits, half);
    stage_end_logits(at, half);
    if (!is_copy && !keeps)
        stage_give(at);
}

/* Runs the work on one stage, whose turn it has. If it ends there, it gives the stage back, unless it keeps
 * it. */
static int run_stage(const struct work *w, const struct input *in, struct stage *at, bool keeps,
                     struct moeflux_err *e)
{
    struct arch_sequence each[MOEFLUX_MAX_BATCHED];
    bool is_end = at == &w->m->stages[w->m->n_stages - 1];
    struct pass p = stage_pass(w, at, each);
    bool plain = is_plain(w, &p), has_rows = is_end && (plain || w->is_batched);
    float *const *logits = w->is_batched ? in->logits : &w->outputs->logits;
    p.chooses = plain && stage_chooses(w, at);
    p.half = plain && ahead_is_recorded(w, at) ? at->ahead.deferred.half : 1 - at->last_half;
    if (has_rows)
        stage_begin_logits(at, p.half);
    fill_inputs(w, in->ids, &p);
    set_up(w, at, true);
    if (!plain)
        forward_track(w, at);
    int rc = plain ? decode_stage(w, &p, e) : w->is_batched ? run_tokens(&p, e) : stage_run(&p, in->last, e);
    set_up(w, at, false);
    if (has_rows)
        end_tokens(w, p.chooses ? NULL : logits, p.half, keeps, rc);
    else if (!keeps && (is_end || rc < 0))
        stage_give(at);
    return rc;
}

/* Reports that the first stage is free for other sequences. */
static void tell_left(const struct work *w)
{
    struct moeflux_session *s = w->list[0];
    if (s->left)
        s->left(s->left_ctx);
    s->left = NULL;
}

/* Whether the evaluation writes data that belongs to the model, not to a stage: then it must be the only
 * one. */
static bool is_only_one(const struct work *w)
{
    return w->m->trace || w->m->prefer.margin > 0 || w->outputs->hidden;
}

/* Runs the work from stage to stage. *start: when it got the first one. On return it has no stage, except the
 * first one if it must be the only evaluation; release_first gives that back. */
static int run_stages(const struct work *w, const struct input *in, uint64_t *start, struct moeflux_err *e)
{
    struct moeflux_model *m = w->m;
    bool keeps_first = is_only_one(w);
    int rc = 0;
    *start = 0;
    for (uint32_t i = 0; i < m->n_stages && rc == 0; i++) {
        struct stage *at = &m->stages[i];
        rc = stage_enter(m, at, e);
        w->list[0]->progress_at.is_stopped |= rc == ERR_INTERRUPTED;
        if (i == 0 && rc < 0)
            return rc;
        if (i == 0)
            *start = clock_ns();
        if (i > 0 && rc == 0)
            stage_hand_over(w, at - 1);
        if (i > 1 || (i == 1 && !keeps_first)) {
            stage_give(at - 1);
            if (i == 1)
                tell_left(w);
        }
        if (rc < 0)
            return rc;
        rc = run_stage(w, in, at, i == 0 && keeps_first, e);
    }
    return rc;
}

/* Must be called after a run_stages that got the first stage. */
static void release_first(const struct work *w)
{
    if (is_only_one(w))
        stage_give(w->m->stages);
    tell_left(w);
}

int forward_batched(struct moeflux_session *const *list, const int32_t *ids, uint32_t n, float *const *logits,
                    struct moeflux_err *e)
{
    struct moeflux_model *m = list[0]->model;
    const struct moeflux_outputs none = {0};
    const struct work w = {.m = m,
                           .list = list,
                           .n = n,
                           .is_batched = true,
                           .is_watched = m->step_ns > QUICK_NS,
                           .outputs = &none};
    uint64_t start;
    int rc = forward_check_files(m, e);
    if (rc < 0)
        return rc;
    list[0]->progress_at = (struct progress_at){.total = 1, .what = "generating"};
    rc = run_stages(&w, &(struct input){.ids = ids, .logits = logits}, &start, e);
    if (start) {
        release_first(&w);
        m->step_ns = clock_ns() - start;
    }
    return rc;
}

int forward_chunk(struct moeflux_session *s, const int32_t *ids, uint32_t n, uint32_t keep, bool last,
                  const struct moeflux_outputs *outputs, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    const struct work w = {.m = m,
                           .list = &s,
                           .n = n,
                           .keep = keep,
                           .is_watched = n > 1 || m->step_ns > QUICK_NS,
                           .outputs = outputs,
                           .choice = s->choice};
    uint64_t start;
    int rc = outputs->hidden ? make_hidden_buffers(m, e) : 0;
    if (rc == 0)
        rc = forward_check_files(m, e);
    if (rc < 0)
        return rc;
    s->is_stopped = w.is_watched;
    rc = run_stages(&w, &(struct input){.ids = ids, .last = last}, &start, e);
    s->is_stopped &= rc < 0;
    if (rc == 0 && w.is_watched)
        sequence_swap_states(s);
    if (start) {
        m->step_ns = clock_ns() - start;
        rc = rc < 0 ? rc : hand_out_hidden(&w, e);
        release_first(&w);
    }
    s->is_stopped &= start != 0;
    if (rc < 0)
        return rc;
    s->pos += n;
    s->parity ^= keep ? 0 : 1;
    return 0;
}
