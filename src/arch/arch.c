#include "arch/arch.h"

#include <inttypes.h>
#include <stdlib.h>

#include "arch/dense.h"
#include "arch/embed_head.h"
#include "arch/loader.h"
#include "arch/mixer.h"
#include "arch/moe.h"
#include "arch/scratch.h"
#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/config.h"

static const struct mixer *const mixers[MIXER_KINDS] = {
    [MIXER_DELTA_NET] = &mixer_delta_net,
    [MIXER_ATTENTION] = &mixer_gqa,
    [MIXER_LATENT] = &mixer_latent,
};

struct layer {
    uint64_t norm;        /* before the mixer */
    struct moe_layer moe; /* a dense layer has only its norm */
    struct dense_layer dense;
};

struct arch {
    struct mixer_room room;
    struct embed_head embed_head;
    void *mixers[MIXER_KINDS]; /* NULL: no layer uses this kind */
    struct layer *layers;
    struct arch_state *states; /* [n_layers] */
    struct moe moe;
    struct dense dense;
};

static bool has_mixer(const struct mixer_room *r, uint32_t kind)
{
    for (uint32_t i = r->layers.first; i < r->layers.end; i++)
        if (r->config->layers[i].mixer == kind)
            return true;
    return false;
}

/* ---- states ---- */

struct arch_state arch_state_of(const struct config *c, uint32_t layer, enum kv_type type)
{
    return mixers[c->layers[layer].mixer]->state(c, type);
}

/* Gives every layer its offsets in the KV blocks and in the recurrent state. Operations take offsets in 32
 * bits. */
static int lay_out_states(struct arch *a, struct arch_view *view, struct moeflux_err *e)
{
    const struct config *c = a->room.config;
    for (uint32_t i = a->room.layers.first; i < a->room.layers.end; i++) {
        struct arch_state *s = &a->states[i];
        *s = arch_state_of(c, i, a->room.kv_type);
        uint64_t row = (uint64_t)(s->rows[0].n + s->rows[1].n) * kv_type_bytes(a->room.kv_type);
        for (int k = 0; k < 2; k++)
            s->rows[k].off += view->kv_block_bytes;
        s->window_off += view->recurrent_state_bytes;
        s->delta_off += view->recurrent_state_bytes;
        view->kv_block_bytes += row << KV_BLOCK_SHIFT;
        view->recurrent_state_bytes += 2 * s->window_bytes + s->delta_bytes;
    }
    if (view->kv_block_bytes > UINT32_MAX)
        return err_set(e, ERR_UNSUPPORTED,
                       "KV cache: layers %u to %u have %" PRIu64
                       " bytes for %u tokens, expected at most %" PRIu32,
                       a->room.layers.first, a->room.layers.end - 1, view->kv_block_bytes,
                       1u << KV_BLOCK_SHIFT, UINT32_MAX);
    return 0;
}

/* ---- opening ---- */

/* Allocates n floats; nothing for n = 0. */
static void allocate_floats(struct scratch *to, struct exec_buffer *b, uint64_t n)
{
    if (n > 0)
        scratch_floats(to, b, n);
}

static void allocate(struct arch *a, const struct exec_caps *caps, struct scratch *to)
{
    struct mixer_room *r = &a->room;
    const struct config *c = r->config;
    uint64_t n = r->max_chunk, proj = 0, mixed = 0;
    uint64_t widest = size_max(size_max(c->hidden, c->shared_inner), c->dense_inner);
    for (uint32_t kind = 0; kind < MIXER_KINDS; kind++) {
        struct mixer_needs needs;
        if (!has_mixer(r, kind))
            continue;
        mixers[kind]->needs(c, caps, r->max_chunk, &needs);
        proj = size_max(proj, needs.proj);
        mixed = size_max(mixed, needs.mixed);
        widest = size_max(widest, needs.widest);
        for (int i = 0; i < MIXER_OWN_BUFFERS; i++)
            allocate_floats(to, &r->own[kind][i], needs.own[i]);
    }
    scratch_floats(to, &r->proj, n * proj);
    scratch_floats(to, &r->mixed, n * mixed);
    if (r->uses_f16)
        scratch_floats(to, &r->f16_scratch, n * widest / 2);
    a->moe.f16_scratch = a->dense.f16_scratch = r->f16_scratch.address;
    embed_head_allocate(&a->embed_head, c, r->layers, r->max_chunk, to);
    dense_allocate(&a->dense, c, r->max_chunk, to);
    moe_allocate(&a->moe, c, caps, r->max_chunk, to);
    r->x = a->embed_head.x.address;
}

uint64_t arch_scratch_bytes(const struct config *c, struct arch_span layers, const struct exec_caps *caps,
                            uint32_t max_chunk)
{
    struct arch a = {
        .room = {.config = c, .layers = layers, .max_chunk = max_chunk, .uses_f16 = caps->prompt_is_f16}};
    struct scratch count = {0};
    allocate(&a, caps, &count);
    return count.bytes;
}

uint64_t arch_host_bytes(const struct config *c, const struct exec_caps *caps, uint32_t max_chunk)
{
    const struct experts_shape experts = {.top_k = c->top_k, .hidden = c->hidden, .inner = c->moe_inner};
    const struct mixer_room all = {.config = c, .layers = {0, c->n_layers}};
    uint64_t widest = size_max(size_max(c->hidden, c->shared_inner), c->dense_inner);
    for (uint32_t kind = 0; kind < MIXER_KINDS; kind++) {
        struct mixer_needs needs = {0};
        if (has_mixer(&all, kind))
            mixers[kind]->needs(c, caps, max_chunk, &needs);
        widest = size_max(widest, needs.widest);
    }
    return caps->is_native ? size_max(linear_cpu_host_bytes((uint32_t)widest, max_chunk, caps->has_fixed),
                                      experts_cpu_host_bytes(&experts, max_chunk, caps->has_fixed))
                           : 0;
}

static int open_mixers(struct arch *a, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t kind = 0; rc == 0 && kind < MIXER_KINDS; kind++)
        if (has_mixer(&a->room, kind))
            rc = mixers[kind]->open(&a->mixers[kind], &a->room, e);
    return rc;
}

static int load_layer(struct arch *a, struct loader *l, uint32_t i, struct moeflux_err *e)
{
    const struct config *c = a->room.config;
    struct layer *y = &a->layers[i];
    enum mixer_kind mixer = c->layers[i].mixer;
    int rc = loader_layer_vector(l, i, "input_layernorm.weight", c->hidden, &y->norm, e);
    if (rc == 0)
        rc = loader_layer_vector(l, i, "post_attention_layernorm.weight", c->hidden, &y->moe.norm, e);
    if (rc == 0)
        rc = mixers[mixer]->load(a->mixers[mixer], l, i, e);
    if (rc < 0)
        return rc;
    return config_has_experts(c, i) ? moe_load_layer(&a->moe, l, i, &y->moe, e)
                                    : dense_load_layer(l, i, &y->dense, e);
}

static int load(struct arch *a, struct loader *l, struct moeflux_err *e)
{
    int rc = embed_head_load(&a->embed_head, l, a->room.config, a->room.layers, e);
    for (uint32_t i = a->room.layers.first; rc == 0 && i < a->room.layers.end; i++)
        rc = load_layer(a, l, i, e);
    return rc < 0 ? rc : loader_finish(l, e);
}

void arch_close(struct arch *a)
{
    if (!a)
        return;
    struct mixer_room *r = &a->room;
    for (uint32_t i = 0; a->layers && i < r->config->n_layers; i++) {
        moe_close_layer(&a->layers[i].moe, r->exec);
        dense_close_layer(&a->layers[i].dense, r->exec);
    }
    for (uint32_t kind = 0; kind < MIXER_KINDS; kind++) {
        mixers[kind]->close(a->mixers[kind]);
        for (int i = 0; i < MIXER_OWN_BUFFERS; i++)
            exec_buffer_free(r->exec, &r->own[kind][i]);
    }
    struct exec_buffer *buffers[] = {&r->proj, &r->mixed, &r->f16_scratch};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        exec_buffer_free(r->exec, buffers[i]);
    embed_head_close(&a->embed_head, r->exec);
    dense_close(&a->dense);
    moe_close(&a->moe);
    free(a->layers);
    free(a->states);
    free(a);
}

static void show(struct arch *a, uint64_t scratch_bytes, struct arch_view *view)
{
    view->states = a->states;
    view->scratch_bytes = scratch_bytes;
    view->max_context = config_longest_context(a->room.config);
    view->x = a->embed_head.x;
    view->logits = a->embed_head.logits;
    moe_show(&a->moe, view);
}

int arch_open(struct arch **out, const struct arch_request *r, struct arch_view *view, struct moeflux_err *e)
{
    *view = (struct arch_view){0};
    struct arch *a = *out = mem_new(1, sizeof *a, e);
    if (!a)
        return ERR_MEMORY;
    const struct exec_caps caps = exec_get_caps(r->exec);
    struct scratch made = {.exec = r->exec, .e = e};
    a->room = (struct mixer_room){.exec = r->exec,
                                  .config = r->config,
                                  .layers = r->layers,
                                  .max_chunk = r->max_chunk,
                                  .kv_type = r->kv_type,
                                  .uses_f16 = caps.prompt_is_f16};
    a->moe.exec = a->dense.exec = r->exec;
    a->layers = mem_new(r->config->n_layers, sizeof *a->layers, e);
    a->states = mem_new(r->config->n_layers, sizeof *a->states, e);
    int rc = a->layers && a->states ? 0 : ERR_MEMORY;
    if (rc == 0)
        rc = lay_out_states(a, view, e);
    if (rc == 0) {
        allocate(a, &caps, &made);
        rc = made.rc;
    }
    if (rc == 0)
        rc = moe_begin(&a->moe, r, e);
    if (rc == 0)
        rc = open_mixers(a, e);
    if (rc == 0)
        rc = load(a, r->loader, e);
    if (rc == 0)
        rc = dense_open(&a->dense, r->exec, r->config, e);
    if (rc == 0)
        rc = moe_open(&a->moe, r, e);
    if (rc < 0) {
        arch_close(a);
        *out = NULL;
        return rc;
    }
    show(a, made.bytes, view);
    return 0;
}

/* ---- running ---- */

void arch_embed(const struct arch *a, const struct arch_chunk *c)
{
    embed_head_embed(&a->embed_head, a->room.exec, c);
}

void arch_before_experts(const struct arch *a, const struct arch_chunk *c, uint32_t layer)
{
    const struct layer *y = &a->layers[layer];
    enum mixer_kind mixer = a->room.config->layers[layer].mixer;
    mixers[mixer]->run(
        a->mixers[mixer],
        &(struct mixer_call){.chunk = c, .state = &a->states[layer], .norm = y->norm, .layer = layer});
    if (config_has_experts(a->room.config, layer))
        moe_score(&a->moe, &y->moe, a->room.x, c->n);
    else
        dense_run(&a->dense, &y->dense, a->room.x, y->moe.norm, c->n);
}

void arch_choose_experts(const struct arch *a, const struct arch_chunk *c, uint32_t layer)
{
    moe_choose(&a->moe, &a->layers[layer].moe, c->n);
}

void arch_predict_experts(const struct arch *a, uint32_t layer, uint32_t n)
{
    moe_predict(&a->moe, &a->layers[layer].moe, a->room.x, n);
}

bool arch_takes_rounds(const struct arch *a, uint32_t n)
{
    return moe_takes_rounds(&a->moe, n);
}

void arch_experts_up(const struct arch *a, const struct arch_chunk *c, const struct arch_experts *x)
{
    moe_up(&a->moe, &a->layers[x->layer].moe, a->room.x, c->n, x);
}

void arch_experts_down(const struct arch *a, const struct arch_chunk *c, const struct arch_experts *x)
{
    moe_down(&a->moe, &a->layers[x->layer].moe, a->room.x, c->n, x);
}

void arch_shared_expert(const struct arch *a, const struct arch_chunk *c, uint32_t layer, uint64_t table)
{
    if (a->room.config->shared_inner)
        moe_shared(&a->moe, &a->layers[layer].moe, a->room.x, layer, table, c->n);
}

void arch_add_experts(const struct arch *a, const struct arch_chunk *c, uint64_t sum)
{
    moe_add(&a->moe, a->room.x, sum, c->n);
}

void arch_head(const struct arch *a, uint32_t from, uint32_t n)
{
    embed_head_head(&a->embed_head, a->room.exec, from, n);
}
