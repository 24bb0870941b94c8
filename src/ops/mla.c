#include "ops/mla.h"

#include <math.h>
#include <stdlib.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "ops/matvec.h"

/* Tokens at once: enough to fill a device. 256 of 128 heads take 140 MB. */
enum { SLICE_CPU = 32, SLICE_GPU = 256 };

static void ref_turn(const struct mla_prep_args *a, uint32_t t, const float *src, float *dst)
{
    uint32_t half = a->rope_dim / 2;
    const float *turn = ref_floats(a->rope) + (uint64_t)t * a->rope_dim; /* cosine, sine of each pair */
    for (uint32_t i = 0; i < half; i++) {
        uint32_t x = a->interleaved ? 2 * i : i, y = a->interleaved ? 2 * i + 1 : i + half;
        double co = (double)turn[2 * (uint64_t)i], si = (double)turn[2 * (uint64_t)i + 1];
        double u = (double)src[x], v = (double)src[y];
        dst[x] = (float)(u * co - v * si);
        dst[y] = (float)(v * co + u * si);
    }
}

static void prep_ref(const void *args)
{
    const struct mla_prep_args *a = args;
    uint32_t row = a->latent_dim + a->rope_dim, head = a->nope_dim + a->rope_dim;
    const struct ref_cache cache = {a->blocks, a->layer_off, 1, row, a->kv_type};
    double *latent = calloc(a->latent_dim, sizeof *latent);
    float *to = calloc(row, sizeof *to);
    for (uint32_t t = 0; latent && to && t < a->n; t++) {
        const float *kv = ref_floats(a->kv) + (uint64_t)t * a->kv_stride + a->kv_at;
        matvec_ref_norm(kv, ref_floats(a->norm), a->latent_dim, (double)a->eps, latent);
        for (uint32_t c = 0; c < a->latent_dim; c++)
            to[c] = (float)latent[c];
        ref_turn(a, t, kv + a->latent_dim, to + a->latent_dim);
        ref_cache_put(&cache, ref_cache_row(&cache, a->pos + t, 0, 0), to);
        for (uint32_t h = 0; h < a->n_heads; h++) {
            const float *from = ref_floats(a->q) + (uint64_t)t * a->q_stride + (uint64_t)h * head;
            float *turned =
                ref_floats_mut(a->q_out) + (uint64_t)t * a->out_stride + (uint64_t)h * a->out_step;
            ref_turn(a, t, from + a->nope_dim, turned + a->out_at);
        }
    }
    free(latent);
    free(to);
}

static struct scores_shape scores_of(const struct mla_shape *s)
{
    return (struct scores_shape){.n_heads = s->n_heads,
                                 .n_kv_heads = 1,
                                 .key_dim = s->latent_dim + s->rope_dim,
                                 .value_dim = s->latent_dim,
                                 .latent = true,
                                 .scale = s->scale,
                                 .kv_type = s->kv_type};
}

static uint32_t slice_for(const struct exec_caps *caps)
{
    return caps->is_cpu ? SLICE_CPU : SLICE_GPU;
}

int mla_open(struct mla *op, struct exec *x, const struct mla_shape *s, uint64_t scratch, struct err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    const struct scores_shape scores = scores_of(s);
    *op = (struct mla){.shape = *s, .scratch = scratch, .slice = slice_for(&caps)};
    if (s->latent_dim % 4 || s->rope_dim % 4 || s->rope_dim == 0 || s->nope_dim == 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "latent attention: rotary keys of %u channels and latents of %u, expected multiples "
                       "of 4",
                       s->rope_dim, s->latent_dim);
    uint32_t group = caps.is_cpu ? caps.subgroup_size : (uint32_t)size_min(256, caps.max_workgroup);
    op->prep_group = (uint32_t)size_max(group - group % caps.subgroup_size, caps.subgroup_size);
    const uint32_t prep[KV_N_SPEC] = {caps.subgroup_size, op->prep_group, [KV_SPEC] = s->kv_type};
    int rc =
        exec_kernel(x, &op->prep, "mla_prep", prep_ref, sizeof(struct mla_prep_args), prep, KV_N_SPEC, e);
    if (rc == 0)
        rc = scores_open(&op->scores, x, &scores, e);
    return rc < 0 ? rc : mla_expanded_open(&op->expanded, x, s, scratch, e);
}

void mla_close(struct mla *op, struct exec *x)
{
    mla_expanded_close(&op->expanded, x);
}

/* Per head the keys of kv_b_proj, then its values. */
static int open_by_rows(struct mla_matrices *m, struct exec *x, const struct mla_shape *s,
                        const struct weights *w, struct err *e)
{
    const struct weights keys = weights_rows(w, 0, s->nope_dim),
                         values = weights_rows(w, s->nope_dim, s->v_dim);
    uint32_t step = s->nope_dim + s->v_dim;
    m->stored = keys;
    int rc = linear_open_stack(&m->keys, x, &keys, s->n_heads, step, e);
    if (rc == 0)
        rc = linear_turned_open(&m->turned, x, &keys, s->n_heads, step, e);
    return rc < 0 ? rc : linear_open_stack(&m->values, x, &values, s->n_heads, step, e);
}

int mla_matrices_open(struct mla_matrices *m, struct exec *x, const struct mla_shape *s,
                      const struct weights w[2], struct err *e)
{
    *m = (struct mla_matrices){0};
    if (s->keys_by_rows)
        return open_by_rows(m, x, s, &w[0], e);
    const struct weights embed = weights_rows(&w[0], 0, s->latent_dim),
                         unembed = weights_rows(&w[1], 0, s->v_dim);
    m->stored = embed;
    int rc = linear_open_stack(&m->keys, x, &embed, s->n_heads, embed.rows, e);
    return rc < 0 ? rc : linear_open_stack(&m->values, x, &unembed, s->n_heads, unembed.rows, e);
}

void mla_matrices_close(struct mla_matrices *m, struct exec *x)
{
    linear_close(&m->keys, x);
    linear_close(&m->values, x);
}

/* The scratch memory's parts for a slice of n tokens, each on a 16-byte boundary: the queries as the cache's rows meet
 * them, what they find there, parts of it, inputs of the products in float16. */
struct scratch {
    uint64_t q, ctx, half, partial;
};

static struct scratch lay_out(const struct mla_shape *s, uint64_t from, uint32_t n)
{
    struct scratch at = {.q = from};
    at.ctx = at.q + (uint64_t)n * s->n_heads * (s->latent_dim + s->rope_dim) * sizeof(float);
    at.half = at.ctx + (uint64_t)n * s->n_heads * s->latent_dim * sizeof(float);
    at.partial = at.half + (uint64_t)n * s->n_heads * size_max(s->latent_dim, s->nope_dim + s->rope_dim) *
                               sizeof(uint16_t);
    return at;
}

uint64_t mla_scratch_bytes(const struct mla_shape *s, const struct exec_caps *caps, uint32_t n,
                           uint32_t n_pos)
{
    const struct scores_shape scores = scores_of(s);
    uint32_t slice = (uint32_t)size_min(n, slice_for(caps));
    uint64_t absorbed = lay_out(s, 0, slice).partial + scores_partial_bytes(&scores, caps, slice, n_pos);
    return size_max(absorbed, mla_expanded_bytes(s, caps, n, n_pos));
}

/* Where the queries' rotary channels go. */
struct turned {
    uint64_t q;
    uint32_t stride, step, at;
};

static void run_prep(const struct mla *op, struct exec *x, const struct mla_call *call, struct turned to)
{
    const struct mla_shape *s = &op->shape;
    const struct mla_prep_args a = {.q = call->q,
                                    .kv = call->kv,
                                    .norm = call->norm,
                                    .rope = call->rope,
                                    .q_out = to.q,
                                    .out_stride = to.stride,
                                    .out_step = to.step,
                                    .out_at = to.at,
                                    .blocks = call->blocks,
                                    .n = call->n,
                                    .pos = call->pos,
                                    .q_stride = call->q_stride,
                                    .kv_stride = call->kv_stride,
                                    .kv_at = call->kv_at,
                                    .n_heads = s->n_heads,
                                    .nope_dim = s->nope_dim,
                                    .rope_dim = s->rope_dim,
                                    .latent_dim = s->latent_dim,
                                    .layer_off = call->layer_off,
                                    .interleaved = s->interleaved,
                                    .eps = s->eps,
                                    .kv_type = s->kv_type};
    exec_run(x, &op->prep, &a, 1 + div_up(s->n_heads * s->rope_dim / 2, op->prep_group), call->n, 1);
}

/* The queries as they meet the latents. */
static void run_embed(const struct mla *op, struct exec *x, const struct mla_call *call, uint32_t chunk,
                      uint64_t dst, uint64_t half)
{
    const struct mla_shape *s = &op->shape;
    uint32_t head = s->nope_dim + s->rope_dim, row = s->latent_dim + s->rope_dim;
    if (s->keys_by_rows)
        linear_turned_run(&call->matrices->turned, x,
                          &(struct linear_turned_call){.x = call->q,
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
                                         .half = half});
}

/* call: a slice of a chunk of `chunk` tokens. */
static void run_slice(const struct mla *op, struct exec *x, const struct mla_call *call, uint32_t chunk)
{
    const struct mla_shape *s = &op->shape;
    const struct scratch at = lay_out(s, op->scratch, call->n);
    uint32_t row = s->latent_dim + s->rope_dim;
    uint64_t half = call->half ? at.half : 0;
    run_embed(op, x, call, chunk, at.q, half);
    exec_beside(x); /* other channels of the same rows */
    run_prep(op, x, call, (struct turned){at.q, s->n_heads * row, row, s->latent_dim});
    scores_run(&op->scores, x,
               &(struct scores_call){.q = at.q,
                                     .blocks = call->blocks,
                                     .partial = at.partial,
                                     .dst = at.ctx,
                                     .n = call->n,
                                     .pos = call->pos,
                                     .q_stride = s->n_heads * row,
                                     .dst_stride = s->n_heads * s->latent_dim,
                                     .n_heads = s->n_heads,
                                     .n_kv_heads = 1,
                                     .layer_off = call->layer_off});
    linear_run(&call->matrices->values, x,
               &(struct linear_call){.x = at.ctx,
                                     .y = call->dst,
                                     .x_stride = s->n_heads * s->latent_dim,
                                     .y_stride = s->n_heads * s->v_dim,
                                     .x_step = s->latent_dim,
                                     .y_step = s->v_dim,
                                     .n = call->n,
                                     .chunk = chunk,
                                     .half = half});
}

static bool is_expanded(const struct mla *op, const struct mla_call *call)
{
    const struct mla_shape *s = &op->shape;
    if (s->form == MLA_ABSORBED || !mla_expanded_can(&op->expanded, s, call))
        return false;
    return s->form == MLA_EXPANDED || mla_expanded_is_faster(&op->expanded, s, call->n, call->pos);
}

void mla_run(const struct mla *op, struct exec *x, const struct mla_call *call)
{
    const struct mla_shape *s = &op->shape;
    if (is_expanded(op, call)) {
        run_prep(op, x, call,
                 (struct turned){call->q, call->q_stride, s->nope_dim + s->rope_dim, s->nope_dim});
        mla_expanded_run(&op->expanded, x, s, call, op->scratch);
        return;
    }
    for (uint32_t from = 0; from < call->n; from += op->slice) {
        struct mla_call slice = *call;
        slice.q += (uint64_t)from * call->q_stride * sizeof(float);
        slice.kv += (uint64_t)from * call->kv_stride * sizeof(float);
        slice.rope += (uint64_t)from * s->rope_dim * sizeof(float);
        slice.dst += (uint64_t)from * s->n_heads * s->v_dim * sizeof(float);
        slice.n = (uint32_t)size_min(op->slice, call->n - from);
        slice.pos += from;
        run_slice(op, x, &slice, call->n);
    }
}
