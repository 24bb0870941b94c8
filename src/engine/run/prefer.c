#include "engine/run/prefer.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/run/pass.h"
#include "model/family.h"
#include "model/part_tensors.h"
#include "ops/router/router.h"
#include "ops/router/prefer.h"

/* Reads tensor `which` of all layers' routers. */
static int read_routers(struct moeflux_model *m, enum experts_tensor which, float **out,
                        struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    struct part_tensor t[PART_MAX_TENSORS];
    part_tensors(c, config_first(c, PART_EXPERTS), t);
    *out = mem_new((uint64_t)c->n_layers * c->n_experts, sizeof **out, e);
    int rc = *out ? 0 : ERR_MEMORY;
    for (uint32_t i = 0; rc == 0 && i < c->n_layers; i++)
        if (config_has_experts(c, i) && !config_is_by_token(c, i))
            rc = model_dir_read_vector(&m->dir, i, &t[which], *out + (uint64_t)i * c->n_experts, e);
    return rc;
}

int prefer_open(struct moeflux_model *m, float margin, struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    struct prefer *p = &m->prefer;
    p->margin = margin;
    if (!(margin > 0))
        return 0;
    p->is_present = mem_new(c->n_experts, sizeof *p->is_present, e);
    p->room = mem_new((uint64_t)c->n_experts + c->router.n_groups, sizeof *p->room, e);
    if (!p->is_present || !p->room)
        return ERR_MEMORY;
    int rc = c->family->router_bias ? read_routers(m, EXPERTS_ROUTER_BIAS, &p->bias, e) : 0;
    if (rc == 0 && c->router.factors)
        rc = read_routers(m, EXPERTS_FACTORS, &p->factors, e);
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++)
        if (!m->stages[i].view.router_logits.host)
            rc = model_fault(m, &m->stages[i],
                             exec_buffer_new(m->stages[i].exec, &m->stages[i].router_logits, EXEC_HOST,
                                             c->n_experts * sizeof(float), e),
                             e);
    return rc;
}

void prefer_close(struct moeflux_model *m)
{
    struct prefer *p = &m->prefer;
    free(p->bias);
    free(p->factors);
    free(p->is_present);
    free(p->room);
    *p = (struct prefer){0};
}

void prefer_show(const struct pass *p)
{
    const struct exec_buffer *copy = &p->at->router_logits;
    if (copy->host)
        exec_copy(p->at->exec, copy, 0, &p->at->view.router_logits, 0, copy->bytes);
}

bool prefer_choose(const struct pass *pass, uint32_t layer, uint32_t n, uint32_t *idx, float *weights)
{
    struct prefer *p = &pass->m->prefer;
    const struct stage *at = pass->at;
    uint32_t n_experts = pass->m->dir.config.n_experts;
    const uint8_t *logits = at->router_logits.host ? at->router_logits.host : at->view.router_logits.host;
    const struct expert_side *sides[PASS_MAX_SIDES];
    uint32_t n_sides = pass_sides(pass, layer, sides);
    memset(p->is_present, 0, n_experts * sizeof *p->is_present);
    for (uint32_t i = 0; i < n_sides; i++)
        expert_store_add_present(sides[i]->store, layer, p->is_present);
    const struct router_prefer_call call = {.logits = (const float *)(const void *)logits,
                                            .bias = p->bias ? p->bias + (uint64_t)layer * n_experts : NULL,
                                            .factors =
                                                p->factors ? p->factors + (uint64_t)layer * n_experts : NULL,
                                            .is_present = p->is_present,
                                            .margin = p->margin,
                                            .room = p->room};
    uint32_t n_gone = router_prefer(at->view.router, &call, n, idx, weights);
    p->n_preferred += n_gone;
    return n_gone > 0;
}
