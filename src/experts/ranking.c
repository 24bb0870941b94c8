#include "experts/ranking.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "experts/context.h"

/* The number of tokens after which a use has half of its weight. */
enum { HALF_LIFE_TOKENS = 128 };

double ranking_half_life(uint32_t uses)
{
    return (double)HALF_LIFE_TOKENS * uses;
}

int ranking_open(struct ranking *r, uint32_t n_layers, uint32_t n_experts, double half_life,
                 struct moeflux_err *e)
{
    uint64_t n = (uint64_t)n_layers * n_experts;
    *r = (struct ranking){.n_experts = n_experts, .half_life = half_life};
    r->worth = mem_new(n, sizeof *r->worth, e);
    if (!r->worth)
        return ERR_MEMORY;
    for (uint64_t i = 0; i < n; i++)
        r->worth[i] = -INFINITY;
    return 0;
}

int ranking_learn(struct ranking *r, uint32_t n_layers, uint32_t top_k, struct moeflux_err *e)
{
    r->top_k = top_k;
    r->shares = mem_new(r->n_experts, sizeof *r->shares, e);
    r->context = context_new(n_layers, r->n_experts, top_k, r->shares ? e : NULL);
    return r->shares && r->context ? 0 : ERR_MEMORY;
}

void ranking_close(struct ranking *r)
{
    context_free(r->context);
    free(r->shares);
    free(r->worth);
    *r = (struct ranking){0};
}

static double *place(const struct ranking *r, struct expert_key key)
{
    return &r->worth[(uint64_t)key.layer * r->n_experts + key.expert];
}

double ranking_worth(const struct ranking *r, struct expert_key key)
{
    return r->context ? context_worth(r->context, key.layer, key.expert) : *place(r, key);
}

bool ranking_pays(const struct ranking *r, double a, double b)
{
    /* Between experts of equal use only chance decides which was used more. 50 % more uses, or 0.5 more
     * expected uses, are less often chance. With LRU nothing more is known. */
    double least = r->context ? 0.5 : r->half_life > 0 ? log2(1.5) : 0;
    return a > b + least;
}

static double uses_if_used(const struct ranking *r, struct expert_key key)
{
    if (r->half_life <= 0)
        return r->now;
    /* log2(2^old + 2^new), the larger one taken out */
    double old = *place(r, key), new = r->now / r->half_life;
    double larger = fmax(old, new), smaller = fmin(old, new);
    return larger + log2(1 + exp2(smaller - larger));
}

void ranking_seed(struct ranking *r, struct expert_key key, uint32_t count)
{
    if (count > 0)
        *place(r, key) = r->half_life > 0 ? log2(count) : (double)count - (double)UINT32_MAX - 1;
}

double ranking_worth_if_used(const struct ranking *r, struct expert_key key)
{
    return r->context ? context_worth(r->context, key.layer, key.expert) + 1 : uses_if_used(r, key);
}

/* Computes each expert's share of the layer's recent uses, scaled to a sum of n. Weights relative to the
 * largest do not overflow. */
static void share_out(const struct ranking *r, uint32_t layer, uint32_t n)
{
    const double *uses = r->worth + (uint64_t)layer * r->n_experts;
    double most = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < r->n_experts; i++)
        most = fmax(most, uses[i]);
    for (uint32_t i = 0; i < r->n_experts; i++) {
        r->shares[i] = (float)exp2(uses[i] - most);
        sum += (double)r->shares[i];
    }
    for (uint32_t i = 0; i < r->n_experts; i++)
        r->shares[i] = fminf(r->shares[i] * (float)(n / sum), 1);
}

void ranking_use(struct ranking *r, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct expert_key key = {layer, experts[i]};
        r->now++;
        *place(r, key) = uses_if_used(r, key);
    }
    if (r->context && n > 0) {
        share_out(r, layer, n < r->top_k ? n : r->top_k);
        context_use(r->context, layer, experts, n, r->shares);
    }
}
