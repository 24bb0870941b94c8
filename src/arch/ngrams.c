/* N-gram rows, before a layer's mixer:
 *   [keys, value] = W rows;  ngram (ops/ngram/ngram.h), which adds them to all streams
 *
 * The caller has read the rows (arch_chunk.ngrams). The recurrent state has two windows of the convolution,
 * one read while the other is written. */
#include <stdlib.h>

#include "arch/loader.h"
#include "arch/part.h"
#include "base/err.h"
#include "base/mem.h"
#include "ops/linear/linear.h"
#include "ops/ngram/ngram.h"

struct ngrams_layer {
    struct linear in;
    uint64_t norms, conv; /* norms: of keys, of streams, of the convolution's input, [width] each */
};

struct ngrams {
    const struct part_room *room;
    const struct ngram_config *config;
    struct ngram op;
    struct ngrams_layer *layers; /* [n_layers] */
};

/* index into room->own */
enum { SCRATCH };

static struct ngram_shape shape_of(const struct config *c, const struct ngram_config *n)
{
    return (struct ngram_shape){.n_streams = c->streams.n,
                                .hidden = c->hidden,
                                .taps = n->taps,
                                .dilation = n->table.size,
                                .scale = 1,
                                .eps = c->rms_eps};
}

/* The number of outputs of the fused product. */
static uint32_t in_rows(const struct config *c)
{
    return config_width(c) + c->hidden;
}

static void ngrams_needs(const struct config *c, const struct part_config *p, const struct exec_caps *caps,
                         const struct part_most *most, struct part_needs *out)
{
    const struct ngram_shape shape = shape_of(c, &p->ngrams);
    (void)caps;
    *out = (struct part_needs){.proj = in_rows(c), .widest = p->ngrams.inner};
    out->own[SCRATCH] = ngram_scratch(&shape, most->chunk);
}

static void ngrams_stores(const struct part_config *p, enum kv_type type, struct arch_stores *out)
{
    (void)type;
    if (!p->ngrams.taps)
        return;
    arch_add_store(out, &(struct arch_store){.kind = ARCH_FIXED,
                                             .type = KV_TYPE_F32,
                                             .width = (uint64_t)(p->ngrams.taps - 1) * p->ngrams.table.size *
                                                      p->ngrams.width,
                                             .copies = 2});
}

static void ngrams_close(void *self)
{
    struct ngrams *g = self;
    if (!g)
        return;
    for (uint32_t i = 0; g->layers && i < g->room->config->n_layers; i++)
        linear_close(&g->layers[i].in, g->room->exec);
    free(g->layers);
    free(g);
}

static int ngrams_open(void **self, const struct part_room *room, const struct part_config *p,
                       struct moeflux_err *e)
{
    const struct ngram_shape shape = shape_of(room->config, &p->ngrams);
    struct ngrams *g = *self = mem_new(1, sizeof *g, e);
    if (!g)
        return ERR_MEMORY;
    g->room = room;
    g->config = &p->ngrams;
    g->layers = mem_new(room->config->n_layers, sizeof *g->layers, e);
    int rc = g->layers ? ngram_open(&g->op, room->exec, &shape, e) : ERR_MEMORY;
    if (rc < 0) {
        ngrams_close(g);
        *self = NULL;
    }
    return rc;
}

static int ngrams_load(void *self, struct loader *l, uint32_t layer, const struct part_tensor *t,
                       struct moeflux_err *e)
{
    struct ngrams *g = self;
    struct ngrams_layer *y = &g->layers[layer];
    int rc = loader_fused(l, layer, t + NGRAM_KEY, 2, &y->in, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + NGRAM_K_NORM, 3, &y->norms, e); /* without a convolution two */
    return rc < 0 ? rc : loader_vectors(l, layer, t + NGRAM_CONV, 1, &y->conv, e);
}

static void add_rows(const struct ngrams *g, const struct part_call *call, const struct part_tokens *part)
{
    const struct part_room *r = g->room;
    const struct ngrams_layer *y = &g->layers[call->layer];
    const struct arch_store *window = g->config->taps ? &call->stores[0] : NULL;
    const struct arch_sequence *of = &part->of;
    uint64_t bytes = window ? arch_store_bytes(window) : 0, off = window ? window->off : 0,
             from = part->from * sizeof(float);
    uint64_t norm = g->config->width * sizeof(float);
    uint32_t stride = in_rows(r->config);
    ngram_run(&g->op, r->exec,
              &(struct ngram_call){.proj = r->proj.address + from * stride,
                                   .k_norm = y->norms,
                                   .x_norm = y->norms + norm,
                                   .u_norm = y->norms + 2 * norm,
                                   .conv = y->conv,
                                   .window_in = of->recurrent + off + (of->parity ? bytes : 0),
                                   .window_out = of->recurrent_out + off + (of->parity ? 0 : bytes),
                                   .x = r->streams + from * g->config->width,
                                   .scratch = r->own[PART_NGRAMS][SCRATCH].address +
                                              from * ngram_scratch(&g->op.shape, 1),
                                   .n = part->n,
                                   .stride = stride});
}

static void ngrams_run(const void *self, const struct part_call *call)
{
    const struct ngrams *g = self;
    const struct part_room *r = g->room;
    const struct arch_chunk *c = call->chunk;
    uint64_t table = (uint64_t)g->config->table.index * r->max_chunk * g->config->inner * sizeof(float);
    linear_run(&g->layers[call->layer].in, r->exec,
               &(struct linear_call){.x = c->ngrams + table,
                                     .y = r->proj.address,
                                     .x_stride = g->config->inner,
                                     .y_stride = in_rows(r->config),
                                     .n = c->n,
                                     .chunk = arch_plan_n(c),
                                     .f16_scratch = r->f16_scratch.address});
    struct part_tokens parts[PART_GROUP];
    bool are_single;
    for (uint32_t first = 0, n; (n = part_tokens_with_state(r, c, 0, first, parts, &are_single)) > 0;
         first += n)
        for (uint32_t i = 0; i < n; i++)
            add_rows(g, call, &parts[i]);
}

const struct part part_ngrams = {
    .needs = ngrams_needs,
    .stores = ngrams_stores,
    .open = ngrams_open,
    .close = ngrams_close,
    .load = ngrams_load,
    .run = ngrams_run,
};
