#include "engine/run/drafter.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/run/forward.h"
#include "engine/run/pass.h"
#include "engine/run/token.h"
#include "engine/sequence.h"
#include "engine/state/stores.h"

uint32_t drafter_width(const struct moeflux_model *m)
{
    return config_width(&(m->drafter ? m->drafter : m)->dir.config);
}

static uint32_t width_of(const struct moeflux_session *s)
{
    return drafter_width(s->model);
}

/* ---- the drafter ---- */

/* Leaves of the budgets what the model has not taken. */
static void take_the_rest(struct moeflux_options *own, struct moeflux_model *m,
                          const struct moeflux_options *o)
{
    struct exec_stats now;
    struct moeflux_stats slots;
    exec_get_stats(m->stages[0].exec, &now);
    moeflux_model_get_stats(m, &slots);
    uint64_t taken = (slots.n_slots + slots.n_host_slots) * slots.slot_bytes;
    uint64_t all = o->n_gpu_memory ? o->gpu_memory_each[0] : o->gpu_memory_bytes;
    own->memory_bytes = o->memory_bytes ? size_max(o->memory_bytes - size_min(o->memory_bytes, taken), 1) : 0;
    own->n_gpu_memory = 0;
    own->gpu_memory_bytes = all ? size_max(all - size_min(all, now.held_bytes), 1) : 0;
}

int drafter_open(struct moeflux_model *m, const struct moeflux_options *o, struct moeflux_err *e)
{
    struct moeflux_options own = *o;
    if (m->n_stages > 1)
        return err_set(e, ERR_UNSUPPORTED,
                       "draft mtp: %u devices share the layers, expected one: leave it out", m->n_stages);
    if (!m->resident)
        return err_set(e, ERR_UNSUPPORTED,
                       "draft mtp: experts are read from disk or computed by the CPU next to a device, where "
                       "drafts do not pay: leave it out");
    own.pin = own.usage = NULL;
    own.active_experts = 0;
    own.expert_share = 0;
    take_the_rest(&own, m, o);
    int rc = model_open_drafter(m, &own, e);
    if (rc < 0)
        return rc;
    return m->drafter->resident
               ? 0
               : err_set(e, ERR_NO_FIT, "draft mtp: no memory for all experts of its layer: leave it out");
}

bool drafter_wants(const struct moeflux_session *s)
{
    return s->drafter.rows && s->drafter.use != DRAFTER_RESTS;
}

void drafter_set_use(struct moeflux_session *s, enum drafter_use use)
{
    s->drafter.use = s->drafter.rows ? use : DRAFTER_RESTS;
}

/* ---- a sequence ---- */

/* Makes the drafter's sequence and what goes to it. */
static int make_rows(struct moeflux_session *s, struct moeflux_err *e)
{
    struct drafter_rows *d = &s->drafter;
    const struct moeflux_model *m = s->model;
    uint32_t width = width_of(s);
    d->use = m->drafter_waits ? DRAFTER_WAITS : DRAFTER_FOLLOWS;
    d->cap = m->max_chunk + VERIFY_ROWS;
    d->waiting = mem_new((uint64_t)d->cap * width, sizeof *d->waiting, e);
    d->chain = mem_new((uint64_t)VERIFY_ROWS * width, sizeof *d->chain, e);
    d->ids = mem_new(d->cap, sizeof *d->ids, e);
    d->logits = mem_new(m->dir.config.vocab_size, sizeof *d->logits, e);
    struct moeflux_sampler_options greedy = moeflux_sampler_defaults();
    greedy.temperature = 0;
    greedy.repeat_penalty = 1;
    d->greedy = sampler_new(&greedy, NULL, m->dir.config.vocab_size, NULL, e);
    if (!d->waiting || !d->chain || !d->ids || !d->logits || !d->greedy)
        return ERR_MEMORY;
    return moeflux_session_new(&d->rows, m->drafter, s->max_context, e);
}

int drafter_begin(struct moeflux_session *s, struct moeflux_err *e)
{
    struct drafter_rows *d = &s->drafter;
    const struct moeflux_model *m = s->model;
    struct moeflux_err why = {0};
    if (m->dir.config.drafts) {
        d->own = mem_new(width_of(s), sizeof *d->own, e);
        return d->own ? 0 : ERR_MEMORY;
    }
    if (!m->drafter)
        return 0;
    int rc = make_rows(s, &why);
    if (rc == 0)
        return 0;
    /* Nobody asked for it: the sequence does without. */
    if (m->drafter_waits && (rc == ERR_NO_FIT || rc == ERR_MEMORY)) {
        drafter_end(s);
        d->use = DRAFTER_RESTS;
        return 0;
    }
    return err_set(e, why.code, "%s", why.text);
}

void drafter_end(struct moeflux_session *s)
{
    struct drafter_rows *d = &s->drafter;
    moeflux_session_free(d->rows);
    free(d->waiting);
    free(d->chain);
    free(d->ids);
    free(d->logits);
    sampler_free(d->greedy);
    free(d->own);
    *d = (struct drafter_rows){0};
}

/* ---- hidden states ---- */

/* Forgets all rows; the next one is that of position `pos`. */
static void begin_at(struct drafter_rows *d, uint32_t pos)
{
    if (d->rows->pos > 0) {
        sequence_set_position(d->rows, 0, 0);
        d->rows->needs_clear = d->rows->model->recurrent_state_bytes > 0;
    }
    d->base = d->end = pos;
    d->n = 0;
}

/* Keeps the rows before position `pos` whose tokens are still those of the sequence, if the windows have
 * them. The row of the last position before it stays as it is: its token may have changed, and its hidden
 * state is gone. Fixed states stay, too. No drafter has a recurrence (model/drafter.c): the states are of the
 * last few positions, or of one unfinished row, so that the next few proposals alone may be worse. */
static void go_back(struct moeflux_session *s, uint32_t pos)
{
    struct drafter_rows *d = &s->drafter;
    uint32_t same = 0, most = pos > d->base ? pos - d->base : 0;
    while (same < d->rows->pos && same + 1 < most && d->rows->history[same] == s->history[d->base + same + 1])
        same++;
    bool is_there = same + 1 >= most && d->rows->pos >= most && most > 0;
    if (!is_there || !stores_holds_windows(d->rows, most)) {
        begin_at(d, pos);
        return;
    }
    if (d->rows->pos > most)
        sequence_set_position(d->rows, most, d->rows->parity);
    d->end = pos;
    d->n = 0;
}

/* Lets at most MOST_WAITING hidden states wait; if there are more, the last KEPT. Returns how many of n new
 * ones do not count. */
static uint32_t drop_first(struct moeflux_session *s, uint32_t n)
{
    enum { MOST_WAITING = 64, KEPT = 32 };
    struct drafter_rows *d = &s->drafter;
    uint64_t row = width_of(s);
    if (d->use != DRAFTER_WAITS || d->n + n <= MOST_WAITING)
        return 0;
    uint32_t old = n < KEPT ? (uint32_t)size_min(KEPT - n, d->n) : 0, end = d->end;
    memmove(d->waiting, d->waiting + (d->n - old) * row, old * row * sizeof *d->waiting);
    begin_at(d, end - old);
    d->n = old;
    d->end = end;
    return n > KEPT ? n - KEPT : 0;
}

/* Copies n hidden states of `width` numbers. A drafter with one residual stream takes the mean of several. */
static void copy_states(float *to, uint32_t to_width, const float *from, uint32_t width, uint32_t n)
{
    uint32_t n_streams = width / to_width;
    if (n_streams == 1) {
        memcpy(to, from, (uint64_t)n * width * sizeof *to);
        return;
    }
    for (uint32_t i = 0; i < n; i++, to += to_width, from += width)
        for (uint32_t k = 0; k < to_width; k++) {
            float sum = 0;
            for (uint32_t s = 0; s < n_streams; s++)
                sum += from[(uint64_t)s * to_width + k];
            to[k] = sum / (float)n_streams;
        }
}

/* Appends the hidden states of n tokens, `width` numbers of each, from position `pos` on. */
static void append(struct moeflux_session *s, uint32_t pos, const float *hidden, uint32_t width, uint32_t n)
{
    struct drafter_rows *d = &s->drafter;
    uint32_t row = width_of(s);
    if (d->mark != s->mark || d->end != pos)
        go_back(s, pos);
    uint32_t dropped = drop_first(s, n);
    if (d->n + n - dropped > d->cap || dropped)
        begin_at(d, pos + dropped);
    hidden += (uint64_t)dropped * width;
    n -= dropped;
    copy_states(d->waiting + (uint64_t)d->n * row, row, hidden, width, n);
    d->n += n;
    d->end += n;
    d->mark = s->mark;
}

/* Takes the hidden states of a batch of sequences. */
static void take_batch(const struct work *w, const float *hidden)
{
    uint32_t width = config_width(&w->m->dir.config);
    for (uint32_t i = 0; i < w->n; i++)
        if (drafter_wants(w->list[i]))
            append(w->list[i], w->list[i]->pos + w->ahead, hidden + (uint64_t)i * width, width, 1);
}

void drafter_take(const struct work *w, const float *hidden)
{
    struct moeflux_session *s = w->list[0];
    uint32_t width = config_width(&w->m->dir.config), row = width_of(s);
    if (w->is_batched && !w->is_chain)
        take_batch(w, hidden);
    else if (w->m->dir.config.drafts)
        memcpy(s->drafter.own, hidden + (uint64_t)(w->n - 1) * row, row * sizeof *hidden);
    else if (drafter_wants(s) && w->is_chain)
        copy_states(s->drafter.chain, row, hidden, width, w->n);
    else if (drafter_wants(s))
        append(s, s->pos + w->ahead, hidden, width, w->n);
}

void drafter_take_chained(struct moeflux_session *s, uint32_t at)
{
    if (drafter_wants(s))
        append(s, s->pos, s->drafter.chain + (uint64_t)at * width_of(s), width_of(s), 1);
}

/* ---- rows ---- */

/* Computes n rows. logits: after the last one, or NULL. */
static int compute(struct drafter_rows *d, const int32_t *ids, uint32_t n, const float *fed, bool is_own,
                   float *logits, struct moeflux_err *e)
{
    struct moeflux_session *r = d->rows;
    r->drafter.fed = fed;
    r->drafter.fed_pos = r->pos;
    r->drafter.fed_is_own = is_own;
    return moeflux_session_eval(r, ids, n, &(struct moeflux_outputs){.logits = logits}, e);
}

/* Fills in the tokens of the waiting rows before position `end`, which follow their positions. Returns their
 * number. */
static uint32_t find_ids(const struct moeflux_session *s, uint32_t end)
{
    const struct drafter_rows *d = &s->drafter;
    uint32_t first = d->end - d->n, n = end > first ? end - first : 0;
    for (uint32_t i = 0; i < n; i++)
        d->ids[i] = s->history[first + i + 1];
    return n;
}

/* Ends the rows if they cannot go on for lack of memory or after an interruption. */
static int give_up(struct drafter_rows *d, int rc)
{
    bool is_harmless = rc == ERR_NO_FIT || rc == ERR_MEMORY || rc == ERR_INTERRUPTED;
    if (rc < 0)
        begin_at(d, d->end);
    return is_harmless ? 0 : rc;
}

int drafter_follow(struct moeflux_session *s, struct moeflux_err *e)
{
    struct drafter_rows *d = &s->drafter;
    uint64_t row = width_of(s);
    if (!d->rows || d->use != DRAFTER_FOLLOWS || d->mark != s->mark || d->end != s->pos || s->pos == 0)
        return 0;
    uint32_t n = find_ids(s, s->pos - 1);
    if (n == 0)
        return 0;
    int rc = compute(d, d->ids, n, d->waiting, false, NULL, e);
    if (rc < 0)
        return give_up(d, rc);
    d->n -= n;
    memmove(d->waiting, d->waiting + n * row, d->n * row * sizeof *d->waiting);
    return 0;
}

/* ---- states ---- */

bool drafter_has_rows(const struct moeflux_session *s)
{
    const struct drafter_rows *d = &s->drafter;
    return d->rows && d->mark == s->mark && d->end == s->pos && s->pos > 0 && d->n <= VERIFY_ROWS;
}

int drafter_reserve(struct moeflux_session *s, uint32_t n, struct moeflux_err *e)
{
    begin_at(&s->drafter, 0);
    return sequence_reserve(s->drafter.rows, n, e);
}

void drafter_put_back(struct moeflux_session *s, uint32_t n_rows, uint32_t base, uint32_t n_waiting)
{
    struct drafter_rows *d = &s->drafter;
    struct moeflux_session *r = d->rows;
    for (uint32_t i = 0; i < n_rows; i++)
        r->history[i] = base + i + 1 < s->pos ? s->history[base + i + 1] : -1;
    sequence_set_position(r, n_rows, 0);
    r->needs_clear = false;
    r->window_from = stores_first_in_windows(r->model, n_rows);
    d->base = base;
    d->n = n_waiting;
    d->end = s->pos;
    d->mark = s->mark;
}

int drafter_fork(struct moeflux_session *to, struct moeflux_session *from, struct moeflux_err *e)
{
    const struct drafter_rows *a = &from->drafter;
    struct drafter_rows *b = &to->drafter;
    uint64_t row = width_of(to);
    if (!b->rows)
        return 0;
    begin_at(b, to->pos);
    if (a->mark != from->mark || a->end != from->pos || to->pos <= a->base)
        return 0;
    uint32_t n = to->pos - a->base, n_rows = (uint32_t)size_min(n, a->rows->pos);
    int rc = moeflux_session_fork(b->rows, a->rows, n_rows, e);
    if (rc == ERR_USAGE) /* they cannot be cut there */
        return 0;
    if (rc < 0)
        return give_up(b, rc);
    b->n = n - n_rows;
    memcpy(b->waiting, a->waiting, b->n * row * sizeof *a->waiting);
    b->base = a->base;
    b->mark = to->mark;
    return 0;
}

/* ---- proposals ---- */

/* Computes n rows. *out: the likeliest token after the last one. A device chooses it if there is one row, so
 * that no logits are copied. 0 stands for it if no logit is a number. */
static int likeliest(struct drafter_rows *d, const int32_t *ids, uint32_t n, const float *fed, bool is_own,
                     int32_t *out, struct moeflux_err *e)
{
    struct moeflux_session *r = d->rows;
    struct device_choice c = {.sampler = d->greedy, .id = ids[n - 1]};
    struct moeflux_err ignored;
    bool is_single = n == 1 && r->model->step_ns <= QUICK_NS && token_takes(r->model, d->greedy);
    r->choice = is_single ? &c : NULL;
    int rc = compute(d, ids, n, fed, is_own, d->logits, e);
    r->choice = NULL;
    if (rc < 0)
        return rc;
    *out = !c.is_made                 ? sampler_pick(d->greedy, d->logits, &ignored)
           : c.result[1] == SAMPLE_OK ? (int32_t)c.result[0]
                                      : -1;
    *out = *out < 0 ? 0 : *out;
    return 0;
}

uint32_t drafter_n_waiting(const struct moeflux_session *s)
{
    return s->drafter.rows ? s->drafter.n : 0;
}

/* Copies the fixed states of the rows, which a chain of proposals changes. Returns 1; 0: there is no memory
 * for the copy. */
static int keep_states(struct moeflux_session *r, struct moeflux_err *e)
{
    struct stage *at = &r->model->stages[0];
    struct stage_state *on = &r->on[0];
    if (r->model->recurrent_state_bytes == 0)
        return 1;
    if (verify_reserve(r, 1) == 0)
        return 0;
    int rc = stage_enter(r->model, at, e);
    if (rc < 0)
        return rc;
    exec_begin(at->exec);
    exec_copy(at->exec, &on->drafted[0], 0, &on->recurrent, 0, on->recurrent.bytes);
    rc = exec_finish(at->exec, e);
    stage_give(at);
    return rc < 0 ? rc : 1;
}

/* Drops the rows from `pos` on, and what they have made of the fixed states. */
static void drop_rows(struct moeflux_session *r, uint32_t pos, uint32_t parity)
{
    struct stage_state *on = &r->on[0];
    const struct exec_buffer after = on->recurrent;
    if (r->model->recurrent_state_bytes) {
        on->recurrent = on->drafted[0];
        on->drafted[0] = after;
    }
    sequence_set_position(r, pos, parity);
}

/* Continues out [*n] up to `most` proposals, from the drafter's own hidden states. Their rows are dropped. */
static int continue_alone(struct drafter_rows *d, uint32_t most, int32_t *out, uint32_t *n,
                          struct moeflux_err *e)
{
    struct moeflux_session *r = d->rows;
    uint32_t pos = r->pos, parity = r->parity;
    int kept = *n < most ? keep_states(r, e) : 0, rc = kept < 0 ? kept : 0;
    while (kept > 0 && rc == 0 && *n < most && r->pos < r->max_context) {
        rc = likeliest(d, &out[*n - 1], 1, r->drafter.own, true, &out[*n], e);
        *n += rc == 0;
    }
    if (rc < 0)
        return give_up(d, rc);
    if (r->pos > pos)
        drop_rows(r, pos, parity);
    return 0;
}

int drafter_propose(struct moeflux_session *s, int32_t id, uint32_t most, int32_t *out, struct moeflux_err *e)
{
    struct drafter_rows *d = &s->drafter;
    if (!d->rows || !drafter_wants(s) || d->mark != s->mark || d->end != s->pos || d->n == 0 || most == 0)
        return 0;
    uint32_t n = find_ids(s, s->pos - 1) + 1;
    d->ids[n - 1] = id;
    int rc = likeliest(d, d->ids, n, d->waiting, false, &out[0], e);
    if (rc < 0)
        return give_up(d, rc);
    d->n = 0;
    uint32_t n_out = 1;
    rc = continue_alone(d, most, out, &n_out, e);
    return rc < 0 ? rc : (int)n_out;
}
