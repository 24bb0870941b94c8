#include "engine/state/stores.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "engine/run/forward.h"

enum { BLOCK = 1 << KV_BLOCK_SHIFT, MIN_UNDO = 256, STEPS = 2 };

/* Returns how many tokens after a sequence's position may have been written: chunks in flight, or two
 * steps. */
static uint64_t reach(uint32_t max_chunk, uint32_t n_older)
{
    return (uint64_t)max_chunk * (n_older + 1) + STEPS;
}

uint32_t stores_ring_blocks(uint32_t window, uint32_t max_chunk, uint32_t n_older)
{
    uint64_t undo = size_max(max_chunk, MIN_UNDO);
    uint64_t rows = window + reach(max_chunk, n_older) + undo;
    return window ? (uint32_t)((rows + BLOCK - 1) / BLOCK + 1) : 0;
}

bool stores_has_rows(const struct arch_stores *s)
{
    bool has = false;
    for (uint32_t i = 0; i < s->n; i++)
        has = has || s->of[i].kind != ARCH_FIXED;
    return has;
}

uint32_t stores_n_rows(const struct arch_store *t, uint32_t n)
{
    return t->kind == ARCH_FIXED ? 0 : n / t->stride;
}

uint32_t stores_first_row(const struct arch_store *t, uint32_t n)
{
    uint32_t rows = stores_n_rows(t, n);
    return t->kind == ARCH_WINDOW && rows >= t->window ? rows - (t->window - 1) : 0;
}

struct stores_run stores_run_at(const struct stage_state *on, const struct arch_store *t, uint32_t row,
                                uint32_t end)
{
    const struct block_table *b = &on->tables[t->kind];
    uint32_t per = arch_store_block_rows(t), in_block = row % per;
    return (struct stores_run){.block = &b->blocks[row / per % b->n]->buffer,
                               .off = t->off + (uint64_t)in_block * t->pitch,
                               .n = (uint32_t)size_min(end - row, per - in_block)};
}

int stores_clear_before(const struct stage *at, const struct stage_state *on, const struct arch_store *t,
                        uint32_t row, struct moeflux_err *e)
{
    const struct stores_run run = stores_run_at(on, t, row - row % arch_store_block_rows(t), row);
    uint64_t bytes = (uint64_t)run.n * t->pitch;
    uint8_t *zeros = mem_new(bytes, 1, e);
    int rc = zeros ? 0 : ERR_MEMORY;
    if (rc == 0 && bytes > 0)
        rc = exec_write(at->exec, run.block, run.off, zeros, bytes, e);
    free(zeros);
    return rc;
}

uint32_t stores_window_from(const struct moeflux_session *s)
{
    uint32_t from = s->window_from;
    for (uint32_t i = 0; i < s->model->n_stages; i++) {
        uint64_t end = s->pos + reach(s->model->max_chunk, forward_n_older(i, s->model->n_stages));
        uint64_t blocks = (end + BLOCK - 1) / BLOCK, ring = s->on[i].tables[ARCH_WINDOW].n;
        if (ring > 0 && ring < s->max_blocks && blocks > ring)
            from = (uint32_t)size_max(from, (blocks - ring) * BLOCK);
    }
    return from;
}

uint32_t stores_first_in_windows(const struct moeflux_model *m, uint32_t pos)
{
    uint32_t window = 0;
    for (uint32_t i = 0; i < m->n_stages; i++)
        window = (uint32_t)size_max(window, m->stages[i].view.sizes.window);
    return window > 0 && pos >= window ? pos - (window - 1) : 0;
}

bool stores_holds_windows(const struct moeflux_session *s, uint32_t pos)
{
    return pos == 0 || stores_first_in_windows(s->model, pos) >= stores_window_from(s);
}

bool stores_can_cut(const struct moeflux_session *s, uint32_t pos)
{
    return s->model->recurrent_state_bytes == 0 && stores_holds_windows(s, pos);
}

/* ---- checkpoints ---- */

uint64_t stores_window_bytes(const struct arch_store *t)
{
    return t->kind == ARCH_WINDOW ? (t->window - 1) * arch_store_bytes(t) : 0;
}

uint64_t stores_checkpoint_off(const struct stage *at, uint32_t layer, uint32_t k)
{
    uint64_t off = at->view.sizes.recurrent;
    for (uint32_t i = at->layers.first; i <= layer && i < at->layers.end; i++)
        for (uint32_t j = 0; j < (i < layer ? at->view.stores[i].n : k); j++)
            off += stores_window_bytes(&at->view.stores[i].of[j]);
    return off;
}

uint64_t stores_checkpoint_bytes(const struct stage *at)
{
    return stores_checkpoint_off(at, at->layers.end, 0);
}

/* Copies the rows of one window. Exactly one of `to` and `from` is not NULL. clears: earlier rows are not
 * there. */
static int move_window(const struct stage *at, const struct stage_state *on, const struct arch_store *t,
                       uint32_t pos, bool clears, uint8_t *to, const uint8_t *from, struct moeflux_err *e)
{
    uint32_t first = stores_first_row(t, pos), end = stores_n_rows(t, pos);
    int rc = clears ? stores_clear_before(at, on, t, first, e) : 0;
    assert(t->pitch == arch_store_bytes(t));
    for (uint32_t row = first; rc == 0 && row < end;) {
        struct stores_run run = stores_run_at(on, t, row, end);
        uint64_t done = (uint64_t)(row - first) * t->pitch, bytes = (uint64_t)run.n * t->pitch;
        rc = to ? exec_read(at->exec, run.block, run.off, to + done, bytes, e)
                : exec_write(at->exec, run.block, run.off, from + done, bytes, e);
        row += run.n;
    }
    return rc;
}

static int move_windows(const struct moeflux_session *s, uint32_t stage, uint32_t pos, uint8_t *to,
                        const uint8_t *from, struct moeflux_err *e)
{
    const struct stage *at = &s->model->stages[stage];
    bool clears = from && !stores_holds_windows(s, pos);
    int rc = 0;
    for (uint32_t i = at->layers.first; i < at->layers.end; i++)
        for (uint32_t k = 0; rc == 0 && k < at->view.stores[i].n; k++) {
            const struct arch_store *t = &at->view.stores[i].of[k];
            uint64_t off = stores_checkpoint_off(at, i, k);
            if (t->kind == ARCH_WINDOW)
                rc = move_window(at, &s->on[stage], t, pos, clears, to ? to + off : NULL,
                                 from ? from + off : NULL, e);
        }
    return rc;
}

int stores_read_windows(const struct moeflux_session *s, uint32_t stage, uint32_t pos, uint8_t *part,
                        struct moeflux_err *e)
{
    return move_windows(s, stage, pos, part, NULL, e);
}

int stores_write_windows(const struct moeflux_session *s, uint32_t stage, uint32_t pos, const uint8_t *part,
                         struct moeflux_err *e)
{
    return move_windows(s, stage, pos, NULL, part, e);
}
