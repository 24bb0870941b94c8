#include "experts/predictor.h"

#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"

#define NO_LAYER UINT32_MAX

int predictor_open(struct predictor *p, enum predictor_kind kind, uint32_t n_layers, uint32_t top_k,
                   struct moeflux_err *e)
{
    *p = (struct predictor){.kind = kind, .n_layers = n_layers, .top_k = top_k, .layer = NO_LAYER};
    p->previous = mem_new((uint64_t)n_layers * top_k, sizeof *p->previous, e);
    p->has_previous = mem_new(n_layers, sizeof *p->has_previous, e);
    p->named = mem_new(2 * (uint64_t)top_k, sizeof *p->named, e);
    if (p->previous && p->has_previous && p->named)
        return 0;
    predictor_close(p);
    return ERR_MEMORY;
}

void predictor_close(struct predictor *p)
{
    free(p->previous);
    free(p->has_previous);
    free(p->named);
    *p = (struct predictor){0};
}

void predictor_forget(struct predictor *p)
{
    for (uint32_t i = 0; i < p->n_layers; i++)
        p->has_previous[i] = false;
    p->n_named = 0;
    p->layer = NO_LAYER;
}

static bool has(const uint32_t *experts, uint32_t n, uint32_t expert)
{
    for (uint32_t i = 0; i < n; i++)
        if (experts[i] == expert)
            return true;
    return false;
}

static void name_all(struct predictor *p, const uint32_t *experts)
{
    for (uint32_t i = 0; i < p->top_k && experts[i] != NO_EXPERT; i++)
        if (!has(p->named, p->n_named, experts[i]))
            p->named[p->n_named++] = experts[i];
}

void predictor_predict(struct predictor *p, uint32_t layer, const uint32_t *early)
{
    p->n_named = 0;
    p->layer = layer;
    if ((p->kind & PREDICT_ROUTER) && early)
        name_all(p, early);
    if ((p->kind & PREDICT_PREVIOUS) && p->has_previous[layer])
        name_all(p, p->previous + (uint64_t)layer * p->top_k);
}

void predictor_observe(struct predictor *p, uint32_t layer, const uint32_t *choice)
{
    if (p->layer == layer && p->n_named > 0) {
        p->n_predicted += p->n_named;
        for (uint32_t i = 0; i < p->top_k && choice[i] != NO_EXPERT; i++) {
            p->n_predictable++;
            p->n_right += has(p->named, p->n_named, choice[i]);
        }
    }
    p->layer = NO_LAYER;
    p->n_named = 0;
    memcpy(p->previous + (uint64_t)layer * p->top_k, choice, p->top_k * sizeof *choice);
    p->has_previous[layer] = true;
}
