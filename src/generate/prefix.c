#include "generate/prefix.h"

#include <string.h>

#include "generate/generator.h"

void prefix_stop_at(struct prefix_stops *st, uint32_t pos, uint32_t gap)
{
    uint32_t i = 0;
    while (i < st->n && st->at[i] < pos)
        i++;
    bool near = (i < st->n && st->at[i] - pos < gap) || (i > 0 && pos - st->at[i - 1] < gap);
    if (pos == 0 || near || st->n == PREFIX_MAX_STOPS)
        return;
    memmove(st->at + i + 1, st->at + i, (st->n - i) * sizeof *st->at);
    st->at[i] = pos;
    st->n++;
}

uint32_t prefix_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    size_t i = 0;
    while (i < n_a && i < n_b && a[i] == b[i])
        i++;
    return (uint32_t)i;
}

uint32_t prefix_usable(const struct prefix_held *h, const int32_t *ids, uint32_t n)
{
    uint32_t same = prefix_common(h->ids, h->n, ids, n - 1), at = 0;
    if (!h->recurrent || same == h->n)
        return same;
    for (uint32_t i = 0; i < h->n_checkpoints && h->checkpoints[i] <= same; i++)
        at = h->checkpoints[i];
    return at;
}

static int feed_to(struct generator *s, const int32_t *ids, uint32_t to, struct moeflux_err *e)
{
    uint32_t pos = moeflux_session_position(s->sequence);
    return to > pos ? generator_feed(s, ids + pos, to - pos, e) : 0;
}

int prefix_feed(struct generator *s, const int32_t *ids, uint32_t to, const struct prefix_stops *st,
                struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; !rc && i < st->n; i++) {
        if (st->at[i] < moeflux_session_position(s->sequence) || st->at[i] > to)
            continue;
        rc = feed_to(s, ids, st->at[i], e);
        if (!rc)
            rc = moeflux_session_checkpoint(s->sequence, e);
    }
    return rc ? rc : feed_to(s, ids, to, e);
}
