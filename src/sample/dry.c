#include "sample/dry.h"

#include <float.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "sample/bits.h"
#include "sample/sampler.h"

struct dry {
    uint32_t allowed; /* tokens */
    float *penalties; /* [last + 1] of repetitions that are so many tokens longer than `allowed` */
    uint32_t n_ids, n_words;
    int32_t *ring; /* [last] accepted tokens */
    uint32_t last, ring_at, n_held;
    int32_t *text;                  /* [last] the accepted tokens, the newest first */
    uint32_t *same;                 /* [last] [k]: length of the common prefix of text + k and text */
    uint64_t *found;                /* [n_words] ids that continue a repetition */
    uint32_t *longest;              /* [n_ids] length of the repetition that an id of `found` continues */
    uint64_t *single;               /* [n_words] ids that contain a breaker */
    uint64_t *heads;                /* [n_words] ids that a longer breaker begins with */
    struct sampler_breaker *longer; /* [n_longer] breakers with a tail */
    size_t n_longer;
};

static bool has_bit(const uint64_t *bits, uint32_t n_ids, int32_t id)
{
    return id >= 0 && (uint32_t)id < n_ids && bits_has(bits, (uint32_t)id);
}

bool dry_is_on(const struct moeflux_sampler_options *o)
{
    return o->dry_multiplier > 0 && o->dry_penalty_last_n > 0;
}

static void take_breakers(struct dry *d, const struct sampler_breakers *b)
{
    for (size_t i = 0; b && i < b->n; i++) {
        const struct sampler_breaker *one = &b->all[i];
        if (one->head < 0 || (uint32_t)one->head >= d->n_ids)
            continue;
        bits_set(one->n_tail ? d->heads : d->single, (uint32_t)one->head);
        if (one->n_tail)
            d->longer[d->n_longer++] = *one;
    }
}

/* Multiplies step by step: a library's pow() would make the bits depend on the library. */
static void fill_penalties(struct dry *d, double multiplier, double base)
{
    double penalty = multiplier;
    for (uint32_t i = 0; i <= d->last; i++) {
        d->penalties[i] = penalty < (double)FLT_MAX ? (float)penalty : FLT_MAX;
        penalty *= base;
    }
}

struct dry *dry_new(const struct moeflux_sampler_options *o, const struct sampler_breakers *breakers,
                    uint32_t n_ids, struct moeflux_err *e)
{
    struct dry *d = mem_new(1, sizeof *d, e);
    if (!d)
        return NULL;
    d->allowed = o->dry_allowed_length;
    d->n_ids = n_ids;
    d->n_words = div_up(n_ids, WORD_BITS);
    d->last = o->dry_penalty_last_n;
    if (!(d->ring = mem_new(d->last, sizeof *d->ring, e)) ||
        !(d->text = mem_new(d->last, sizeof *d->text, e)) ||
        !(d->same = mem_new(d->last, sizeof *d->same, e)) ||
        !(d->penalties = mem_new((uint64_t)d->last + 1, sizeof *d->penalties, e)) ||
        !(d->found = mem_new(d->n_words, sizeof *d->found, e)) ||
        !(d->longest = mem_new(n_ids, sizeof *d->longest, e)) ||
        !(d->single = mem_new(d->n_words, sizeof *d->single, e)) ||
        !(d->heads = mem_new(d->n_words, sizeof *d->heads, e)) ||
        !(d->longer = mem_new(breakers ? breakers->n : 0, sizeof *d->longer, e))) {
        dry_free(d);
        return NULL;
    }
    fill_penalties(d, (double)o->dry_multiplier, (double)o->dry_base);
    take_breakers(d, breakers);
    return d;
}

void dry_free(struct dry *d)
{
    if (!d)
        return;
    free(d->ring);
    free(d->text);
    free(d->same);
    free(d->penalties);
    free(d->found);
    free(d->longest);
    free(d->single);
    free(d->heads);
    free(d->longer);
    free(d);
}

void dry_accept(struct dry *d, int32_t id)
{
    d->ring[d->ring_at] = id;
    d->ring_at = (d->ring_at + 1) % d->last;
    d->n_held += d->n_held < d->last;
}

void dry_reset(struct dry *d)
{
    d->ring_at = d->n_held = 0;
    memset(d->found, 0, d->n_words * sizeof *d->found);
}

/* Returns whether the breaker's tokens are text[at], text[at - 1], ..., which go forward in time. */
static bool is_breaker(const struct dry *d, const struct sampler_breaker *b, uint32_t at)
{
    if (b->head != d->text[at] || b->n_tail > at)
        return false;
    for (uint32_t i = 0; i < b->n_tail; i++)
        if (b->tail[i] != d->text[at - 1 - i])
            return false;
    return true;
}

/* Returns how many tokens were accepted after the last breaker; n: there is none. If several breakers have
 * their head at one place, the longest counts. text[at] is a breaker's head and its tail ends at
 * text[at - n_tail], so the tokens after it are text[0] to text[at - n_tail - 1]. */
static uint32_t since_breaker(const struct dry *d, uint32_t n)
{
    for (uint32_t at = 0; at < n; at++) {
        int64_t tail = has_bit(d->single, d->n_ids, d->text[at]) ? 0 : -1;
        bool is_head = has_bit(d->heads, d->n_ids, d->text[at]);
        for (size_t i = 0; is_head && i < d->n_longer; i++)
            if (d->longer[i].n_tail > tail && is_breaker(d, &d->longer[i], at))
                tail = d->longer[i].n_tail;
        if (tail >= 0)
            return at - (uint32_t)tail;
    }
    return n;
}

/* Fills same[1] to same[n - 1], the Z function of the text, in O(n). [from, to): of the parts found so far
 * that equal the text's beginning, the one that ends last. */
static void compare(struct dry *d, uint32_t n)
{
    uint32_t from = 0, to = 0;
    for (uint32_t k = 1; k < n; k++) {
        uint32_t len = k < to ? d->same[k - from] : 0;
        if (k < to && len < to - k) {
            d->same[k] = len;
            continue;
        }
        len = k < to ? to - k : 0;
        while (k + len < n && d->text[len] == d->text[k + len])
            len++;
        d->same[k] = len;
        from = k;
        to = k + len;
    }
}

const uint64_t *dry_find(struct dry *d)
{
    uint32_t n = d->n_held;
    memset(d->found, 0, d->n_words * sizeof *d->found);
    for (uint32_t i = 0; i < n; i++)
        d->text[i] = d->ring[(d->ring_at + d->last - 1 - i) % d->last];
    uint32_t limit = n > d->allowed ? since_breaker(d, n) : 0;
    if (n <= d->allowed || limit < d->allowed)
        return d->found;
    compare(d, n);
    for (uint32_t k = 1; k < n; k++) {
        uint32_t len = d->same[k] < limit ? d->same[k] : limit;
        int32_t id = d->text[k - 1];
        if (len < d->allowed || id < 0 || (uint32_t)id >= d->n_ids || has_bit(d->single, d->n_ids, id))
            continue;
        if (!has_bit(d->found, d->n_ids, id) || d->longest[id] < len)
            d->longest[id] = len;
        bits_set(d->found, (uint32_t)id);
    }
    return d->found;
}

float dry_penalty(const struct dry *d, uint32_t id)
{
    return d->penalties[d->longest[id] - d->allowed];
}
