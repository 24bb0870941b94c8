#include "engine/run/pass.h"

#include "args.h"
#include "engine/plan/load_plan.h"
#include "engine/run/stage.h"

void pass_copy_hidden(const struct pass *p, uint32_t layer)
{
    struct moeflux_model *m = p->m;
    uint64_t row = (uint64_t)config_width(&m->dir.config) * sizeof(float);
    if (p->outputs->hidden)
        exec_copy(p->at->exec, &p->at->hidden, (uint64_t)(layer - p->at->layers.first) * m->max_chunk * row,
                  &p->at->view.x, 0, p->chunk.n * row);
}

uint32_t *pass_choice(const struct pass *p)
{
    return (uint32_t *)(void *)(p->at->view.idx.host ? p->at->view.idx.host : p->at->choice.host);
}

uint32_t pass_n_chosen(const struct pass *p, const uint32_t *choice)
{
    uint32_t n = p->m->dir.config.top_k;
    while (n > 1 && choice[n - 1] == NO_EXPERT)
        n--;
    return n;
}

const uint32_t *pass_prediction(const struct pass *p)
{
    const uint8_t *copied = p->at->choice.host ? p->at->choice.host + p->at->view.idx.bytes : NULL;
    return (const uint32_t *)(const void *)(p->at->view.predicted.host ? p->at->view.predicted.host : copied);
}

float *pass_weights(const struct pass *p)
{
    return (float *)(void *)(p->at->view.weights.host ? p->at->view.weights.host : p->at->weights.host);
}

static enum expert_side_kind kind_of(const struct pass *p, uint32_t layer)
{
    const struct moeflux_model *m = p->m;
    if (layer >= p->at->cpu_layers.end)
        return SIDE_DEVICE;
    bool goes = !p->chunk.each && p->at->sides[SIDE_PROMPT].store &&
                load_plan_takes_device(&m->dir.config, p->chunk.n);
    return goes ? SIDE_PROMPT : SIDE_HOST;
}

bool pass_is_on_cpu(const struct pass *p, uint32_t layer)
{
    return kind_of(p, layer) == SIDE_HOST;
}

const struct expert_side *pass_side(const struct pass *p, uint32_t layer)
{
    return &p->at->sides[kind_of(p, layer)];
}

void pass_release(const struct stage *at)
{
    for (int i = 0; i < EXPERT_SIDES; i++)
        if (at->sides[i].store)
            expert_store_release(at->sides[i].store);
}

uint32_t pass_next_moe(const struct pass *p, uint32_t layer)
{
    uint32_t next = layer + 1;
    while (next < p->at->layers.end && !config_has_experts(&p->m->dir.config, next))
        next++;
    return next;
}

bool pass_reads_ahead(const struct pass *p, uint32_t layer)
{
    return p->at->predictor.kind != PREDICT_NONE && layer < p->at->layers.end &&
           pass_side(p, layer)->reads_ahead && !expert_store_holds_all(pass_side(p, layer)->store);
}

uint32_t pass_n_decoding(const struct pass *p)
{
    bool is_one_each = p->chunk.each ? p->chunk.is_chain || !p->chunk.batch.n_prompts : p->chunk.n == 1;
    return is_one_each ? p->chunk.n : 0;
}

uint32_t pass_plan_n(const struct stage *at, uint32_t n)
{
    return at->batched_plan_n ? at->batched_plan_n : n < EXEC_MAX_INVARIANT ? n : EXEC_MAX_INVARIANT;
}

uint32_t pass_n_predicting(const struct pass *p)
{
    uint32_t n = p->chunk.is_chain ? 0 : pass_n_decoding(p);
    return n <= EXEC_MAX_INVARIANT ? n : 0;
}

bool pass_predicts(const struct pass *p, uint32_t layer)
{
    return pass_n_predicting(p) > 0 && (p->at->predictor.kind & PREDICT_ROUTER) && pass_reads_ahead(p, layer);
}

bool pass_prefers(const struct pass *p, uint32_t layer)
{
    return p->chunk.n == 1 && p->m->prefer.margin > 0 && !config_is_by_token(&p->m->dir.config, layer) &&
           !expert_store_holds_all(pass_side(p, layer)->store);
}

bool pass_goes_on(const struct pass *p, uint32_t layer)
{
    return p->chunk.n == 1 && !p->chunk.each && !p->m->trace && !pass_prefers(p, layer) && p->at->seen.host &&
           !pass_is_on_cpu(p, layer) && expert_store_is_complete(pass_side(p, layer)->store);
}

bool pass_is_at_once(const struct pass *p)
{
    uint32_t first = pass_next_moe(p, p->at->layers.first - 1);
    if (stage_has_cpu_layers(p->at) || p->m->trace)
        return false;
    return first >= p->at->layers.end || expert_store_holds_all(pass_side(p, first)->store) ||
           pass_goes_on(p, first);
}
