#include "experts/ranking.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

/* Tokens in which a use loses half of its weight. */
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

void ranking_close(struct ranking *r)
{
    free(r->worth);
    *r = (struct ranking){0};
}

static double *place(const struct ranking *r, struct expert_key key)
{
    return &r->worth[(uint64_t)key.layer * r->n_experts + key.expert];
}

double ranking_worth(const struct ranking *r, struct expert_key key)
{
    return *place(r, key);
}

double ranking_worth_if_used(const struct ranking *r, struct expert_key key)
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

void ranking_use(struct ranking *r, struct expert_key key)
{
    r->now++;
    *place(r, key) = ranking_worth_if_used(r, key);
}
