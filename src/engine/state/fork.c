/* A sequence that begins as another one does, without evaluating the tokens that both have. Rows of the KV
 * cache are shared (blocks.h); recurrent states and the rows of windows, which change with every token, are
 * copied. */
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "engine/sequence.h"
#include "engine/state/blocks.h"
#include "engine/state/rewind.h"
#include "engine/state/stores.h"

static int check(const struct moeflux_session *to, const struct moeflux_session *from, uint32_t pos,
                 struct moeflux_err *e)
{
    if (to->model != from->model)
        return err_set(e, ERR_USAGE, "the two sequences are of different models");
    if (to == from)
        return err_set(e, ERR_USAGE, "a sequence cannot be forked into itself");
    if (pos > from->pos)
        return err_set(e, ERR_USAGE, "cannot fork at token %u, the sequence has %u", pos, from->pos);
    if (pos > to->max_context)
        return err_set(e, ERR_USAGE, "%u tokens do not fit the context of %u tokens", pos, to->max_context);
    return 0;
}

static int take_blocks(struct moeflux_session *to, const struct moeflux_session *from, uint32_t stage,
                       uint32_t n, struct moeflux_err *e)
{
    struct stage *at = &to->model->stages[stage];
    struct block_table *rows = to->on[stage].tables, *ring = &rows[ARCH_WINDOW];
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = blocks_add(ring, i, at->view.sizes.ring_block, at, e);
    if (rc == 0)
        blocks_share(&rows[ARCH_ROWS], &from->on[stage].tables[ARCH_ROWS], n, at);
    return rc;
}

/* Copies the rows of a window that a token at `pos` sees, and those before them in the same block: attention
 * reads whole tiles, and memory that nobody has written may be NaN. */
static void copy_window(struct exec *x, const struct stage_state *to, const struct stage_state *from,
                        const struct arch_store *t, uint32_t pos)
{
    uint32_t per = arch_store_block_rows(t), row = stores_first_row(t, pos), end = stores_n_rows(t, pos);
    for (row -= row % per; row < end;) {
        const struct stores_run a = stores_run_at(from, t, row, end), b = stores_run_at(to, t, row, end);
        exec_copy(x, b.block, b.off, a.block, a.off, (uint64_t)a.n * t->pitch);
        row += a.n;
    }
}

static int copy_states(const struct moeflux_session *to, const struct moeflux_session *from, uint32_t stage,
                       uint32_t pos, struct moeflux_err *e)
{
    struct stage *at = &to->model->stages[stage];
    const struct stage_state *a = &from->on[stage], *b = &to->on[stage];
    exec_begin(at->exec);
    if (at->view.sizes.recurrent)
        exec_copy(at->exec, &b->recurrent, 0, &a->recurrent, 0, at->view.sizes.recurrent);
    for (uint32_t i = at->layers.first; i < at->layers.end; i++)
        for (uint32_t k = 0; k < at->view.stores[i].n; k++)
            if (at->view.stores[i].of[k].kind == ARCH_WINDOW)
                copy_window(at->exec, b, a, &at->view.stores[i].of[k], pos);
    return exec_finish(at->exec, e);
}

static int fork_on(struct moeflux_session *to, const struct moeflux_session *from, uint32_t stage,
                   uint32_t pos, bool has_states, struct moeflux_err *e)
{
    int rc = take_blocks(to, from, stage, div_up(pos, 1u << KV_BLOCK_SHIFT), e);
    if (rc == 0 && has_states)
        rc = copy_states(to, from, stage, pos, e);
    return model_fault(to->model, &to->model->stages[stage], rc, e);
}

/* Fills the empty sequence `to`. c: NULL, or where recurrent states and windows are. */
static int fill(struct moeflux_session *to, struct moeflux_session *from, uint32_t pos,
                const struct checkpoint *c, struct moeflux_err *e)
{
    struct moeflux_model *m = to->model;
    uint32_t n = div_up(pos, 1u << KV_BLOCK_SHIFT);
    int rc = stage_enter_all(m, e);
    if (rc < 0)
        return rc;
    to->n_blocks = (uint32_t)size_max(to->n_blocks, n);
    to->n_shared = (uint32_t)size_max(to->n_shared, n);
    from->n_shared = (uint32_t)size_max(from->n_shared, n);
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++)
        rc = fork_on(to, from, i, pos, c == NULL, e);
    stage_give_all(m);
    /* No window of `to` has rows of earlier positions. */
    to->window_from = pos;
    return rc == 0 && c ? rewind_put_back(to, c, e) : rc;
}

int moeflux_session_fork(struct moeflux_session *to, struct moeflux_session *from, uint32_t pos,
                         struct moeflux_err *e)
{
    int null = err_need(e, "session", to, "session to share", from);
    if (null)
        return null;
    int rc = check(to, from, pos, e);
    /* Other threads may fork it at the same time: one that is ready, or empty, is only read. */
    if (rc == 0 && pos > 0 && (from->is_stopped || from->needs_clear))
        rc = sequence_make_ready(from, e);
    if (rc == 0)
        rc = pos == 0 ? moeflux_session_clear(to, e) : sequence_recover(to, e);
    if (rc < 0 || pos == 0)
        return rc;
    bool has_states = pos == from->pos || stores_can_cut(from, pos);
    struct checkpoint *c = has_states ? NULL : checkpoints_find(&from->checkpoints, pos);
    if (!has_states && !c)
        return err_set(e, ERR_USAGE, "cannot fork at token %u: there is no checkpoint", pos);
    uint32_t parity = c ? c->parity : from->parity;
    sequence_set_position(to, 0, 0);
    to->needs_clear = true; /* its recurrent states are another text's, until they are overwritten */
    rc = fill(to, from, pos, c, e);
    if (rc < 0) {
        sequence_set_position(to, 0, 0);
        return rc;
    }
    to->needs_clear = false;
    memcpy(to->history, from->history, pos * sizeof *to->history);
    sequence_set_position(to, pos, parity);
    to->window_from = stores_first_in_windows(to->model, pos);
    rc = drafter_fork(to, from, e);
    if (rc < 0)
        moeflux_session_clear(to, NULL);
    return rc;
}
