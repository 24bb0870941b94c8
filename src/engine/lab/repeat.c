/* A long context that is not computed: a token's time after it depends on how many rows there are, not on
 * what they hold. */
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "engine/lab/lab.h"
#include "engine/sequence.h"
#include "engine/state/stores.h"

/* Fills a table's blocks from `first` on with copies of those before them. n: blocks of the sequence. */
static void repeat_blocks(struct exec *x, const struct block_table *t, uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < size_min(n, t->n); i++)
        exec_copy(x, &t->blocks[i]->buffer, 0, &t->blocks[i % first]->buffer, 0, t->blocks[i]->buffer.bytes);
}

static int repeat_on(struct moeflux_session *s, uint32_t stage, uint32_t first, struct moeflux_err *e)
{
    struct stage *at = &s->model->stages[stage];
    exec_begin(at->exec);
    for (int kind = ARCH_ROWS; kind <= ARCH_WINDOW; kind++)
        repeat_blocks(at->exec, &s->on[stage].tables[kind], first, s->n_blocks);
    return model_fault(s->model, at, exec_finish(at->exec, e), e);
}

int lab_repeat_rows(struct moeflux_session *s, uint32_t n, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    uint32_t from = s->pos, first = from >> KV_BLOCK_SHIFT;
    if (first == 0 || from % (1u << KV_BLOCK_SHIFT) || n < from || n > s->max_context)
        return err_set(
            e, ERR_USAGE,
            "rows of %u tokens cannot be repeated for %u: expected a multiple of %u, and a context of "
            "%u to %u tokens",
            from, n, 1u << KV_BLOCK_SHIFT, from, s->max_context);
    int rc = sequence_make_ready(s, e);
    if (rc == 0)
        rc = sequence_reserve(s, n, e);
    if (rc == 0)
        rc = stage_enter_all(m, e);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++)
        rc = repeat_on(s, i, first, e);
    stage_give_all(m);
    if (rc < 0)
        return rc;
    for (uint32_t i = from; i < n; i++)
        s->history[i] = s->history[i - from];
    sequence_set_position(s, n, s->parity);
    s->window_from = stores_first_in_windows(m, n);
    return 0;
}
