#include "text/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

#define MAX_REPEAT_LAST (1u << 20)
#define WORD_BITS       64u
#define LANES           16u
#define NOT_AN_ID       (-1)

/* Logits and weights are worked on 64 ids at a time, one word of the bitmaps: loops of a fixed length that the
 * compiler turns into vector code. */
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
    float *logits;                /* [n_words * 64] working copy, later weights; the tail is -infinity */
    float *word_max;              /* [n_words] the largest logit of each word */
    struct candidate *candidates; /* [n_ids] */
    uint64_t rng;
};

static bool in_range(float v, float low, float high)
{
    return v >= low && v <= high; /* false for NaN */
}

int sampler_check(const struct sampler_options *o, struct moeflux_err *e)
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

/* The bits past n_ids in the last word are blocked too. */
static void block(struct sampler *s, const uint8_t *allowed)
{
    for (uint32_t i = 0; i < s->n_words * WORD_BITS; i++)
        if (i >= s->n_ids || (allowed && !(allowed[i / 8] >> i % 8 & 1)))
            s->blocked[i / WORD_BITS] |= (uint64_t)1 << i % WORD_BITS;
}

static bool all_blocked(const struct sampler *s)
{
    uint32_t w = 0;
    while (w < s->n_words && s->blocked[w] == UINT64_MAX)
        w++;
    return w == s->n_words;
}

struct sampler *sampler_new(const struct sampler_options *o, uint32_t n_ids, const uint8_t *allowed,
                            struct moeflux_err *e)
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
        !(s->logits = mem_new((uint64_t)s->n_words * WORD_BITS, sizeof *s->logits, e)) ||
        !(s->word_max = mem_new(s->n_words, sizeof *s->word_max, e)) ||
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
    free(s->word_max);
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

/* The working copy of one word: blocked ids get -infinity, repeated ones their penalty. Nearly all words have
 * neither and cost two tests. */
static void copy_word(struct sampler *s, uint32_t w, const float *logits)
{
    float *word = s->logits + (size_t)w * WORD_BITS, penalty = s->options.repeat_penalty;
    size_t n = size_min(s->n_ids - w * WORD_BITS, WORD_BITS);
    memcpy(word, logits + (size_t)w * WORD_BITS, n * sizeof *word);
    for (uint64_t bits = penalty == 1.0f ? 0 : s->repeated[w]; bits; bits &= bits - 1)
        word[__builtin_ctzll(bits)] = penalise(word[__builtin_ctzll(bits)], penalty);
    for (uint64_t bits = s->blocked[w]; bits; bits &= bits - 1)
        word[__builtin_ctzll(bits)] = -INFINITY;
}

/* The largest of 64, or NaN if there is one. */
static float max_of_word(const float *word)
{
    float max[LANES], bad[LANES] = {0};
    memcpy(max, word, sizeof max);
    for (size_t i = 0; i < WORD_BITS; i += LANES)
        for (size_t k = 0; k < LANES; k++) {
            max[k] = word[i + k] > max[k] ? word[i + k] : max[k];
            bad[k] = word[i + k] == word[i + k] ? bad[k] : word[i + k];
        }
    for (size_t k = 1; k < LANES; k++) {
        max[0] = max[k] > max[0] ? max[k] : max[0];
        bad[0] = bad[k] == bad[k] ? bad[0] : bad[k];
    }
    return bad[0] == bad[0] ? max[0] : bad[0];
}

static int32_t index_in_word(const struct sampler *s, uint32_t w, float value)
{
    uint32_t i = w * WORD_BITS;
    while (isnan(value) ? !isnan(s->logits[i]) : s->logits[i] != value)
        i++;
    return (int32_t)i;
}

/* The maximum is +infinity: as a logit (of an id that could be chosen) that is a fault; by a penalty below 1 it is just a
 * large one. */
static int check_infinity(const struct sampler *s, const float *logits, struct moeflux_err *e)
{
    for (uint32_t i = 0; i < s->n_ids; i++)
        if (logits[i] == INFINITY && s->logits[i] == INFINITY)
            return err_set(e, ERR_DEVICE, "the logit of token %u of %u is +infinity", i, s->n_ids);
    return 0;
}

/* Fills the working copy and word_max. Returns the lowest index of the maximum; ERR_DEVICE for a NaN or +infinity (after
 * blocking, so only where it could be chosen), and when every logit is -infinity. */
static int32_t take_logits(struct sampler *s, const float *logits, struct moeflux_err *e)
{
    float max = -INFINITY;
    uint32_t best = s->n_words;
    for (uint32_t w = 0; w < s->n_words; w++) {
        copy_word(s, w, logits);
        float word_max = max_of_word(s->logits + (size_t)w * WORD_BITS);
        if (isnan(word_max))
            return err_set(e, ERR_DEVICE, "the logit of token %d of %u is not a number",
                           index_in_word(s, w, word_max), s->n_ids);
        s->word_max[w] = word_max;
        if (word_max > max) {
            max = word_max;
            best = w;
        }
    }
    if (best == s->n_words)
        return err_set(e, ERR_DEVICE, "all logits of %u tokens are -infinity, none can be chosen", s->n_ids);
    int rc = max == INFINITY ? check_infinity(s, logits, e) : 0;
    return rc ? rc : index_in_word(s, best, max);
}

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* exp(x) for x <= 0, as 2^n * e^r with r within half a step of 0; relative error below 3e-7. Unlike the C library's
 * it becomes vector code, and it is the same arithmetic on every machine. */
static inline float exp_of(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    /* At -88 and below the scale's bits are 0, and so is the weight. Negative floats grow with their bits. */
    const uint32_t lowest = 0xc2b00000u;
    float y = float_of(bits_of(x) < lowest ? bits_of(x) : lowest);
    float n = (y * 1.44269504f + magic) - magic;
    float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * float_of((uint32_t)((int32_t)n + 127) << 23);
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

/* The k first of all candidates, in no order, with logits as weights. The heap's top is the worst of those kept;
 * once the heap is full nearly every word is turned away by one comparison with it. Returns how many there are. */
static uint32_t take_top(struct sampler *s, uint32_t k)
{
    struct candidate *heap = s->candidates;
    uint32_t n = 0;
    for (uint32_t w = 0; w < s->n_words; w++) {
        if (n == k && s->word_max[w] <= heap[0].weight)
            continue;
        for (uint32_t i = w * WORD_BITS; i < (w + 1) * WORD_BITS; i++) {
            struct candidate c = {s->logits[i], i};
            if (n < k && c.weight > -INFINITY) {
                heap[n++] = c;
                if (n == k)
                    make_heap(heap, n, -1);
            } else if (n == k && c.weight > heap[0].weight) {
                /* Ids come in order, so a tie with the worst is lost. */
                heap[0] = c;
                sift_down(heap, n, 0, -1);
            }
        }
    }
    return n;
}

static double weigh_candidates(struct sampler *s, uint32_t n, float max)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        s->candidates[i].weight = exp_of((s->candidates[i].weight - max) / s->options.temperature);
        sum += (double)s->candidates[i].weight;
    }
    return sum;
}

/* Turns the whole working copy into weights. Returns their sum. */
static double weigh_all(struct sampler *s, float max)
{
    float temperature = s->options.temperature;
    double sum = 0.0;
    for (uint32_t w = 0; w < s->n_words; w++) {
        float *word = s->logits + (size_t)w * WORD_BITS, lanes[LANES] = {0};
        for (size_t i = 0; i < WORD_BITS; i++)
            word[i] = exp_of((word[i] - max) / temperature);
        for (size_t i = 0; i < WORD_BITS; i += LANES)
            for (size_t k = 0; k < LANES; k++)
                lanes[k] += word[i + k];
        for (size_t k = 0; k < LANES; k++)
            sum += (double)lanes[k];
    }
    return sum;
}

/* A weight's place in a list of ranges of falling weight, eight to a power of two, by its bits. */
static uint32_t range_of(float weight)
{
    return (bits_of(1.0f) - bits_of(weight)) >> 20;
}
#define N_RANGES 1017 /* range_of(0) + 1 */

/* The last range that the smallest set of first ids needs for its weights to reach `enough`. */
static uint32_t last_range(const struct sampler *s, double enough)
{
    double sums[N_RANGES] = {0}, sum = 0.0;
    uint32_t last = 0;
    for (size_t i = 0; i < (size_t)s->n_words * WORD_BITS; i++)
        sums[range_of(s->logits[i])] += (double)s->logits[i];
    while (last < N_RANGES - 1 && (sum += sums[last]) < enough)
        last++;
    return last;
}

/* Appends the weights in the ranges first..last that are not 0 to the n candidates. Returns the new count. */
static uint32_t take_ranges(struct sampler *s, uint32_t n, uint32_t first, uint32_t last)
{
    for (uint32_t i = 0; i < s->n_ids; i++) {
        float weight = s->logits[i];
        uint32_t range = range_of(weight);
        s->candidates[n] = (struct candidate){weight, i};
        n += weight > 0.0f && range >= first && range <= last;
    }
    return n;
}

/* Keeps the smallest set of first candidates whose weights reach `enough`, but at least one if `one`. It pops a
 * heap only that often: the set is small and the rest stays unsorted. Returns how many. */
static uint32_t take_nucleus(struct candidate *c, uint32_t n, double enough, bool one)
{
    double sum = 0.0;
    uint32_t left = n;
    make_heap(c, n, 1);
    while (left && (sum < enough || (one && left == n))) {
        struct candidate first = c[0];
        sum += (double)first.weight;
        c[0] = c[--left];
        if (left)
            sift_down(c, left, 0, 1);
        c[left] = first;
    }
    memmove(c, c + left, (n - left) * sizeof *c);
    return n - left;
}

/* The candidates that top-k and top-p leave. */
static uint32_t take_of_top_k(struct sampler *s, float max)
{
    const struct sampler_options *o = &s->options;
    uint32_t n = take_top(s, o->top_k);
    double sum = weigh_candidates(s, n, max);
    return o->top_p < 1.0f ? take_nucleus(s->candidates, n, (double)o->top_p * sum, true) : n;
}

/* The candidates that top-p leaves of all ids. Those in the ranges before the last one are in for certain; only
 * the last one must be put in order. */
static uint32_t take_of_all(struct sampler *s, float max)
{
    double sum = weigh_all(s, max), sure = 0.0;
    if (s->options.top_p >= 1.0f)
        return take_ranges(s, 0, 0, N_RANGES - 1);
    double enough = (double)s->options.top_p * sum;
    uint32_t last = last_range(s, enough), n_sure = last ? take_ranges(s, 0, 0, last - 1) : 0;
    for (uint32_t i = 0; i < n_sure; i++)
        sure += (double)s->candidates[i].weight;
    uint32_t n = take_ranges(s, n_sure, last, last);
    return n_sure + take_nucleus(s->candidates + n_sure, n - n_sure, enough - sure, n_sure == 0);
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

int32_t sampler_pick(struct sampler *s, const float *logits, struct moeflux_err *e)
{
    const struct sampler_options *o = &s->options;
    int32_t best = take_logits(s, logits, e);
    if (best < 0 || o->temperature == 0.0f || o->top_k == 1 || isinf(s->logits[best]))
        return best;
    bool some = o->top_k && o->top_k < s->n_ids;
    uint32_t n = some ? take_of_top_k(s, s->logits[best]) : take_of_all(s, s->logits[best]);
    /* The largest weight is 1, so min-p is a weight as it stands. */
    if (o->min_p > 0.0f)
        n = take_heavy(s->candidates, n, o->min_p);
    return choose(s, s->candidates, n);
}
