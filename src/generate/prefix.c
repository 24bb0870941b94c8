#include "generate/prefix.h"

#include <string.h>

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
