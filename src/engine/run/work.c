#include "engine/run/work.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/run/ahead.h"
#include "engine/run/chosen.h"
#include "engine/run/layers.h"

/* Rows of the head at once, if the logits of a whole chunk are wanted. */
enum { LOGIT_ROWS = 4 };
_Static_assert((int)LOGIT_ROWS <= (int)ARCH_HEAD_ROWS && (int)MOEFLUX_MAX_BATCHED <= (int)ARCH_HEAD_ROWS,
               "rows of logits");

/* Records the head for tokens from .. from + n - 1 and the copy of their logits to the host. */
static void record_head(const struct pass *p, uint32_t from, uint32_t n)
{
    const struct stage *at = p->at;
    arch_head(at->arch, from, n);
    if (!at->view.logits.host && !p->chooses)
        exec_copy(at->exec, &at->logits, p->half * at->view.logits.bytes, &at->view.logits, 0,
                  (uint64_t)n * p->m->dir.config.vocab_size * sizeof(float));
}

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
    record_head(p, from, n);
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

/* Work that may be stopped does not change the recurrent state in place. The KV cache needs no copy: the next
 * chunk writes the same positions again. */
struct arch_sequence work_sequence(const struct work *w, uint32_t i, const struct stage *at)
{
    const struct moeflux_session *s = w->list[i];
    const struct stage_state *on = &s->on[at - w->m->stages];
    bool moves = w->is_batched || w->is_watched;
    bool is_swapped = moves && !w->is_moving && w->flips % 2 != 0;
    return (struct arch_sequence){.pos = s->pos + w->ahead,
                                  .parity = s->parity ^ (w->flips & 1),
                                  .kv_blocks = on->table.address,
                                  .recurrent = (is_swapped ? on->recurrent_next : on->recurrent).address,
                                  .recurrent_out =
                                      (moves && !is_swapped ? on->recurrent_next : on->recurrent).address};
}

bool work_chooses(const struct work *w, const struct stage *at)
{
    return w->choice && at == &w->m->stages[w->m->n_stages - 1];
}

struct pass work_pass(const struct work *w, struct stage *at, struct arch_sequence each[MOEFLUX_MAX_BATCHED])
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
                               .keep = w->keep,
                               .kept = at->kept.address}};
    if (!w->is_batched) {
        p.chunk.of = work_sequence(w, 0, at);
        return p;
    }
    for (uint32_t i = 0; i < w->n; i++)
        each[i] = work_sequence(w, i, at);
    p.chunk.each = each;
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
    uint32_t places[MOEFLUX_MAX_BATCHED];
    uint32_t n = w->is_batched ? w->n : 1, here = w->is_batched ? 1 : w->n_all;
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

static bool is_last(const struct pass *p)
{
    return p->at == &p->m->stages[p->m->n_stages - 1];
}

/* Returns the host's view of the hidden states that enter and leave a stage. */
static uint8_t *hidden_states(const struct stage *at)
{
    return at->view.x.host ? at->view.x.host : at->x.host;
}

static uint64_t hidden_bytes(const struct moeflux_model *m, uint32_t n)
{
    return (uint64_t)n * m->dir.config.hidden * sizeof(float);
}

void work_hand_over(const struct work *w, const struct stage *at)
{
    if (at + 1 < w->m->stages + w->m->n_stages)
        memcpy(hidden_states(at + 1), hidden_states(at), hidden_bytes(w->m, w->n));
}

static int record_layers(const struct pass *p, struct moeflux_err *e)
{
    const struct stage *at = p->at;
    exec_begin(at->exec);
    if (at == p->m->stages)
        arch_embed(at->arch, &p->chunk);
    else if (p->in.buffer)
        exec_copy(at->exec, &at->view.x, 0, p->in.buffer, p->in.off, hidden_bytes(p->m, p->chunk.n));
    if (at == p->m->stages)
        pass_copy_hidden(p, 0);
    return layers_run(p, e);
}

static void record_hidden_states(const struct pass *p)
{
    if (p->out.buffer)
        exec_copy(p->at->exec, p->out.buffer, p->out.off, &p->at->view.x, 0, hidden_bytes(p->m, p->chunk.n));
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

static int end_pass(const struct pass *p, int rc, struct moeflux_err *e)
{
    if (rc < 0)
        exec_abandon(p->at->exec);
    p->at->is_stopped |= rc == ERR_INTERRUPTED;
    pass_release(p->at);
    p->at->busy_ns += clock_ns() - p->start_ns;
    return model_fault(p->m, p->at, rc, e);
}

static int record_tokens(const struct pass *p, struct moeflux_err *e)
{
    int rc = record_layers(p, e);
    if (is_last(p))
        record_head(p, 0, p->chunk.n);
    else
        record_hidden_states(p);
    return rc;
}

/* Finishes a chunk that another may follow. */
static int finish(const struct pass *p, struct moeflux_err *e)
{
    struct stage *at = p->at;
    uint64_t ticket;
    int rc = exec_submit(at->exec, &ticket, e);
    if (rc < 0)
        return rc;
    if (!at->computes_at_once && pass_n_decoding(p) == 0)
        rope_cache_go_ahead(&at->rope, p->m);
    return exec_wait(at->exec, ticket, e);
}

static int compute_chunk(const struct pass *p, bool last, struct moeflux_err *e)
{
    int rc = record_layers(p, e);
    if (rc == 0 && !is_last(p))
        record_hidden_states(p);
    if (rc == 0 && is_last(p) && p->outputs->each_logits)
        rc = all_logits(p, e);
    else if (rc == 0 && is_last(p) && last && p->outputs->logits)
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
    return rc < 0 ? rc : chosen_see(p, e);
}

static int run_tokens(const struct pass *p, struct moeflux_err *e)
{
    int rc = record_tokens(p, e);
    if (rc == 0)
        rc = exec_finish(p->at->exec, e);
    return end_pass(p, rc, e);
}

/* ---- tokens, with every expert where the device can read it ---- */

int work_record_token(struct moeflux_session *s, const struct arch_chunk *c, struct moeflux_err *e)
{
    struct moeflux_outputs none = {0};
    struct stage *at = s->model->stages;
    const struct pass p = {.s = s, .m = s->model, .at = at, .outputs = &none, .chunk = *c};
    int rc = record_layers(&p, e);
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
    int rc = is_ahead ? 0 : record_tokens(p, e);
    if (rc == 0)
        rc = is_ahead ? exec_submit_deferred(x, &ticket, e) : exec_submit(x, &ticket, e);
    if (rc < 0)
        return rc;
    if (p->chooses)
        rc = step_submit_choice(p->m, w->choice, &ticket, e);
    if (rc == 0 && next) {
        ahead_recorded(p->at, false);
        rc = record_tokens(next, e);
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
    int rc = end_pass(p, decode_tokens(w, p, is_ahead, goes_on ? &next : NULL, e), e);
    return rc == 0 && !w->is_batched ? chosen_see(p, e) : rc;
}

/* ---- a stage ---- */

/* Fills the inputs of an idle stage: the ids of the first stage, the positions of all. */
static void fill_inputs(const struct work *w, struct pass *p)
{
    struct moeflux_model *m = w->m;
    struct stage *at = p->at;
    if (at == m->stages)
        memcpy(at->ids.host, w->ids, w->n * sizeof *w->ids);
    if (pass_n_decoding(p) == 0) {
        p->chunk.rope = rope_cache_of_chunk(&at->rope, m, w->n, p->chunk.of.pos);
        return;
    }
    float *to = rope_cache_of_tokens(&at->rope);
    for (uint32_t i = 0; i < w->n; i++)
        rope_cache_fill(m, to + (size_t)i * m->dir.config.rotary_dim, 1, w->list[i]->pos + w->ahead);
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

int work_run(const struct work *w, struct pass *p, struct work_rows *rows, struct moeflux_err *e)
{
    struct stage *at = p->at;
    bool plain = is_plain(w, p);
    p->chooses = plain && work_chooses(w, at);
    p->half = plain && ahead_is_recorded(w, at) ? at->ahead.deferred.half : 1 - at->last_half;
    *rows = (struct work_rows){
        .is_there = is_last(p) && (plain || w->is_batched), .is_wanted = !p->chooses, .half = p->half};
    if (rows->is_there)
        begin_logits(at, p->half);
    fill_inputs(w, p);
    if (!plain && w->ahead == 0)
        track(w, at);
    if (plain)
        return decode_stage(w, p, e);
    return w->is_batched ? run_tokens(p, e) : run_chunk(p, w->is_last, e);
}

void work_end_rows(const struct work *w, const struct work_rows *rows, int rc)
{
    const struct moeflux_model *m = w->m;
    struct stage *at = &w->m->stages[m->n_stages - 1];
    const float *from = logits_of(at, rows->half);
    float *const *to = w->is_batched ? w->logits : &w->outputs->logits;
    uint32_t vocab = m->dir.config.vocab_size;
    for (uint32_t i = 0; rc == 0 && rows->is_wanted && i < w->n; i++)
        memcpy(to[i], from + (uint64_t)i * vocab, vocab * sizeof(float));
    end_logits(at, rows->half);
}
