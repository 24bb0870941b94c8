/* The reference implementation of sample.h: plain loops and sorting. */
#include <stdlib.h>
#include <string.h>

#include "exec/host.h"
#include "ops/sample/sample.h"
#include "sample/weight.h"

struct item {
    uint32_t key, id, weight;
};

static bool is_repeated(const struct sample_call *c, uint32_t id)
{
    bool yes = c->rule->repeat_last > 0 && host_words(c->last)[0] == id;
    for (uint32_t i = 0; i < c->n_recent && c->rule->repeat_last; i++)
        yes |= host_words(c->recent)[i] == id;
    return yes;
}

static int put(const struct sample_call *c, uint32_t id, uint32_t fault)
{
    const uint32_t result[2] = {id, fault};
    memcpy(host_at(c->result), result, sizeof result);
    *(uint32_t *)host_at(c->id) = fault == SAMPLE_OK ? id : 0;
    return 0;
}

/* Takes the ids that are not blocked and returns how many they are. *fault: what is wrong with the logit of
 * *at. */
static uint32_t take_items(const struct sample *op, const struct sample_call *c, struct item *items,
                           uint32_t *fault, uint32_t *at)
{
    uint32_t n = 0;
    *fault = SAMPLE_OK;
    for (uint32_t id = 0; id < op->n; id++) {
        uint32_t bits = host_words(c->logits)[id];
        if (host_words(c->blocked)[id / 32] >> id % 32 & 1)
            continue;
        uint32_t here = (bits & 0x7fffffffu) > 0x7f800000u ? SAMPLE_NAN
                        : bits == 0x7f800000u              ? SAMPLE_INFINITE
                                                           : SAMPLE_OK;
        if (here != SAMPLE_OK && (*fault == SAMPLE_OK || here < *fault)) {
            *fault = here;
            *at = id;
        }
        bits = sample_flush(bits);
        if (is_repeated(c, id))
            bits = sample_penalise(bits, c->rule->penalty, c->rule->inverse_penalty);
        items[n++] = (struct item){.key = sample_key(bits), .id = id};
    }
    return n;
}

static int by_key(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key) - (x->key > y->key) : (x->id > y->id) - (x->id < y->id);
}

static int by_id(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static uint64_t sum_of(const struct item *items, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += items[i].weight;
    return sum;
}

/* Draws from sorted items, of which the first is not infinite. */
static uint32_t draw(const struct sampler_rule *r, struct item *items, uint32_t n)
{
    uint32_t kept = 0;
    uint64_t sum = 0;
    if (r->top_k && r->top_k < n)
        n = r->top_k;
    for (uint32_t i = 0; i < n; i++)
        items[i].weight = sample_weight(
            sample_exponent(sample_key_bits(items[i].key), sample_key_bits(items[0].key), r->scale));
    unsigned __int128 share = r->top_p ? r->top_p : (uint64_t)1 << 32, all = sum_of(items, n);
    while (kept < n && (unsigned __int128)sum << 32 < all * share)
        sum += items[kept++].weight;
    qsort(items, kept, sizeof *items, by_id);
    n = 0;
    for (uint32_t i = 0; i < kept; i++)
        if (items[i].weight >= r->min_p)
            items[n++] = items[i];
    unsigned __int128 point = ((unsigned __int128)sum_of(items, n) * r->random) >> 64;
    uint64_t passed = items[0].weight;
    uint32_t i = 0;
    while (passed <= (uint64_t)point)
        passed += items[++i].weight;
    return items[i].id;
}

int sample_ref(const void *self, const void *what, struct host *h)
{
    const struct sample *op = self;
    const struct sample_call *c = what;
    uint32_t fault, at = 0;
    struct item *items = host_scratch(h, op->n, sizeof *items);
    if (!items)
        return host_error(h);
    uint32_t n = take_items(op, c, items, &fault, &at);
    if (fault != SAMPLE_OK)
        return put(c, at, fault);
    qsort(items, n, sizeof *items, by_key);
    if (n == 0 || items[0].key <= sample_key(0xff800000u))
        return put(c, 0, SAMPLE_NOTHING);
    if (c->rule->scale == 0.0f || sample_key_bits(items[0].key) == 0x7f800000u)
        return put(c, items[0].id, SAMPLE_OK);
    return put(c, draw(c->rule, items, n), SAMPLE_OK);
}
