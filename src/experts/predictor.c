#include "experts/predictor.h"

#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"

#define NO_LAYER UINT32_MAX

int predictor_open(struct predictor *p, enum predictor_kind kind, uint32_t n_layers, uint32_t top_k,
                   uint32_t most, struct moeflux_err *e)
{
    uint64_t n_choices = (uint64_t)most * top_k, n_places = (uint64_t)n_layers * PREDICTOR_PLACES;
    *p = (struct predictor){
        .kind = kind, .n_layers = n_layers, .top_k = top_k, .most = most, .layer = NO_LAYER};
    p->previous = mem_new(n_places * top_k, sizeof *p->previous, e);
    p->has_previous = mem_new(n_places, sizeof *p->has_previous, e);
    p->places = mem_new(most, sizeof *p->places, e);
    p->named = mem_new(2 * n_choices, sizeof *p->named, e);
    p->all = mem_new(2 * n_choices, sizeof *p->all, e);
    if (!p->previous || !p->has_previous || !p->places || !p->named || !p->all) {
        predictor_close(p);
        return ERR_MEMORY;
    }
    for (uint32_t i = 0; i < most; i++)
        p->places[i] = i;
    return 0;
}

void predictor_close(struct predictor *p)
{
    free(p->previous);
    free(p->has_previous);
    free(p->places);
    free(p->named);
    free(p->all);
    *p = (struct predictor){0};
}

void predictor_select(struct predictor *p, const uint32_t *places, uint32_t n)
{
    memcpy(p->places, places, n * sizeof *places);
    p->n_named = 0;
    p->layer = NO_LAYER;
}

void predictor_forget(struct predictor *p, uint32_t place)
{
    for (uint32_t i = 0; i < p->n_layers; i++)
        p->has_previous[(uint64_t)i * PREDICTOR_PLACES + place] = 0;
}

static uint64_t place_of(const struct predictor *p, uint32_t layer, uint32_t sequence)
{
    return (uint64_t)layer * PREDICTOR_PLACES + p->places[sequence];
}

static bool has(const uint32_t *experts, uint32_t n, uint32_t expert)
{
    for (uint32_t i = 0; i < n; i++)
        if (experts[i] == expert)
            return true;
    return false;
}

/* Names the place-th most likely expert of a sequence. The probability of its choice falls roughly linearly
 * with the place. */
static void name_one(struct predictor *p, uint32_t expert, uint32_t place)
{
    float missing = (float)(place + 1) / (float)(2 * p->top_k + 1);
    uint32_t i = 0;
    while (i < p->n_named && p->all[i].expert != expert)
        i++;
    if (i == p->n_named)
        p->all[p->n_named++] = (struct predicted){expert, 1};
    p->all[i].missing *= missing;
}

/* Names the experts that are not in `but`, whose experts are named already. Returns the next place. */
static uint32_t name_all(struct predictor *p, const uint32_t *experts, const uint32_t *but, uint32_t place)
{
    for (uint32_t i = 0; i < p->top_k && experts[i] != NO_EXPERT; i++)
        if (!but || !has(but, p->top_k, experts[i]))
            name_one(p, experts[i], place++);
    return place;
}

/* Sorts by probability, the most likely first; equals stay in the order in which they were named. */
static void sort_named(struct predictor *p)
{
    for (uint32_t i = 1; i < p->n_named; i++) {
        const struct predicted x = p->all[i];
        uint32_t k = i;
        for (; k > 0 && p->all[k - 1].missing > x.missing; k--)
            p->all[k] = p->all[k - 1];
        p->all[k] = x;
    }
    for (uint32_t i = 0; i < p->n_named; i++)
        p->named[i] = p->all[i].expert;
}

void predictor_predict(struct predictor *p, uint32_t layer, const uint32_t *early, uint32_t n)
{
    p->n_named = 0;
    p->layer = layer;
    for (uint32_t s = 0; s < n; s++) {
        const uint32_t *router = (p->kind & PREDICT_ROUTER) && early ? early + (uint64_t)s * p->top_k : NULL;
        uint32_t place = router ? name_all(p, router, NULL, 0) : 0;
        uint64_t at = place_of(p, layer, s);
        if ((p->kind & PREDICT_PREVIOUS) && p->has_previous[at])
            name_all(p, p->previous + at * p->top_k, router, place);
    }
    sort_named(p);
}

static void count(struct predictor *p, const uint32_t *choice, uint32_t n)
{
    p->n_predicted += p->n_named;
    for (uint32_t i = 0; i < n * p->top_k; i++)
        if (choice[i] != NO_EXPERT && !has(choice, i, choice[i])) {
            p->n_predictable++;
            p->n_right += has(p->named, p->n_named, choice[i]);
        }
}

void predictor_observe(struct predictor *p, uint32_t layer, const uint32_t *choice, uint32_t n)
{
    if (p->layer == layer && p->n_named > 0)
        count(p, choice, n);
    p->layer = NO_LAYER;
    p->n_named = 0;
    for (uint32_t s = 0; s < n; s++) {
        uint64_t at = place_of(p, layer, s);
        memcpy(p->previous + at * p->top_k, choice + (uint64_t)s * p->top_k, p->top_k * sizeof *choice);
        p->has_previous[at] = 1;
    }
}
