#include "arch/expert_kinds.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "model/model_dir.h"

static bool have_same_formats(const struct expert_formats *a, const struct expert_formats *b)
{
    return a->gate == b->gate && a->up == b->up && a->down == b->down;
}

static bool have_same_clamps(const struct config_layer *a, const struct config_layer *b)
{
    return a->clamp == b->clamp && a->shared_clamp == b->shared_clamp;
}

int expert_kinds_open(struct expert_kinds *k, const struct config *c, const struct expert_layout *layouts,
                      struct moeflux_err *e)
{
    *k = (struct expert_kinds){.of_layer = mem_new(c->n_layers, sizeof *k->of_layer, e),
                               .layer = mem_new(c->n_layers, sizeof *k->layer, e),
                               .layouts = layouts};
    if (!k->of_layer || !k->layer) {
        expert_kinds_close(k);
        return ERR_MEMORY;
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        uint32_t at = 0;
        if (!config_has_experts(c, i))
            continue;
        while (at < k->n && !(have_same_formats(&layouts[k->layer[at]].formats, &layouts[i].formats) &&
                              have_same_clamps(&c->layers[k->layer[at]], &c->layers[i])))
            at++;
        k->of_layer[i] = at;
        if (at == k->n)
            k->layer[k->n++] = i;
    }
    return 0;
}

void expert_kinds_close(struct expert_kinds *k)
{
    free(k->of_layer);
    free(k->layer);
    *k = (struct expert_kinds){0};
}
