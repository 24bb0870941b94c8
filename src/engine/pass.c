#include "engine/pass.h"

#include "args.h"
#include "engine/load_plan.h"

void pass_copy_hidden(const struct pass *p, uint32_t layer)
{
    struct moeflux_model *m = p->m;
    uint64_t row = (uint64_t)m->dir.config.hidden * sizeof(float);
    if (p->outputs->hidden)
        exec_copy(m->exec, &m->hidden, (uint64_t)layer * m->max_chunk * row, &m->view.x, 0, p->chunk.n * row);
}

uint32_t *pass_choice(const struct moeflux_model *m)
{
    return (uint32_t *)(void *)(m->view.idx.host ? m->view.idx.host : m->choice.host);
}

uint32_t pass_n_chosen(const struct moeflux_model *m, const uint32_t *choice)
{
    uint32_t n = m->dir.config.top_k;
    while (n > 1 && choice[n - 1] == NO_EXPERT)
        n--;
    return n;
}

const uint32_t *pass_prediction(const struct moeflux_model *m)
{
    const uint8_t *copied = m->choice.host ? m->choice.host + m->view.idx.bytes : NULL;
    return (const uint32_t *)(const void *)(m->view.predicted.host ? m->view.predicted.host : copied);
}

float *pass_weights(const struct moeflux_model *m)
{
    return (float *)(void *)(m->view.weights.host ? m->view.weights.host : m->host.weights.host);
}

static enum expert_side_kind kind_of(const struct pass *p, uint32_t layer)
{
    const struct moeflux_model *m = p->m;
    if (layer >= m->n_cpu_layers)
        return SIDE_DEVICE;
    bool goes =
        !p->chunk.each && m->sides[SIDE_PROMPT].store && load_plan_takes_device(&m->dir.config, p->chunk.n);
    return goes ? SIDE_PROMPT : SIDE_HOST;
}

bool pass_is_on_cpu(const struct pass *p, uint32_t layer)
{
    return kind_of(p, layer) == SIDE_HOST;
}

const struct expert_side *pass_side(const struct pass *p, uint32_t layer)
{
    return &p->m->sides[kind_of(p, layer)];
}

void pass_release(struct moeflux_model *m)
{
    for (int i = 0; i < EXPERT_SIDES; i++)
        if (m->sides[i].store)
            expert_store_release(m->sides[i].store);
}

uint32_t pass_next_moe(const struct moeflux_model *m, uint32_t layer)
{
    uint32_t next = layer + 1;
    while (next < m->dir.config.n_layers && !config_has_experts(&m->dir.config, next))
        next++;
    return next;
}

bool pass_reads_ahead(const struct pass *p, uint32_t layer)
{
    return p->m->predictor.kind != PREDICT_NONE && layer < p->m->dir.config.n_layers &&
           pass_side(p, layer)->reads_ahead && !expert_store_holds_all(pass_side(p, layer)->store);
}

uint32_t pass_n_decoding(const struct pass *p)
{
    return p->chunk.each || p->chunk.n == 1 ? p->chunk.n : 0;
}

bool pass_predicts(const struct pass *p, uint32_t layer)
{
    return pass_n_decoding(p) > 0 && (p->m->predictor.kind & PREDICT_ROUTER) && pass_reads_ahead(p, layer);
}

bool pass_prefers(const struct pass *p, uint32_t layer)
{
    return p->chunk.n == 1 && p->m->prefer.margin > 0 && !expert_store_holds_all(pass_side(p, layer)->store);
}

bool pass_goes_on(const struct pass *p, uint32_t layer)
{
    return p->chunk.n == 1 && !p->chunk.each && !p->m->trace && !pass_prefers(p, layer) && p->m->seen.host &&
           !pass_is_on_cpu(p, layer) && expert_store_is_complete(pass_side(p, layer)->store);
}

bool pass_is_at_once(const struct pass *p)
{
    uint32_t first = pass_next_moe(p->m, UINT32_MAX);
    return p->m->n_cpu_layers == 0 && first < p->m->dir.config.n_layers && pass_goes_on(p, first);
}
