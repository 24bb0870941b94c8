#include "engine/sequence.h"

#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "engine/run/forward.h"
#include "engine/state/blocks.h"
#include "engine/state/rewind.h"
#include "engine/state/stores.h"

enum { DEFAULT_CHECKPOINTS = 4 };

static int allocate_on(const struct moeflux_session *s, struct stage_state *on, struct stage *at,
                       struct moeflux_err *e)
{
    const struct arch_store_sizes *z = &at->view.sizes;
    uint32_t ring = stores_ring_blocks(z->window, s->model->max_chunk,
                                       forward_n_older((uint32_t)(on - s->on), s->model->n_stages));
    int rc = blocks_make_table(&on->tables[ARCH_ROWS], z->kv_block ? s->max_blocks : 0, s->max_blocks, at, e);
    if (rc == 0)
        rc = blocks_make_table(&on->tables[ARCH_WINDOW], (uint32_t)size_min(ring, s->max_blocks),
                               s->max_blocks, at, e);
    if (rc == 0)
        rc = exec_buffer_new(at->exec, &on->recurrent, EXEC_DEVICE, size_max(z->recurrent, 4), e);
    if (rc == 0)
        rc = exec_buffer_new(at->exec, &on->recurrent_next, EXEC_DEVICE, on->recurrent.bytes, e);
    if (rc == 0)
        at->state_bytes += 2 * on->recurrent.bytes;
    return rc;
}

static int allocate(struct moeflux_session *s, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    s->max_blocks = div_up(s->max_context, 1u << KV_BLOCK_SHIFT);
    s->on = mem_new(m->n_stages, sizeof *s->on, e);
    s->history = mem_new(s->max_context, sizeof *s->history, e);
    int rc = s->on && s->history ? 0 : ERR_MEMORY;
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++) {
        stage_take(&m->stages[i]);
        blocks_trim(&m->stages[i]);
        rc = model_fault(m, &m->stages[i], allocate_on(s, &s->on[i], &m->stages[i], e), e);
        stage_give(&m->stages[i]);
    }
    return rc < 0 ? rc : moeflux_session_clear(s, e);
}

static void free_on(struct stage_state *on, struct stage *at)
{
    at->state_bytes -= on->recurrent_next.address ? 2 * on->recurrent.bytes : 0;
    for (int i = 0; i < 2; i++)
        blocks_free_table(&on->tables[i], at);
    exec_buffer_free(at->exec, &on->recurrent);
    exec_buffer_free(at->exec, &on->recurrent_next);
    for (size_t i = 0; i < sizeof on->older / sizeof *on->older; i++) {
        at->state_bytes -= on->older[i].address ? on->older[i].bytes : 0;
        exec_buffer_free(at->exec, &on->older[i]);
    }
    verify_free_on(on->drafted, at);
}

int moeflux_session_new(struct moeflux_session **out, struct moeflux_model *m, uint32_t max_context,
                        struct moeflux_err *e)
{
    *out = NULL;
    int rc = err_need(e, "model", m);
    if (rc)
        return rc;
    uint32_t limit = m->stages[0].view.max_context;
    if (max_context == 0 || max_context > limit)
        return err_set(e, ERR_USAGE, "`context`: %u tokens, expected 1 to %u, the model's own maximum",
                       max_context, limit);
    sequence_free_closed(m); /* there may be too little memory for both */
    struct moeflux_session *s = mem_new(1, sizeof *s, e);
    if (!s)
        return ERR_MEMORY;
    s->model = m;
    s->max_context = max_context;
    s->checkpoints.cap = (uint32_t)size_min(DEFAULT_CHECKPOINTS, m->n_checkpoints);
    rc = allocate(s, e);
    if (rc == 0)
        rc = drafter_begin(s, e);
    if (rc < 0) {
        moeflux_session_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

static void free_states(struct moeflux_session *s)
{
    struct moeflux_model *m = s->model;
    for (uint32_t i = 0; s->on && i < m->n_stages; i++) {
        stage_take(&m->stages[i]);
        free_on(&s->on[i], &m->stages[i]);
        blocks_trim(&m->stages[i]);
        stage_give(&m->stages[i]);
    }
    free(s->on);
    free(s->verified.logits);
    free(s->logits);
    free(s->history);
    free(s);
}

static struct moeflux_session *take_closed(struct moeflux_model *m)
{
    pthread_mutex_lock(&m->lock);
    struct moeflux_session *list = m->to_free;
    m->to_free = NULL;
    pthread_mutex_unlock(&m->lock);
    return list;
}

static void put_closed(struct moeflux_model *m, struct moeflux_session *s)
{
    pthread_mutex_lock(&m->lock);
    s->next_to_free = m->to_free;
    m->to_free = s;
    pthread_mutex_unlock(&m->lock);
}

/* Frees a list of closed sessions if the devices are idle. The list must be taken before they are checked: a
 * session that another thread closes later may be in use. */
static void free_closed(struct moeflux_model *m, struct moeflux_session *list)
{
    bool is_idle = list && model_is_idle(m);
    while (list) {
        struct moeflux_session *s = list;
        list = s->next_to_free;
        if (is_idle)
            free_states(s);
        else
            put_closed(m, s);
    }
}

void sequence_free_closed(struct moeflux_model *m)
{
    free_closed(m, take_closed(m));
}

void moeflux_session_free(struct moeflux_session *s)
{
    if (!s)
        return;
    drafter_end(s);
    sequence_set_position(s, 0, 0);
    checkpoints_free(&s->checkpoints);
    s->next_to_free = take_closed(s->model);
    free_closed(s->model, s);
}

static int add_blocks(struct moeflux_session *s, uint32_t stage, struct moeflux_err *e)
{
    struct stage *at = &s->model->stages[stage];
    const struct arch_store_sizes *z = &at->view.sizes;
    struct block_table *t = s->on[stage].tables;
    int rc = blocks_add(&t[ARCH_ROWS], s->n_blocks, z->kv_block, at, e);
    return rc < 0 ? rc : blocks_add(&t[ARCH_WINDOW], s->n_blocks, z->ring_block, at, e);
}

int sequence_reserve(struct moeflux_session *s, uint32_t end, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    uint32_t need = div_up(end, 1u << KV_BLOCK_SHIFT);
    int own = blocks_own_from(s, s->pos, e);
    if (own < 0)
        return own;
    for (; s->n_blocks < need; s->n_blocks++)
        for (uint32_t i = 0; i < m->n_stages; i++) {
            stage_take(&m->stages[i]);
            int rc = model_fault(m, &m->stages[i], add_blocks(s, i, e), e);
            stage_give(&m->stages[i]);
            if (rc < 0)
                return rc;
        }
    return 0;
}

bool sequence_has_room(const struct moeflux_session *s, uint32_t end)
{
    return div_up(end, 1u << KV_BLOCK_SHIFT) <= s->n_blocks;
}

uint32_t moeflux_session_position(const struct moeflux_session *s)
{
    return s->pos;
}

const int32_t *moeflux_session_history(const struct moeflux_session *s)
{
    return s->history;
}

void sequence_accept(struct moeflux_session *s, const int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < s->model->n_stages; i++) {
        struct stage_state *on = &s->on[i];
        const struct exec_buffer recurrent = on->recurrent;
        on->recurrent = on->recurrent_next;
        on->recurrent_next = recurrent;
    }
    memcpy(s->history + s->pos, ids, n * sizeof *ids);
    s->pos += n;
    s->parity ^= 1;
}

void sequence_set_position(struct moeflux_session *s, uint32_t pos, uint32_t parity)
{
    s->window_from = pos > 0 ? stores_window_from(s) : 0;
    s->pos = pos;
    s->parity = parity;
    s->mark = atomic_fetch_add(&s->model->n_marks, 1) + 1;
    checkpoints_drop_after(&s->checkpoints, pos);
}

int sequence_recover(struct moeflux_session *s, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    int rc = 0;
    for (uint32_t i = 0; s->is_stopped && rc == 0 && i < m->n_stages; i++) {
        rc = stage_enter(m, &m->stages[i], e);
        if (rc == 0)
            stage_give(&m->stages[i]);
    }
    s->is_stopped &= rc < 0;
    return rc;
}

int moeflux_session_clear(struct moeflux_session *s, struct moeflux_err *e)
{
    int null = err_need(e, "session", s);
    if (null)
        return null;
    int rc = sequence_recover(s, e);
    if (rc < 0)
        return rc;
    sequence_set_position(s, 0, 0);
    for (uint32_t i = 0; rc == 0 && i < s->model->n_stages; i++) {
        struct stage *at = &s->model->stages[i];
        rc = stage_enter(s->model, at, e);
        if (rc < 0)
            break;
        exec_begin(at->exec);
        exec_zero(at->exec, &s->on[i].recurrent, 0, s->on[i].recurrent.bytes);
        rc = model_fault(s->model, at, exec_finish(at->exec, e), e);
        stage_give(at);
    }
    s->needs_clear = rc < 0;
    return rc;
}

int sequence_make_ready(struct moeflux_session *s, struct moeflux_err *e)
{
    verify_drop(&s->verified);
    int rc = sequence_recover(s, e);
    return rc == 0 && s->needs_clear ? moeflux_session_clear(s, e) : rc;
}

int sequence_check(const struct moeflux_session *s, const int32_t *ids, uint32_t n, struct moeflux_err *e)
{
    uint32_t vocab = s->model->dir.config.vocab_size;
    if (n == 0)
        return err_set(e, ERR_USAGE, "no tokens to evaluate");
    if (n > s->max_context - s->pos)
        return err_set(e, ERR_USAGE, "%u tokens after %u do not fit the context of %u tokens", n, s->pos,
                       s->max_context);
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= vocab)
            return err_set(e, ERR_USAGE, "token %u is %d, expected 0 to %u", i, ids[i], vocab - 1);
    return 0;
}

/* Makes a checkpoint at the end of a chunk if one is due. Too little memory for it is no failure: going back
 * is slower then. */
static int checkpoint_by_itself(struct moeflux_session *s, uint32_t n_new, struct moeflux_err *e)
{
    uint32_t every = s->checkpoint_every;
    if (every == 0 || s->model->checkpoint_bytes == 0 || s->pos / every == (s->pos - n_new) / every)
        return 0;
    int rc = moeflux_session_checkpoint(s, e);
    return rewind_lacks_memory(rc) ? 0 : rc;
}

/* Allocates the stages' `kept`. Returns false if there is no memory for it. */
static bool make_kept(struct moeflux_model *m)
{
    for (uint32_t i = 0; m->recurrent_state_bytes && i < m->n_stages; i++) {
        struct stage *at = &m->stages[i];
        if (at->kept.address)
            continue;
        stage_take(at);
        int rc =
            exec_buffer_new(at->exec, &at->kept, EXEC_DEVICE, size_max(at->view.sizes.recurrent, 4), NULL);
        at->state_bytes += rc == 0 ? at->kept.bytes : 0;
        stage_give(at);
        if (rc < 0)
            return false;
    }
    return true;
}

/* Makes the checkpoint after a chunk that had checkpoint_at inside it, or ended there. */
static int checkpoint_after(struct moeflux_session *s, uint32_t keep, struct moeflux_err *e)
{
    uint32_t at = s->checkpoint_at;
    if (!keep && at != s->pos)
        return 0;
    int rc = keep ? rewind_checkpoint(s, true, at, s->parity ^ 1, e) : moeflux_session_checkpoint(s, e);
    return rewind_lacks_memory(rc) ? 0 : rc;
}

/* Chooses what is evaluated at once: at most `most` chunks of the call's n tokens, up to the next
 * checkpoint. Without memory to keep the state inside a chunk, the chunk ends at the checkpoint. */
static void cut(struct moeflux_session *s, struct forward_call *c, uint32_t most)
{
    const struct moeflux_model *m = s->model;
    uint32_t every = m->checkpoint_bytes ? s->checkpoint_every : 0, left = c->n, at = s->checkpoint_at;
    bool ends = false;
    c->n = 0;
    while (!ends && c->n < left && c->n_chunks < most) {
        uint32_t here = (uint32_t)size_min(left - c->n, m->max_chunk), pos = s->pos + c->n;
        bool has_mark = at > pos && at < pos + here;
        c->keep = has_mark && make_kept(s->model) ? at - pos : 0;
        if (has_mark && !c->keep) {
            if (c->n_chunks > 0)
                return;
            here = at - pos;
        }
        c->n += here;
        c->n_chunks++;
        ends = has_mark || at == pos + here || (every && (pos + here) / every != pos / every);
    }
}

/* Undoes the stopped chunk: now, or before the next evaluation if a device is still busy with it. */
static int stop_at(struct moeflux_session *s, uint32_t done, uint32_t n, struct moeflux_err *e)
{
    int rc = model_is_idle(s->model) ? sequence_recover(s, e) : 0;
    return rc < 0 ? rc : err_set(e, ERR_INTERRUPTED, "interrupted after %u of %u tokens", done, n);
}

/* Evaluates one chunk, or several at once, and makes the checkpoint after them. *here: their tokens; after
 * a failure, those that were finished. *rest: the result of the checkpoint. */
static int eval_part(struct moeflux_session *s, const int32_t *ids, uint32_t left, uint32_t *here,
                     const struct moeflux_outputs *outputs, int *rest, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    struct forward_call c = {.list = &s, .ids = ids, .n = left, .outputs = outputs, .choices = s->choice};
    bool keeps = m->recurrent_state_bytes && s->checkpoint_at > s->pos;
    if (keeps)
        pthread_mutex_lock(&m->keeping);
    cut(s, &c, left > m->max_chunk && forward_takes_chunks(s, outputs) ? UINT32_MAX : 1);
    c.n_after = left - c.n;
    c.is_last = c.n == left;
    int rc = forward_run(&c, here, e);
    *rest = rc == 0 ? checkpoint_after(s, c.keep, e) : 0;
    if (keeps)
        pthread_mutex_unlock(&m->keeping);
    return rc;
}

bool sequence_report(const struct moeflux_session *s, uint64_t done, uint64_t total)
{
    const char *what = s->progress_at.what;
    return progress_report(&s->model->progress, what, "tok", done, total) &&
           (total == 0 || progress_report(&s->watcher, what, "tok", done, total));
}

void sequence_watch(struct moeflux_session *s, const struct moeflux_progress *p)
{
    s->watcher = p ? *p : (struct moeflux_progress){0};
}

/* Evaluates the ids chunk by chunk. */
static int eval_chunks(struct moeflux_session *s, const int32_t *ids, uint32_t n,
                       const struct moeflux_outputs *outputs, struct moeflux_err *e)
{
    for (uint32_t done = 0, here; done < n;) {
        s->progress_at.before = done;
        int rest, rc = eval_part(s, ids + done, n - done, &here, outputs, &rest, e);
        done += here;
        if (rc == ERR_INTERRUPTED && s->progress_at.is_stopped)
            return stop_at(s, done, n, e);
        if (rc < 0) {
            rewind_after_failure(s);
            return rc;
        }
        if (rest == 0 && n > 1)
            rest = drafter_follow(s, e);
        if (rest < 0 || done == n)
            return rest;
        rc = checkpoint_by_itself(s, here, e);
        if (rc < 0)
            return rc;
        if (!sequence_report(s, done, n))
            return stop_at(s, done, n, e);
    }
    return 0;
}

int sequence_run(struct moeflux_session *s, const int32_t *ids, uint32_t n,
                 const struct moeflux_outputs *outputs, const char *what, struct moeflux_err *e)
{
    enum work_kind kind = n > 1 ? WORK_PREFILL : WORK_DECODE;
    s->progress_at = (struct progress_at){.what = what, .total = n};
    model_stats_begin(s->model, kind);
    int rc = eval_chunks(s, ids, n, outputs, e);
    model_stats_end(s->model, kind, rc < 0 ? 0 : n);
    s->checkpoint_at = 0;
    return rc;
}

int moeflux_session_eval(struct moeflux_session *s, const int32_t *ids, uint32_t n,
                         const struct moeflux_outputs *outputs, struct moeflux_err *e)
{
    int null = err_need(e, "session", s, "list of ids", ids, "description of the outputs", outputs);
    if (null)
        return null;
    int rc = sequence_make_ready(s, e);
    if (rc == 0)
        rc = sequence_check(s, ids, n, e);
    if (rc == 0)
        rc = sequence_reserve(s, s->pos + n, e);
    return rc < 0 ? rc : sequence_run(s, ids, n, outputs, "reading the prompt", e);
}

/* ---- a token, and the choice of the next one ---- */

/* Adds the position of the last token to why no id can be chosen; returns the code. */
static int refuse(const struct moeflux_session *s, const struct moeflux_err *why, struct moeflux_err *e)
{
    return err_set(e, why->code, "position %u: %.400s", s->pos - 1, why->text);
}

/* Takes the id that a device has sampled. */
static int take(const struct moeflux_session *s, struct sampler *sampler, const uint32_t result[2],
                int32_t *next, struct moeflux_err *e)
{
    struct moeflux_err why;
    if (result[1] != SAMPLE_OK) {
        if (!sampler_check_mask(sampler, &why))
            sampler_refuse(result[1], result[0], s->model->token.sample.n, &why);
        return refuse(s, &why, e);
    }
    sampler_skip(sampler);
    *next = (int32_t)result[0];
    return 0;
}

int sequence_choose(const struct moeflux_session *s, struct sampler *sampler, int32_t id, const float *logits,
                    const uint32_t result[2], int32_t *next, struct moeflux_err *e)
{
    struct moeflux_err why;
    sampler_accept(sampler, id);
    if (!logits)
        return take(s, sampler, result, next, e);
    *next = sampler_pick(sampler, logits, &why);
    return *next < 0 ? refuse(s, &why, e) : 0;
}

/* Whether the next token may be begun before the host knows it, and there is room for it. */
static bool may_go_on(struct moeflux_session *s)
{
    return s->model->resident && s->model->n_stages == 1 && s->pos + 1 < s->max_context &&
           sequence_reserve(s, s->pos + 2, NULL) == 0;
}

int sequence_step(struct moeflux_session *s, int32_t id, struct sampler *sampler, bool more, int32_t *next,
                  struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    uint32_t vocab = m->dir.config.vocab_size, n_ids = sampler_next_rule(sampler, 0).n_ids;
    if (n_ids != vocab)
        return err_set(e, ERR_USAGE, "a sampler of %u ids, the model has %u", n_ids, vocab);
    if (!s->logits && !(s->logits = mem_new(vocab, sizeof *s->logits, e)))
        return ERR_MEMORY;
    struct device_choice c = {.sampler = sampler, .id = id};
    bool on_device = m->step_ns <= QUICK_NS && token_takes(m, sampler);
    c.more = on_device && more && may_go_on(s);
    s->choice = on_device ? &c : NULL;
    int rc = moeflux_session_eval(s, &id, 1, &(struct moeflux_outputs){.logits = s->logits}, e);
    s->choice = NULL;
    if (rc < 0)
        return rc;
    return sequence_choose(s, sampler, id, c.is_made ? NULL : s->logits, c.result, next, e);
}
