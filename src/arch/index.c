#include "arch/index.h"

#include "base/mem.h"

/* indices into part_room.own */
enum { INDEX_Q = PART_OWN_BUFFERS - 4, SCORES, CHOSEN, CANDIDATES };
enum { SCORES_ALIGN = 16 };

/* The epsilon of the layer norm of keys is its class's default in the published code, not rms_norm_eps. */
static const float LAYER_NORM_EPS = 1e-6f;

struct kv_choice index_choice(const struct index_config *x)
{
    return (struct kv_choice){x->ratio, x->budget, x->by_head ? x->n_heads : 0};
}

static struct indexer_shape shape_of(const struct config *c, const struct index_config *x, enum kv_type type)
{
    return (struct indexer_shape){.n_heads = x->n_heads,
                                  .dim = x->dim,
                                  .rotary_dim = x->rotary_dim,
                                  .choice = index_choice(x),
                                  .weighted = x->weighted,
                                  .layer_norm = x->layer_norm,
                                  .interleaved = x->interleaved,
                                  .pooled = x->pooled,
                                  .groups = x->blocks,
                                  .group = x->block_rows,
                                  .finds = x->finds,
                                  .eps = x->layer_norm ? LAYER_NORM_EPS : c->rms_eps,
                                  .kv_type = type};
}

enum kv_type index_type(enum kv_type type)
{
    return type == KV_TYPE_Q8_0 ? KV_TYPE_F16 : type;
}

/* Returns the bytes of the scores of chunks of up to n tokens. */
static uint64_t scores_bytes(const struct config *c, const struct index_config *x,
                             const struct exec_caps *caps, enum kv_type type, uint32_t n)
{
    const struct indexer_shape shape = shape_of(c, x, index_type(type));
    return sizeof(float) * indexer_scratch(&shape, caps, n, config_longest_context(c));
}

void index_needs(const struct config *c, const struct index_config *x, const struct exec_caps *caps,
                 const struct part_most *most, struct part_needs *out)
{
    if (!x->n_heads)
        return;
    enum kv_type type = most->kv_type;
    uint64_t alone = size_round_up(scores_bytes(c, x, caps, type, 1), SCORES_ALIGN),
             n_batched = part_n_concurrent(most);
    out->own[INDEX_Q] = (uint64_t)most->chunk * x->n_heads * x->dim;
    out->own[SCORES] =
        size_max(scores_bytes(c, x, caps, type, most->chunk), n_batched * alone) / sizeof(float);
    const struct kv_choice choice = index_choice(x);
    if (config_longest_context(c) > kv_choice_from(&choice)) /* else nothing is ever chosen */
        out->own[CHOSEN] = (uint64_t)most->chunk * kv_choice_stride(&choice);
    if (x->blocks)
        out->own[CANDIDATES] = (uint64_t)most->chunk * (x->blocks + 1);
}

void index_rows(const struct index_config *x, uint64_t off, enum kv_type type, struct arch_stores *out)
{
    struct arch_store t = {.kind = ARCH_ROWS,
                           .type = index_type(type),
                           .width = x->dim,
                           .head = x->dim,
                           .stride = x->by_head ? 1 : x->ratio,
                           .off = off};
    t.pitch = (uint32_t)arch_store_bytes(&t);
    arch_add_store(out, &t);
}

void index_stores(const struct index_config *x, uint64_t off, enum kv_type type, struct arch_stores *out)
{
    if (!x->n_heads)
        return;
    index_rows(x, off, type, out);
    if (x->ratio > 1 && !x->by_head)
        arch_add_store(out, &(struct arch_store){.kind = ARCH_FIXED,
                                                 .type = KV_TYPE_F32,
                                                 .width = (uint64_t)(x->ratio - 1) * x->dim +
                                                          (uint64_t)(x->ratio - 1) *
                                                              (x->pooled ? x->dim : x->rotary_dim),
                                                 .copies = 2});
}

int index_open(struct index_part *out, const struct part_room *room, enum part_kind kind,
               const struct index_config *x, uint32_t rope, struct moeflux_err *e)
{
    *out = (struct index_part){.room = room, .config = x, .kind = kind, .rope = rope};
    if (!x->n_heads)
        return 0;
    const struct exec_caps caps = exec_get_caps(room->exec);
    const struct indexer_shape shape = shape_of(room->config, x, index_type(room->kv_type));
    out->scores_bytes = size_round_up(scores_bytes(room->config, x, &caps, room->kv_type, 1), SCORES_ALIGN);
    return indexer_open(&out->op, room->exec, &shape, e);
}

uint64_t index_list_at(const struct index_part *x, uint32_t token)
{
    if (!x->config->ratio)
        return 0;
    const struct kv_choice choice = index_choice(x->config);
    return x->room->own[x->kind][CHOSEN].address +
           (uint64_t)token * kv_choice_stride(&choice) * sizeof(uint32_t);
}

/* Returns the address of a token's candidates; 0: there are none. */
static uint64_t candidates_at(const struct index_part *x, uint32_t token)
{
    return x->config->blocks ? x->room->own[x->kind][CANDIDATES].address +
                                   (uint64_t)token * (x->config->blocks + 1) * sizeof(uint32_t)
                             : 0;
}

uint64_t index_queries_at(const struct index_part *x, uint32_t token)
{
    return x->room->own[x->kind][INDEX_Q].address +
           (uint64_t)token * x->config->n_heads * x->config->dim * sizeof(float);
}

void index_choose(const struct index_part *x, const struct part_tokens *part, const struct arch_store *rows,
                  uint64_t weights, uint32_t weight_stride, uint32_t idx)
{
    indexer_choose_run(
        &x->op, x->room->exec,
        &(struct indexer_call){.blocks = part->of.kv_blocks,
                               .q = index_queries_at(x, part->from),
                               .weights = weights + (uint64_t)part->from * weight_stride * sizeof(float),
                               .scores = x->room->own[x->kind][SCORES].address + idx * x->scores_bytes,
                               .chosen = index_list_at(x, part->from),
                               .candidates = candidates_at(x, part->from),
                               .n = part->n,
                               .pos = part->of.pos,
                               .layer_off = (uint32_t)rows->off,
                               .weight_stride = weight_stride});
}

/* idx: which of the calls that may run concurrently it is. */
static struct indexer_call call_of(const struct index_part *x, const struct index_inputs *in,
                                   const struct part_tokens *part, uint32_t idx)
{
    const struct exec_buffer *own = x->room->own[x->kind];
    const struct index_config *c = x->config;
    const struct arch_store *window = &in->stores[c->ratio > 1 && !c->by_head ? 1 : 0];
    uint64_t bytes = arch_store_bytes(window), from = part->from * sizeof(float);
    uint32_t is_odd = part->of.parity != 0;
    return (struct indexer_call){.queries = in->queries + from * in->stride,
                                 .keys = in->keys + from * in->key_stride,
                                 .q_norm = in->q_norm,
                                 .k_norm = in->k_norm,
                                 .k_bias = in->k_bias,
                                 .pool_bias = in->pool_bias,
                                 .rope = part->rope,
                                 .window_in = part->of.recurrent + window->off + is_odd * bytes,
                                 .window_out = part->of.recurrent_out + window->off + !is_odd * bytes,
                                 .blocks = part->of.kv_blocks,
                                 .q = index_queries_at(x, part->from),
                                 .weights = in->weights + from * in->weight_stride,
                                 .scores = own[SCORES].address + idx * x->scores_bytes,
                                 .chosen = index_list_at(x, part->from),
                                 .n = part->n,
                                 .pos = part->of.pos,
                                 .stride = in->stride,
                                 .key_stride = in->key_stride,
                                 .layer_off = (uint32_t)in->stores[0].off,
                                 .weight_stride = in->weight_stride};
}

void index_run(const struct index_part *x, const struct part_call *call, const struct index_inputs *in)
{
    struct part_tokens parts[PART_GROUP];
    struct indexer_call calls[PART_GROUP];
    const struct arch_chunk *c = call->chunk;
    bool are_single;
    for (uint32_t first = 0, n;
         (n = part_tokens_with_state(x->room, c, x->rope, first, parts, &are_single)) > 0; first += n) {
        for (uint32_t i = 0; i < n; i++)
            calls[i] = call_of(x, in, &parts[i], are_single ? i : 0);
        if (are_single)
            indexer_run(&x->op, x->room->exec, calls, n);
        for (uint32_t i = 0; !are_single && i < n; i++)
            indexer_run(&x->op, x->room->exec, &calls[i], 1);
    }
}
