#include "text/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

#define MAX_REPEAT_LAST (1u << 20)
#define WORD_BITS       64u
#define NOT_AN_ID       (-1)

struct candidate {
    float weight; /* the logit, later exp((logit - max) / temperature) */
    uint32_t id;
};

struct sampler {
    struct sampler_options options;
    uint32_t n_ids, n_words;
    uint64_t *blocked;            /* [n_words] bit set: never chosen */
    uint64_t *repeated;           /* [n_words] bit set: n_recent is not 0 */
    uint32_t *n_recent;           /* [n_ids] how often the id stands in `recent` */
    int32_t *recent;              /* [repeat_last] ring; NOT_AN_ID: nothing to penalise */
    uint32_t recent_at;           /* where the next one goes */
    float *logits;                /* [n_ids] working copy */
    struct candidate *candidates; /* [n_ids] */
    uint64_t rng;
};

static bool in_range(float v, float low, float high)
{
    return v >= low && v <= high; /* false for NaN */
}

int sampler_check(const struct sampler_options *o, struct err *e)
{
    if (!(o->temperature >= 0.0f) || isinf(o->temperature))
        return err_set(e, ERR_USAGE, "temperature is %g, expected 0 or more", (double)o->temperature);
    if (!in_range(o->top_p, 0.0f, 1.0f) || o->top_p == 0.0f)
        return err_set(e, ERR_USAGE, "top-p is %g, expected more than 0 and at most 1", (double)o->top_p);
    if (!in_range(o->min_p, 0.0f, 1.0f))
        return err_set(e, ERR_USAGE, "min-p is %g, expected 0 to 1", (double)o->min_p);
    if (!(o->repeat_penalty > 0.0f) || isinf(o->repeat_penalty))
        return err_set(e, ERR_USAGE, "repeat-penalty is %g, expected more than 0", (double)o->repeat_penalty);
    if (o->repeat_last > MAX_REPEAT_LAST)
        return err_set(e, ERR_USAGE, "repeat-last is %u, expected at most %u", o->repeat_last,
                       MAX_REPEAT_LAST);
    return 0;
}

/* Bits past n_ids in the last word stay clear: no loop over ids gets there. */
static void block(struct sampler *s, const uint8_t *allowed)
{
    for (uint32_t i = 0; allowed && i < s->n_ids; i++)
        if (!(allowed[i / 8] >> i % 8 & 1))
            s->blocked[i / WORD_BITS] |= (uint64_t)1 << i % WORD_BITS;
}

static bool all_blocked(const struct sampler *s)
{
    uint32_t n = 0;
    for (uint32_t w = 0; w < s->n_words; w++)
        n += (uint32_t)__builtin_popcountll(s->blocked[w]);
    return n == s->n_ids;
}

struct sampler *sampler_new(const struct sampler_options *o, uint32_t n_ids, const uint8_t *allowed,
                            struct err *e)
{
    if (sampler_check(o, e) < 0)
        return NULL;
    if (n_ids == 0 || n_ids > INT32_MAX) {
        err_set(e, ERR_USAGE, "a vocabulary of %u tokens cannot be sampled", n_ids);
        return NULL;
    }
    struct sampler *s = mem_new(1, sizeof *s, e);
    if (!s)
        return NULL;
    s->options = *o;
    s->n_ids = n_ids;
    s->n_words = div_up(n_ids, WORD_BITS);
    if (!(s->blocked = mem_new(s->n_words, sizeof *s->blocked, e)) ||
        !(s->repeated = mem_new(s->n_words, sizeof *s->repeated, e)) ||
        !(s->n_recent = mem_new(n_ids, sizeof *s->n_recent, e)) ||
        !(s->recent = mem_new(o->repeat_last, sizeof *s->recent, e)) ||
        !(s->logits = mem_new(n_ids, sizeof *s->logits, e)) ||
        !(s->candidates = mem_new(n_ids, sizeof *s->candidates, e)))
        goto fail;
    block(s, allowed);
    if (all_blocked(s)) {
        err_set(e, ERR_USAGE, "none of the %u ids may be chosen", n_ids);
        goto fail;
    }
    sampler_reset(s);
    return s;
fail:
    sampler_free(s);
    return NULL;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->blocked);
    free(s->repeated);
    free(s->n_recent);
    free(s->recent);
    free(s->logits);
    free(s->candidates);
    free(s);
}

void sampler_accept(struct sampler *s, int32_t id)
{
    if (s->options.repeat_last == 0)
        return;
    int32_t *place = &s->recent[s->recent_at];
    if (*place != NOT_AN_ID && --s->n_recent[*place] == 0)
        s->repeated[(uint32_t)*place / WORD_BITS] &= ~((uint64_t)1 << (uint32_t)*place % WORD_BITS);
    *place = id >= 0 && (uint32_t)id < s->n_ids ? id : NOT_AN_ID;
    if (*place != NOT_AN_ID) {
        s->n_recent[id]++;
        s->repeated[(uint32_t)id / WORD_BITS] |= (uint64_t)1 << (uint32_t)id % WORD_BITS;
    }
    s->recent_at = (s->recent_at + 1) % s->options.repeat_last;
}

void sampler_reset(struct sampler *s)
{
    memset(s->repeated, 0, s->n_words * sizeof *s->repeated);
    memset(s->n_recent, 0, s->n_ids * sizeof *s->n_recent);
    for (uint32_t i = 0; i < s->options.repeat_last; i++)
        s->recent[i] = NOT_AN_ID;
    s->recent_at = 0;
    s->rng = s->options.seed;
}

/* splitmix64, the upper 53 bits: a multiple of 2^-53 in [0, 1). */
static double draw(struct sampler *s)
{
    uint64_t z = (s->rng += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

static float penalise(float logit, float penalty)
{
    return logit > 0.0f ? logit / penalty : logit * penalty;
}

/* The working copy: blocked ids get -infinity, repeated ones their penalty. Words without either, nearly all of
 * them, cost one test. */
static void copy_logits(struct sampler *s, const float *logits)
{
    float penalty = s->options.repeat_penalty;
    memcpy(s->logits, logits, s->n_ids * sizeof *logits);
    for (uint32_t w = 0; w < s->n_words; w++) {
        float *word = s->logits + (size_t)w * WORD_BITS;
        if (penalty != 1.0f)
            for (uint64_t bits = s->repeated[w]; bits; bits &= bits - 1)
                word[__builtin_ctzll(bits)] = penalise(word[__builtin_ctzll(bits)], penalty);
        for (uint64_t bits = s->blocked[w]; bits; bits &= bits - 1)
            word[__builtin_ctzll(bits)] = -INFINITY;
    }
}

/* The lowest index of the maximum. ERR_DEVICE for a NaN (after blocking, so only where it could be chosen), and
 * when every logit is -infinity. */
static int32_t find_max(const struct sampler *s, struct err *e)
{
    float max = -INFINITY;
    int32_t best = NOT_AN_ID;
    for (uint32_t i = 0; i < s->n_ids; i++) {
        float v = s->logits[i];
        if (v <= max)
            continue;
        if (isnan(v))
            return err_set(e, ERR_DEVICE, "the logit of token %u of %u is not a number", i, s->n_ids);
        max = v;
        best = (int32_t)i;
    }
    if (best == NOT_AN_ID)
        return err_set(e, ERR_DEVICE, "all logits of %u tokens are -infinity, none can be chosen", s->n_ids);
    return best;
}

/* Whether `a` goes before `b`: the larger weight, then the lower id. */
static bool before(struct candidate a, struct candidate b)
{
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

/* A heap with the last (sign < 0) or the first (sign > 0) candidate at its top. */
static bool above(struct candidate a, struct candidate b, int sign)
{
    return sign > 0 ? before(a, b) : before(b, a);
}

static void sift_down(struct candidate *heap, uint32_t n, uint32_t at, int sign)
{
    struct candidate c = heap[at];
    for (size_t child; (child = 2 * (size_t)at + 1) < n; at = (uint32_t)child) {
        if (child + 1 < n && above(heap[child + 1], heap[child], sign))
            child++;
        if (!above(heap[child], c, sign))
            break;
        heap[at] = heap[child];
    }
    heap[at] = c;
}

static void make_heap(struct candidate *heap, uint32_t n, int sign)
{
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(heap, n, i, sign);
}

/* The k first of all candidates, in no order. The heap's top is the worst of those kept: nearly every logit is
 * turned away by one comparison with it. Returns how many there are. */
static uint32_t take_top(struct sampler *s, uint32_t k)
{
    struct candidate *heap = s->candidates;
    uint32_t n = 0, i = 0;
    for (; i < s->n_ids && n < k; i++)
        if (s->logits[i] > -INFINITY)
            heap[n++] = (struct candidate){s->logits[i], i};
    if (n == k)
        make_heap(heap, n, -1);
    for (; i < s->n_ids; i++) {
        /* Ids come in order, so a tie with the worst is lost. */
        if (s->logits[i] <= heap[0].weight)
            continue;
        heap[0] = (struct candidate){s->logits[i], i};
        sift_down(heap, n, 0, -1);
    }
    return n;
}

/* Logits to weights relative to the largest one, whose weight is 1 even where it is infinite. Returns their sum. */
static double weigh(struct sampler *s, uint32_t n, float max)
{
    float temperature = s->options.temperature;
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        struct candidate *c = &s->candidates[i];
        c->weight = c->weight == max ? 1.0f : expf((c->weight - max) / temperature);
        sum += (double)c->weight;
    }
    return sum;
}

/* Moves the smallest set of first candidates whose weights reach `enough` to the end of the array, best last. It
 * pops a heap only that often: the set is small and the rest stays unsorted. Returns the set's size. */
static uint32_t take_nucleus(struct candidate *c, uint32_t n, double enough)
{
    double sum = 0.0;
    uint32_t left = n;
    make_heap(c, n, 1);
    while (left && (sum < enough || left == n)) {
        struct candidate first = c[0];
        sum += (double)first.weight;
        c[0] = c[--left];
        if (left)
            sift_down(c, left, 0, 1);
        c[left] = first;
    }
    return n - left;
}

/* Keeps what weighs at least `least`. Returns how many. */
static uint32_t take_heavy(struct candidate *c, uint32_t n, float least)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (c[i].weight >= least)
            c[kept++] = c[i];
    return kept;
}

static int32_t choose(struct sampler *s, const struct candidate *c, uint32_t n)
{
    double sum = 0.0, passed = 0.0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)c[i].weight;
    double point = draw(s) * sum;
    uint32_t last = 0;
    for (uint32_t i = 0; i < n; i++) {
        passed += (double)c[i].weight;
        if (passed > point)
            return (int32_t)c[i].id;
        if (c[i].weight > 0.0f)
            last = i;
    }
    return (int32_t)c[last].id;
}

int32_t sampler_pick(struct sampler *s, const float *logits, struct err *e)
{
    const struct sampler_options *o = &s->options;
    copy_logits(s, logits);
    int32_t best = find_max(s, e);
    if (best < 0 || o->temperature == 0.0f || o->top_k == 1)
        return best;
    uint32_t n = take_top(s, o->top_k && o->top_k < s->n_ids ? o->top_k : s->n_ids);
    double sum = weigh(s, n, s->logits[best]);
    struct candidate *c = s->candidates;
    if (o->top_p < 1.0f) {
        uint32_t kept = take_nucleus(c, n, (double)o->top_p * sum);
        c += n - kept;
        n = kept;
    }
    /* The largest weight is 1, so min-p is a weight as it stands. */
    if (o->min_p > 0.0f)
        n = take_heavy(c, n, o->min_p);
    return choose(s, c, n);
}
