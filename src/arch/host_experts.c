#include "arch/host_experts.h"

#include <stdio.h>
#include <stdlib.h>

#include "arch/arch.h"
#include "arch/moe.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/model_dir.h"
#include "model/part_tensors.h"

static uint64_t act_floats(const struct config *c, uint32_t n)
{
    return (uint64_t)n * c->top_k * c->moe_inner;
}

uint64_t host_experts_bytes(const struct config *c, uint32_t max_chunk)
{
    const struct experts_shape s = {
        .n_experts = c->n_experts, .top_k = c->top_k, .hidden = config_expert_hidden(c)};
    /* hidden states from the device, the sum to it, act, scratch */
    return sizeof(float) * (2 * (uint64_t)max_chunk * s.hidden + act_floats(c, max_chunk) +
                            experts_cpu_scratch(&s, max_chunk));
}

/* The number of a layer's biases of gate and up rows, and of all. */
static uint64_t up_biases(const struct config *c)
{
    return 2 * (uint64_t)c->n_experts * c->moe_inner;
}

static uint64_t biases_of_layer(const struct config *c)
{
    return c->experts_biased ? up_biases(c) + (uint64_t)c->n_experts * c->hidden : 0;
}

/* Whether a norm precedes a layer's experts; else what the device hands over is normed. */
static bool has_norm(const struct config *c, uint32_t layer)
{
    const struct config_layer *y = &c->layers[layer];
    return !c->moe_latent && y->blocks[y->n_blocks - 1].norm;
}

/* Loads the norm before a layer's experts, and their biases. */
static int load_layer(struct host_experts *h, const struct model_dir *m, uint32_t layer,
                      struct moeflux_err *e)
{
    const struct config *c = h->config;
    const struct config_layer *y = &c->layers[layer];
    uint32_t n_before = layer - h->layers.first;
    struct part_tensor norm = part_norm(c, &y->blocks[y->n_blocks - 1]), t[PART_MAX_TENSORS];
    int rc = 0;
    if (has_norm(c, layer))
        rc = model_dir_read_vector(m, layer, &norm,
                                   (float *)(void *)h->norms.host + (uint64_t)n_before * c->hidden, e);
    float *to = (float *)(void *)h->biases.host + n_before * biases_of_layer(c);
    part_tensors(c, config_part(c, layer, y->n_blocks - 1), t);
    for (int i = 0; c->experts_biased && i < 3 && rc == 0; i++) {
        rc = model_dir_read_vector(m, layer, &t[EXPERTS_BIASES + i], to, e);
        to += t[EXPERTS_BIASES + i].cols;
    }
    return rc;
}

static int allocate(struct host_experts *h, const struct experts_shape *s, uint32_t max_chunk,
                    struct moeflux_err *e)
{
    uint32_t n_layers = h->layers.end - h->layers.first;
    const struct exec_caps caps = exec_get_caps(h->exec);
    uint64_t act = act_floats(h->config, max_chunk), scratch = experts_scratch(s, &caps, max_chunk, 0);
    int rc =
        exec_buffer_new(h->exec, &h->norms, EXEC_DEVICE, sizeof(float) * n_layers * h->config->hidden, e);
    uint64_t biases = n_layers * biases_of_layer(h->config);
    if (rc == 0 && biases)
        rc = exec_buffer_new(h->exec, &h->biases, EXEC_DEVICE, sizeof(float) * biases, e);
    if (rc == 0)
        rc = exec_buffer_new(h->exec, &h->act, EXEC_DEVICE, sizeof(float) * act, e);
    if (rc == 0)
        rc = exec_buffer_new(h->exec, &h->scratch, EXEC_DEVICE, sizeof(float) * scratch, e);
    return rc;
}

static int open_kinds(struct host_experts *h, const struct model_dir *m, struct moeflux_err *e)
{
    int rc = expert_kinds_open(&h->kinds, &m->config, m->experts, e);
    if (rc < 0)
        return rc;
    h->experts = mem_new(h->kinds.n, sizeof *h->experts, e);
    if (!h->experts)
        return ERR_MEMORY;
    for (uint32_t i = 0; rc == 0 && i < h->kinds.n; i++) {
        const struct experts_shape shape = moe_experts_shape(&m->config, &h->kinds, i);
        rc = experts_open(&h->experts[i], h->exec, &shape, e);
    }
    return rc;
}

int host_experts_open(struct host_experts *h, struct exec *x, const struct model_dir *m,
                      struct arch_span layers, uint32_t max_chunk, struct moeflux_err *e)
{
    *h = (struct host_experts){.exec = x, .config = &m->config, .layers = layers};
    int rc = open_kinds(h, m, e);
    if (rc == 0)
        rc = allocate(h, &h->experts[0].shape, max_chunk, e);
    for (uint32_t i = layers.first; rc == 0 && i < layers.end; i++)
        if (config_has_experts(&m->config, i))
            rc = load_layer(h, m, i, e);
    if (rc < 0)
        host_experts_close(h);
    return rc;
}

void host_experts_close(struct host_experts *h)
{
    exec_buffer_free(h->exec, &h->norms);
    exec_buffer_free(h->exec, &h->biases);
    exec_buffer_free(h->exec, &h->act);
    exec_buffer_free(h->exec, &h->scratch);
    free(h->experts);
    expert_kinds_close(&h->kinds);
    *h = (struct host_experts){0};
}

bool host_experts_takes_rounds(const struct host_experts *h, uint32_t n)
{
    bool takes = true;
    for (uint32_t i = 0; i < h->kinds.n; i++)
        takes = takes && experts_takes_rounds(&h->experts[i], n);
    return takes;
}

static uint64_t at(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

/* x: the hidden states for up, which reads call.x; the sum for down, which adds to it. */
static struct experts_call call_of(const struct host_experts *h, const struct host_chunk *c, const float *x,
                                   const struct arch_experts *part)
{
    const struct config *config = h->config;
    uint64_t first = (uint64_t)part->from * config->top_k;
    const float *norms = (const float *)(const void *)h->norms.host;
    const float *biases = (const float *)(const void *)h->biases.host;
    uint32_t row = part->layer - h->layers.first;
    struct experts_biases of = {0};
    if (config->experts_biased) {
        biases += row * biases_of_layer(config);
        of = (struct experts_biases){at(biases), at(biases + up_biases(config))};
    }
    uint64_t norm = at(norms + (uint64_t)row * config->hidden);
    return (struct experts_call){.x = at(x + (uint64_t)part->from * config_expert_hidden(config)),
                                 .norm = has_norm(config, part->layer) ? norm : 0,
                                 .biases = of,
                                 .table = part->table,
                                 .idx = at(c->idx + first),
                                 .weights = at(c->weights + first),
                                 .act = h->act.address + first * config->moe_inner * sizeof(float),
                                 .n = part->n,
                                 .chunk = c->n,
                                 .scratch = h->scratch.address,
                                 .skip = part->skip,
                                 .part = part->part,
                                 .more = part->more_rounds};
}

void host_experts_up(const struct host_experts *h, const struct host_chunk *c,
                     const struct arch_experts *part)
{
    const struct experts_call call = call_of(h, c, c->x, part);
    experts_run_up(&h->experts[h->kinds.of_layer[part->layer]], h->exec, &call);
}

void host_experts_down(const struct host_experts *h, const struct host_chunk *c,
                       const struct arch_experts *part)
{
    const struct experts_call call = call_of(h, c, c->sum, part);
    experts_run_down(&h->experts[h->kinds.of_layer[part->layer]], h->exec, &call);
}
