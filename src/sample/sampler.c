#include "sample/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "sample/bits.h"
#include "sample/candidates.h"
#include "sample/dry.h"
#include "sample/weight.h"

#define LANES     16u
#define NOT_AN_ID (-1)
#define LOG2_E    1.4426950408889634
/* The scale (struct sampler_rule) of temperature 1. */
#define NO_TEMPERATURE ((float)LOG2_E)

/* Logits are worked on 64 ids at a time, one word of the bitmaps: loops of a fixed length that the compiler
 * turns into vector code. */
struct sampler {
    struct moeflux_sampler_options options;
    struct sampler_rule rule; /* all but `random` */
    uint32_t typical;         /* share in units of 2^-32; 0: all */
    uint32_t xtc;             /* threshold in units of 2^-32, if xtc_probability is above 0 */
    struct dry *dry;          /* NULL: off */
    const uint64_t *dry_ids;  /* [n_words] bit set: has a penalty of `dry` now; NULL: none */
    uint32_t n_ids, n_words;
    uint64_t *blocked;            /* [n_words] bit set: not chosen now */
    uint64_t *never;              /* [n_words] bit set: never chosen */
    uint64_t *repeated;           /* [n_words] bit set: n_recent is not 0 */
    uint32_t *n_recent;           /* [n_ids] occurrences of the id in `recent` */
    int32_t *recent;              /* [repeat_last] ring; NOT_AN_ID: nothing to penalise */
    uint32_t recent_at;           /* index of the next one */
    bool in_answer;               /* the next two are NULL if rule.counts is false */
    uint64_t *answered;           /* [n_words] bit set: n_answered is not 0 */
    uint32_t *n_answered;         /* [n_ids] occurrences of the id in the answer */
    struct moeflux_bias *bias;    /* [options.n_bias], ascending by id */
    float *logits;                /* [n_words * 64] working copy; the tail is -infinity */
    float *word_max;              /* [n_words] the largest logit of each word */
    struct candidate *candidates; /* [n_ids] */
    uint64_t n_picked;
};

static bool in_range(float v, float low, float high)
{
    return v >= low && v <= high; /* false for NaN */
}

static int check_filters(const struct moeflux_sampler_options *o, struct moeflux_err *e)
{
    const struct {
        const char *name;
        float value, low, high;
    } all[] = {{"typical_p", o->typical_p, 0, 1},
               {"top_n_sigma", o->top_n_sigma, -FLT_MAX, FLT_MAX},
               {"xtc_probability", o->xtc_probability, 0, 1},
               {"xtc_threshold", o->xtc_threshold, 0, 1}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!in_range(all[i].value, all[i].low, all[i].high))
            return err_set(e, ERR_USAGE, "%s is %g, expected %s", all[i].name, (double)all[i].value,
                           all[i].high > 1 ? "a number" : "0 to 1");
    return 0;
}

static int check_dry(const struct moeflux_sampler_options *o, struct moeflux_err *e)
{
    const struct {
        const char *name;
        uint32_t value;
    } lengths[] = {{"dry_allowed_length", o->dry_allowed_length},
                   {"dry_penalty_last_n", o->dry_penalty_last_n}};
    if (!in_range(o->dry_multiplier, 0, FLT_MAX))
        return err_set(e, ERR_USAGE, "dry_multiplier is %g, expected 0 or more", (double)o->dry_multiplier);
    if (dry_is_on(o) && !in_range(o->dry_base, 1, FLT_MAX))
        return err_set(e, ERR_USAGE, "dry_base is %g, expected 1 or more", (double)o->dry_base);
    for (size_t i = 0; i < 2; i++)
        if (lengths[i].value > MOEFLUX_MAX_REPEAT_LAST)
            return err_set(e, ERR_USAGE, "%s is %u, expected at most %u", lengths[i].name, lengths[i].value,
                           (uint32_t)MOEFLUX_MAX_REPEAT_LAST);
    for (uint32_t i = 0; i < o->n_dry_sequence_breakers; i++)
        if (strlen(o->dry_sequence_breakers[i]) > SAMPLER_MAX_BREAKER)
            return err_set(e, ERR_USAGE, "dry_sequence_breakers: a text of %zu bytes, expected at most %d",
                           strlen(o->dry_sequence_breakers[i]), SAMPLER_MAX_BREAKER);
    return 0;
}

int sampler_check(const struct moeflux_sampler_options *o, struct moeflux_err *e)
{
    if (!(o->temperature >= 0.0f) || isinf(o->temperature))
        return err_set(e, ERR_USAGE, "temperature is %g, expected 0 or more", (double)o->temperature);
    if (!in_range(o->top_p, 0.0f, 1.0f) || o->top_p == 0.0f)
        return err_set(e, ERR_USAGE, "top_p is %g, expected more than 0 and at most 1", (double)o->top_p);
    if (!in_range(o->min_p, 0.0f, 1.0f))
        return err_set(e, ERR_USAGE, "min_p is %g, expected 0 to 1", (double)o->min_p);
    if (check_filters(o, e) < 0 || check_dry(o, e) < 0)
        return ERR_USAGE;
    if (!(o->repeat_penalty > 0.0f) || isinf(o->repeat_penalty))
        return err_set(e, ERR_USAGE, "repeat_penalty is %g, expected more than 0", (double)o->repeat_penalty);
    if (!in_range(o->presence_penalty, -2.0f, 2.0f))
        return err_set(e, ERR_USAGE, "presence_penalty is %g, expected -2 to 2", (double)o->presence_penalty);
    if (!in_range(o->frequency_penalty, -2.0f, 2.0f))
        return err_set(e, ERR_USAGE, "frequency_penalty is %g, expected -2 to 2",
                       (double)o->frequency_penalty);
    if (o->repeat_last > MOEFLUX_MAX_REPEAT_LAST)
        return err_set(e, ERR_USAGE, "repeat_last is %u, expected at most %u", o->repeat_last,
                       (uint32_t)MOEFLUX_MAX_REPEAT_LAST);
    return 0;
}

/* Returns a positive number that no device flushes to 0. */
static float normal_of(double x)
{
    return (float)fmin(fmax(x, (double)FLT_MIN), (double)FLT_MAX);
}

/* Returns a probability in units of 2^-32, at least one of them. */
static uint32_t share_of(float p)
{
    return (uint32_t)fmin(fmax(round((double)p * 0x1p32), 1), UINT32_MAX);
}

static bool uses_xtc(const struct moeflux_sampler_options *o)
{
    return o->xtc_probability > 0 && o->xtc_threshold <= 0.5f;
}

static bool uses_typical(const struct moeflux_sampler_options *o)
{
    return o->typical_p > 0 && o->typical_p < 1;
}

static struct sampler_rule rule_of(const struct moeflux_sampler_options *o)
{
    double temperature = (double)o->temperature, penalty = (double)normal_of((double)o->repeat_penalty);
    bool penalises = o->repeat_penalty != 1.0f && o->repeat_last > 0;
    bool counts = o->presence_penalty != 0 || o->frequency_penalty != 0 || o->n_bias > 0;
    return (struct sampler_rule){.repeat_last = penalises ? o->repeat_last : 0,
                                 .penalty = (float)penalty,
                                 .inverse_penalty = normal_of(1 / penalty),
                                 .scale =
                                     temperature > 0 && o->top_k != 1 ? normal_of(LOG2_E / temperature) : 0,
                                 .top_k = o->top_k,
                                 .top_p = o->top_p < 1.0f ? share_of(o->top_p) : 0,
                                 .min_p = (uint32_t)ceil((double)o->min_p * 0x1p31),
                                 .counts = counts,
                                 .host_only = counts || dry_is_on(o) || uses_typical(o) || uses_xtc(o) ||
                                              o->top_n_sigma > 0 || o->min_keep > 1};
}

/* Fills `never`, including the bits past n_ids in the last word. */
static void block(struct sampler *s, const uint8_t *allowed)
{
    for (uint32_t i = 0; i < s->n_words * WORD_BITS; i++)
        if (i >= s->n_ids || (allowed && !(allowed[i / 8] >> i % 8 & 1)))
            bits_set(s->never, i);
    sampler_set_mask(s, NULL);
}

void sampler_set_mask(struct sampler *s, const uint64_t *mask)
{
    for (uint32_t w = 0; w < s->n_words; w++)
        s->blocked[w] = s->never[w] | (mask ? ~mask[w] : 0);
}

void sampler_allow(struct sampler *s, int32_t id)
{
    bits_clear(s->blocked, (uint32_t)id);
}

static int by_id(const void *a, const void *b)
{
    const struct moeflux_bias *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static int copy_bias(struct sampler *s, const struct moeflux_sampler_options *o, struct moeflux_err *e)
{
    if (!(s->bias = mem_new(o->n_bias, sizeof *s->bias, e)))
        return ERR_MEMORY;
    for (uint32_t i = 0; i < o->n_bias; i++) {
        if (o->bias[i].id < 0 || (uint32_t)o->bias[i].id >= s->n_ids)
            return err_set(e, ERR_USAGE, "a bias of token %d, expected 0 to %u", o->bias[i].id, s->n_ids - 1);
        s->bias[i] = o->bias[i];
    }
    if (o->n_bias)
        qsort(s->bias, o->n_bias, sizeof *s->bias, by_id);
    return 0;
}

bool sampler_can_pick(const struct sampler *s)
{
    uint32_t w = 0;
    while (w < s->n_words && s->blocked[w] == UINT64_MAX)
        w++;
    return w < s->n_words;
}

int sampler_check_mask(const struct sampler *s, struct moeflux_err *e)
{
    return sampler_can_pick(s)
               ? 0
               : err_set(e, ERR_USAGE, "none of the %u tokens may be chosen: the set of allowed ids is empty",
                         s->n_ids);
}

struct sampler *sampler_new(const struct moeflux_sampler_options *o, const struct sampler_breakers *breakers,
                            uint32_t n_ids, const uint8_t *allowed, struct moeflux_err *e)
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
    s->options.bias = NULL;
    s->options.n_dry_sequence_breakers = 0;
    s->options.dry_sequence_breakers = NULL;
    s->rule = rule_of(o);
    s->typical = uses_typical(o) ? share_of(o->typical_p) : 0;
    s->xtc = uses_xtc(o) ? share_of(o->xtc_threshold) : 0;
    s->rule.n_ids = n_ids;
    s->n_ids = n_ids;
    s->n_words = div_up(n_ids, WORD_BITS);
    if (!(s->blocked = mem_new(s->n_words, sizeof *s->blocked, e)) ||
        !(s->never = mem_new(s->n_words, sizeof *s->never, e)) ||
        !(s->repeated = mem_new(s->n_words, sizeof *s->repeated, e)) ||
        !(s->n_recent = mem_new(n_ids, sizeof *s->n_recent, e)) ||
        !(s->recent = mem_new(o->repeat_last, sizeof *s->recent, e)) ||
        !(s->logits = mem_new((uint64_t)s->n_words * WORD_BITS, sizeof *s->logits, e)) ||
        !(s->word_max = mem_new(s->n_words, sizeof *s->word_max, e)) ||
        !(s->candidates = mem_new(n_ids, sizeof *s->candidates, e)))
        goto fail;
    if (s->rule.counts && (!(s->answered = mem_new(s->n_words, sizeof *s->answered, e)) ||
                           !(s->n_answered = mem_new(n_ids, sizeof *s->n_answered, e))))
        goto fail;
    if (copy_bias(s, o, e) < 0 || (dry_is_on(o) && !(s->dry = dry_new(o, breakers, n_ids, e))))
        goto fail;
    block(s, allowed);
    if (!sampler_can_pick(s)) {
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
    free(s->never);
    free(s->repeated);
    free(s->n_recent);
    free(s->recent);
    free(s->answered);
    free(s->bias);
    free(s->n_answered);
    free(s->logits);
    free(s->word_max);
    free(s->candidates);
    dry_free(s->dry);
    free(s);
}

void sampler_accept(struct sampler *s, int32_t id)
{
    if (s->rule.counts && s->in_answer && id >= 0 && (uint32_t)id < s->n_ids) {
        s->n_answered[id]++;
        bits_set(s->answered, (uint32_t)id);
    }
    if (s->dry)
        dry_accept(s->dry, id);
    if (s->options.repeat_last == 0)
        return;
    int32_t *place = &s->recent[s->recent_at];
    if (*place != NOT_AN_ID && --s->n_recent[*place] == 0)
        bits_clear(s->repeated, (uint32_t)*place);
    *place = id >= 0 && (uint32_t)id < s->n_ids ? id : NOT_AN_ID;
    if (*place != NOT_AN_ID) {
        s->n_recent[id]++;
        bits_set(s->repeated, (uint32_t)id);
    }
    s->recent_at = (s->recent_at + 1) % s->options.repeat_last;
}

void sampler_begin_answer(struct sampler *s)
{
    s->in_answer = true;
    if (!s->rule.counts)
        return;
    memset(s->answered, 0, s->n_words * sizeof *s->answered);
    memset(s->n_answered, 0, s->n_ids * sizeof *s->n_answered);
}

void sampler_reset(struct sampler *s)
{
    sampler_begin_answer(s);
    s->in_answer = false;
    memset(s->repeated, 0, s->n_words * sizeof *s->repeated);
    memset(s->n_recent, 0, s->n_ids * sizeof *s->n_recent);
    for (uint32_t i = 0; i < s->options.repeat_last; i++)
        s->recent[i] = NOT_AN_ID;
    s->recent_at = 0;
    s->n_picked = 0;
    if (s->dry)
        dry_reset(s->dry);
}

/* Returns the n-th number of splitmix64; n is 1 or more. */
static uint64_t random_of(uint64_t seed, uint64_t n)
{
    uint64_t z = seed + n * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Adds the biases of word w. *next: the first bias that is not added yet. */
static void add_bias(const struct sampler *s, uint32_t w, float *word, uint32_t *next)
{
    for (; *next < s->options.n_bias && (uint32_t)s->bias[*next].id / WORD_BITS == w; ++*next)
        word[(uint32_t)s->bias[*next].id % WORD_BITS] += s->bias[*next].value;
}

/* Fills the working copy of one word: penalties and biases are applied, blocked ids get -infinity. Most words
 * have none of these and cost only a few tests. */
static void copy_word(struct sampler *s, uint32_t w, const float *logits, uint32_t *next_bias)
{
    float *word = s->logits + (size_t)w * WORD_BITS;
    size_t n = size_min(s->n_ids - w * WORD_BITS, WORD_BITS);
    if (s->blocked[w] == UINT64_MAX) {
        add_bias(s, w, word, next_bias);
        for (size_t i = 0; i < WORD_BITS; i++)
            word[i] = -INFINITY;
        return;
    }
    memcpy(word, logits + (size_t)w * WORD_BITS, n * sizeof *word);
    for (size_t i = 0; i < WORD_BITS; i++)
        word[i] = sample_float(sample_flush(sample_bits(word[i])));
    for (uint64_t bits = s->rule.repeat_last ? s->repeated[w] : 0; bits; bits &= bits - 1) {
        float *at = &word[__builtin_ctzll(bits)];
        *at = sample_float(sample_penalise(sample_bits(*at), s->rule.penalty, s->rule.inverse_penalty));
    }
    for (uint64_t bits = s->rule.counts ? s->answered[w] : 0; bits; bits &= bits - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(bits);
        word[i] -= s->options.presence_penalty +
                   s->options.frequency_penalty * (float)s->n_answered[w * WORD_BITS + i];
    }
    for (uint64_t bits = s->dry_ids ? s->dry_ids[w] : 0; bits; bits &= bits - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(bits);
        word[i] -= dry_penalty(s->dry, w * WORD_BITS + i);
    }
    add_bias(s, w, word, next_bias);
    for (uint64_t bits = s->blocked[w]; bits; bits &= bits - 1)
        word[__builtin_ctzll(bits)] = -INFINITY;
}

/* Returns the largest of 64 logits, or NaN if there is one. */
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

int sampler_refuse(uint32_t fault, uint32_t id, uint32_t n_ids, struct moeflux_err *e)
{
    if (fault == SAMPLE_NOTHING)
        return err_set(e, ERR_DEVICE, "all logits of %u tokens are -infinity, none can be chosen", n_ids);
    return err_set(e, ERR_DEVICE, "the logit of token %u of %u is %s", id, n_ids,
                   fault == SAMPLE_NAN ? "not a number" : "+infinity");
}

/* Called if the maximum is +infinity. Fails if an allowed id's own logit is; a penalty below 1 may also make
 * it so, which is legal. */
static int check_infinity(const struct sampler *s, const float *logits, struct moeflux_err *e)
{
    for (uint32_t i = 0; i < s->n_ids; i++)
        if (logits[i] == INFINITY && s->logits[i] == INFINITY)
            return sampler_refuse(SAMPLE_INFINITE, i, s->n_ids, e);
    return 0;
}

/* Fills the working copy and word_max. Returns the lowest index of the maximum; ERR_DEVICE: an id that is not
 * blocked has NaN or +infinity, or every logit is -infinity. */
static int32_t take_logits(struct sampler *s, const float *logits, struct moeflux_err *e)
{
    float max = -INFINITY;
    uint32_t best = s->n_words, next_bias = 0;
    s->dry_ids = s->dry ? dry_find(s->dry) : NULL;
    for (uint32_t w = 0; w < s->n_words; w++) {
        copy_word(s, w, logits, &next_bias);
        float word_max = max_of_word(s->logits + (size_t)w * WORD_BITS);
        if (isnan(word_max))
            return sampler_refuse(SAMPLE_NAN, (uint32_t)index_in_word(s, w, word_max), s->n_ids, e);
        s->word_max[w] = word_max;
        if (word_max > max) {
            max = word_max;
            best = w;
        }
    }
    if (best == s->n_words)
        return sampler_refuse(SAMPLE_NOTHING, 0, s->n_ids, e);
    int rc = max == INFINITY ? check_infinity(s, logits, e) : 0;
    return rc ? rc : index_in_word(s, best, max);
}

/* Sifts in a heap with the last candidate at its top. */
static void sift_down(struct candidate *heap, uint32_t n, uint32_t at)
{
    struct candidate c = heap[at];
    for (size_t child; (child = 2 * (size_t)at + 1) < n; at = (uint32_t)child) {
        if (child + 1 < n && candidates_before(&heap[child], &heap[child + 1]))
            child++;
        if (!candidates_before(&c, &heap[child]))
            break;
        heap[at] = heap[child];
    }
    heap[at] = c;
}

/* Returns the last of the top k candidates. The heap's top is the last one kept; once the heap is full, one
 * comparison with it rejects nearly every word. */
static struct candidate last_of_top(struct sampler *s, uint32_t k)
{
    struct candidate *heap = s->candidates;
    uint32_t n = 0;
    for (uint32_t w = 0; w < s->n_words; w++) {
        if (n == k && s->word_max[w] <= heap[0].logit)
            continue;
        for (uint32_t i = w * WORD_BITS; i < (w + 1) * WORD_BITS; i++) {
            struct candidate c = {.logit = s->logits[i], .id = i};
            if (n < k && c.logit > -INFINITY) {
                heap[n++] = c;
                for (uint32_t at = n / 2; n == k && at-- > 0;)
                    sift_down(heap, n, at);
            } else if (n == k && c.logit > heap[0].logit) {
                /* Ids come in order, so a tie with the worst is lost. */
                heap[0] = c;
                sift_down(heap, n, 0);
            }
        }
    }
    return n == k ? heap[0] : (struct candidate){.logit = -INFINITY, .id = s->n_ids};
}

/* Returns the least logit that top-n-sigma keeps. Blocked ids do not count. The sums are of doubles, by
 * ascending id: their bits depend on this order. */
static float least_of_sigma(const struct sampler *s, float max)
{
    double sum = 0, squares = 0, n = 0;
    for (uint32_t i = 0; i < s->n_ids; i++)
        if (s->logits[i] > -INFINITY) {
            sum += (double)s->logits[i];
            n++;
        }
    for (uint32_t i = 0; i < s->n_ids; i++)
        if (s->logits[i] > -INFINITY) {
            double d = (double)s->logits[i] - sum / n;
            squares += d * d;
        }
    return (float)((double)max - (double)s->options.top_n_sigma * sqrt(squares / n));
}

/* Collects the candidates up to `last` (in the order of candidates_before()) that have a weight with this
 * scale, by ascending id. Returns how many. */
static uint32_t collect(struct sampler *s, const struct candidate *last, float max, float scale)
{
    struct candidate *out = s->candidates;
    uint32_t n = 0, max_bits = sample_bits(max);
    for (uint32_t w = 0; w < s->n_words; w++) {
        float top = s->word_max[w];
        if (top < last->logit || !sample_weight(sample_exponent(sample_bits(top), max_bits, scale)))
            continue;
        for (uint32_t i = w * WORD_BITS; i < (w + 1) * WORD_BITS; i++) {
            struct candidate c = {.logit = s->logits[i], .id = i};
            if (c.logit < last->logit || candidates_before(last, &c))
                continue;
            uint32_t bits = sample_bits(c.logit);
            c.weight = sample_weight(sample_exponent(bits, max_bits, scale));
            c.key = sample_key(bits);
            if (c.weight)
                out[n++] = c;
        }
    }
    return n;
}

/* floor(sum * random / 2^64) */
static uint64_t point_of(uint64_t sum, uint64_t random)
{
    uint64_t a = sum & UINT32_MAX, b = sum >> 32, c = random & UINT32_MAX, d = random >> 32;
    uint64_t bc = b * c, ad = a * d, middle = (a * c >> 32) + (bc & UINT32_MAX) + (ad & UINT32_MAX);
    return b * d + (bc >> 32) + (ad >> 32) + (middle >> 32);
}

static int32_t choose(const struct candidate *c, uint32_t n, uint64_t random)
{
    uint64_t point = point_of(candidates_sum(c, n), random), passed = c[0].weight;
    uint32_t i = 0;
    while (passed <= point)
        passed += c[++i].weight;
    return (int32_t)c[i].id;
}

static uint32_t filter(struct sampler *s, uint32_t n, const struct sampler_rule *r)
{
    if (r->top_p)
        n = candidates_top_p(s->candidates, n, r->top_p, s->options.min_keep);
    /* The largest weight is 2^31, so min-p is itself a weight. */
    return candidates_min_p(s->candidates, n, r->min_p, s->options.min_keep);
}

/* Whether XTC acts on this pick. Its random number is derived from the pick's, so that each pick takes one
 * number of the sequence, with XTC or without. */
static bool draws_xtc(const struct sampler *s, uint64_t random)
{
    return s->xtc && (double)random_of(random, 1) * 0x1p-64 <= (double)s->options.xtc_probability;
}

/* Filters by typical-p and XTC too, which compute probabilities at temperature 1. The weights are computed
 * again before each rule: the best candidate that is left gets the largest weight. */
static uint32_t filter_typical(struct sampler *s, uint32_t n, const struct sampler_rule *r)
{
    struct candidate *c = s->candidates;
    uint32_t keep = s->options.min_keep;
    if (s->typical) {
        candidates_weigh(c, n, NO_TEMPERATURE);
        n = candidates_typical(c, n, NO_TEMPERATURE, s->typical, keep);
    }
    candidates_weigh(c, n, r->scale);
    n = filter(s, n, r);
    if (draws_xtc(s, r->random)) {
        candidates_weigh(c, n, NO_TEMPERATURE);
        n = candidates_xtc(c, n, s->xtc, keep);
    }
    candidates_weigh(c, n, r->scale);
    return n;
}

struct sampler_rule sampler_next_rule(const struct sampler *s, uint32_t ahead)
{
    struct sampler_rule r = s->rule;
    r.random = random_of(s->options.seed, s->n_picked + ahead + 1);
    return r;
}

const uint64_t *sampler_blocked(const struct sampler *s)
{
    return s->blocked;
}

uint32_t sampler_recent(const struct sampler *s, const int32_t *next, int32_t *out)
{
    uint32_t n = s->rule.repeat_last, kept = 0;
    for (uint32_t i = next ? 2 : 1; i < n; i++)
        out[kept++] = s->recent[(s->recent_at + i) % n];
    if (next && n > 1)
        out[kept++] = *next;
    return kept;
}

void sampler_skip(struct sampler *s)
{
    s->n_picked++;
}

int32_t sampler_pick(struct sampler *s, const float *logits, struct moeflux_err *e)
{
    const struct sampler_rule r = sampler_next_rule(s, 0);
    if (sampler_check_mask(s, e))
        return ERR_USAGE;
    int32_t best = take_logits(s, logits, e);
    if (best < 0)
        return best;
    s->n_picked++;
    float max = s->logits[best];
    if (r.scale == 0.0f || isinf(max))
        return best;
    struct candidate last = {.logit = -INFINITY, .id = s->n_ids};
    if (r.top_k && r.top_k < s->n_ids)
        last = last_of_top(s, r.top_k);
    float least = s->options.top_n_sigma > 0 ? least_of_sigma(s, max) : -INFINITY;
    if (least > last.logit)
        last = (struct candidate){.logit = least, .id = s->n_ids};
    bool by_itself = s->typical || s->xtc;
    uint32_t n = collect(s, &last, max, by_itself && r.scale > NO_TEMPERATURE ? NO_TEMPERATURE : r.scale);
    return choose(s->candidates, by_itself ? filter_typical(s, n, &r) : filter(s, n, &r), r.random);
}
