#include "experts/context.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

/* The tokens that are remembered; each counts half as much as the one after it. */
enum { HISTORY = 4 };
#define DISCOUNT 0.9f
/* The share of an error that is corrected at once: RATE at first, half of it after LEARNT tokens. */
#define RATE   0.2f
#define LEARNT 1000.0f

struct context {
    uint32_t n_layers, n_experts, top_k;
    float *matrix;                /* [n_layers][n_experts chosen][n_experts that will be] */
    float *worth;                 /* [n_layers][n_experts] */
    float *x;                     /* [n_layers][n_experts]: the last choices as a vector of length 1, or 0 */
    uint32_t *history;            /* [n_layers][HISTORY][top_k], the newest first */
    uint32_t *n;                  /* [n_layers][HISTORY] experts of each */
    uint32_t *n_learnt;           /* [n_layers] tokens */
    float *before, *next, *error; /* [n_experts] */
};

uint64_t context_bytes(uint32_t n_layers, uint32_t n_experts)
{
    return (uint64_t)n_layers * n_experts * n_experts * sizeof(float);
}

struct context *context_new(uint32_t n_layers, uint32_t n_experts, uint32_t top_k, struct moeflux_err *e)
{
    struct context *c = mem_new(1, sizeof *c, e);
    uint64_t n = (uint64_t)n_layers * n_experts;
    if (!c)
        return NULL;
    *c = (struct context){.n_layers = n_layers, .n_experts = n_experts, .top_k = top_k};
    c->matrix = mem_new(n * n_experts, sizeof *c->matrix, e);
    c->worth = mem_new(n, sizeof *c->worth, e);
    c->x = mem_new(n, sizeof *c->x, e);
    c->history = mem_new((uint64_t)n_layers * HISTORY * top_k, sizeof *c->history, e);
    c->n = mem_new((uint64_t)n_layers * HISTORY, sizeof *c->n, e);
    c->n_learnt = mem_new(n_layers, sizeof *c->n_learnt, e);
    c->error = mem_new(n_experts, sizeof *c->error, e);
    c->before = mem_new(n_experts, sizeof *c->before, e);
    c->next = mem_new(n_experts, sizeof *c->next, e);
    if (c->matrix && c->worth && c->x && c->history && c->n && c->n_learnt && c->error && c->before &&
        c->next)
        return c;
    context_free(c);
    return NULL;
}

void context_free(struct context *c)
{
    if (!c)
        return;
    free(c->matrix);
    free(c->worth);
    free(c->x);
    free(c->history);
    free(c->n);
    free(c->n_learnt);
    free(c->before);
    free(c->next);
    free(c->error);
    free(c);
}

static float *row_of(const struct context *c, uint32_t layer, uint32_t expert)
{
    return c->matrix + ((uint64_t)layer * c->n_experts + expert) * c->n_experts;
}

typedef float lanes __attribute__((vector_size(16), aligned(4), may_alias));
enum { LANES = 4 };

/* Computes to += by * from. */
static void add(float *to, float by, const float *from, uint32_t n)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        *(lanes *)(to + i) += by * *(const lanes *)(from + i);
    for (; i < n; i++)
        to[i] += by * from[i];
}

/* Computes to += matrix x. */
static void apply(const struct context *c, uint32_t layer, const float *x, float *to)
{
    for (uint32_t j = 0; j < c->n_experts; j++)
        if (x[j] > 0)
            add(to, x[j], row_of(c, layer, j), c->n_experts);
}

static void remember(struct context *c, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    uint32_t *history = c->history + (uint64_t)layer * HISTORY * c->top_k,
             *ns = c->n + (uint64_t)layer * HISTORY;
    memmove(history + c->top_k, history, (size_t)(HISTORY - 1) * c->top_k * sizeof *history);
    memmove(ns + 1, ns, (HISTORY - 1) * sizeof *ns);
    memcpy(history, experts, n * sizeof *experts);
    ns[0] = n;
}

static void forget(struct context *c, uint32_t layer)
{
    memset(c->n + (uint64_t)layer * HISTORY, 0, HISTORY * sizeof *c->n);
}

/* Sets x to the history as a vector of length 1. The router's first choice of a token counts most, since it
 * predicts best. */
static void set_x(struct context *c, uint32_t layer)
{
    float *x = c->x + (uint64_t)layer * c->n_experts, weight = 1, squares = 0;
    memset(x, 0, c->n_experts * sizeof *x);
    for (uint32_t k = 0; k < HISTORY; k++) {
        uint64_t at = (uint64_t)layer * HISTORY + k;
        for (uint32_t i = 0; i < c->n[at]; i++)
            x[c->history[at * c->top_k + i]] += weight / (float)(1 + i);
        weight *= 0.5f;
    }
    for (uint32_t i = 0; i < c->n_experts; i++)
        squares += x[i] * x[i];
    for (uint32_t i = 0; squares > 0 && i < c->n_experts; i++)
        x[i] /= sqrtf(squares);
}

static float rate_of(const struct context *c, uint32_t layer)
{
    return RATE / (1 + (float)c->n_learnt[layer] / LEARNT);
}

/* Corrects the matrix. c->next: the worths after the choice by the matrix; c->before: the choices before
 * it. */
static void learn(struct context *c, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    const float *worth = c->worth + (uint64_t)layer * c->n_experts, *x = c->before;
    for (uint32_t i = 0; i < c->n_experts; i++)
        c->error[i] = DISCOUNT * c->next[i] - worth[i];
    for (uint32_t i = 0; i < n; i++)
        c->error[experts[i]] += DISCOUNT;
    for (uint32_t j = 0; j < c->n_experts; j++)
        if (x[j] > 0)
            add(row_of(c, layer, j), rate_of(c, layer) * x[j], c->error, c->n_experts);
}

/* Computes the worths by the corrected matrix. The correction was rate * before * error. */
static void revise(struct context *c, uint32_t layer)
{
    float *worth = c->worth + (uint64_t)layer * c->n_experts, likeness = 0;
    const float *x = c->x + (uint64_t)layer * c->n_experts;
    for (uint32_t i = 0; i < c->n_experts; i++)
        likeness += x[i] * c->before[i];
    for (uint32_t i = 0; i < c->n_experts; i++)
        worth[i] = c->next[i] + rate_of(c, layer) * likeness * c->error[i];
}

void context_use(struct context *c, uint32_t layer, const uint32_t *experts, uint32_t n, const float *shares)
{
    const float *x = c->x + (uint64_t)layer * c->n_experts;
    bool is_token = n <= c->top_k;
    memcpy(c->before, x, c->n_experts * sizeof *x);
    if (is_token)
        remember(c, layer, experts, n);
    else
        forget(c, layer);
    set_x(c, layer);
    for (uint32_t i = 0; i < c->n_experts; i++)
        c->next[i] = shares[i] * (DISCOUNT / (1 - DISCOUNT));
    apply(c, layer, x, c->next);
    if (is_token)
        learn(c, layer, experts, n);
    else
        memset(c->error, 0, c->n_experts * sizeof *c->error);
    revise(c, layer);
    c->n_learnt[layer] += is_token && c->n_learnt[layer] < UINT32_MAX;
}

double context_worth(const struct context *c, uint32_t layer, uint32_t expert)
{
    return (double)c->worth[(uint64_t)layer * c->n_experts + expert];
}
