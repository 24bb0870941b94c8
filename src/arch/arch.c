#include "arch/arch.h"

#include <inttypes.h>
#include <stdlib.h>

#include "arch/embed_head.h"
#include "arch/latent_experts.h"
#include "arch/loader.h"
#include "arch/moe.h"
#include "arch/part.h"
#include "arch/part_output.h"
#include "arch/posts.h"
#include "arch/residual.h"
#include "arch/scratch.h"
#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/config.h"

/* The kinds of parts that are one list of operations. */
static const struct part *const kinds[PART_KINDS] = {
    [PART_DELTA_NET] = &part_delta_net, [PART_ATTENTION] = &part_gqa, [PART_LATENT] = &part_latent,
    [PART_DENSE] = &part_dense,         [PART_NGRAMS] = &part_ngrams, [PART_COMPRESSED] = &part_compressed,
    [PART_MAMBA] = &part_mamba,
};

struct layer {
    uint64_t norms[CONFIG_MAX_BLOCKS]; /* 0: none */
    struct residual_mix mixes[CONFIG_MAX_BLOCKS];
    struct posts_block posts[CONFIG_MAX_BLOCKS];
    uint32_t stores[CONFIG_MAX_BLOCKS]; /* index of the block's first store */
    struct moe_layer moe;               /* zero in a layer without experts */
    struct latent_layer latent;         /* zero unless experts read a latent */
};

struct arch {
    struct part_room room;
    struct embed_head embed_head;
    struct part_output out;        /* zero if parts add to the residual themselves */
    struct residual residual;      /* zero if it is plain */
    struct posts posts;            /* zero if no norms follow the parts */
    void *parts[CONFIG_MAX_PARTS]; /* NULL: no open layer has it */
    struct layer *layers;
    struct arch_stores *stores; /* [n_layers] */
    struct moe moe;
    struct latent_experts latent; /* zero unless config.moe_latent */
};

/* Returns whether parts write their outputs to a buffer of their own. */
static bool has_out(const struct arch *a)
{
    return a->room.config->streams.n || config_has_posts(a->room.config);
}

static const struct part *kind_of(const struct part_config *p)
{
    return kinds[p->kind];
}

/* Returns whether an open layer has part i of the configuration, and it is one list of operations. */
static bool has_part(const struct config *c, struct arch_span layers, uint32_t i)
{
    for (uint32_t k = layers.first; kind_of(&c->parts[i]) && k < layers.end; k++)
        for (uint32_t b = 0; b < c->layers[k].n_blocks; b++)
            if (c->layers[k].blocks[b].part == i)
                return true;
    return false;
}

/* ---- states ---- */

/* Adds a part's stores after those of the layer's earlier parts. */
static void add_stores(const struct part_config *p, enum kv_type type, struct arch_stores *s)
{
    struct arch_store_sizes before = {0};
    uint32_t first = s->n;
    arch_add_sizes(&before, s);
    kind_of(p)->stores(p, type, s);
    const uint64_t off[] = {
        [ARCH_ROWS] = before.kv_block, [ARCH_WINDOW] = before.ring_block, [ARCH_FIXED] = before.recurrent};
    for (uint32_t i = first; i < s->n; i++)
        s->of[i].off += off[s->of[i].kind];
}

struct arch_stores arch_stores_of(const struct config *c, uint32_t layer, enum kv_type type)
{
    struct arch_stores s = {0};
    for (uint32_t b = 0; b < c->layers[layer].n_blocks; b++) {
        const struct part_config *p = config_part(c, layer, b);
        if (kind_of(p) && kind_of(p)->stores)
            add_stores(p, type, &s);
    }
    /* A window of the whole context drops nothing. Its rows come after the layer's other rows. */
    struct arch_store_sizes z = {0};
    arch_add_sizes(&z, &s);
    for (uint32_t i = 0; i < s.n; i++)
        if (s.of[i].kind == ARCH_WINDOW && s.of[i].window >= config_longest_context(c)) {
            s.of[i].kind = ARCH_ROWS;
            s.of[i].off += z.kv_block;
            s.of[i].window = 0;
        }
    return s;
}

void arch_add_sizes(struct arch_store_sizes *to, const struct arch_stores *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        const struct arch_store *t = &s->of[i];
        uint64_t block = t->kind == ARCH_FIXED ? 0 : arch_store_bytes(t) * arch_store_block_rows(t);
        to->kv_block += t->kind == ARCH_ROWS ? block : 0;
        to->ring_block += t->kind == ARCH_WINDOW ? block : 0;
        to->recurrent += t->kind == ARCH_FIXED ? t->copies * arch_store_bytes(t) : 0;
        if (t->kind == ARCH_WINDOW && t->window > to->window)
            to->window = t->window;
    }
}

/* Gives every layer its offsets in the blocks and in the recurrent state. Operations take offsets in 32
 * bits. */
static int lay_out_stores(struct arch *a, struct arch_view *view, struct moeflux_err *e)
{
    struct arch_store_sizes *z = &view->sizes;
    for (uint32_t i = a->room.layers.first; i < a->room.layers.end; i++) {
        struct arch_stores *s = &a->stores[i];
        *s = arch_stores_of(a->room.config, i, a->room.kv_type);
        const uint64_t off[] = {
            [ARCH_ROWS] = z->kv_block, [ARCH_WINDOW] = z->ring_block, [ARCH_FIXED] = z->recurrent};
        for (uint32_t k = 0; k < s->n; k++)
            s->of[k].off += off[s->of[k].kind];
        arch_add_sizes(z, s);
    }
    uint64_t most = size_max(z->kv_block, z->ring_block);
    if (most > UINT32_MAX)
        return err_set(e, ERR_UNSUPPORTED,
                       "KV cache: layers %u to %u have %" PRIu64
                       " bytes for %u tokens, expected at most %" PRIu32,
                       a->room.layers.first, a->room.layers.end - 1, most, 1u << KV_BLOCK_SHIFT, UINT32_MAX);
    return 0;
}

/* ---- opening ---- */

/* Allocates n floats; nothing for n = 0. */
static void allocate_floats(struct scratch *to, struct exec_buffer *b, uint64_t n)
{
    if (n > 0)
        scratch_floats(to, b, n);
}

static void widen(struct part_needs *all, const struct part_needs *one)
{
    all->proj = size_max(all->proj, one->proj);
    all->mixed = size_max(all->mixed, one->mixed);
    all->widest = size_max(all->widest, one->widest);
    for (int i = 0; i < PART_OWN_BUFFERS; i++)
        all->own[i] = size_max(all->own[i], one->own[i]);
}

/* Fills needs [PART_KINDS] with the most that the parts of a kind need. Returns the most of all kinds. */
static struct part_needs measure(const struct config *c, struct arch_span layers,
                                 const struct exec_caps *caps, const struct part_most *most,
                                 struct part_needs *needs)
{
    struct part_needs all = {.widest = size_max(size_max(config_width(c), c->moe_latent), c->shared_inner)};
    for (uint32_t i = 0; i < c->n_parts; i++) {
        struct part_needs one;
        if (!has_part(c, layers, i))
            continue;
        kind_of(&c->parts[i])->needs(c, &c->parts[i], caps, most, &one);
        widen(&needs[c->parts[i].kind], &one);
        widen(&all, &one);
    }
    if (c->moe_latent) {
        const struct part_needs shared = latent_experts_needs(c, caps, most);
        widen(&needs[PART_DENSE], &shared);
    }
    return all;
}

static void allocate(struct arch *a, const struct exec_caps *caps, struct scratch *to)
{
    struct part_room *r = &a->room;
    const struct config *c = r->config;
    struct part_needs needs[PART_KINDS] = {0};
    const struct part_most most = {r->max_chunk, r->max_batched, r->kv_type};
    const struct part_needs all = measure(c, r->layers, caps, &most, needs);
    uint64_t n = r->max_chunk;
    for (uint32_t kind = 0; kind < PART_KINDS; kind++)
        for (int i = 0; i < PART_OWN_BUFFERS; i++)
            allocate_floats(to, &r->own[kind][i], needs[kind].own[i]);
    scratch_floats(to, &r->proj, n * all.proj);
    scratch_floats(to, &r->mixed, n * all.mixed);
    if (r->uses_f16)
        scratch_floats(to, &r->f16_scratch, n * all.widest / 2);
    a->moe.f16_scratch = r->f16_scratch.address;
    embed_head_allocate(&a->embed_head, c, r->layers, r->max_chunk, r->max_batched, to);
    a->embed_head.f16_scratch = r->f16_scratch.address;
    if (has_out(a))
        part_output_allocate(&a->out, c->hidden, r->max_chunk, to);
    if (c->moe_latent)
        latent_experts_allocate(&a->latent, c, r->max_chunk, to);
    if (c->streams.n)
        residual_allocate(&a->residual, c, r->max_chunk, to);
    if (config_has_posts(c))
        posts_allocate(&a->posts, c, r->max_chunk, to);
    moe_allocate(&a->moe, c, caps, r->max_chunk, to);
    a->residual.f16_scratch = r->f16_scratch.address;
    a->residual.out = a->posts.out = a->out.rows.address;
    r->x = a->embed_head.x.address;
    r->streams = a->residual.x.address;
}

uint64_t arch_scratch_bytes(const struct config *c, struct arch_span layers, const struct exec_caps *caps,
                            enum kv_type kv_type, uint32_t max_chunk, uint32_t max_batched)
{
    struct arch a = {.room = {.config = c,
                              .layers = layers,
                              .max_chunk = max_chunk,
                              .max_batched = max_batched,
                              .kv_type = kv_type,
                              .uses_f16 = caps->prompt_is_f16}};
    struct scratch count = {0};
    allocate(&a, caps, &count);
    return count.bytes;
}

uint64_t arch_host_bytes(const struct config *c, const struct exec_caps *caps, uint32_t max_chunk,
                         bool has_blocks)
{
    const struct experts_shape experts = {
        .top_k = c->top_k, .hidden = config_expert_hidden(c), .inner = c->moe_inner};
    struct part_needs needs[PART_KINDS] = {0};
    /* The widest product does not depend on the rest. */
    const struct part_most most = {.chunk = max_chunk, .batched = 1};
    uint64_t widest = measure(c, (struct arch_span){0, c->n_layers}, caps, &most, needs).widest;
    return caps->is_native
               ? size_max(
                     linear_cpu_host_bytes((uint32_t)widest, max_chunk, caps->has_fixed, caps->has_int16),
                     experts_cpu_host_bytes(&experts, max_chunk, caps->has_fixed, has_blocks))
               : 0;
}

static int open_parts(struct arch *a, struct moeflux_err *e)
{
    const struct config *c = a->room.config;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < c->n_parts; i++)
        if (has_part(c, a->room.layers, i))
            rc = kind_of(&c->parts[i])->open(&a->parts[i], &a->room, &c->parts[i], e);
    return rc;
}

static int load_norms(struct arch *a, struct loader *l, uint32_t i, struct moeflux_err *e)
{
    const struct config_layer *y = &a->room.config->layers[i];
    int rc = 0;
    for (uint32_t b = 0; rc == 0 && b < y->n_blocks; b++) {
        const struct part_tensor norm = part_norm(a->room.config, &y->blocks[b]);
        rc = loader_vectors(l, i, &norm, 1, &a->layers[i].norms[b], e);
        if (rc == 0 && y->blocks[b].mix)
            rc = residual_load_mix(&a->layers[i].mixes[b], l, i, b, e);
        if (rc == 0 && y->blocks[b].post)
            rc = posts_load_block(&a->layers[i].posts[b], l, i, &y->blocks[b], e);
    }
    return rc;
}

static int load_layer(struct arch *a, struct loader *l, uint32_t i, struct moeflux_err *e)
{
    const struct config *c = a->room.config;
    struct layer *y = &a->layers[i];
    int rc = load_norms(a, l, i, e);
    struct arch_stores before = {0};
    for (uint32_t b = 0; rc == 0 && b < c->layers[i].n_blocks; b++) {
        const struct part_config *p = config_part(c, i, b);
        y->stores[b] = before.n;
        if (kind_of(p) && kind_of(p)->stores)
            kind_of(p)->stores(p, a->room.kv_type, &before);
        struct part_tensor t[PART_MAX_TENSORS];
        part_tensors(c, p, t);
        rc = kind_of(p) ? kind_of(p)->load(a->parts[c->layers[i].blocks[b].part], l, i, t, e)
                        : moe_load_layer(&a->moe, l, i, t, &y->moe, e);
        if (rc == 0 && !kind_of(p) && c->moe_latent)
            rc = latent_experts_load(&a->latent, l, i, t, &y->latent, e);
    }
    y->moe.norm = y->norms[c->layers[i].n_blocks - 1];
    return rc;
}

static int load(struct arch *a, struct loader *l, struct moeflux_err *e)
{
    int rc = embed_head_load(&a->embed_head, l, a->room.config, a->room.layers, e);
    if (rc == 0 && has_out(a))
        rc = part_output_load(&a->out, a->room.exec, l, e);
    if (rc == 0 && a->room.config->moe_latent)
        rc = latent_experts_open(&a->latent, &a->room, l, e);
    if (rc == 0 && a->room.config->streams.n && a->room.layers.end == a->room.config->n_layers)
        rc = residual_load_last(&a->residual, l, e);
    for (uint32_t i = a->room.layers.first; rc == 0 && i < a->room.layers.end; i++)
        rc = load_layer(a, l, i, e);
    return rc < 0 ? rc : loader_finish(l, e);
}

static void close_layer(struct layer *y, struct exec *x)
{
    for (uint32_t b = 0; b < CONFIG_MAX_BLOCKS; b++)
        residual_close_mix(&y->mixes[b], x);
    moe_close_layer(&y->moe, x);
    latent_experts_close_layer(&y->latent, x);
}

void arch_close(struct arch *a)
{
    if (!a)
        return;
    struct part_room *r = &a->room;
    for (uint32_t i = 0; a->layers && i < r->config->n_layers; i++)
        close_layer(&a->layers[i], r->exec);
    for (uint32_t i = 0; i < r->config->n_parts; i++)
        if (a->parts[i])
            kind_of(&r->config->parts[i])->close(a->parts[i]);
    for (uint32_t kind = 0; kind < PART_KINDS; kind++)
        for (int i = 0; i < PART_OWN_BUFFERS; i++)
            exec_buffer_free(r->exec, &r->own[kind][i]);
    struct exec_buffer *buffers[] = {&r->proj, &r->mixed, &r->f16_scratch};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        exec_buffer_free(r->exec, buffers[i]);
    embed_head_close(&a->embed_head, r->exec);
    part_output_close(&a->out, r->exec);
    latent_experts_close(&a->latent, r->exec);
    residual_close(&a->residual, r->exec);
    posts_close(&a->posts, r->exec);
    moe_close(&a->moe);
    free(a->layers);
    free(a->stores);
    free(a);
}

static void show(struct arch *a, uint64_t scratch_bytes, struct arch_view *view)
{
    view->stores = a->stores;
    view->scratch_bytes = scratch_bytes;
    view->max_context = config_longest_context(a->room.config);
    view->x = a->room.config->streams.n ? a->residual.x : a->embed_head.x;
    view->experts_in = a->room.config->moe_latent ? a->latent.in : a->embed_head.x;
    view->logits = a->embed_head.logits;
    view->fed = a->embed_head.drafter.fed;
    moe_show(&a->moe, view);
}

/* Returns the bytes of the records of a batch: three operations of every layer's mixer and those that sample
 * have one for each sequence. */
static uint64_t record_bytes(const struct arch_request *r)
{
    enum { RECORDS = 3, RECORD_BYTES = 128 };
    uint64_t n_operations = ((uint64_t)r->layers.end - r->layers.first + 1) * RECORDS;
    return n_operations * size_max(r->max_batched, EXEC_MAX_INVARIANT) * RECORD_BYTES;
}

int arch_open(struct arch **out, const struct arch_request *r, struct arch_view *view, struct moeflux_err *e)
{
    *view = (struct arch_view){0};
    struct arch *a = *out = mem_new(1, sizeof *a, e);
    if (!a)
        return ERR_MEMORY;
    const struct exec_caps caps = exec_get_caps(r->exec);
    struct scratch made = {.exec = r->exec, .e = e};
    a->room = (struct part_room){.exec = r->exec,
                                 .config = r->config,
                                 .layers = r->layers,
                                 .max_chunk = r->max_chunk,
                                 .max_batched = r->max_batched,
                                 .kv_type = r->kv_type,
                                 .uses_f16 = caps.prompt_is_f16};
    a->moe.exec = r->exec;
    a->layers = mem_new(r->config->n_layers, sizeof *a->layers, e);
    a->stores = mem_new(r->config->n_layers, sizeof *a->stores, e);
    int rc = a->layers && a->stores ? 0 : ERR_MEMORY;
    if (rc == 0)
        rc = exec_reserve_records(r->exec, record_bytes(r), e);
    if (rc == 0)
        rc = lay_out_stores(a, view, e);
    if (rc == 0) {
        allocate(a, &caps, &made);
        rc = made.rc;
    }
    if (rc == 0)
        rc = moe_begin(&a->moe, r, e);
    if (rc == 0 && r->config->streams.n)
        rc = residual_open(&a->residual, r->exec, r->config, e);
    if (rc == 0 && config_has_posts(r->config))
        rc = posts_open(&a->posts, r->exec, r->config, e);
    if (rc == 0)
        rc = open_parts(a, e);
    if (rc == 0)
        rc = load(a, r->loader, e);
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

/* Returns what parts read and add to. */
static struct moe_states states_of(const struct arch *a)
{
    return (struct moe_states){a->room.x, has_out(a) ? a->out.rows.address : a->room.x};
}

/* Returns what experts read and add to. */
static struct moe_states expert_states(const struct arch *a)
{
    return a->room.config->moe_latent ? (struct moe_states){a->latent.in.address, a->latent.out.rows.address}
                                      : states_of(a);
}

/* Adds the output of a layer's last part to the residual. */
static void add_last(const struct arch *a, uint32_t layer, uint32_t from, uint32_t n)
{
    uint32_t last = a->room.config->layers[layer].n_blocks - 1;
    if (a->room.config->streams.n)
        residual_add(&a->residual, from, n);
    else if (config_has_posts(a->room.config))
        posts_add(&a->posts, &a->layers[layer].posts[last], a->room.x, from, n);
}

/* Adds the output of a layer's experts to the residual. plan_n: arch_plan_n. */
static void add_experts(const struct arch *a, uint32_t layer, const struct arch_tokens *tokens)
{
    if (a->room.config->moe_latent)
        latent_experts_end(&a->latent, &a->layers[layer].latent, states_of(a).out, tokens);
    add_last(a, layer, tokens->from, tokens->n);
}

void arch_embed(const struct arch *a, const struct arch_chunk *c)
{
    bool has_streams = a->room.config->streams.n > 0;
    embed_head_embed(&a->embed_head, a->room.exec, c);
    if (has_streams)
        residual_begin(&a->residual, a->room.x, c->n);
    if (a->room.config->drafts)
        embed_head_add_fed(&a->embed_head, a->room.exec, c, has_streams ? a->residual.x.address : a->room.x);
}

/* Mixes the streams for a block. adds: the output of the block before is to be added first. */
static void mix(const struct arch *a, const struct arch_chunk *c, uint32_t layer, uint32_t block, bool adds)
{
    const struct arch_tokens all = arch_all_tokens(c);
    if (a->room.config->layers[layer].blocks[block].mix)
        residual_mix(&a->residual, &a->layers[layer].mixes[block], a->room.x, &all, adds);
}

/* Returns the mixer's stores of the layer whose compressed rows this one sees; NULL: it sees none. */
static const struct arch_store *rows_of(const struct arch *a, uint32_t layer)
{
    const struct config *c = a->room.config;
    uint32_t from = config_rows_of(c, layer), block = 0;
    while (from < c->n_layers && config_part(c, from, block) != config_mixer(c, from))
        block++;
    return from < c->n_layers ? &a->stores[from].of[a->layers[from].stores[block]] : NULL;
}

void arch_before_experts(const struct arch *a, const struct arch_chunk *c, uint32_t layer)
{
    const struct config_layer *y = &a->room.config->layers[layer];
    const struct moe_states states = states_of(a);
    const struct arch_tokens all = arch_all_tokens(c);
    bool has_experts = config_has_experts(a->room.config, layer), adds = false;
    for (uint32_t b = 0; b < y->n_blocks; b++) {
        const struct part *part = kind_of(config_part(a->room.config, layer, b));
        const struct part_call call = {.chunk = c,
                                       .stores = &a->stores[layer].of[a->layers[layer].stores[b]],
                                       .rows = rows_of(a, layer),
                                       .norm = a->layers[layer].norms[b],
                                       .in = states.in,
                                       .out = states.out,
                                       .adds = !has_out(a),
                                       .layer = layer};
        mix(a, c, layer, b, adds);
        if (part)
            part->run(a->parts[y->blocks[b].part], &call);
        else
            moe_score(&a->moe, &a->layers[layer].moe, call.in, &all);
        if (y->blocks[b].post && b + 1 < y->n_blocks)
            posts_add(&a->posts, &a->layers[layer].posts[b], a->room.x, 0, c->n);
        adds = y->blocks[b].mix != NULL;
    }
    if (has_experts && has_out(a)) /* experts are added to it */
        part_output_clear(&a->out, a->room.exec, c->n);
    if (has_experts && a->room.config->moe_latent)
        latent_experts_begin(&a->latent, &a->layers[layer].latent,
                             &(struct part_call){.chunk = c,
                                                 .norm = a->layers[layer].moe.norm,
                                                 .in = states.in,
                                                 .out = states.out,
                                                 .adds = true,
                                                 .layer = layer});
    if (!has_experts)
        add_last(a, layer, 0, c->n);
}

void arch_choose_experts(const struct arch *a, const struct arch_chunk *c, uint32_t layer)
{
    moe_choose(&a->moe, &a->layers[layer].moe, c->ids, c->n);
}

void arch_predict_experts(const struct arch *a, const struct arch_chunk *c, uint32_t layer)
{
    moe_predict(&a->moe, &a->layers[layer].moe, a->room.x, c->ids, c->n);
}

bool arch_takes_rounds(const struct arch *a, const struct arch_chunk *c)
{
    return moe_takes_rounds(&a->moe, arch_plan_n(c));
}

void arch_experts_up(const struct arch *a, const struct arch_chunk *c, const struct arch_experts *x)
{
    moe_up(&a->moe, &a->layers[x->layer].moe, expert_states(a).in, c->ids, arch_plan_n(c), x);
}

void arch_experts_down(const struct arch *a, const struct arch_chunk *c, const struct arch_experts *x)
{
    const struct arch_tokens tokens = {x->from, x->n, arch_plan_n(c)};
    moe_down(&a->moe, &a->layers[x->layer].moe, expert_states(a).out, arch_plan_n(c), x);
    if (!x->more_rounds && x->part.n_cpu == 0)
        add_experts(a, x->layer, &tokens);
}

void arch_shared_expert(const struct arch *a, const struct arch_chunk *c, uint32_t layer, uint64_t table)
{
    const struct moe_states states = states_of(a);
    const struct arch_tokens all = arch_all_tokens(c);
    if (a->room.config->shared_inner && !a->room.config->moe_latent)
        moe_shared(&a->moe, &a->layers[layer].moe, &states, layer, table, &all);
}

void arch_add_experts(const struct arch *a, const struct arch_chunk *c, uint32_t layer, uint64_t sum)
{
    const struct arch_tokens all = arch_all_tokens(c);
    moe_add(&a->moe, expert_states(a).out, sum, c->n);
    add_experts(a, layer, &all);
}

void arch_head(const struct arch *a, const struct arch_chunk *c, uint32_t from, uint32_t n)
{
    const struct arch_tokens tokens = {from, n, c->each ? arch_plan_n(c) : n};
    uint64_t row = (uint64_t)from * a->room.config->hidden * sizeof(float);
    if (a->room.config->streams.n)
        residual_mix(&a->residual, &a->residual.last, a->room.x + row, &tokens, false);
    embed_head_head(&a->embed_head, a->room.exec, &tokens);
}
