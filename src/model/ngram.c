#include "model/ngram.h"

#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "model/numpy_random.h"

/* Distance between the seeds of two tables. */
enum { SEED_STEP = 10007 };
static const uint64_t GAMMA = 0x9e3779b97f4a7c15u;

static uint64_t splitmix64(uint64_t z)
{
    z += GAMMA;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static bool is_prime(uint64_t n)
{
    if (n < 2 || n % 2 == 0)
        return n == 2;
    for (uint64_t d = 3; d * d <= n; d += 2)
        if (n % d == 0)
            return false;
    return true;
}

static uint64_t prime_after(uint64_t n)
{
    do
        n++;
    while (!is_prime(n));
    return n;
}

/* The multipliers are odd and so small that a product with a token stays below 2^63. */
static void make_multipliers(struct ngram_hash *h, const struct ngram_table *t)
{
    uint32_t bound = t->n_words ? t->n_words : t->vocab_size;
    uint64_t half = (uint64_t)INT64_MAX / (bound ? bound : 1) / 2;
    if (t->n_words) {
        numpy_random_integers((uint32_t)t->seed, half, t->size, h->multipliers);
        for (uint32_t i = 0; i < t->size; i++)
            h->multipliers[i] = 2 * h->multipliers[i] + 1;
        return;
    }
    for (uint32_t i = 0; i < t->size; i++) {
        uint64_t seed = t->seed + (uint64_t)SEED_STEP * t->index + GAMMA * (i + 1);
        h->multipliers[i] = 2 * (splitmix64(seed) % (half ? half : 1)) + 1;
    }
}

int ngram_hash_make(struct ngram_hash *h, const struct ngram_table *t, struct moeflux_err *e)
{
    *h = (struct ngram_hash){
        .size = t->size, .heads = t->heads, .end_of_text = t->end_of_text, .n_words = t->n_words};
    if (t->size < 2 || t->size > NGRAM_MAX_SIZE || t->heads == 0 ||
        t->heads > NGRAM_MAX_HEADS / (t->size - 1) || t->base == 0)
        return err_set(e, ERR_UNSUPPORTED, "n-gram table: %u heads for n-grams of up to %u tokens, %u rows",
                       t->heads, t->size, t->base);
    h->n_heads = (t->size - 1) * t->heads;
    make_multipliers(h, t);
    /* The primes of all tables are distinct: a table continues where the one before it ends. */
    uint64_t prime = (uint64_t)t->base - 1, total = 0;
    for (uint64_t i = 0; i < (uint64_t)t->index * h->n_heads; i++)
        prime = prime_after(prime);
    for (uint32_t i = 0; i < h->n_heads && total <= UINT32_MAX; i++) {
        prime = prime_after(prime);
        h->rows[i] = (uint32_t)prime;
        h->first[i] = (uint32_t)total;
        total += prime;
    }
    if (t->divisor)
        total = (total + t->divisor - 1) / t->divisor * t->divisor;
    if (total > UINT32_MAX)
        return err_set(e, ERR_UNSUPPORTED, "n-gram table: %llu rows, expected at most %u",
                       (unsigned long long)total, UINT32_MAX);
    h->n_rows = (uint32_t)total;
    return 0;
}

/* Returns the i-th token before the n-th. */
static uint32_t token_at(const struct ngram_hash *h, const uint32_t *before, const uint32_t *tokens,
                         uint32_t n, uint32_t i)
{
    return n >= i ? tokens[n - i] : before[h->size - 1 + n - i];
}

void ngram_hash_rows(const struct ngram_hash *h, const uint32_t *before, const uint32_t *tokens, uint32_t n,
                     uint32_t *rows)
{
    for (uint32_t t = 0; t < n; t++) {
        uint64_t mixed = tokens[t] * h->multipliers[0];
        bool has_ended = false;
        for (uint32_t i = 1; i < h->size; i++) {
            uint32_t token = token_at(h, before, tokens, t, i);
            has_ended = has_ended || (!h->n_words && token == h->end_of_text);
            mixed ^= (has_ended ? h->end_of_text : token) * h->multipliers[i];
            for (uint32_t head = (i - 1) * h->heads; head < i * h->heads; head++)
                *rows++ = h->first[head] + (uint32_t)(mixed % h->rows[head]);
        }
    }
}

void ngram_advance(const struct ngram_hash *h, uint32_t *before, const uint32_t *tokens, uint32_t n)
{
    uint32_t next[NGRAM_MAX_SIZE] = {0};
    for (uint32_t i = 1; i < h->size; i++)
        next[h->size - 1 - i] = token_at(h, before, tokens, n, i);
    memcpy(before, next, (h->size - 1) * sizeof *before);
}

void ngram_before_first(const struct ngram_hash *h, uint32_t *before)
{
    for (uint32_t i = 0; i + 1 < h->size; i++)
        before[i] = h->end_of_text;
}
