#include "engine/state/blocks.h"

#include <stdlib.h>

#include "args.h"
#include "base/mem.h"

int blocks_make_table(struct block_table *t, uint32_t n, uint32_t entries, struct stage *at,
                      struct moeflux_err *e)
{
    if (n == 0)
        return 0;
    t->n = n;
    t->blocks = mem_new(n, sizeof(struct kv_block *), e);
    return t->blocks ? exec_buffer_new(at->exec, &t->table, EXEC_INPUT, 8 * (uint64_t)entries, e)
                     : ERR_MEMORY;
}

/* Most spare blocks of a stage. */
enum { SPARE_MOST = 8 };

static void free_block(struct kv_block *b, struct stage *at)
{
    at->state_bytes -= b->buffer.bytes;
    exec_buffer_free(at->exec, &b->buffer);
    free(b);
}

void blocks_trim(struct stage *at)
{
    while (at->spare) {
        struct kv_block *b = at->spare;
        at->spare = b->next;
        free_block(b, at);
    }
    at->n_spare = 0;
}

/* Ends one sequence's use of a block; NULL is legal. */
static void give_up(struct kv_block *b, struct stage *at)
{
    if (!b || --b->n_users > 0)
        return;
    if (at->n_spare == SPARE_MOST) {
        free_block(b, at);
        return;
    }
    b->next = at->spare;
    at->spare = b;
    at->n_spare++;
}

/* Returns a spare block of `bytes`; NULL: there is none. */
static struct kv_block *take_spare(struct stage *at, uint64_t bytes)
{
    struct kv_block **from = &at->spare;
    while (*from && (*from)->buffer.bytes != bytes)
        from = &(*from)->next;
    struct kv_block *b = *from;
    if (b) {
        *from = b->next;
        at->n_spare--;
    }
    return b;
}

void blocks_free_table(struct block_table *t, struct stage *at)
{
    for (uint32_t i = 0; t->blocks && i < t->n; i++)
        give_up(t->blocks[i], at);
    exec_buffer_free(at->exec, &t->table);
    free(t->blocks);
}

static int new_block(struct kv_block **out, uint64_t bytes, struct stage *at, struct moeflux_err *e)
{
    struct kv_block *b = *out = take_spare(at, bytes);
    if (b) {
        b->n_users = 1;
        return 0;
    }
    if (!(b = mem_new(1, sizeof *b, e)))
        return ERR_MEMORY;
    int rc = exec_buffer_new(at->exec, &b->buffer, EXEC_DEVICE, bytes, e);
    if (rc < 0 && at->spare) { /* spare blocks of other sizes */
        blocks_trim(at);
        rc = exec_buffer_new(at->exec, &b->buffer, EXEC_DEVICE, bytes, e);
    }
    if (rc < 0) {
        *out = NULL;
        free(b);
        return rc;
    }
    at->state_bytes += b->buffer.bytes;
    b->n_users = 1;
    *out = b;
    return 0;
}

static void set_entry(struct block_table *t, uint32_t entry, const struct kv_block *b)
{
    ((uint64_t *)(void *)t->table.host)[entry] = b->buffer.address;
}

int blocks_add(struct block_table *t, uint32_t entry, uint64_t bytes, struct stage *at, struct moeflux_err *e)
{
    if (t->n == 0)
        return 0;
    struct kv_block **b = &t->blocks[entry % t->n];
    int rc = *b ? 0 : new_block(b, bytes, at, e);
    if (rc == 0)
        set_entry(t, entry, *b);
    return rc;
}

void blocks_share(struct block_table *to, const struct block_table *from, uint32_t n, struct stage *at)
{
    for (uint32_t i = 0; to->n > 0 && i < n; i++) {
        struct kv_block *b = from->blocks[i];
        b->n_users++;
        give_up(to->blocks[i], at);
        to->blocks[i] = b;
        set_entry(to, i, b);
    }
}

/* Replaces a block that others have, too, by a copy. */
static int copy_block(struct block_table *t, uint32_t entry, struct stage *at, struct moeflux_err *e)
{
    struct kv_block *old = t->n > 0 ? t->blocks[entry] : NULL, *b;
    if (!old || old->n_users == 1)
        return 0;
    int rc = new_block(&b, old->buffer.bytes, at, e);
    if (rc < 0)
        return rc;
    exec_begin(at->exec);
    exec_copy(at->exec, &b->buffer, 0, &old->buffer, 0, old->buffer.bytes);
    rc = exec_finish(at->exec, e);
    if (rc < 0) {
        give_up(b, at);
        return rc;
    }
    give_up(old, at);
    t->blocks[entry] = b;
    set_entry(t, entry, b);
    return 0;
}

int blocks_own_from(struct moeflux_session *s, uint32_t pos, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    uint32_t first = pos >> KV_BLOCK_SHIFT, keep = div_up(pos, 1u << KV_BLOCK_SHIFT);
    if (first >= s->n_shared)
        return 0;
    int rc = stage_enter_all(m, e);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; rc == 0 && keep > first && i < m->n_stages; i++)
        rc = model_fault(m, &m->stages[i], copy_block(&s->on[i].tables[ARCH_ROWS], first, &m->stages[i], e),
                         e);
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++) {
        struct block_table *t = &s->on[i].tables[ARCH_ROWS];
        for (uint32_t k = keep; t->n > 0 && k < s->n_blocks; k++) {
            give_up(t->blocks[k], &m->stages[i]);
            t->blocks[k] = NULL;
        }
    }
    stage_give_all(m);
    if (rc < 0)
        return rc;
    s->n_blocks = keep;
    s->n_shared = first;
    return 0;
}
