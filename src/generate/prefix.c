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

void prefix_cut_at(struct prefix_cuts *cuts, uint32_t pos, uint32_t n)
{
    uint32_t last = cuts->n ? cuts->at[cuts->n - 1] : 0;
    if (cuts->n < PREFIX_MAX_CUTS && pos >= last + PREFIX_LEAST_CUT && pos < n)
        cuts->at[cuts->n++] = pos;
}

uint32_t prefix_place(const struct prefix_cuts *cuts, uint32_t chunk, uint32_t pos)
{
    uint32_t from = 0;
    for (uint32_t i = 0; i < cuts->n && cuts->at[i] <= pos; i++)
        from = cuts->at[i];
    return chunk ? from + (pos - from) / chunk * chunk : pos;
}

uint32_t prefix_cut_alike(const struct prefix_cuts *a, const struct prefix_cuts *b, uint32_t n)
{
    uint32_t i = 0;
    while (i < a->n && i < b->n && a->at[i] == b->at[i])
        i++;
    for (uint32_t k = i; k < a->n; k++)
        n = a->at[k] < n ? a->at[k] : n;
    for (uint32_t k = i; k < b->n; k++)
        n = b->at[k] < n ? b->at[k] : n;
    return n;
}

uint32_t prefix_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    size_t i = 0;
    while (i < n_a && i < n_b && a[i] == b[i])
        i++;
    return (uint32_t)i;
}
