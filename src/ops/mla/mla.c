#include "ops/mla/mla.h"

#include "base/err.h"
#include "base/mem.h"

static const struct op prepare_op = {.name = "mla_prepare",
                                     .vulkan = mla_prepare_vulkan,
                                     .cpu = mla_prepare_cpu,
                                     .reference = mla_prepare_ref};

/* Tokens at once: enough to fill a device. 256 tokens of 128 heads take 140 MB of scratch. */
enum { SLICE_HOST = 32, SLICE_GPU = 256 };

static struct attention_shape attention_of(const struct mla_shape *s)
{
    return (struct attention_shape){.n_heads = s->n_heads,
                                    .n_kv_heads = 1,
                                    .key_dim = s->latent_dim + s->rope_dim,
                                    .value_dim = s->latent_dim,
                                    .latent = true,
                                    .scale = s->scale,
                                    .kv_type = s->kv_type,
                                    .choice = s->choice};
}

static uint32_t slice_for(const struct exec_caps *caps)
{
    return caps->is_host ? SLICE_HOST : SLICE_GPU;
}

int mla_open(struct mla *op, struct exec *x, const struct mla_shape *s, const struct exec_buffer *scratch,
             struct moeflux_err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    const struct attention_shape attention = attention_of(s);
    *op = (struct mla){.shape = *s, .scratch = *scratch, .slice = slice_for(&caps)};
    if (s->latent_dim % 4 || s->rope_dim % 4 || s->nope_dim == 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "latent attention: rotary keys of %u channels and latents of %u, expected multiples "
                       "of 4",
                       s->rope_dim, s->latent_dim);
    int rc = caps.is_host ? 0 : mla_vulkan_open(op, x, e);
    if (rc == 0)
        rc = attention_open(&op->attention, x, &attention, e);
    return rc < 0 ? rc : mla_expanded_open(&op->expanded, x, s, scratch->address, e);
}

void mla_close(struct mla *op, struct exec *x)
{
    attention_close(&op->attention, x);
    mla_expanded_close(&op->expanded, x);
}

static int open_values(struct mla_matrices *m, struct exec *x, const struct mla_shape *s,
                       const struct weights *values, uint32_t step, struct moeflux_err *e)
{
    int rc = linear_open_stack(&m->values, x, values, s->n_heads, step, e);
    return rc < 0 || exec_get_caps(x).is_host ? rc : mla_joined_open(&m->joined, x, s, values, step, e);
}

/* kv_b_proj holds each head's keys, then its values. */
static int open_by_rows(struct mla_matrices *m, struct exec *x, const struct mla_shape *s,
                        const struct weights *w, struct moeflux_err *e)
{
    const struct weights keys = weights_rows(w, 0, s->nope_dim),
                         values = weights_rows(w, s->nope_dim, s->v_dim);
    uint32_t step = s->nope_dim + s->v_dim;
    m->stored = keys;
    int rc = linear_open_stack(&m->keys, x, &keys, s->n_heads, step, e);
    if (rc == 0)
        rc = matvec_transposed_open(&m->transposed, x, &keys, s->n_heads, step, e);
    return rc < 0 ? rc : open_values(m, x, s, &values, step, e);
}

int mla_matrices_open(struct mla_matrices *m, struct exec *x, const struct mla_shape *s,
                      const struct weights w[2], struct moeflux_err *e)
{
    *m = (struct mla_matrices){0};
    if (s->keys_by_rows)
        return open_by_rows(m, x, s, &w[0], e);
    const struct weights embed = weights_rows(&w[0], 0, s->latent_dim),
                         unembed = weights_rows(&w[1], 0, s->v_dim);
    m->stored = embed;
    int rc = linear_open_stack(&m->keys, x, &embed, s->n_heads, embed.rows, e);
    return rc < 0 ? rc : open_values(m, x, s, &unembed, unembed.rows, e);
}

void mla_matrices_close(struct mla_matrices *m, struct exec *x)
{
    linear_close(&m->keys, x);
    linear_close(&m->values, x);
}

/* The parts of the scratch memory for a slice of n tokens, each on a 16-byte boundary: the absorbed queries,
 * attention's result, the products' float16 inputs, attention's splits. */
struct scratch {
    uint64_t q, ctx, f16, partial;
};

static struct scratch lay_out(const struct mla_shape *s, uint64_t from, uint32_t n)
{
    struct scratch at = {.q = from};
    at.ctx = at.q + (uint64_t)n * s->n_heads * (s->latent_dim + s->rope_dim) * sizeof(float);
    at.f16 = at.ctx + (uint64_t)n * s->n_heads * s->latent_dim * sizeof(float);
    at.partial =
        at.f16 + size_round_up((uint64_t)n * s->n_heads * size_max(s->latent_dim, s->nope_dim + s->rope_dim) *
                                   sizeof(uint16_t),
                               16);
    return at;
}

uint64_t mla_scratch_bytes(const struct mla_shape *s, const struct exec_caps *caps, uint32_t n,
                           uint32_t n_pos)
{
    const struct attention_shape attention = attention_of(s);
    uint32_t slice = (uint32_t)size_min(n, slice_for(caps));
    uint64_t absorbed =
        lay_out(s, 0, slice).partial + attention_partial_bytes(&attention, caps, slice, n_pos);
    return size_max(absorbed, mla_expanded_bytes(s, caps, n, n_pos));
}

/* Turns the queries into the form that meets the latents. */
static void run_embed(const struct mla *op, struct exec *x, const struct mla_call *call, uint32_t chunk,
                      uint64_t dst, uint64_t f16_scratch)
{
    const struct mla_shape *s = &op->shape;
    uint32_t head = s->nope_dim + s->rope_dim, row = s->latent_dim + s->rope_dim;
    if (s->keys_by_rows)
        matvec_transposed_run(&call->matrices->transposed, x,
                              &(struct matvec_transposed_call){.x = call->q,
                                                               .y = dst,
                                                               .x_stride = call->q_stride,
                                                               .y_stride = s->n_heads * row,
                                                               .x_step = head,
                                                               .y_step = row,
                                                               .n = call->n});
    else
        linear_run(&call->matrices->keys, x,
                   &(struct linear_call){.x = call->q,
                                         .y = dst,
                                         .x_stride = call->q_stride,
                                         .y_stride = s->n_heads * row,
                                         .x_step = head,
                                         .y_step = row,
                                         .n = call->n,
                                         .chunk = chunk,
                                         .f16_scratch = f16_scratch});
}

static void run_values(const struct mla *op, struct exec *x, const struct mla_call *call, uint32_t chunk,
                       uint64_t ctx, uint64_t f16_scratch)
{
    const struct mla_shape *s = &op->shape;
    linear_run(&call->matrices->values, x,
               &(struct linear_call){.x = ctx,
                                     .y = call->dst,
                                     .x_stride = s->n_heads * s->latent_dim,
                                     .y_stride = s->n_heads * s->v_dim,
                                     .x_step = s->latent_dim,
                                     .y_step = s->v_dim,
                                     .n = call->n,
                                     .chunk = chunk,
                                     .f16_scratch = f16_scratch});
}

/* call: a slice of a chunk of `chunk` tokens. */
static void run_slice(const struct mla *op, struct exec *x, const struct mla_call *call, uint32_t chunk)
{
    const struct mla_shape *s = &op->shape;
    const struct mla_joined *joined = &call->matrices->joined;
    const struct scratch at = lay_out(s, op->scratch.address, call->n);
    uint32_t row = s->latent_dim + s->rope_dim;
    uint64_t f16_scratch = call->use_f16 ? at.f16 : 0;
    struct attention_call attend = {.q = at.q,
                                    .blocks = call->blocks,
                                    .partial = at.partial,
                                    .partial_bytes = mla_room_from(&op->scratch, at.partial),
                                    .dst = at.ctx,
                                    .chosen = call->chosen,
                                    .n = call->n,
                                    .pos = call->pos,
                                    .q_stride = s->n_heads * row,
                                    .dst_stride = s->n_heads * s->latent_dim,
                                    .n_heads = s->n_heads,
                                    .n_kv_heads = 1,
                                    .layer_off = call->layer_off,
                                    .use_f16 = call->use_f16};
    struct attention_parts parts = {0};
    if (chunk == 1 && joined->kernel.args_bytes > 0)
        parts = attention_parts_of(&op->attention, &attend);
    attend.leaves_parts = parts.n_splits > 0;
    run_embed(op, x, call, chunk, at.q, f16_scratch);
    exec_concurrent(x); /* it writes other channels of the same rows */
    exec_op(x, &prepare_op, op, &(struct mla_prepare_call){call, at.q, s->n_heads * row, row, s->latent_dim});
    attention_run(&op->attention, x, &attend);
    if (attend.leaves_parts)
        mla_joined_run(joined, x, s->n_heads, at.partial, &parts, call->dst);
    else
        run_values(op, x, call, chunk, at.ctx, f16_scratch);
}

static bool is_expanded(const struct mla *op, const struct mla_call *call)
{
    const struct mla_shape *s = &op->shape;
    bool has_lists = call->pos >= kv_choice_from(&s->choice);
    if (s->form == MLA_ABSORBED || has_lists || !mla_expanded_can(&op->expanded, s, call))
        return false;
    return s->form == MLA_EXPANDED || mla_expanded_is_faster(&op->expanded, s, call->n, call->pos);
}

/* Returns the call for n tokens from the first-th on. */
static struct mla_call part_of(const struct mla_shape *s, const struct mla_call *call, uint32_t first,
                               uint32_t n)
{
    struct mla_call part = *call;
    part.q += (uint64_t)first * call->q_stride * sizeof(float);
    part.kv += (uint64_t)first * call->kv_stride * sizeof(float);
    part.rope += (uint64_t)first * s->rope_dim * sizeof(float);
    part.dst += (uint64_t)first * s->n_heads * s->v_dim * sizeof(float);
    if (s->choice.ratio)
        part.chosen += (uint64_t)first * (s->choice.budget + 1) * sizeof(uint32_t);
    part.n = n;
    part.pos += first;
    return part;
}

/* Runs tokens of which all or none have lists; only the latter may take the expanded form. */
static void run_alike(const struct mla *op, struct exec *x, const struct mla_call *call)
{
    const struct mla_shape *s = &op->shape;
    if (is_expanded(op, call)) {
        exec_op(x, &prepare_op, op,
                &(struct mla_prepare_call){call, call->q, call->q_stride, s->nope_dim + s->rope_dim,
                                           s->nope_dim});
        mla_expanded_run(&op->expanded, x, s, call, &op->scratch);
        return;
    }
    for (uint32_t from = 0; from < call->n; from += op->slice) {
        const struct mla_call slice = part_of(s, call, from, (uint32_t)size_min(op->slice, call->n - from));
        run_slice(op, x, &slice, call->n);
    }
}

void mla_run(const struct mla *op, struct exec *x, const struct mla_call *call)
{
    const struct mla_shape *s = &op->shape;
    uint32_t from = kv_choice_from(&s->choice), n = from > call->pos ? from - call->pos : 0;
    if (n == 0 || n >= call->n) {
        run_alike(op, x, call);
        return;
    }
    const struct mla_call whole = part_of(s, call, 0, n), chosen = part_of(s, call, n, call->n - n);
    run_alike(op, x, &whole);
    run_alike(op, x, &chosen);
}
