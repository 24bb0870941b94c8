#include "engine/run/ahead.h"

#include <string.h>

static bool is_same_group(const struct recorded *a, const struct work *w)
{
    bool is = a->n == w->n && a->is_batched == w->is_batched;
    for (uint32_t i = 0; is && i < a->n; i++)
        is = a->marks[i] == w->list[i]->mark;
    return is;
}

bool ahead_is_recorded(const struct work *w, const struct stage *at)
{
    const struct recorded *a = &at->ahead.deferred;
    bool is = is_same_group(a, w) && a->chooses == stage_chooses(w, at) && exec_is_deferred(at->exec);
    for (uint32_t i = 0; is && i < a->n; i++) {
        const struct arch_sequence have = a->each[i], want = stage_sequence(w, i, at);
        is = have.pos == want.pos && have.parity == want.parity && have.kv_blocks == want.kv_blocks &&
             have.recurrent == want.recurrent && have.recurrent_out == want.recurrent_out;
    }
    return is;
}

/* Whether each sequence has room for a token after the current one. */
static bool may_go_on(const struct work *w)
{
    bool may = true;
    for (uint32_t i = 0; i < w->n; i++)
        may = may && w->list[i]->pos + 1 < w->list[i]->max_context;
    return may;
}

/* Returns the index of the work's group, or of the least recently seen one. */
static uint32_t find(const struct ahead *a, const struct work *w)
{
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < AHEAD_GROUPS; i++) {
        if (is_same_group(&a->groups[i].next, w))
            return i;
        if (a->groups[i].last_use < a->groups[oldest].last_use)
            oldest = i;
    }
    return oldest;
}

/* Returns the work's next tokens. The states that they refer to may be gone when they are recorded; then the
 * recording is never used. */
static struct recorded next_of(const struct work *w, const struct stage *at)
{
    struct work after = *w;
    struct recorded r = {
        .n = may_go_on(w) ? w->n : 0, .is_batched = w->is_batched, .chooses = stage_chooses(w, at)};
    after.ahead = after.flips = 1;
    for (uint32_t i = 0; i < r.n; i++) {
        r.each[i] = stage_sequence(&after, i, at);
        r.marks[i] = w->list[i]->mark;
    }
    return r;
}

bool ahead_choose(const struct work *w, const struct pass *here,
                  struct arch_sequence each[MOEFLUX_MAX_BATCHED], struct pass *next)
{
    struct stage *at = here->at;
    struct ahead *a = &at->ahead;
    uint32_t own = find(a, w);
    if (!is_same_group(&a->groups[own].next, w))
        a->groups[own].next_group = own;
    a->groups[own].next = next_of(w, at);
    a->groups[own].last_use = ++a->clock;
    a->groups[a->last].next_group = own;
    a->last = own;
    a->wanted = a->groups[a->groups[own].next_group].next;
    a->wanted.half = 1 - here->half;
    if (a->wanted.n == 0 || at->computes_at_once)
        return false;
    const struct work after = {.m = w->m, .list = w->list, .n = a->wanted.n, .outputs = w->outputs};
    *next = stage_pass(&after, at, NULL);
    memcpy(each, a->wanted.each, a->wanted.n * sizeof *each);
    next->s = NULL;
    next->progress = NULL;
    next->half = a->wanted.half;
    next->chooses = a->wanted.chooses;
    next->chunk.of = each[0];
    next->chunk.each = a->wanted.is_batched ? each : NULL;
    return true;
}

void ahead_recorded(struct stage *at, bool done)
{
    at->ahead.deferred = at->ahead.wanted;
    at->ahead.deferred.n = done ? at->ahead.wanted.n : 0;
}
