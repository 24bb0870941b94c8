#include "engine/state/rewind.h"

#include <stdlib.h>

#include "base/mem.h"
#include "engine/sequence.h"
#include "engine/state/stores.h"

/* Waits for batches of a failed evaluation, which may still write. */
static int drain(struct exec *x, struct moeflux_err *e)
{
    exec_begin(x);
    return exec_finish(x, e);
}

int rewind_put_back(struct moeflux_session *s, const struct checkpoint *c, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++) {
        struct stage *at = &m->stages[i];
        rc = stage_enter(m, at, e);
        if (rc < 0)
            break;
        rc = drain(at->exec, e);
        if (rc == 0 && at->view.sizes.recurrent)
            rc = exec_write(at->exec, &s->on[i].recurrent, 0, c->state + at->checkpoint_off,
                            at->view.sizes.recurrent, e);
        if (rc == 0 && c->state)
            rc = stores_write_windows(s, i, c->pos, c->state + at->checkpoint_off, e);
        stage_give(at);
    }
    return rc;
}

/* Goes to a checkpoint, or to position 0 (NULL). On failure the sequence is empty. */
static int go_to(struct moeflux_session *s, struct checkpoint *c, struct moeflux_err *e)
{
    if (!c)
        return moeflux_session_clear(s, e);
    uint32_t pos = c->pos, parity = c->parity;
    s->needs_clear = true;
    int rc = rewind_put_back(s, c, e);
    if (rc < 0) {
        sequence_set_position(s, 0, 0);
        return rc;
    }
    s->needs_clear = false;
    checkpoints_touch(&s->checkpoints, c);
    bool holds = stores_holds_windows(s, pos);
    sequence_set_position(s, pos, parity);
    if (!holds)
        s->window_from = stores_first_in_windows(s->model, pos);
    return 0;
}

void rewind_after_failure(struct moeflux_session *s)
{
    sequence_set_position(s, s->pos, s->parity);
    if (s->is_stopped && sequence_recover(s, NULL) == 0)
        return;
    s->is_stopped = false;
    if (s->model->recurrent_state_bytes)
        go_to(s, checkpoints_before(&s->checkpoints, s->pos), NULL);
}

int moeflux_session_truncate(struct moeflux_session *s, uint32_t pos, struct moeflux_err *e)
{
    int null = err_need(e, "session", s);
    if (null)
        return null;
    if (pos > s->pos)
        return err_set(e, ERR_USAGE, "cannot cut at token %u, the sequence has %u", pos, s->pos);
    int rc = sequence_make_ready(s, e);
    if (rc < 0 || pos == s->pos)
        return rc;
    if (stores_can_cut(s, pos)) {
        sequence_set_position(s, pos, s->parity);
        return 0;
    }
    struct checkpoint *c = checkpoints_before(&s->checkpoints, pos);
    uint32_t from = c ? c->pos : 0;
    for (uint32_t i = from; i < pos; i++)
        if (s->history[i] < 0)
            return err_set(e, ERR_USAGE,
                           "cannot cut at token %u: token %u is not known, and no checkpoint follows it", pos,
                           i);
    rc = go_to(s, c, e);
    if (rc < 0 || from == pos)
        return rc;
    /* Other sequences may have the blocks of the rows that are written again. */
    rc = sequence_reserve(s, pos, e);
    if (rc < 0)
        return rc;
    return sequence_run(s, s->history + from, pos - from, &(struct moeflux_outputs){0}, "reading again", e);
}

uint32_t rewind_reach(const struct moeflux_session *s, uint32_t pos)
{
    if (pos == s->pos || stores_can_cut(s, pos))
        return pos;
    const struct checkpoint *c = checkpoints_before(&s->checkpoints, pos);
    return c ? c->pos : 0;
}

int moeflux_session_reuse(struct moeflux_session *s, const int32_t *ids, uint32_t n, uint32_t *n_reused,
                          struct moeflux_err *e)
{
    int null = err_need(e, "session", s, "list of ids", ids, "place of the number", n_reused);
    if (null)
        return null;
    uint32_t same = 0;
    *n_reused = 0;
    if (n == 0)
        return err_set(e, ERR_USAGE, "no tokens to evaluate");
    while (same < s->pos && same < n - 1 && s->history[same] == ids[same])
        same++;
    int rc = sequence_make_ready(s, e);
    if (rc < 0)
        return rc;
    rc = moeflux_session_truncate(s, rewind_reach(s, same), e);
    *n_reused = s->pos;
    return rc;
}

static int read_states(struct moeflux_session *s, bool kept, uint32_t pos, uint8_t *to, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++) {
        struct stage *at = &m->stages[i];
        rc = stage_enter(m, at, e);
        if (rc < 0)
            break;
        if (at->view.sizes.recurrent)
            rc = exec_read(at->exec, kept ? &at->kept : &s->on[i].recurrent, 0, to + at->checkpoint_off,
                           at->view.sizes.recurrent, e);
        if (rc == 0)
            rc = stores_read_windows(s, i, pos, to + at->checkpoint_off, e);
        stage_give(at);
    }
    return rc;
}

int rewind_checkpoint(struct moeflux_session *s, bool kept, uint32_t pos, uint32_t parity,
                      struct moeflux_err *e)
{
    uint64_t bytes = s->model->checkpoint_bytes;
    uint8_t *state = NULL;
    int rc = 0;
    struct checkpoint *here = checkpoints_find(&s->checkpoints, pos);
    if (here) {
        checkpoints_touch(&s->checkpoints, here);
        return 0;
    }
    if (bytes && !(state = mem_new(bytes, 1, e)))
        return ERR_MEMORY;
    if (bytes)
        rc = read_states(s, kept, pos, state, e);
    if (rc == 0)
        rc = checkpoints_add(&s->checkpoints,
                             &(struct checkpoint){.pos = pos, .parity = parity, .state = state}, e);
    if (rc < 0)
        free(state);
    return rc;
}

int moeflux_session_checkpoint(struct moeflux_session *s, struct moeflux_err *e)
{
    int null = err_need(e, "session", s);
    if (null)
        return null;
    int rc = sequence_make_ready(s, e);
    return rc < 0 || s->pos == 0 ? rc : rewind_checkpoint(s, false, s->pos, s->parity, e);
}

void moeflux_session_checkpoint_at(struct moeflux_session *s, uint32_t pos)
{
    s->checkpoint_at = pos;
}

static int no_checkpoint(uint32_t pos, struct moeflux_err *e)
{
    return err_set(e, ERR_USAGE, "there is no checkpoint at token %u", pos);
}

int moeflux_session_restore(struct moeflux_session *s, uint32_t pos, struct moeflux_err *e)
{
    int null = err_need(e, "session", s);
    if (null)
        return null;
    struct checkpoint *c = checkpoints_find(&s->checkpoints, pos);
    if (pos > 0 && !c)
        return no_checkpoint(pos, e);
    int rc = sequence_make_ready(s, e);
    return rc < 0 ? rc : go_to(s, c, e);
}

void moeflux_session_touch_checkpoint(struct moeflux_session *s, uint32_t pos)
{
    struct checkpoint *c = checkpoints_find(&s->checkpoints, pos);
    if (c)
        checkpoints_touch(&s->checkpoints, c);
}

int moeflux_session_drop_checkpoint(struct moeflux_session *s, uint32_t pos, struct moeflux_err *e)
{
    int null = err_need(e, "session", s);
    if (null)
        return null;
    struct checkpoint *c = checkpoints_find(&s->checkpoints, pos);
    if (!c)
        return no_checkpoint(pos, e);
    checkpoints_drop(&s->checkpoints, c);
    return 0;
}

int moeflux_session_set_checkpoint_cap(struct moeflux_session *s, uint32_t n, struct moeflux_err *e)
{
    int null = err_need(e, "session", s);
    if (null)
        return null;
    if (n == 0)
        return err_set(e, ERR_USAGE, "at most 0 checkpoints, expected at least 1");
    s->checkpoints.cap = (uint32_t)size_min(n, s->model->n_checkpoints);
    checkpoints_trim(&s->checkpoints);
    return 0;
}

uint32_t moeflux_session_checkpoint_cap(const struct moeflux_session *s)
{
    return s->checkpoints.cap;
}

void moeflux_session_set_checkpoint_every(struct moeflux_session *s, uint32_t n)
{
    s->checkpoint_every = n;
}

uint32_t moeflux_session_list_checkpoints(const struct moeflux_session *s, uint32_t *pos, uint32_t cap)
{
    const struct checkpoints *c = &s->checkpoints;
    for (uint32_t i = 0; i < c->n && i < cap; i++)
        pos[i] = c->items[i].pos;
    return (uint32_t)c->n;
}

uint64_t moeflux_session_checkpoint_bytes(const struct moeflux_session *s)
{
    return s->model->checkpoint_bytes;
}
