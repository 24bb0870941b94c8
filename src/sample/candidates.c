#include "sample/candidates.h"

#include <math.h>

#include "sample/weight.h"

bool candidates_before(const struct candidate *a, const struct candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

uint64_t candidates_sum(const struct candidate *c, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += c[i].weight;
    return sum;
}

static float largest(const struct candidate *c, uint32_t n)
{
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        max = c[i].logit > max ? c[i].logit : max;
    return max;
}

void candidates_weigh(struct candidate *c, uint32_t n, float scale)
{
    uint32_t max = sample_bits(largest(c, n));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = sample_bits(c[i].logit);
        c[i].weight = sample_weight(sample_exponent(bits, max, scale));
        c[i].key = sample_key(bits);
    }
}

/* Returns floor(sum * share / 2^32); *exact: there is no fraction. */
static uint64_t share_of(uint64_t sum, uint32_t share, bool *exact)
{
    uint64_t low = (sum & UINT32_MAX) * share, high = (sum >> 32) * share;
    *exact = (low & UINT32_MAX) == 0;
    return high + (low >> 32);
}

/* Keeps the smallest set of first candidates, by key and then by place, that has `keep` of them and the
 * weight `enough`. Finds the last one's key eight bits at a time: a histogram of the next eight bits. */
static uint32_t take_first(struct candidate *c, uint32_t n, uint64_t enough, uint32_t keep)
{
    uint32_t found = 0, mask = 0, kept = 0, count = 0;
    uint64_t sum = 0;
    keep = keep < n ? keep : n;
    for (uint32_t shift = 32; shift > 0;) {
        uint64_t sums[256] = {0};
        uint32_t counts[256] = {0}, digit = 255;
        shift -= 8;
        for (uint32_t i = 0; i < n; i++) {
            bool is_in = (c[i].key & mask) == found;
            sums[c[i].key >> shift & 255] += is_in ? c[i].weight : 0;
            counts[c[i].key >> shift & 255] += is_in;
        }
        while (sum + sums[digit] < enough || count + counts[digit] < keep) {
            sum += sums[digit];
            count += counts[digit--];
        }
        found |= digit << shift;
        mask |= 255u << shift;
    }
    for (uint32_t i = 0; i < n; i++) {
        bool is_last = c[i].key == found;
        if (c[i].key > found || (is_last && (sum < enough || count < keep)))
            c[kept++] = c[i];
        sum += is_last ? c[i].weight : 0;
        count += is_last;
    }
    return kept;
}

uint32_t candidates_top_p(struct candidate *c, uint32_t n, uint32_t share, uint32_t keep)
{
    bool exact;
    uint64_t enough = share_of(candidates_sum(c, n), share, &exact);
    return take_first(c, n, enough + !exact, keep);
}

uint32_t candidates_min_p(struct candidate *c, uint32_t n, uint32_t least, uint32_t keep)
{
    uint32_t heavy = 0, kept = 0;
    for (uint32_t i = 0; i < n; i++)
        heavy += c[i].weight >= least;
    if (heavy < keep)
        return take_first(c, n, 0, keep);
    for (uint32_t i = 0; i < n; i++)
        if (c[i].weight >= least)
            c[kept++] = c[i];
    return kept;
}

/* A weight is 2^-e, so the surprise, -log2 of the probability, is e plus a constant. Its distance from the
 * entropy, the mean surprise, is |e - mean of e|. The sum of weight * e has up to 91 bits. */
uint32_t candidates_typical(struct candidate *c, uint32_t n, float scale, uint32_t share, uint32_t keep)
{
    uint32_t max = sample_bits(largest(c, n));
    uint64_t sum = candidates_sum(c, n);
    unsigned __int128 total = 0;
    bool exact;
    for (uint32_t i = 0; i < n; i++) {
        c[i].key = sample_exponent(sample_bits(c[i].logit), max, scale);
        total += (unsigned __int128)c[i].weight * c[i].key;
    }
    uint32_t mean = (uint32_t)((total + sum / 2) / sum);
    for (uint32_t i = 0; i < n; i++)
        c[i].key = UINT32_MAX - (c[i].key > mean ? c[i].key - mean : mean - c[i].key);
    return take_first(c, n, share_of(sum, share, &exact) + 1, keep);
}

uint32_t candidates_xtc(struct candidate *c, uint32_t n, uint32_t threshold, uint32_t keep)
{
    bool exact;
    uint64_t least = share_of(candidates_sum(c, n), threshold, &exact) + !exact;
    uint32_t n_likely = 0, kept = 0;
    struct candidate last = {.logit = INFINITY};
    for (uint32_t i = 0; i < n; i++) {
        if (c[i].weight < least)
            continue;
        last = candidates_before(&last, &c[i]) ? c[i] : last;
        n_likely++;
    }
    if (n_likely < 2 || n - (n_likely - 1) < keep)
        return n;
    for (uint32_t i = 0; i < n; i++)
        if (!candidates_before(&c[i], &last))
            c[kept++] = c[i];
    return kept;
}
