/* Sessions: the memory of a sequence and its evaluation in chunks. */
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"

enum { DEFAULT_CHECKPOINTS = 4 };

static int allocate(struct moeflux_session *s, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    s->max_blocks = div_up(s->max_context, 1u << KV_BLOCK_SHIFT);
    s->blocks = mem_new(s->max_blocks, sizeof *s->blocks, e);
    s->history = mem_new(s->max_context, sizeof *s->history, e);
    if (!s->blocks || !s->history)
        return ERR_MEMORY;
    int rc = exec_buffer_new(m->exec, &s->table, EXEC_INPUT, 8 * (uint64_t)s->max_blocks, e);
    if (rc == 0)
        rc = exec_buffer_new(m->exec, &s->recurrent, EXEC_DEVICE, size_max(m->view.recurrent_state_bytes, 4),
                             e);
    if (rc == 0)
        rc = exec_buffer_new(m->exec, &s->recurrent_next, EXEC_DEVICE, s->recurrent.bytes, e);
    if (rc == 0)
        m->state_bytes += 2 * s->recurrent.bytes;
    return rc < 0 ? rc : moeflux_session_clear(s, e);
}

int moeflux_session_new(struct moeflux_session **out, struct moeflux_model *m, uint32_t max_context,
                        struct moeflux_err *e)
{
    *out = NULL;
    uint32_t limit = m->view.max_context;
    if (max_context == 0 || max_context > limit)
        return err_set(e, ERR_USAGE, "a context of %u tokens, expected 1 to %u, the model's own maximum",
                       max_context, limit);
    struct moeflux_session *s = mem_new(1, sizeof *s, e);
    if (!s)
        return ERR_MEMORY;
    s->model = m;
    s->max_context = max_context;
    s->checkpoints.cap = (uint32_t)size_min(DEFAULT_CHECKPOINTS, m->n_checkpoints);
    int rc = allocate(s, e);
    if (rc < 0) {
        moeflux_session_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void moeflux_session_free(struct moeflux_session *s)
{
    if (!s)
        return;
    struct moeflux_model *m = s->model;
    sequence_set_position(s, 0, 0);
    checkpoints_free(&s->checkpoints);
    if (!model_is_idle(m))
        return; /* the device still uses the memory */
    m->state_bytes -= s->recurrent_next.address ? 2 * s->recurrent.bytes : 0;
    for (uint32_t i = 0; i < s->n_blocks; i++) {
        m->state_bytes -= s->blocks[i].bytes;
        exec_buffer_free(m->exec, &s->blocks[i]);
    }
    exec_buffer_free(m->exec, &s->recurrent);
    exec_buffer_free(m->exec, &s->recurrent_next);
    exec_buffer_free(m->exec, &s->table);
    free(s->blocks);
    free(s->history);
    free(s);
}

int sequence_reserve(struct moeflux_session *s, uint32_t end, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    uint32_t need = div_up(end, 1u << KV_BLOCK_SHIFT);
    while (m->view.kv_block_bytes && s->n_blocks < need) {
        struct exec_buffer *b = &s->blocks[s->n_blocks];
        int rc = exec_buffer_new(m->exec, b, EXEC_DEVICE, m->view.kv_block_bytes, e);
        if (rc < 0)
            return rc;
        ((uint64_t *)(void *)s->table.host)[s->n_blocks++] = b->address;
        m->state_bytes += b->bytes;
    }
    return 0;
}

uint32_t moeflux_session_position(const struct moeflux_session *s)
{
    return s->pos;
}

const int32_t *moeflux_session_history(const struct moeflux_session *s)
{
    return s->history;
}

void sequence_swap_states(struct moeflux_session *s)
{
    const struct exec_buffer recurrent = s->recurrent;
    s->recurrent = s->recurrent_next;
    s->recurrent_next = recurrent;
}

void sequence_accept(struct moeflux_session *s, int32_t id)
{
    sequence_swap_states(s);
    s->history[s->pos++] = id;
    s->parity ^= 1;
}

void sequence_set_position(struct moeflux_session *s, uint32_t pos, uint32_t parity)
{
    struct moeflux_model *m = s->model;
    s->pos = pos;
    s->parity = parity;
    checkpoints_drop_behind(&s->checkpoints, pos);
    for (uint32_t i = 0; i < m->parked.n; i++)
        if (m->parked.sessions[i] == s)
            m->parked.n = 0;
    for (uint32_t i = 0; i < m->followed.n; i++)
        if (m->followed.sessions[i] == s)
            m->followed.n = 0;
}

bool model_is_idle(struct moeflux_model *m)
{
    enum { PATIENCE_NS = 250000000 };
    step_settle(m, NULL);
    return !m->is_stopped || exec_settle(m->exec, PATIENCE_NS, NULL) != 0;
}

/* Waits until the device has finished a stopped evaluation. */
static int await_device(struct moeflux_model *m, struct moeflux_err *e)
{
    enum { SLICE_NS = 50000000 };
    int rc = step_settle(m, e);
    if (rc < 0)
        return rc;
    rc = 1;
    while (m->is_stopped && (rc = exec_settle(m->exec, SLICE_NS, e)) == 0)
        if (!progress_report(&m->progress, "reading the prompt", "tok", 0, 0))
            return err_set(e, ERR_INTERRUPTED, "interrupted while the device was busy");
    m->is_stopped = false;
    return rc < 0 ? rc : 0;
}

int sequence_recover(struct moeflux_session *s, struct moeflux_err *e)
{
    int rc = await_device(s->model, e);
    s->is_stopped &= rc < 0;
    return rc;
}

int moeflux_session_clear(struct moeflux_session *s, struct moeflux_err *e)
{
    struct exec *x = s->model->exec;
    int rc = await_device(s->model, e);
    if (rc < 0)
        return rc;
    sequence_set_position(s, 0, 0);
    s->is_stopped = false;
    exec_begin(x);
    exec_zero(x, &s->recurrent, 0, s->recurrent.bytes);
    rc = exec_finish(x, e);
    s->needs_clear = rc < 0;
    return rc;
}

int sequence_make_ready(struct moeflux_session *s, struct moeflux_err *e)
{
    int rc = sequence_recover(s, e);
    return rc == 0 && s->needs_clear ? moeflux_session_clear(s, e) : rc;
}

int sequence_check(const struct moeflux_session *s, const int32_t *ids, uint32_t n, struct moeflux_err *e)
{
    uint32_t vocab = s->model->dir.config.vocab_size;
    if (n == 0)
        return err_set(e, ERR_USAGE, "no tokens to evaluate");
    if (n > s->max_context - s->pos)
        return err_set(e, ERR_USAGE, "%u tokens after %u do not fit the context of %u (-c)", n, s->pos,
                       s->max_context);
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= vocab)
            return err_set(e, ERR_USAGE, "token %u is %d, expected 0 to %u", i, ids[i], vocab - 1);
    return 0;
}

/* A long prompt makes checkpoints where its chunks end. Too little memory for one is no failure: going back is slower then. */
static int checkpoint_by_itself(struct moeflux_session *s, uint32_t n_new, struct moeflux_err *e)
{
    uint32_t every = s->checkpoint_every;
    if (every == 0 || s->model->view.recurrent_state_bytes == 0 || s->pos / every == (s->pos - n_new) / every)
        return 0;
    int rc = moeflux_session_checkpoint(s, e);
    return rc == ERR_MEMORY ? 0 : rc;
}

/* Where to keep the state inside a chunk of *n tokens: after so many, 0: nowhere. Without memory for that the chunk ends there. */
static uint32_t keep_in_chunk(struct moeflux_session *s, uint32_t *n)
{
    struct moeflux_model *m = s->model;
    uint64_t bytes = m->view.recurrent_state_bytes;
    uint32_t at = s->checkpoint_at;
    if (at <= s->pos || at >= s->pos + *n)
        return 0;
    if (bytes && !m->kept.address) {
        if (exec_buffer_new(m->exec, &m->kept, EXEC_DEVICE, bytes, NULL) < 0) {
            *n = at - s->pos;
            return 0;
        }
        m->state_bytes += bytes;
    }
    return at - s->pos;
}

/* Behind the chunk that had checkpoint_at inside it, or ended there. */
static int checkpoint_behind(struct moeflux_session *s, uint32_t keep, struct moeflux_err *e)
{
    uint32_t at = s->checkpoint_at;
    if (!keep && at != s->pos)
        return 0;
    int rc = keep ? sequence_checkpoint(s, &s->model->kept, at, s->parity ^ 1, e)
                  : moeflux_session_checkpoint(s, e);
    return rc == ERR_MEMORY ? 0 : rc;
}

/* Undoes the chunk that was stopped: now, or before the next evaluation if the device is still busy with it. */
static int stop_at(struct moeflux_session *s, uint32_t done, uint32_t n, struct moeflux_err *e)
{
    int rc = model_is_idle(s->model) ? sequence_recover(s, e) : 0;
    return rc < 0 ? rc : err_set(e, ERR_INTERRUPTED, "interrupted after %u of %u tokens", done, n);
}

/* Evaluates the ids chunk by chunk. */
static int eval_chunks(struct moeflux_session *s, const int32_t *ids, uint32_t n,
                       const struct moeflux_outputs *outputs, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    for (uint32_t done = 0; done < n;) {
        uint32_t here = (uint32_t)size_min(n - done, m->max_chunk), keep = keep_in_chunk(s, &here);
        m->progress_at.before = done;
        m->progress_at.here = here;
        m->progress_at.layer = 0;
        int rc = forward_chunk(s, ids + done, here, keep, done + here == n, outputs, e);
        if (rc < 0 && m->is_stopped)
            return stop_at(s, done, n, e);
        if (rc < 0) {
            sequence_roll_back(s);
            return rc;
        }
        memmove(s->history + s->pos - here, ids + done, here * sizeof *ids);
        done += here;
        rc = checkpoint_behind(s, keep, e);
        if (rc < 0 || done == n)
            return rc;
        rc = checkpoint_by_itself(s, here, e);
        if (rc < 0)
            return rc;
        if (!progress_report(&m->progress, m->progress_at.what, "tok", done, n))
            return stop_at(s, done, n, e);
    }
    return 0;
}

int sequence_run(struct moeflux_session *s, const int32_t *ids, uint32_t n,
                 const struct moeflux_outputs *outputs, const char *what, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    uint64_t start = clock_ns();
    m->progress_at.what = what;
    m->progress_at.total = n;
    int rc = eval_chunks(s, ids, n, outputs, e);
    s->checkpoint_at = 0;
    if (rc < 0)
        return rc;
    uint64_t ns = clock_ns() - start;
    *(n > 1 ? &m->n_prefill_tokens : &m->n_decode_tokens) += n;
    *(n > 1 ? &m->prefill_ns : &m->decode_ns) += ns;
    return 0;
}

int moeflux_session_eval(struct moeflux_session *s, const int32_t *ids, uint32_t n,
                         const struct moeflux_outputs *outputs, struct moeflux_err *e)
{
    int rc = sequence_make_ready(s, e);
    if (rc == 0)
        rc = sequence_check(s, ids, n, e);
    if (rc == 0)
        rc = sequence_reserve(s, s->pos + n, e);
    return rc < 0 ? rc : sequence_run(s, ids, n, outputs, "reading the prompt", e);
}
