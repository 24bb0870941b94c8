#include "ops/mla/expanded.h"

#include "args.h"
#include "base/format.h"
#include "base/mem.h"
#include "exec/code_books.h"
#include "ops/attention/wide.h"
#include "ops/mla/mla.h"

/* ROOM: bytes of the keys and values of some heads. BLOCK: positions whose keys and values are made at
 * once. */
enum { ROOM = 192 << 20, BLOCK = 4096 };
/* The fewest tokens: float16 products begin with that many. */
enum { FROM = 32 };
/* The set of the basic formats; layers may store their matrices differently. */
enum { ALL_FORMATS = (1 << FORMAT_SET_EXTENDED) - 1 };
/* The cost of a channel of a query and a position in either form, in products of the matrices (bench_mla,
 * dims of DeepSeek-V3). In a microsecond an H200 computes 46 million products of matrices and 50 million of
 * expanded channels, both in float16, and of absorbed channels 54 million on matrix units and 8.9 million in
 * float32. Without float16 the numbers are 10, 5.4 and 8.1. */
static const struct mla_pair_cost F16 = {0.85, 0.93}, F16_FLOAT = {5.2, 0.93}, FLOAT = {1.3, 1.9};
/* The cost of expanded channels if softmax runs in registers: 92 million a microsecond. */
static const double EXPANDED_IN_FRAGMENTS = 0.5;

static uint32_t key_dim(const struct mla_shape *s)
{
    return s->nope_dim + s->rope_dim;
}

static enum kv_type type_for(const struct exec_caps *caps)
{
    return caps->has_coopmat ? KV_TYPE_F16 : KV_TYPE_F32;
}

/* Returns the bytes of one head's key and value. */
static uint64_t pair_bytes(const struct mla_shape *s, enum kv_type type)
{
    return (uint64_t)kv_row_bytes(type, key_dim(s)) + kv_row_bytes(type, s->v_dim);
}

static struct attention_shape attention_of(const struct mla_shape *s, enum kv_type type)
{
    return (struct attention_shape){.n_heads = s->n_heads,
                                    .n_kv_heads = s->n_heads,
                                    .key_dim = key_dim(s),
                                    .value_dim = s->v_dim,
                                    .flat = true,
                                    .scale = s->scale,
                                    .kv_type = type};
}

/* The parts of the scratch memory, each on a 16-byte boundary: all heads' key matrices if they must be
 * transposed, latents of a block of positions, keys and values of n_heads heads, splits of results. */
struct scratch {
    uint64_t matrices, latents, keys, values, partial;
};

static struct scratch lay_out(const struct mla_shape *s, enum kv_type type, uint32_t n_heads, uint32_t n_pos,
                              uint64_t from)
{
    uint64_t rows = (uint64_t)n_pos * n_heads;
    struct scratch at = {.matrices = from};
    uint64_t matrix = s->keys_by_rows ? 0 : (uint64_t)s->nope_dim * s->latent_dim * sizeof(float);
    at.latents = at.matrices + s->n_heads * matrix;
    at.keys = at.latents + size_min(BLOCK, n_pos) * kv_row_bytes(type, s->latent_dim);
    at.values = size_round_up(at.keys + rows * kv_row_bytes(type, key_dim(s)), 16);
    at.partial = size_round_up(at.values + rows * kv_row_bytes(type, s->v_dim), 16);
    return at;
}

/* Returns the number of heads whose keys and values fit; 0: not even one. */
static uint32_t heads_for(const struct mla_shape *s, enum kv_type type, uint64_t room, uint32_t n_pos)
{
    return (uint32_t)size_min(room / (pair_bytes(s, type) * n_pos), s->n_heads);
}

static struct mla_pair_cost cost_for(const struct mla_shape *s, const struct exec_caps *caps)
{
    const struct attention_shape absorbed = {.key_dim = s->latent_dim + s->rope_dim,
                                             .value_dim = s->latent_dim,
                                             .latent = true,
                                             .kv_type = s->kv_type};
    if (!caps->has_coopmat)
        return FLOAT;
    return attention_wide_is_possible(&absorbed, caps) ? F16 : F16_FLOAT;
}

/* Returns the cost of a head's query with one position. */
static struct mla_pair_cost pair_costs(const struct mla_shape *s, struct mla_pair_cost one)
{
    return (struct mla_pair_cost){.absorbed = one.absorbed * (2 * s->latent_dim + s->rope_dim),
                                  .expanded = one.expanded * (key_dim(s) + s->v_dim)};
}

/* Attention needs keys and values of a multiple of 4 channels; the products with latents, and transposed key
 * matrices, need multiples of PRODUCT_COLS. */
static bool fits(const struct mla_shape *s)
{
    return s->v_dim % 4 == 0 && s->latent_dim % PRODUCT_COLS == 0 &&
           s->nope_dim % (s->keys_by_rows ? 4 : PRODUCT_COLS) == 0;
}

/* Returns whether the device takes this form for any chunk. */
static bool is_ever_taken(const struct mla_shape *s, const struct exec_caps *caps)
{
    const struct mla_pair_cost pair = pair_costs(s, cost_for(s, caps));
    if (caps->is_host || s->form == MLA_ABSORBED || !fits(s))
        return false;
    return s->form == MLA_EXPANDED || pair.expanded < pair.absorbed;
}

uint64_t mla_expanded_bytes(const struct mla_shape *s, const struct exec_caps *caps, uint32_t n,
                            uint32_t n_pos)
{
    enum kv_type type = type_for(caps);
    const struct attention_shape attention = attention_of(s, type);
    if (n < FROM || !is_ever_taken(s, caps))
        return 0;
    /* The more positions, the fewer heads are computed at a time, so any number of positions may take all the
     * room. */
    uint64_t pairs = size_min((uint64_t)n_pos * s->n_heads, ROOM / pair_bytes(s, type));
    const struct scratch at = lay_out(s, type, 0, n_pos, 0);
    return at.partial + pairs * pair_bytes(s, type) + 2 * (uint64_t)16 +
           attention_partial_bytes(&attention, caps, n, n_pos);
}

/* Opens what transposes the key matrices into scratch memory and multiplies with them. */
static int open_transposed(struct mla_expanded *op, struct exec *x, const struct mla_shape *s,
                           uint64_t scratch, uint32_t group, struct moeflux_err *e)
{
    uint32_t transpose[] = {exec_get_caps(x).subgroup_size, group, ALL_FORMATS};
    const struct weights first = {
        .weight = scratch, .rows = s->nope_dim, .cols = s->latent_dim, .format = FORMAT_F32};
    const uint32_t bytes = sizeof(struct mla_transpose_keys_args);
    int rc = exec_kernel_later(x, &op->transpose, "mla_transpose_keys", bytes, transpose, 3, e);
    if (rc == 0)
        rc = exec_kernel_later(x, &op->transpose_extended, "mla_transpose_keys_ext", bytes, transpose, 3, e);
    for (uint32_t i = 0; rc == 0 && i < FORMAT_END - FORMAT_BLOCK_FIRST; i++) {
        transpose[2] = format_constant(format_set(FORMAT_BLOCK_FIRST + i));
        rc = exec_kernel_later(x, &op->transpose_blocks[i], "mla_transpose_keys_blk", bytes, transpose, 3, e);
    }
    return rc < 0 ? rc : linear_open_stack(&op->keys, x, &first, s->n_heads, first.rows, e);
}

int mla_expanded_open(struct mla_expanded *op, struct exec *x, const struct mla_shape *s, uint64_t scratch,
                      struct moeflux_err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    *op = (struct mla_expanded){.from = UINT32_MAX};
    if (!is_ever_taken(s, &caps))
        return 0;
    op->from = FROM;
    op->type = type_for(&caps);
    op->room = ROOM;
    uint32_t group = exec_workgroup(&caps, 256);
    const uint32_t rows[KV_N_SPEC] = {caps.subgroup_size, group, op->type, [KV_SPEC] = s->kv_type};
    const struct attention_shape attention = attention_of(s, op->type);
    int rc = exec_kernel_later(x, &op->rows, "mla_gather_rows", sizeof(struct mla_gather_rows_args), rows,
                               KV_N_SPEC, e);
    if (rc == 0 && !s->keys_by_rows)
        rc = open_transposed(op, x, s, scratch, group, e);
    if (rc == 0)
        rc = attention_open(&op->attention, x, &attention, e);
    struct mla_pair_cost one = cost_for(s, &caps);
    if (op->attention.gpu.f16_rows > ATTENTION_PREFILL_ROWS)
        one.expanded = EXPANDED_IN_FRAGMENTS;
    op->pair = pair_costs(s, one);
    return rc;
}

void mla_expanded_close(struct mla_expanded *op, struct exec *x)
{
    attention_close(&op->attention, x);
    linear_close(&op->keys, x);
}

bool mla_expanded_can(const struct mla_expanded *op, const struct mla_shape *s, const struct mla_call *call)
{
    if (call->n < op->from ||
        (op->type == KV_TYPE_F16 && !linear_takes_f16(&call->matrices->values, call->n)))
        return false;
    return heads_for(s, op->type, op->room, call->pos + call->n) > 0;
}

/* Compares what a head costs in both forms. */
bool mla_expanded_is_faster(const struct mla_expanded *op, const struct mla_shape *s, uint32_t n,
                            uint32_t pos)
{
    double pairs = n * (pos + n / 2.0), matrices = (double)s->latent_dim * (s->nope_dim + s->v_dim);
    double absorbed = n * matrices + pairs * op->pair.absorbed;
    double expanded = (pos + (double)n) * matrices + pairs * op->pair.expanded;
    return expanded < absorbed;
}

/* The heads that are computed at a time: n_heads from `first` on. */
struct some_heads {
    struct scratch at;
    uint64_t partial_bytes; /* size of at.partial */
    uint32_t first, n_heads, n_pos;
};

static void run_transpose(const struct mla_expanded *op, struct exec *x, const struct mla_shape *s,
                          const struct mla_call *call, const struct some_heads *p)
{
    const struct weights *w = &call->matrices->stored; /* the keys' operation has loaded its code books */
    bool is_basic = format_is_basic(w->format);
    const struct mla_transpose_keys_args a = {.weight = w->weight,
                                              .scales = code_books_or_scales(x, w->format, w->scales),
                                              .biases = w->biases,
                                              .dst = p->at.matrices,
                                              .format = is_basic ? w->format
                                                                 : format_constant(format_set(w->format)),
                                              .latent_dim = s->latent_dim,
                                              .nope_dim = s->nope_dim,
                                              .first_head = p->first};
    const struct kernel *k = is_basic ? &op->transpose
                             : format_is_block(w->format)
                                 ? &op->transpose_blocks[w->format - FORMAT_BLOCK_FIRST]
                                 : &op->transpose_extended;
    exec_dispatch(x, k, &a, s->latent_dim / MLA_TRANSPOSE_TILE, s->nope_dim / PRODUCT_COLS, p->n_heads);
}

/* Makes keys and values of positions [pos, pos + n). */
static void run_block(const struct mla_expanded *op, struct exec *x, const struct mla_shape *s,
                      const struct mla_call *call, const struct some_heads *p, uint32_t pos, uint32_t n)
{
    uint64_t rows = (uint64_t)pos * p->n_heads;
    const struct mla_gather_rows_args a = {.blocks = call->blocks,
                                           .latent = p->at.latents,
                                           .keys = p->at.keys + rows * kv_row_bytes(op->type, key_dim(s)),
                                           .pos = pos,
                                           .n_heads = p->n_heads,
                                           .nope_dim = s->nope_dim,
                                           .rope_dim = s->rope_dim,
                                           .latent_dim = s->latent_dim,
                                           .layer_off = call->layer_off};
    struct linear_call product = {.x = p->at.latents,
                                  .y = a.keys,
                                  .x_stride = s->latent_dim,
                                  .y_stride = p->n_heads * key_dim(s),
                                  .y_step = key_dim(s),
                                  .n = n,
                                  .n_stacked = p->n_heads,
                                  .chunk = p->n_pos,
                                  .is_f16 = op->type == KV_TYPE_F16};
    if (pos == 0 && !s->keys_by_rows) /* the transposed matrices lie elsewhere */
        exec_concurrent(x);
    exec_dispatch(x, &op->rows, &a, n, 1, 1);
    product.first_stacked = s->keys_by_rows ? p->first : 0;
    linear_run(s->keys_by_rows ? &call->matrices->keys : &op->keys, x, &product);
    product.y = p->at.values + rows * kv_row_bytes(op->type, s->v_dim);
    product.y_stride = p->n_heads * s->v_dim;
    product.y_step = s->v_dim;
    product.first_stacked = p->first;
    exec_concurrent(x); /* other rows from the same latents */
    linear_run(&call->matrices->values, x, &product);
}

static void run_attention(const struct mla_expanded *op, struct exec *x, const struct mla_shape *s,
                          const struct mla_call *call, const struct some_heads *p)
{
    uint64_t q = (uint64_t)p->first * key_dim(s), dst = (uint64_t)p->first * s->v_dim;
    attention_run(&op->attention, x,
                  &(struct attention_call){.q = call->q + q * sizeof(float),
                                           .keys = p->at.keys,
                                           .values = p->at.values,
                                           .partial = p->at.partial,
                                           .partial_bytes = p->partial_bytes,
                                           .dst = call->dst + dst * sizeof(float),
                                           .n = call->n,
                                           .pos = call->pos,
                                           .q_stride = call->q_stride,
                                           .dst_stride = s->n_heads * s->v_dim,
                                           .n_heads = p->n_heads,
                                           .n_kv_heads = p->n_heads,
                                           .use_f16 = call->use_f16});
}

void mla_expanded_run(const struct mla_expanded *op, struct exec *x, const struct mla_shape *s,
                      const struct mla_call *call, const struct exec_buffer *scratch)
{
    uint32_t n_pos = call->pos + call->n, n_heads = heads_for(s, op->type, op->room, n_pos);
    const struct scratch at = lay_out(s, op->type, n_heads, n_pos, scratch->address);
    if (!exec_has_scratch(x, "latent attention", at.partial - scratch->address, scratch->bytes))
        return;
    for (uint32_t first = 0; first < s->n_heads; first += n_heads) {
        const struct some_heads p = {.at = at,
                                     .partial_bytes = mla_room_from(scratch, at.partial),
                                     .first = first,
                                     .n_heads = (uint32_t)size_min(n_heads, s->n_heads - first),
                                     .n_pos = n_pos};
        if (!s->keys_by_rows)
            run_transpose(op, x, s, call, &p);
        for (uint32_t pos = 0; pos < n_pos; pos += BLOCK)
            run_block(op, x, s, call, &p, pos, (uint32_t)size_min(BLOCK, n_pos - pos));
        run_attention(op, x, s, call, &p);
    }
}
