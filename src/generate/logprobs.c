#include "generate/logprobs.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/log_sum.h"
#include "base/mem.h"

/* Fills out[n_top] with the largest logits, in descending order. */
static void find_top(struct moeflux_logprob *out, uint32_t n_top, const float *logits, uint32_t n,
                     const uint8_t *allowed)
{
    for (uint32_t k = 0; k < n_top; k++)
        out[k] = (struct moeflux_logprob){.id = -1, .value = -INFINITY};
    for (uint32_t i = 0; n_top && i < n; i++) {
        uint32_t at = n_top;
        /* Nearly all ids end here. */
        if (!(logits[i] > out[n_top - 1].value) || (allowed && !(allowed[i / 8] >> i % 8 & 1)))
            continue;
        for (; at > 1 && logits[i] > out[at - 2].value; at--)
            out[at - 1] = out[at - 2];
        out[at - 1] = (struct moeflux_logprob){.id = (int32_t)i, .value = logits[i]};
    }
}

int logprobs_add(struct logprobs *l, const float *logits, uint32_t n, const uint8_t *allowed, int32_t chosen,
                 struct moeflux_err *e)
{
    size_t row = 1 + (size_t)l->n_top;
    int rc = mem_grow((void **)&l->items, &l->cap, (l->n + 1) * row, sizeof *l->items, e);
    if (rc)
        return rc;
    struct moeflux_logprob *items = l->items + l->n * row;
    double sum = log_sum(logits, n);
    items[0] = (struct moeflux_logprob){.id = chosen, .value = logits[chosen]};
    find_top(items + 1, l->n_top, logits, n, allowed);
    for (size_t i = 0; i < row; i++)
        items[i].value = (float)((double)items[i].value - sum);
    l->n++;
    return 0;
}

const struct moeflux_logprob *logprobs_of(const struct logprobs *l, size_t idx)
{
    return l->items + idx * (1 + (size_t)l->n_top);
}

void logprobs_free(struct logprobs *l)
{
    free(l->items);
    *l = (struct logprobs){0};
}
