#include "generate/queue.h"

#include <stdlib.h>

#include "base/err.h"
#include "generate/jobs.h"
#include "generate/prefill.h"

/* Fewer saved tokens are not worth it. A piece of a prompt costs an evaluation, and a request before its turn
 * makes others wait. Where experts are read from disk, nearly all of them are read for every piece. */
static const struct queue_worth worth_resident = {2, 1}, worth_streaming = {64, 32};

int queue_init(struct queue *q, struct moeflux_model *m, uint32_t max_context, uint32_t chunk,
               struct moeflux_err *e)
{
    struct moeflux_session *s;
    bool resident = moeflux_model_get_info(m).experts_resident;
    *q = (struct queue){.chunk = chunk, .worth = resident ? worth_resident : worth_streaming};
    q->last = &q->first;
    int rc = moeflux_session_new(&s, m, max_context, e);
    if (!rc)
        rc = moeflux_session_set_checkpoint_cap(s, UINT32_MAX, e);
    q->most_checkpoints = rc ? 0 : moeflux_session_checkpoint_cap(s);
    moeflux_session_free(s);
    return rc;
}

/* ---- jobs ---- */

static const struct token_list *tokens_of(const struct moeflux_job *j)
{
    return &j->choices[0]->request.tokens;
}

void queue_add(struct queue *q, struct moeflux_job *j)
{
    j->is_held = true;
    j->since = q->n_chosen;
    j->next = NULL;
    *q->last = j;
    q->last = &j->next;
    q->n++;
}

void queue_remove(struct queue *q, struct moeflux_job *j)
{
    struct moeflux_job **at = &q->first;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    if (!*at)
        q->last = at;
    j->is_held = false;
    q->n--;
}

/* ---- a prompt ---- */

static uint32_t common_with(const struct moeflux_session *s, const struct token_list *tokens)
{
    return s ? prefix_common(moeflux_session_history(s), moeflux_session_position(s), tokens->ids, tokens->n)
             : 0;
}

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Fills the lengths of the prefixes that the prompt has in common with held jobs, those above `least`,
 * ascending. Returns their number. */
static uint32_t find_parts(const struct queue *q, const struct token_list *own, uint32_t least,
                           uint32_t parts[QUEUE_MAX])
{
    uint32_t n = 0;
    for (const struct moeflux_job *j = q->first; j; j = j->next) {
        const struct token_list *ids = tokens_of(j);
        uint32_t same = prefix_common(own->ids, own->n - 1, ids->ids, ids->n - 1);
        if (same > least)
            parts[n++] = same;
    }
    if (n)
        qsort(parts, n, sizeof *parts, ascending);
    return n;
}

/* Chooses where a prompt gets checkpoints: where others differ from it, if returning there saves more than
 * the piece costs, and where it differs from what the sequence has. Jobs that are not there yet will differ
 * from this one where it differs from the last, too. With `chunk`, at whole chunks that others have, too,
 * after the cuts of the job: what comes before a cut is shared without a checkpoint. */
static struct prefix_stops find_stops(const struct queue *q, const struct prefix_cuts *cuts,
                                      const struct token_list *ids, const struct moeflux_session *s)
{
    uint32_t parts[QUEUE_MAX], worth = q->worth.piece;
    uint32_t n_there = s ? moeflux_session_list_checkpoints(s, NULL, 0) : 0;
    uint32_t room = n_there + 1 < q->most_checkpoints ? q->most_checkpoints - 1 - n_there : 0;
    const struct prefill p = {.ids = ids->ids, .n = (uint32_t)ids->n};
    uint32_t n_reused = s && !q->chunk ? prefill_usable(&p, s) : 0, last = n_reused;
    uint32_t n = find_parts(q, ids, n_reused, parts), n_before = common_with(s, ids);
    struct prefix_stops st = {0};
    if (q->chunk) {
        uint32_t at = prefix_place(cuts, q->chunk, n ? parts[n - 1] : 0);
        if (at > (cuts->n ? cuts->at[cuts->n - 1] : 0))
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

/* Choices of one prompt are consecutive. */
static void place_stops(const struct queue *q, const struct moeflux_job *j, const struct moeflux_session *s)
{
    const struct prefix_cuts *cuts = &j->choices[0]->cuts;
    for (uint32_t i = 0; i < j->n; i++) {
        struct choice *c = j->choices[i];
        c->stops = i > 0 && choice_has_prompt_of(c, j->choices[i - 1])
                       ? j->choices[i - 1]->stops
                       : find_stops(q, cuts, &c->request.tokens, s);
    }
}

/* ---- the order ---- */

struct moeflux_job *queue_choose(struct queue *q, const struct moeflux_session *s)
{
    struct moeflux_job *best = NULL;
    uint32_t most = 0;
    for (struct moeflux_job *j = q->first; j; j = j->next) {
        if (!best && q->n_chosen - j->since >= QUEUE_MAX) {
            best = j;
            break;
        }
        uint32_t same = common_with(s, tokens_of(j));
        if (best && same < most + q->worth.order)
            continue;
        best = j;
        most = same;
    }
    if (!best)
        return NULL;
    queue_remove(q, best);
    q->n_chosen++;
    place_stops(q, best, s);
    return best;
}
