#include "generate/queue.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "generate/generator.h"
#include "generate/prefill.h"
#include "moeflux.h"

#define MAX_TOKENS ((size_t)1 << 22)

/* Fewer saved tokens are not worth it. A piece of a prompt costs an evaluation, and a request before its turn
 * makes others wait. Where experts are read from disk, nearly all of them are read for every piece. */
static const struct queue_worth worth_resident = {2, 1}, worth_streaming = {64, 32};

int queue_init(struct queue *q, struct generator *g, uint32_t chunk, struct moeflux_err *e)
{
    *q = (struct queue){.items = mem_new(QUEUE_MAX, sizeof *q->items, e),
                        .chunk = chunk,
                        .worth = g->info.experts_resident ? worth_resident : worth_streaming};
    if (!q->items)
        return ERR_MEMORY;
    int rc = moeflux_session_set_checkpoint_cap(g->sequence, UINT32_MAX, e);
    q->most_checkpoints = moeflux_session_checkpoint_cap(g->sequence);
    return rc;
}

/* ---- items ---- */

bool queue_has_room(const struct queue *q)
{
    size_t n_tokens = 0;
    for (size_t i = 0; i < q->n; i++)
        n_tokens += q->items[i].tokens ? q->items[i].tokens->n : 0;
    return q->n < QUEUE_MAX && n_tokens < MAX_TOKENS;
}

struct queue_item *queue_add(struct queue *q)
{
    struct queue_item *item = &q->items[q->n++];
    *item = (struct queue_item){.since = q->n_chosen};
    return item;
}

void queue_remove(struct queue *q, size_t idx)
{
    free(q->items[idx].result);
    q->n--;
    memmove(q->items + idx, q->items + idx + 1, (q->n - idx) * sizeof *q->items);
}

void queue_free(struct queue *q)
{
    while (q->n > 0)
        queue_remove(q, q->n - 1);
    free(q->items);
    *q = (struct queue){0};
}

/* ---- the order ---- */

static uint32_t common_with(const struct moeflux_session *s, const struct token_list *tokens)
{
    return s ? prefix_common(moeflux_session_history(s), moeflux_session_position(s), tokens->ids, tokens->n)
             : 0;
}

struct queue_item *queue_choose(struct queue *q, const struct moeflux_session *s)
{
    struct queue_item *best = NULL;
    uint32_t most = 0;
    for (size_t i = 0; i < q->n; i++) {
        struct queue_item *item = &q->items[i];
        if (item->result || item->job)
            continue;
        if (!best && q->n_chosen - item->since >= QUEUE_MAX) {
            best = item;
            break;
        }
        uint32_t same = common_with(s, item->tokens);
        if (best && same < most + q->worth.order)
            continue;
        best = item;
        most = same;
    }
    q->n_chosen += best != NULL;
    return best;
}

/* ---- a prompt ---- */

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Fills the lengths of the prefixes that the prompt has in common with waiting requests, those above
 * `least`, ascending. Returns their number. */
static uint32_t find_parts(const struct queue *q, const struct queue_item *item, const struct token_list *own,
                           uint32_t least, uint32_t parts[QUEUE_MAX])
{
    uint32_t n = 0;
    for (size_t i = 0; i < q->n; i++) {
        const struct queue_item *other = &q->items[i];
        if (other == item || other->result || other->job)
            continue;
        const struct token_list *ids = other->tokens;
        uint32_t same = prefix_common(own->ids, own->n - 1, ids->ids, ids->n - 1);
        if (same > least)
            parts[n++] = same;
    }
    if (n)
        qsort(parts, n, sizeof *parts, ascending);
    return n;
}

/* Requests that are not read yet will differ from this one where it differs from the last, too. */
struct prefix_stops queue_stops(const struct queue *q, const struct queue_item *item,
                                const struct token_list *ids, const struct moeflux_session *s)
{
    uint32_t parts[QUEUE_MAX], worth = q->worth.piece;
    uint32_t n_there = s ? moeflux_session_list_checkpoints(s, NULL, 0) : 0;
    uint32_t room = n_there + 1 < q->most_checkpoints ? q->most_checkpoints - 1 - n_there : 0;
    const struct prefill p = {.ids = ids->ids, .n = (uint32_t)ids->n};
    uint32_t n_reused = s && !q->chunk ? prefill_usable(&p, s) : 0, last = n_reused;
    uint32_t n = find_parts(q, item, ids, n_reused, parts), n_before = common_with(s, ids);
    struct prefix_stops st = {0};
    if (q->chunk) {
        uint32_t at = prefix_place(&item->cuts, q->chunk, n ? parts[n - 1] : 0);
        if (at > (item->cuts.n ? item->cuts.at[item->cuts.n - 1] : 0))
            prefix_stop_at(&st, at, 1);
        return st;
    }
    if (n_before >= n_reused + worth && n_before < ids->n)
        prefix_stop_at(&st, n_before, 1);
    /* Early positions come first: they serve the most requests. */
    for (uint32_t i = 0; i < n && st.n < room; i++)
        if ((uint64_t)(n - i) * (parts[i] - last) >= worth) {
            prefix_stop_at(&st, parts[i], 1);
            last = parts[i];
        }
    return st;
}
