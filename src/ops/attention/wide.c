#include "ops/attention/wide.h"

#include "args.h"
#include "base/mem.h"
#include "exec/fragment_layout.h"

/* TILE, STEP and CHUNK are those of kernels/attention/wide.glsl. SHARED_BYTES: shared memory of a
 * workgroup. WANTED_GROUPS: workgroups of the second pass that keep a GPU busy. WEIGHT_BYTES: the weights
 * between the passes, small enough to stay in the GPU's cache; one token may need more. */
enum {
    TILE = 128,
    STEP = 64,
    CHUNK = 32,
    SHARED_BYTES = 40960,
    WANTED_GROUPS = 132,
    WEIGHT_BYTES = 32 << 20
};
/* Fewest (row, position) pairs for which this is faster than kernels/attention/decode.comp: 2,048 positions
 * of 128 heads. A tile costs the same with few rows. */
enum { LEAST_PAIRS = 128 * 2048 };

/* Fewest tokens of a chunk whose heads fill most of a tile. */
enum { LEAST_TOKENS = 16 };

bool attention_wide_is_possible(const struct attention_shape *s, const struct exec_caps *caps)
{
    bool is_wide = s->value_dim > ATTENTION_PREFILL_MAX_DIM && s->key_dim == s->value_dim && !s->flat &&
                   !s->gated && !s->sinks && !s->window;
    return (s->latent || is_wide) && s->kv_type != KV_TYPE_F32 && caps->has_coopmat &&
           caps->max_shared_bytes >= SHARED_BYTES && s->key_dim % 64 == 0 && s->value_dim % TILE == 0;
}

int attention_wide_open(struct attention *op, struct exec *x, struct moeflux_err *e)
{
    const struct attention_shape *s = &op->shape;
    const uint32_t spec[KV_N_SPEC] = {
        [2] = s->key_dim, [3] = s->value_dim, [5] = s->latent, [KV_SPEC] = s->kv_type, [KV_FLAT_SPEC] = 0};
    const char *const names[2][2] = {{"attention_wide_scores_coop", "attention_wide_values_coop"},
                                     {"attention_wide_scores_fragcoop", "attention_wide_values_fragcoop"}};
    uint32_t bytes = sizeof(struct attention_wide_args);
    int has_known_layout = fragment_layout_probe(x, e);
    if (has_known_layout < 0)
        return has_known_layout;
    /* Heads take it in prompts alone, latents in long sequences, too. */
    int (*open)(struct exec *, struct kernel *, const char *, uint32_t, const uint32_t *, uint32_t,
                struct moeflux_err *) = s->latent ? exec_kernel : exec_kernel_later;
    int rc = open(x, &op->gpu.wide_scores, names[has_known_layout][0], bytes, spec, KV_N_SPEC, e);
    return rc < 0 ? rc : open(x, &op->gpu.wide_values, names[has_known_layout][1], bytes, spec, KV_N_SPEC, e);
}

static bool is_faster(const struct attention_shape *s, uint32_t n, uint32_t n_pos)
{
    return (s->latent || n >= LEAST_TOKENS) && (uint64_t)n * s->n_heads * n_pos >= LEAST_PAIRS;
}

bool attention_wide_takes(const struct attention *op, uint32_t n, uint32_t n_pos)
{
    return op->gpu.takes_wide && is_faster(&op->shape, n, n_pos);
}

/* How some tokens of a chunk are computed. */
struct pass {
    uint32_t n, rows, width, splits, share;
    uint64_t weights, chunks, bytes; /* offsets in the scratch memory, after the splits' parts */
};

/* Returns the query heads that read one key/value head. */
static uint32_t group_of(const struct attention_shape *s)
{
    return s->n_heads / s->n_kv_heads;
}

static struct pass plan_pass(const struct attention_shape *s, uint32_t n, uint32_t n_pos)
{
    struct pass p = {.width = (uint32_t)size_round_up(n_pos, TILE)};
    uint64_t token = (uint64_t)group_of(s) * p.width * sizeof(uint16_t);
    p.n = (uint32_t)size_min(n, size_max(1, WEIGHT_BYTES / token));
    p.rows = (uint32_t)size_round_up((uint64_t)p.n * group_of(s), TILE);
    uint32_t n_steps = div_up(n_pos, STEP), groups = s->value_dim / TILE * (p.rows / TILE);
    p.splits = (uint32_t)size_max(1, size_min(n_steps, WANTED_GROUPS / groups));
    p.share = (uint32_t)size_max(1, div_up(n_steps, p.splits));
    p.splits = div_up(n_steps, p.share);
    uint64_t parts = (uint64_t)p.rows * p.splits * (s->value_dim + 2) * sizeof(float);
    p.weights = size_round_up(parts, 16);
    p.chunks = p.weights + (uint64_t)p.rows * p.width * sizeof(uint16_t);
    p.bytes = p.chunks + (uint64_t)p.rows * (p.width / CHUNK) * 2 * sizeof(float);
    return p;
}

struct attention_parts attention_wide_parts(const struct attention *op, uint32_t n_pos)
{
    struct pass p = plan_pass(&op->shape, 1, n_pos);
    return (struct attention_parts){.rows = p.rows, .n_splits = p.splits};
}

uint64_t attention_wide_bytes(const struct attention_shape *s, uint32_t n, uint32_t n_pos)
{
    if (!is_faster(s, n, n_pos))
        return 0;
    /* The splits' parts take most when all tokens are computed at once, the rest when there are most
     * positions. Padding adds up to one tile of rows. */
    uint64_t width = size_round_up(n_pos, TILE), token = group_of(s) * width * sizeof(uint16_t);
    uint64_t weights = size_max(token, WEIGHT_BYTES) + TILE * width * sizeof(uint16_t);
    uint64_t tiles = div_up(n * group_of(s), TILE), pieces = s->value_dim / TILE;
    uint64_t parts = TILE * size_max(tiles, WANTED_GROUPS / pieces) * (s->value_dim + 2) * sizeof(float);
    return parts + 16 + weights + weights / CHUNK * sizeof(float);
}

/* Computes the heads of one key/value head. */
static void run_pass(const struct attention *op, struct exec *x, const struct attention_call *call,
                     uint32_t kv_head, const struct pass *p)
{
    const struct attention_shape *s = &op->shape;
    const struct attention_wide_args a = {.q = call->q,
                                          .blocks = call->blocks,
                                          .weights = call->partial + p->weights,
                                          .chunks = call->partial + p->chunks,
                                          .partial = call->partial,
                                          .n = call->n,
                                          .pos = call->pos,
                                          .n_heads = call->n_heads,
                                          .layer_off = call->layer_off,
                                          .n_splits = p->splits,
                                          .q_stride = call->q_stride,
                                          .rows = p->rows,
                                          .width = p->width,
                                          .share = p->share,
                                          .scale = s->scale,
                                          .n_kv_heads = s->n_kv_heads,
                                          .kv_head = kv_head};
    exec_dispatch(x, &op->gpu.wide_scores, &a, p->width / TILE, p->rows / TILE, 1);
    exec_dispatch(x, &op->gpu.wide_values, &a, s->value_dim / TILE, p->splits, p->rows / TILE);
    if (!call->leaves_parts)
        attention_merge_run(op, x, call, p->rows, p->splits);
}

/* Returns how the tokens of the call from the from-th on are computed: the first ones of them at once. */
static struct pass next_pass(const struct attention *op, const struct attention_call *call, uint32_t from)
{
    struct pass p = plan_pass(&op->shape, call->n - from, call->pos + call->n);
    return plan_pass(&op->shape, p.n, call->pos + from + p.n);
}

uint64_t attention_wide_call_bytes(const struct attention *op, const struct attention_call *call)
{
    uint64_t most = 0;
    for (uint32_t from = 0; from < call->n;) {
        struct pass p = next_pass(op, call, from);
        most = size_max(most, p.bytes);
        from += p.n;
    }
    return most;
}

void attention_wide_run(const struct attention *op, struct exec *x, const struct attention_call *call)
{
    for (uint32_t from = 0; from < call->n;) {
        struct pass p = next_pass(op, call, from);
        struct attention_call some = *call;
        some.q += (uint64_t)from * call->q_stride * sizeof(float);
        some.dst += (uint64_t)from * call->dst_stride * sizeof(float);
        some.pos += from;
        some.n = p.n;
        some.n_heads /= some.n_kv_heads;
        for (uint32_t i = 0; i < some.n_kv_heads; i++) {
            run_pass(op, x, &some, i, &p);
            some.q += (uint64_t)some.n_heads * op->shape.key_dim * sizeof(float);
            some.dst += (uint64_t)some.n_heads * op->shape.value_dim * sizeof(float);
        }
        from += some.n;
    }
}
